"""Enqueueing: what is stored, in which colour, on which connection."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from prinia import (
    AppAWithin,
    AppWithin,
    AWithin,
    ColourError,
    ConnectionKindError,
    ConnectionUnusable,
    DuplicateJob,
    InvalidArguments,
    JobState,
    NewJob,
    Prinia,
    SyncTask,
    Within,
)
from prinia.handle import Jobs
from prinia.job import Answers, Pushed
from prinia.storage.memory import MemoryStorage


@pytest.fixture
def app() -> Prinia:
    return Prinia(storage=MemoryStorage())


@pytest.fixture
def send(app: Prinia) -> SyncTask[[int], int]:
    @app.task(name="send", queue="email")
    def send(order: int) -> int:
        return order

    return send


def test_an_enqueued_job_is_stored(app: Prinia, send: SyncTask[[int], int]) -> None:
    job = send.options(priority=5, tags=["a"], meta={"who": "me"}).enqueue(9)
    record = job.info()
    assert (record.id, record.task, record.queue, record.priority) == (job.id, "send", "email", 5)
    assert (record.args, record.tags, record.meta) == (b'{"order":9}', ("a",), {"who": "me"})
    assert record.state is JobState.READY
    assert app.get_job(job.id).info() == record
    assert send.get_job(job.id) == job


def test_a_taken_unique_key_gives_the_holder(send: SyncTask[[int], int]) -> None:
    keyed = send.options(unique="order:9")
    first, second = keyed.enqueue(9), keyed.enqueue(10)
    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    assert repr(second) == f"<Job {first.id} (was there)>"
    with pytest.raises(DuplicateJob) as caught:
        keyed.options(on_conflict="raise").enqueue(9)
    assert caught.value.job_id == first.id


async def test_blocking_calls_in_a_running_loop_store_nothing(app: Prinia, send: SyncTask[[int], int]) -> None:
    with pytest.raises(ColourError, match=r"enqueue\(\) would block the running event loop.*await task.aenqueue"):
        send.enqueue(1)
    with pytest.raises(ColourError, match=r"await app.aenqueue_many"):
        app.enqueue_many([send.job(1)])
    job = await send.aenqueue(1)
    assert job.id == 1
    with pytest.raises(ColourError, match=r"await job.aresult"):
        job.result()
    with pytest.raises(ColourError, match=r"await job.ainfo"):
        job.info()
    assert (await job.ainfo()).id == 1


def test_blocking_calls_are_fine_in_a_thread_of_a_running_loop(send: SyncTask[[int], int]) -> None:
    async def main() -> int:
        return (await asyncio.to_thread(send.enqueue, 1)).id

    assert asyncio.run(main()) == 1


def test_many_jobs_are_stored_in_order(app: Prinia, send: SyncTask[[int], int]) -> None:
    jobs = app.enqueue_many(send.options(priority=n % 3).job(n) for n in range(10))
    assert [job.info().args for job in jobs] == [b'{"order":%d}' % n for n in range(10)]
    assert [job.info().priority for job in jobs] == [n % 3 for n in range(10)]
    assert len(app.enqueue_many([])) == 0


async def test_async_iterables_are_stored_too(app: Prinia, send: SyncTask[[int], int]) -> None:
    async def numbers() -> AsyncIterator[NewJob[int]]:
        for n in range(5):
            yield send.job(n)

    assert len(await app.aenqueue_many(numbers())) == 5
    assert [job.id for job in await app.aenqueue_many([send.job(1)])] == [6]


@pytest.mark.parametrize("bad", [1, None, "job"])
def test_what_is_no_job_stops_all_of_them(app: Prinia, send: SyncTask[[int], int], bad: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"enqueue_many takes jobs made by task\.job\(\.\.\.\), not"):
        app.enqueue_many([send.job(1), bad])
    with pytest.raises(InvalidArguments, match=r"takes an iterable of task\.job\(...\), not "):
        app.enqueue_many(5)  # type: ignore[arg-type]
    assert send.enqueue(2).id <= 2
    assert all(record.args == b'{"order":2}' for record in app.storage.find(range(1, 10)))


def test_a_wrong_argument_midway_stops_all_of_them(app: Prinia, send: SyncTask[[int], int]) -> None:
    def jobs() -> Iterator[NewJob[int]]:
        yield send.job(1)
        yield send.job("2")  # type: ignore[arg-type]

    with pytest.raises(InvalidArguments):
        app.enqueue_many(jobs())
    assert app.storage.find(range(1, 10)) == []


def made(pushed: list[Pushed]) -> Jobs[Any]:
    return Jobs(Answers(pushed), waiter=None, read=lambda record: record)  # type: ignore[arg-type]


def test_lazy_jobs_are_a_sequence() -> None:
    one_push = [Pushed(5, xid=9), Pushed(6, xid=9), Pushed(2, False, 9), Pushed(7, xid=9)]
    pushed = [*one_push, Pushed(8), Pushed(3), Pushed(4)]
    jobs = made(pushed)
    assert [(job.id, job.created, job.xid) for job in jobs] == [(one.id, one.created, one.xid) for one in pushed]
    assert len(jobs) == 7
    assert [jobs[index].id for index in (0, -1, 3)] == [5, 4, 7]
    assert [job.id for job in jobs[1:6:2]] == [6, 7, 3]
    assert [job.id for job in jobs[::-1][1:3]] == [3, 8]
    assert [job.id for job in reversed(jobs)] == [4, 3, 8, 7, 2, 6, 5]
    assert len(jobs[20:]) == 0
    assert repr(jobs[1:]) == "<Jobs: 6>"
    with pytest.raises(IndexError):
        jobs[7]


def test_answers_are_a_sequence_of_runs() -> None:
    answers = Answers([Pushed(1), Pushed(2)])
    answers.extend_new([5, 6, 7], xid=9)
    answers.extend_new([8, 9, 12], xid=9)
    answers.extend_new([], xid=9)
    answers.append(Pushed(13, False, 9))
    new = [Pushed(id, xid=9) for id in (5, 6, 7, 8, 9, 12)]
    assert list(answers) == [Pushed(1), Pushed(2), *new, Pushed(13, False, 9)]
    assert list(answers[1:-1:2]) == [Pushed(2), new[1], new[3], new[5]]
    assert answers[-2] == new[5]
    with pytest.raises(IndexError):
        answers[9]


def test_many_lazy_jobs_of_one_push_take_little_memory() -> None:
    pushed = (Pushed(n, xid=1) for n in range(10, 20_010))
    tracemalloc.start()
    jobs: Jobs[Any] = Jobs(Answers(pushed), waiter=None, read=lambda record: record)  # type: ignore[arg-type]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 10_000
    assert (len(jobs), jobs[19_999].id) == (20_000, 20_009)


async def test_the_colour_of_within_is_the_connections(server: str, app: Prinia, send: SyncTask[[int], int]) -> None:
    with psycopg.connect(server) as connection:
        assert type(send.within(connection)) is Within
        assert type(app.within(connection)) is AppWithin
    async with await psycopg.AsyncConnection.connect(server) as aconnection:
        assert type(send.within(aconnection)) is AWithin
        assert type(app.within(aconnection)) is AppAWithin


@pytest.mark.parametrize("thing", ["postgresql://", None, object(), {}])
def test_what_is_no_connection_is_refused(app: Prinia, send: SyncTask[[int], int], thing: Any) -> None:
    for within in (send.within, app.within):
        with pytest.raises(ConnectionKindError, match=r"an open connection or session is needed, .*, not builtins"):
            within(thing)


def test_a_job_that_would_commit_at_once_is_refused_when_strict(server: str) -> None:
    app = Prinia(storage=MemoryStorage(), strict=True)
    send = app.task(name="send")(lambda: None)
    with psycopg.connect(server, autocommit=True) as connection:
        with pytest.raises(ConnectionUnusable, match="that would commit at once"):
            send.within(connection).enqueue()
        with pytest.raises(ConnectionUnusable, match="that would commit at once"):
            app.within(connection).enqueue_many([send.job()])


async def test_a_job_that_would_commit_at_once_is_warned_of_at_the_call(app: Prinia, server: str) -> None:
    send = app.task(name="send")(lambda: None)
    with psycopg.connect(server, autocommit=True) as connection:
        # Memory has no transactions of the caller's, so nothing is stored in the end.
        with pytest.warns(RuntimeWarning, match="at once") as first, pytest.raises(ConnectionKindError):
            send.within(connection).enqueue()
        with pytest.warns(RuntimeWarning, match="at once") as second, pytest.raises(ConnectionKindError):
            app.within(connection).enqueue_many([send.job()])
    async with await psycopg.AsyncConnection.connect(server, autocommit=True) as aconnection:
        with pytest.warns(RuntimeWarning, match="at once") as third:
            send.within(aconnection).aenqueue().close()
        with pytest.warns(RuntimeWarning, match="at once") as fourth:
            app.within(aconnection).aenqueue_many([send.job()]).close()
    assert {warned[0].filename for warned in (first, second, third, fourth)} == {__file__}
