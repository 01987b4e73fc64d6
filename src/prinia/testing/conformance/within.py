"""Push and complete in the caller's transaction. Skipped for storages that have none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any
from unittest import SkipTest

from prinia.errors import ConnectionKindError
from prinia.job import JobState, Pushed, UniqueKey
from prinia.outcome import AckKind
from prinia.storage.protocol import Receipt
from prinia.testing.conformance.bells import arm
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise


class WithinPromises(ConformanceBase):
    """Jobs pushed, and completed, in a transaction commit and roll back with it."""

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

    @promise
    async def test_a_transaction_is_in_progress_until_it_ends(self, bench: Bench) -> None:
        """Whether the transaction that pushed a job is still open can be asked, committed or rolled back."""
        for error in (None, OSError("the caller changed its mind")):
            answers: list[Pushed] = []
            with suppress(OSError):
                async with _within(bench) as connection:
                    answers += await call(bench.storage.push_within, connection, [job()])
                    xid = answers[0].xid
                    if xid is None:
                        raise SkipTest("this storage does not tell its transactions apart")
                    assert await call(bench.storage.in_progress, xid, answers[0].id)
                    assert await bench.storage.ain_progress(xid, answers[0].id)
                    if error is not None:
                        raise error
            for answer in answers:
                assert not await call(bench.storage.in_progress, answer.xid or 0, answer.id)
                assert not await bench.storage.ain_progress(answer.xid or 0, answer.id)

    @promise
    async def test_a_replacement_is_in_progress_and_a_kept_job_is_not(self, bench: Bench) -> None:
        """A job that an open transaction has replaced is told from one that it has left alone."""
        keys = [UniqueKey(b"3" * 16, "left alone"), UniqueKey(b"4" * 16, "replaced", on_conflict="replace")]
        await bench.storage.apush([job(unique=key) for key in keys])
        async with _within(bench) as connection:
            kept, replaced = await call(bench.storage.push_within, connection, [job(unique=key) for key in keys])
            if replaced.xid is None:
                raise SkipTest("this storage does not tell its transactions apart")
            assert not await call(bench.storage.in_progress, replaced.xid, kept.id)
            assert not await bench.storage.ain_progress(replaced.xid, kept.id)
            assert await call(bench.storage.in_progress, replaced.xid, replaced.id)
            assert await bench.storage.ain_progress(replaced.xid, replaced.id)
        assert not await call(bench.storage.in_progress, replaced.xid, replaced.id)

    @promise
    async def test_a_completion_on_no_known_connection_is_refused(self, bench: Bench) -> None:
        """No job is completed on something that is no connection; the text says what it was."""
        worker = await bench.worker()
        id = await bench.push_one()
        claimed = await worker.one()
        await _refused(call(bench.storage.complete_within, object(), worker.id, id, claimed.token, None))
        await _refused(bench.storage.acomplete_within(object(), worker.id, id, claimed.token, None))
        await bench.in_state(id, JobState.RUNNING)

    @promise
    async def test_a_committed_completion_ends_the_job(self, bench: Bench) -> None:
        """A job completed in a transaction is completed when that commits, and not before.

        A second time changes nothing, and the worker's own ack is recorded: the first result stands.
        """
        worker = await bench.worker()
        id = await bench.push_one()
        claimed = await worker.one()
        fence = (worker.id, id, claimed.token)
        async with _within(bench) as connection:
            assert await call(bench.storage.complete_within, connection, *fence, b"1")
            assert await call(bench.storage.complete_within, connection, *fence, b"2")
            await bench.in_state(id, JobState.RUNNING)
        record = await bench.in_state(id, JobState.COMPLETED)
        assert (record.result, record.owner, record.attempt) == (b"1", worker.id, 1)
        receipt = await worker.ack(ack(claimed, AckKind.COMPLETE, result=b"3"))
        assert receipt == Receipt()
        assert await bench.in_state(id, JobState.COMPLETED) == record

    @promise
    async def test_a_rolled_back_completion_changes_nothing(self, bench: Bench) -> None:
        """A job completed in a transaction that rolls back is still running, and its worker's."""
        worker = await bench.worker()
        id = await bench.push_one()
        claimed = await worker.one()
        with suppress(OSError):
            async with _within(bench) as connection:
                assert await call(bench.storage.complete_within, connection, worker.id, id, claimed.token, b"1")
                raise OSError("the caller changed its mind")
        await bench.in_state(id, JobState.RUNNING)
        await bench.finish(claimed, worker, AckKind.FAIL)
        assert (await bench.in_state(id, JobState.FAILED)).result is None

    @promise
    async def test_a_completion_by_another_claim_changes_nothing(self, bench: Bench) -> None:
        """Only the claim that owns a job completes it: a claim of another instance, or of another token, is told no."""
        worker, other = await bench.worker(), await bench.worker()
        id = await bench.push_one()
        claimed = await worker.one()
        async with _within(bench) as connection:
            complete = bench.storage.complete_within
            assert not await call(complete, connection, other.id, id, claimed.token, None)
            assert not await call(complete, connection, worker.id, id, claimed.token + 1, None)
        await bench.in_state(id, JobState.RUNNING)
        await other.bury(worker)
        async with _within(bench) as connection:
            assert not await call(bench.storage.complete_within, connection, worker.id, id, claimed.token, None)
        await bench.in_state(id, JobState.READY)
        await bench.finish(await other.one(), other)


async def _refused(done: Awaitable[object]) -> None:
    try:
        await done
    except ConnectionKindError as error:
        assert "object" in str(error)
    else:
        raise AssertionError("done on something that is no connection")


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
