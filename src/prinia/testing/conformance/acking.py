"""Ack: what each kind records, and that only the owner's counts."""

from __future__ import annotations

from dataclasses import replace

from prinia.job import JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.protocol import Receipt
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, failure, job, promise


class AckPromises(ConformanceBase):
    """An outcome is recorded once, by the claim that owns the job."""

    @promise
    async def test_complete(self, bench: Bench) -> None:
        """A completed job is found as such: result, attempt, owner and times; it is never claimed again."""
        id = await bench.push_one(tags=("t",), meta={"k": 1})
        worker = await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.COMPLETE, result=b'"ok"'))
        record = await bench.in_state(id, JobState.COMPLETED)
        assert (record.result, record.attempt, record.errors, record.reason) == (b'"ok"', 1, (), None)
        assert (record.owner, record.args, record.tags, record.meta) == (worker.id, b"{}", ("t",), {"k": 1})
        assert record.started_at is not None
        assert record.finished_at is not None
        assert record.created_at <= record.started_at <= record.finished_at
        assert await worker.claimed() == []

    @promise
    async def test_fail(self, bench: Bench) -> None:
        """A failed job is found as such, with its last error and no result, and stays as it is."""
        id = await bench.push_one()
        worker = await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.FAIL, error=failure(1, "no such order")))
        record = await bench.in_state(id, JobState.FAILED)
        [error] = record.errors
        assert (error.attempt, error.kind, error.message) == (1, "ValueError", "no such order")
        assert error.traceback == "Traceback: …"
        assert error.at is not None
        assert (record.attempt, record.result) == (1, None)
        assert record.finished_at is not None
        assert await worker.claimed() == []

    @promise
    async def test_cancel(self, bench: Bench) -> None:
        """A job whose handler cancelled it is found as such, with the reason."""
        id = await bench.push_one()
        worker = await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.CANCEL, reason="order was withdrawn"))
        record = await bench.in_state(id, JobState.CANCELLED)
        assert (record.reason, record.attempt, record.result) == ("order was withdrawn", 1, None)
        assert record.finished_at is not None
        assert await worker.claimed() == []

    @promise
    async def test_uncounted_hands_the_attempt_back(self, bench: Bench) -> None:
        """An uncounted outcome leaves the attempt as it was before the claim, whatever its kind."""
        first, second = await bench.push(job(), job())
        worker = await bench.worker()
        one, two = await worker.collect(2)
        await worker.recorded(
            ack(one, AckKind.CANCEL, reason="expired", uncounted=True), ack(two, AckKind.RETRY, uncounted=True)
        )
        assert (await bench.find(first)).attempt == 0
        assert (await bench.find(second)).attempt == 0
        assert (await worker.one()).attempt == 1

    @promise
    async def test_another_token_is_lost(self, bench: Bench) -> None:
        """An ack with another token than the claim's changes nothing and is reported lost."""
        id = await bench.push_one()
        worker = await bench.worker()
        claimed = await worker.one()
        for kind in AckKind:
            receipt = await worker.ack(ack(replace(claimed, token=claimed.token + 1), kind))
            assert receipt.lost == {id}, kind
            await bench.in_state(id, JobState.RUNNING)
        await bench.finish(claimed, worker)

    @promise
    async def test_another_instance_is_lost(self, bench: Bench) -> None:
        """An ack by another instance than the claim's, with the same token, changes nothing and is lost."""
        id = await bench.push_one()
        worker, other = await bench.worker(), await bench.worker()
        claimed = await worker.one()
        for kind in AckKind:
            assert (await other.ack(ack(claimed, kind))).lost == {id}, kind
            await bench.in_state(id, JobState.RUNNING)
        await bench.finish(claimed, worker)

    @promise
    async def test_an_ack_of_a_job_nobody_claimed_is_lost(self, bench: Bench) -> None:
        """Acks of unknown and of waiting jobs are lost, and create or end nothing."""
        waiting = await bench.push_one()
        worker = await bench.worker()
        unknown = waiting + 1000
        acks = [Ack(id, 1, AckKind.COMPLETE) for id in (waiting, unknown)]
        assert (await worker.ack(*acks)).lost == {waiting, unknown}
        await bench.in_state(waiting, JobState.READY)
        assert await bench.storage.afind([unknown]) == []

    @promise
    async def test_a_flush_with_one_lost_records_the_others(self, bench: Bench) -> None:
        """In a flush of all kinds with a lost ack in its middle all others are recorded."""
        ids = await bench.push(*(job() for _ in range(6)))
        worker = await bench.worker()
        jobs = await worker.collect(6)
        kinds = [AckKind.COMPLETE, AckKind.RETRY, AckKind.COMPLETE, AckKind.FAIL, AckKind.SNOOZE, AckKind.CANCEL]
        acks = [ack(claimed, kind, delay=600) for claimed, kind in zip(jobs, kinds, strict=True)]
        acks[2] = replace(acks[2], token=99)
        assert await worker.ack(*acks) == Receipt(lost=frozenset({ids[2]}))
        assert [record.state for record in await bench.storage.afind(ids)] == [
            JobState.COMPLETED,
            JobState.RETRYING,
            JobState.RUNNING,
            JobState.FAILED,
            JobState.SCHEDULED,
            JobState.CANCELLED,
        ]

    @promise
    async def test_a_flush_of_thousands(self, bench: Bench) -> None:
        """A flush may be of any size."""
        ids = await bench.push(*(job() for _ in range(1200)))
        worker = await bench.worker()
        jobs = await worker.collect(len(ids))
        await worker.recorded(*(ack(claimed, AckKind.COMPLETE, result=b"1") for claimed in jobs))
        records = await bench.storage.afind(ids)
        assert [record.id for record in records] == ids
        assert {(record.state, record.result) for record in records} == {(JobState.COMPLETED, b"1")}

    @promise
    async def test_an_empty_flush(self, bench: Bench) -> None:
        """A flush of nothing is answered with nothing lost."""
        worker = await bench.worker()
        await worker.recorded()
