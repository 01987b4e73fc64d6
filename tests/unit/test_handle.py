"""Handles on jobs: waiting for results, and why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from prinia import (
    AttemptError,
    Job,
    JobCancelled,
    JobFailed,
    JobNotCommitted,
    JobNotFound,
    JobRecord,
    JobState,
    MigrationsPending,
    Prinia,
    ResultTimeout,
    StorageUnavailable,
    SyncTask,
)
from prinia.handle import require_completed
from prinia.storage.memory import MemoryStorage
from prinia.storage.protocol import Heard
from prinia.waiting.waiter import Waiter

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RECORD = JobRecord(
    id=7, task="send", queue="q", state=JobState.READY, priority=0, attempt=0, max_attempts=5, crashes=0, args=b"{}",
    codec="json", created_at=NOW, scheduled_at=NOW,
)  # fmt: skip


def changed(**fields: Any) -> JobRecord:
    return dataclasses.replace(RECORD, **fields)


class Time:
    """Time that passes only by sleeping; `at` lets something happen after so many sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        self.at: dict[int, Callable[[], object]] = {}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, event: threading.Event, seconds: float) -> None:
        self.now += seconds
        self.sleeps.append(seconds)
        self.at.get(len(self.sleeps), lambda: None)()


class Deaf:
    """Ears of somebody who hears nothing."""

    listening = False

    def lent(self, heard: Heard, /) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.fixture
def app() -> Prinia:
    return Prinia(storage=MemoryStorage())


@pytest.fixture
def send(app: Prinia) -> SyncTask[[int], int]:
    @app.task(name="send")
    def send(order: int) -> int:
        return order

    return send


def job_on(app: Prinia, time: Time, id: int) -> Job[Any]:
    waiter = Waiter(lambda: app.storage, ears=Deaf(), monotonic=time.monotonic, sleep=time.sleep)
    return Job(id, waiter=waiter, read=lambda record: record.result)


Wait = Callable[[Job[Any], float | None], Any]
BOTH: Sequence[Wait] = (
    lambda job, timeout: job.result(timeout=timeout),
    lambda job, timeout: asyncio.run(job.aresult(timeout=timeout)),
)


def test_waiting_looks_less_and_less_often_until_the_timeout(app: Prinia, send: SyncTask[[int], int]) -> None:
    time = Time()
    job = job_on(app, time, send.enqueue(1).id)
    with pytest.raises(ResultTimeout) as caught:
        job.result(timeout=2)
    assert str(caught.value) == "job 1 (send) is still ready after 2 s of waiting; it goes on"
    assert caught.value.job_id == 1
    assert time.sleeps[:8] == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5])
    assert sum(time.sleeps) == pytest.approx(2)
    assert isinstance(caught.value, TimeoutError)


def test_a_job_that_ends_in_time_is_seen(app: Prinia, send: SyncTask[[int], int]) -> None:
    time, job = Time(), send.enqueue(1)
    time.at[12] = lambda: app.storage.cancel([job.id], by="me")
    with pytest.raises(JobCancelled, match=r"job 1 \(send\) was cancelled: .*me"):
        job_on(app, time, job.id).result()
    assert len(time.sleeps) == 12


@pytest.mark.parametrize("wait", BOTH)
def test_without_time_there_is_one_look(app: Prinia, send: SyncTask[[int], int], wait: Wait) -> None:
    time = Time()
    with pytest.raises(ResultTimeout):
        wait(job_on(app, time, send.enqueue(1).id), 0)
    assert time.sleeps == []


@pytest.mark.parametrize("wait", BOTH)
@pytest.mark.parametrize("timeout", [-1.0, float("nan")])
def test_a_timeout_that_is_no_time_is_refused(
    app: Prinia, send: SyncTask[[int], int], wait: Wait, timeout: float
) -> None:
    with pytest.raises(ValueError, match="must be seconds, 0 or more"):
        wait(job_on(app, Time(), send.enqueue(1).id), timeout)


@pytest.mark.parametrize("wait", BOTH)
@pytest.mark.parametrize("timeout", ["5", True, []])
def test_a_timeout_of_another_type_is_refused(
    app: Prinia, send: SyncTask[[int], int], wait: Wait, timeout: Any
) -> None:
    with pytest.raises(TypeError, match=r"timeout=.* must be seconds \(int or float\), or None"):
        wait(job_on(app, Time(), send.enqueue(1).id), timeout)


