"""Push in the caller's transaction. Skipped for storages that have none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any
from unittest import SkipTest

from prinia.errors import ConnectionKindError
from prinia.job import Pushed, UniqueKey
from prinia.testing.conformance.bells import arm
from prinia.testing.conformance.bench import Bench, ConformanceBase, call, job, promise


class WithinPromises(ConformanceBase):
    """Jobs pushed in a transaction commit and roll back with it."""

    @promise
    async def test_a_connection_of_no_known_kind_is_refused(self, bench: Bench) -> None:
        """Something that is no connection is refused with a text that says what it was, and nothing is stored."""
        await _refused(call(bench.storage.push_within, object(), [job()]))
        await _refused(bench.storage.apush_within(object(), [job()]))
        worker = await bench.worker()
        assert await worker.claimed() == []

    @promise
    async def test_a_committed_push_is_claimed(self, bench: Bench) -> None:
        """Jobs pushed in a transaction can be claimed once it has committed, and not before."""
        worker = await bench.worker()
        async with _within(bench) as connection:
            answers = await call(bench.storage.push_within, connection, [job(), job()])
            assert await worker.claimed() == [], "claimed before the commit"
        assert [claimed.id for claimed in await worker.collect(2)] == [answer.id for answer in answers]

    @promise
    async def test_a_rolled_back_push_leaves_nothing(self, bench: Bench) -> None:
        """Jobs pushed in a transaction that rolls back were never there; their unique keys are free."""
        key = UniqueKey(b"2" * 16, "key")
        answers: list[Pushed] = []
        with suppress(OSError):
            async with _within(bench) as connection:
                answers += await call(bench.storage.push_within, connection, [job(unique=key)])
                raise OSError("the caller changed its mind")
        assert [answer.created for answer in answers] == [True]
        worker = await bench.worker()
        assert await worker.claimed() == []
        assert await bench.storage.afind([answer.id for answer in answers]) == []
        [again] = await bench.storage.apush([job(unique=key)])
        assert again.created

    @promise
    async def test_a_push_in_flight_is_not_slept_through(self, bench: Bench) -> None:
        """A bell armed while a push is uncommitted promises nothing, or rings at the commit."""
        worker = await bench.worker()
        async with _within(bench) as connection:
            [answer] = await call(bench.storage.push_within, connection, [job()])
            armed = await worker.consumer.bell.arm()
            assert await worker.claimed() == []
        if armed:
            assert await worker.consumer.bell.wait(bench.patience), "slept through a commit"
        assert (await worker.one()).id == answer.id

    @promise
    async def test_a_sleeper_is_woken_by_the_commit(self, bench: Bench) -> None:
        """A bell armed before the push rings when the push commits."""
        worker = await bench.worker()
        async with _within(bench) as connection:
            await arm(bench, worker)
            [answer] = await call(bench.storage.push_within, connection, [job()])
        assert await worker.consumer.bell.wait(bench.patience), "slept through a commit"
        assert (await worker.one()).id == answer.id


async def _refused(push: Awaitable[Sequence[Pushed]]) -> None:
    try:
        await push
    except ConnectionKindError as error:
        assert "object" in str(error)
    else:
        raise AssertionError("pushed on something that is no connection")


@asynccontextmanager
async def _within(bench: Bench) -> AsyncIterator[Any]:
    """The suite's transaction, entered and left in threads: it blocks."""
    transaction: AbstractContextManager[Any] | None = bench.transaction()
    if transaction is None:
        raise SkipTest("this storage pushes in no transaction of the caller's")
    connection = await call(transaction.__enter__)
    try:
        yield connection
    except BaseException as error:
        if not await call(transaction.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await call(transaction.__exit__, None, None, None)
