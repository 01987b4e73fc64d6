"""`app.wait`: many jobs, in both colours, on the storage in memory.

Seen to fail with: results in the order of their ends; a job given twice told once; a window that is never refilled, or
not bounded; a missing job that ends the whole waiting; an iteration that was left and still looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from prinia import (
    ColourError,
    ConfigurationError,
    Finished,
    Job,
    JobCancelled,
    JobNotCommitted,
    JobNotFound,
    JobRecord,
    Prinia,
    ResultTimeout,
    SyncTask,
    Waiting,
)
from prinia.storage.memory import MemoryStorage
from prinia.waiting import asyncwatch
from prinia.waiting import watch as watch_module


class Counted(MemoryStorage):
    """Counts the ids of each look; `looked` is called before it."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[int] = []
        self.looked: Callable[[int], object] = lambda look: None

    def find(self, ids: Sequence[int], /) -> list[JobRecord]:
        self.looks.append(len(ids))
        self.looked(len(self.looks))
        return super().find(ids)


@pytest.fixture
def storage() -> Counted:
    return Counted()


@pytest.fixture
def app(storage: Counted) -> Prinia:
    return Prinia(storage=storage)


@pytest.fixture
def send(app: Prinia) -> SyncTask[[int], int]:
    @app.task(name="send")
    def send(order: int) -> int:
        return order

    return send


@pytest.fixture
async def nothing_stays() -> AsyncIterator[None]:
    """Whatever a test does, nothing looks on or hears when nobody waits any more."""
    yield
    assert {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("prinia")} == set()


async def _collect(waiting: Waiting[Any]) -> list[Finished[Any]]:
    return [done async for done in waiting]


Each = Callable[[Waiting[Any]], list[Finished[Any]]]
BOTH: Sequence[Each] = (list, lambda waiting: asyncio.run(_collect(waiting)))
ALL: Sequence[Each] = (lambda waiting: waiting.all(), lambda waiting: asyncio.run(waiting.aall()))
RESULTS: Sequence[Callable[[Waiting[Any]], list[Any]]] = (
    lambda waiting: waiting.results(),
    lambda waiting: asyncio.run(waiting.aresults()),
)


def cancel(app: Prinia, *jobs: Job[Any]) -> None:
    app.storage.cancel([job.id for job in jobs], by="me")


@pytest.mark.parametrize("each", BOTH)
def test_jobs_come_as_they_end(app: Prinia, storage: Counted, send: SyncTask[[int], int], each: Each) -> None:
    jobs = [send.enqueue(n) for n in range(3)]
    order = [jobs[2], jobs[0], jobs[1]]
    storage.looked = lambda look: cancel(app, *order[look - 2 : look - 1]) if look > 1 else None
    assert [done.job for done in each(app.wait(jobs))] == order


@pytest.mark.parametrize("each", ALL)
def test_all_come_in_their_own_order(app: Prinia, storage: Counted, send: SyncTask[[int], int], each: Each) -> None:
    jobs = [send.enqueue(n) for n in range(3)]
    storage.looked = lambda look: cancel(app, *reversed(jobs[-look:]))
    done = each(app.wait(iter(jobs)))
    assert [one.job for one in done] == jobs
    with pytest.raises(JobCancelled, match="cancelled by me"):
        done[0].result()


@pytest.mark.parametrize("results", RESULTS)
def test_a_job_without_a_result_is_told(
    app: Prinia, send: SyncTask[[int], int], results: Callable[[Waiting[Any]], list[Any]]
) -> None:
    jobs = [send.enqueue(n) for n in range(2)]
    cancel(app, jobs[1])
    with pytest.raises(JobCancelled, match="job 2"):
        results(app.wait(jobs))  # the other one never ends


@pytest.mark.parametrize("results", RESULTS)
def test_nothing_to_wait_for(app: Prinia, results: Callable[[Waiting[Any]], list[Any]]) -> None:
    assert results(app.wait([])) == []
    assert results(app.wait([], timeout=0)) == []


@pytest.mark.parametrize("each", BOTH)
def test_a_job_that_is_not_there_counts_as_ended(app: Prinia, send: SyncTask[[int], int], each: Each) -> None:
    job = send.enqueue(1)
    cancel(app, job)
    done = {one.job.id: one.record for one in each(app.wait([send.get_job(99), job]))}
    assert isinstance(done[99], JobNotFound)
    assert isinstance(done[1], JobRecord)


@pytest.mark.parametrize("each", BOTH)
def test_a_job_given_twice_comes_twice(app: Prinia, send: SyncTask[[int], int], each: Each) -> None:
    job = send.enqueue(1)
    cancel(app, job)
    assert [done.job for done in each(app.wait([job, app.get_job(job.id), job]))] == [job, job, job]