@pytest.mark.parametrize("wait", BOTH)
def test_a_job_that_is_not_there_is_not_waited_for(app: Prinia, wait: Wait) -> None:
    with pytest.raises(JobNotFound, match="there is no job 99: its transaction was rolled back or has not committed"):
        wait(job_on(app, Time(), 99), None)


# -- not committed ---------------------------------------------------------------------------------------------------


class Committing(MemoryStorage):
    """Jobs are seen from the moment on that somebody asks for their transaction the given time over."""

    def __init__(self, *answers: bool | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[int] = []

    def find(self, ids: Sequence[int], /) -> list[JobRecord]:
        return super().find(ids) if not self.answers else []

    def in_progress(self, xid: int, id: int, /) -> bool:
        self.asked.append(xid)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ain_progress(self, xid: int, id: int, /) -> bool:
        return self.in_progress(xid, id)


def committing(*answers: bool | Exception) -> tuple[Committing, Job[Any]]:
    storage = Committing(*answers)
    app = Prinia(storage=storage)
    id = app.task(name="send")(lambda: None).enqueue().id
    storage.cancel([id], by="me")
    waiter = Waiter(lambda: storage, sleep=lambda event, seconds: None)
    return storage, Job(id, xid=7, waiter=waiter, read=lambda record: record.result)


@pytest.mark.parametrize(
    "wait", [*BOTH, lambda job, timeout: job.info(), lambda job, timeout: asyncio.run(job.ainfo())]
)
def test_a_job_of_an_open_transaction_is_not_waited_for(wait: Wait) -> None:
    storage, job = committing(True, True)
    with pytest.raises(JobNotCommitted, match=r"job 1 is not committed.*Commit first, then wait"):
        wait(job, None)
    assert storage.asked == [7]


@pytest.mark.parametrize("wait", BOTH)
def test_a_commit_between_two_looks_is_seen(wait: Wait) -> None:
    storage, job = committing(False)
    with pytest.raises(JobCancelled):
        wait(job, None)
    assert storage.asked == [7]


@pytest.mark.parametrize("wait", BOTH)
def test_a_database_that_goes_away_between_two_looks_is_waited_for(wait: Wait) -> None:
    storage, job = committing(StorageUnavailable("away"), StorageUnavailable("away"), False)
    with pytest.raises(JobCancelled):
        wait(job, None)
    assert storage.asked == [7, 7, 7]


@pytest.mark.parametrize("wait", BOTH)
def test_it_is_a_job_that_is_not_found(wait: Wait) -> None:
    storage, job = committing(True)
    with pytest.raises(JobNotFound):
        wait(job, 0)
    assert storage.asked == [7]


# -- many at once, and without a database --------------------------------------------------------------------------


class Asked(MemoryStorage):
    """Counts what is looked for, and fails as it is told; `looked` is set by each look."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)
        self.looks: list[int] = []
        self.looked = asyncio.Event()

    def find(self, ids: Sequence[int], /) -> list[JobRecord]:
        self.looks.append(len(ids))
        self.looked.set()
        if self.failures:
            raise self.failures.pop(0)
        return super().find(ids)


AWAY = StorageUnavailable("no connection to the database: it is away")


def looking() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task.get_name() == "prinia: waiting for results"}


@pytest.fixture
async def nothing_stays() -> AsyncIterator[None]:
    """Whatever a test does, nothing looks on when nobody waits any more."""
    yield
    assert looking() == set()


async def test_many_waiters_share_a_look(nothing_stays: None) -> None:
    app = Prinia(storage=(storage := Asked()))
    send = app.task(name="send")(lambda: None)
    jobs = [send.get_job(pushed.id) for pushed in storage.push([send.job().spec] * 2500)]
    waiting = [asyncio.create_task(job.aresult()) for job in jobs]
    waiting.append(asyncio.create_task(jobs[0].aresult()))
    await storage.looked.wait()
    await asyncio.sleep(0)
    assert storage.looks[:3] == [1000, 1000, 500]
    storage.cancel([job.id for job in jobs], by="me")
    assert {type(answer) for answer in await asyncio.gather(*waiting, return_exceptions=True)} == {JobCancelled}
    assert set(storage.looks) <= {1000, 500}
    assert not app._client.waiter._lookouts


async def test_each_waits_for_as_long_as_it_was_told(nothing_stays: None) -> None:
    app = Prinia(storage=(storage := Asked()))
    send = app.task(name="send")(lambda: None)
    one, other = await send.aenqueue(), await send.aenqueue()
    for_ever = asyncio.create_task(one.aresult())
    with pytest.raises(ResultTimeout, match=r"^job 1 \(send\) is still ready after 0.01 s of waiting; it goes on$"):
        await one.aresult(timeout=0.01)
    with pytest.raises(ResultTimeout, match=r"^job 2 \(send\) is still ready after 0 s"):
        await other.aresult(timeout=0)
    with pytest.raises(JobNotFound):
        await send.get_job(99).aresult()
    assert not for_ever.done()
    storage.cancel([one.id], by="me")
    with pytest.raises(JobCancelled):
        await for_ever


async def test_a_waiter_that_is_cancelled_leaves_the_others(nothing_stays: None) -> None:
    app = Prinia(storage=(storage := Asked()))
    job = await app.task(name="send")(lambda: None).aenqueue()
    gone, stays = asyncio.create_task(job.aresult()), asyncio.create_task(job.aresult())
    await storage.looked.wait()
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    storage.cancel([job.id], by="me")
    with pytest.raises(JobCancelled):
        await stays


async def test_nobody_waits_for_looks_that_were_cancelled() -> None:
    app = Prinia(storage=(storage := Asked()))
    job = await app.task(name="send")(lambda: None).aenqueue()
    waiter = asyncio.create_task(job.aresult())
    await storage.looked.wait()
    [task] = looking()
    task.cancel()
    await asyncio.wait([waiter], timeout=10)
    assert waiter.cancelled()


@pytest.mark.parametrize("wait", BOTH)
def test_an_outage_is_waited_out(wait: Wait) -> None:
    storage = Asked(AWAY, AWAY, AWAY)
    job = Prinia(storage=storage).task(name="send")(lambda: None).enqueue()
    storage.cancel([job.id], by="me")
    with pytest.raises(JobCancelled):
        wait(job, None)
    assert len(storage.looks) == 4


@pytest.mark.parametrize("wait", BOTH)
@pytest.mark.parametrize("timeout", [0, 0.05])
def test_an_outage_longer_than_the_timeout_is_its_cause(wait: Wait, timeout: float) -> None:
    job = Prinia(storage=Asked(*[AWAY] * 1000)).task(name="send")(lambda: None).enqueue()
    with pytest.raises(ResultTimeout, match=r"^job 1: after .* the database did not answer: .* it is away$") as caught:
        wait(job, timeout)
    assert caught.value.__cause__ is AWAY


@pytest.mark.parametrize("wait", BOTH)
def test_what_does_not_pass_by_itself_is_raised(wait: Wait) -> None:
    job = Prinia(storage=Asked(MigrationsPending("run: prinia migrate"))).task(name="send")(lambda: None).enqueue()
    with pytest.raises(MigrationsPending):
        wait(job, None)


def test_how_a_failed_job_is_told() -> None:
    errors = tuple(AttemptError(attempt=n, kind="ValueError", message=f"boom {n}") for n in (1, 2))
    with pytest.raises(JobFailed) as caught:
        require_completed(changed(state=JobState.FAILED, attempt=2, errors=errors))
    assert str(caught.value) == "job 7 (send) failed after 2 attempts; last error: ValueError: boom 2"
    with pytest.raises(JobFailed) as caught:
        require_completed(changed(state=JobState.FAILED, attempt=1, reason="worker lost"))
    assert str(caught.value) == "job 7 (send) failed after 1 attempt (worker lost)"
    with pytest.raises(JobCancelled) as cancelled:
        require_completed(changed(state=JobState.CANCELLED))
    assert str(cancelled.value) == "job 7 (send) was cancelled: no reason was given"
    done = changed(state=JobState.COMPLETED)
    assert require_completed(done) is done


def test_handles_are_equal_when_they_are_on_the_same_job(app: Prinia, send: SyncTask[[int], int]) -> None:
    job = send.enqueue(1)
    assert job == send.get_job(job.id) == app.get_job(job.id)
    assert len({job, app.get_job(job.id)}) == 1
    assert job != send.enqueue(2)
    assert job != Prinia(storage=app.storage).get_job(job.id)
