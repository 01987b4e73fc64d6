"""Ack again: a reply was lost, and the worker cannot know whether its ack was recorded."""

from __future__ import annotations

from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, failure, job, promise


class ResendPromises(ConformanceBase):
    """An ack sent again is recognised, and changes nothing."""

    @promise
    async def test_a_final_ack_sent_again(self, bench: Bench) -> None:
        """A complete, fail or cancel sent again is neither lost nor busy, and the job stays as it was."""
        worker = await bench.worker()
        for kind in (AckKind.COMPLETE, AckKind.FAIL, AckKind.CANCEL):
            id = await bench.push_one()
            sent = ack(await worker.one(), kind, result=b"1" if kind is AckKind.COMPLETE else None)
            await worker.recorded(sent)
            before = await bench.find(id)
            await worker.recorded(sent)
            await worker.recorded(sent)
            assert await bench.find(id) == before

    @promise
    async def test_a_retry_sent_again(self, bench: Bench) -> None:
        """A retry sent again is neither lost nor busy; its error is in the history once, its due time stays."""
        id = await bench.push_one()
        worker = await bench.worker()
        sent = ack(await worker.one(), AckKind.RETRY, delay=600)
        await worker.recorded(sent)
        before = await bench.in_state(id, JobState.RETRYING)
        await worker.recorded(sent)
        await worker.recorded(sent)
        assert await bench.find(id) == before
        assert (len(before.errors), before.attempt) == (1, 1)

    @promise
    async def test_a_snooze_sent_again(self, bench: Bench) -> None:
        """A snooze sent again is neither lost nor busy; the attempt is handed back once, its due time stays."""
        id = await bench.push_one()
        worker = await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY))
        sent = ack(await worker.one(), AckKind.SNOOZE, delay=600)
        await worker.recorded(sent)
        before = await bench.find(id)
        await worker.recorded(sent)
        await worker.recorded(sent)
        assert await bench.find(id) == before
        assert before.attempt == 1

    @promise
    async def test_an_ack_twice_in_one_flush(self, bench: Bench) -> None:
        """The same acks twice in one flush are recorded once, and none is lost."""
        ids = await bench.push(job(), job(), job())
        worker = await bench.worker()
        jobs = await worker.collect(3)
        acks = [
            ack(claimed, kind, delay=600)
            for claimed, kind in zip(jobs, (AckKind.COMPLETE, AckKind.RETRY, AckKind.FAIL), strict=True)
        ]
        await worker.recorded(*acks, *acks)
        records = await bench.storage.afind(ids)
        assert [record.state for record in records] == [JobState.COMPLETED, JobState.RETRYING, JobState.FAILED]
        assert [len(record.errors) for record in records] == [0, 1, 1]

    @promise
    async def test_the_first_outcome_stands(self, bench: Bench) -> None:
        """Another outcome for a claim whose first was recorded changes nothing; the receipt tells how the job ended."""
        worker = await bench.worker()
        for first, state in ((AckKind.COMPLETE, JobState.COMPLETED), (AckKind.RETRY, JobState.RETRYING)):
            id = await bench.push_one()
            claimed = await worker.one()
            await worker.recorded(ack(claimed, first, delay=600))
            before = await bench.in_state(id, state)
            for kind in AckKind:
                late = ack(claimed, kind, error=failure(9, "too late"), result=b"2", reason="too late")
                receipt = await worker.ack(late)
                assert await bench.find(id) == before
                assert dict(receipt.ended) == ({id: state} if state.final and kind is not first else {})

    @promise
    async def test_an_old_ack_does_not_touch_the_next_claim(self, bench: Bench) -> None:
        """An ack sent again after its job was claimed anew is lost, and the new claim goes on undisturbed."""
        id = await bench.push_one()
        worker, other = await bench.worker(), await bench.worker()
        old = ack(await worker.one(), AckKind.RETRY)
        await worker.recorded(old)
        claimed = await other.one()
        assert (await worker.ack(old)).lost == {id}
        record = await bench.in_state(id, JobState.RUNNING)
        assert (record.owner, record.attempt, len(record.errors)) == (other.id, 2, 1)
        await bench.finish(claimed, other)
        assert (await worker.ack(old)).lost == {id}
        await bench.in_state(id, JobState.COMPLETED)

    @promise
    async def test_an_old_and_a_new_ack_in_one_flush(self, bench: Bench) -> None:
        """A worker that claimed its own job again may send the old ack with the new one: the new one is recorded."""
        id = await bench.push_one()
        worker = await bench.worker()
        old = ack(await worker.one(), AckKind.RETRY)
        await worker.recorded(old)
        new = ack(await worker.one(), AckKind.COMPLETE, result=b"1")
        await worker.ack(old, new)
        record = await bench.in_state(id, JobState.COMPLETED)
        assert (record.result, record.attempt, len(record.errors)) == (b"1", 2, 1)