@pytest.mark.parametrize("each", BOTH)
def test_the_timeout_says_what_has_not_ended(app: Prinia, send: SyncTask[[int], int], each: Each) -> None:
    jobs = [send.enqueue(n) for n in range(13)]
    cancel(app, jobs[0])
    with pytest.raises(ResultTimeout) as caught:
        each(app.wait(jobs, timeout=0.01))
    assert str(caught.value) == (
        "12 jobs have not ended after 0.01 s of waiting; they go on: 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ..."
    )


def test_what_ended_comes_before_the_timeout(app: Prinia, send: SyncTask[[int], int]) -> None:
    jobs = [send.enqueue(n) for n in range(2)]
    cancel(app, jobs[1])
    seen: list[Job[int]] = []

    def blocking() -> None:
        for done in app.wait(jobs, timeout=0):
            seen.append(done.job)  # noqa: PERF401

    async def awaiting() -> None:
        async for done in app.wait(jobs, timeout=0):
            seen.append(done.job)  # noqa: PERF401

    for wait in (blocking, lambda: asyncio.run(awaiting())):
        seen.clear()
        with pytest.raises(ResultTimeout, match=r"^job 1 \(send\) is still ready after 0 s of waiting; it goes on$"):
            wait()
        assert seen == [jobs[1]]


@pytest.mark.parametrize("each", BOTH)
def test_of_very_many_a_part_is_awaited_at_once(
    app: Prinia, storage: Counted, send: SyncTask[[int], int], each: Each, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (watch_module, asyncwatch):
        monkeypatch.setattr(module, "WINDOW", 10)
    jobs = [send.enqueue(n) for n in range(95)]
    taken: list[int] = []

    def given() -> Iterator[Job[int]]:
        for job in jobs:
            taken.append(job.id)
            yield job

    storage.looked = lambda look: cancel(app, *jobs[: len(taken)])
    assert sorted(done.job.id for done in each(app.wait(given()))) == [job.id for job in jobs]
    assert max(storage.looks) <= 10


@pytest.mark.parametrize("each", BOTH)
def test_a_job_of_an_open_transaction_is_told_at_once(app: Prinia, each: Each, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.storage, "in_progress", lambda xid, id: True)
    monkeypatch.setattr(app.storage, "ain_progress", _true)
    job: Job[Any] = Job(5, xid=7, waiter=app._client.waiter, read=lambda record: None)
    with pytest.raises(JobNotCommitted, match="job 5 is not committed"):
        each(app.wait([job]))


async def _true(xid: int, id: int) -> bool:
    return True


@pytest.mark.parametrize("each", BOTH)
def test_what_is_no_job_of_this_app_is_refused(app: Prinia, send: SyncTask[[int], int], each: Each) -> None:
    with pytest.raises(ConfigurationError, match="<Job 1> is of another app"):
        each(app.wait([Prinia(storage=app.storage).get_job(send.enqueue(1).id)]))
    with pytest.raises(TypeError, match=r"takes jobs, not 17; of an id, write app.get_job\(id\)"):
        each(app.wait([17]))  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"of one, write job.result\(\), or app.wait\(\[job\]\)"):
        app.wait(app.get_job(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be seconds"):
        app.wait([], timeout=-1)


async def test_blocking_in_a_loop_is_refused(app: Prinia) -> None:
    for block in (list, lambda waiting: waiting.all(), lambda waiting: waiting.results()):
        with pytest.raises(ColourError, match=r"await app.wait\(...\)\.a"):
            block(app.wait([]))


async def test_who_leaves_the_iteration_leaves_nothing_behind(
    app: Prinia, send: SyncTask[[int], int], nothing_stays: None
) -> None:
    jobs = [await send.aenqueue(n) for n in range(3)]
    cancel(app, jobs[1])
    each = app.wait(jobs).__aiter__()
    assert (await anext(each)).job == jobs[1]
    await each.aclose()
    assert not app._client.waiter._lookouts


async def test_waiters_in_one_loop_share_their_looks(
    app: Prinia, storage: Counted, send: SyncTask[[int], int], nothing_stays: None
) -> None:
    jobs = [await send.aenqueue(n) for n in range(50)]
    all_at_once = asyncio.gather(*(_collect(app.wait(jobs[n::5])) for n in range(5)), jobs[0].ainfo())
    storage.looked = lambda look: cancel(app, *jobs) if look == 3 else None
    assert sum(len(done) for done in (await all_at_once)[:5]) == 50  # type: ignore[arg-type, misc]
    assert len(storage.looks) < 10
