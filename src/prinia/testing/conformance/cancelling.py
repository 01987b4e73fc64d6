"""Cancel, from outside, in each state."""

from __future__ import annotations

from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise


class CancelPromises(ConformanceBase):
    """A job that somebody cancelled does not run again; a result that arrived first stands."""

    @promise
    async def test_waiting_jobs_end_at_once(self, bench: Bench) -> None:
        """Ready, scheduled and retrying jobs end as cancelled, with who did it, and are never claimed."""
        worker = await bench.worker()
        retrying = await bench.push_one()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=600))
        ids = [*await bench.push(job(), job(delay=600)), retrying]
        assert await bench.storage.acancel(ids, by="Ada") == 3
        for id in ids:
            record = await bench.in_state(id, JobState.CANCELLED)
            assert record.reason is not None
            assert "Ada" in record.reason
            assert record.finished_at is not None
        claim = await worker.claim()
        assert (list(claim.jobs), claim.next_due) == ([], None)

    @promise
    async def test_a_running_job_is_marked(self, bench: Bench) -> None:
        """A running job goes on, counted as cancelled, and ends as such instead of being retried or handed back."""
        worker = await bench.worker()
        for kind in (AckKind.RETRY, AckKind.SNOOZE):
            id = await bench.push_one()
            claimed = await worker.one()
            assert await bench.storage.acancel([id], by="Ada") == 1
            await bench.in_state(id, JobState.RUNNING)
            sent = ack(claimed, kind)
            await worker.recorded(sent)
            record = await bench.in_state(id, JobState.CANCELLED)
            assert record.reason is not None
            assert "Ada" in record.reason
            assert await worker.claimed() == []
            await worker.recorded(sent)
            assert await bench.find(id) == record

    @promise
    async def test_a_result_that_arrives_wins(self, bench: Bench) -> None:
        """A running job that was marked and then completes or fails has completed or failed."""
        worker = await bench.worker()
        for kind, state in ((AckKind.COMPLETE, JobState.COMPLETED), (AckKind.FAIL, JobState.FAILED)):
            id = await bench.push_one()
            claimed = await worker.one()
            assert await bench.storage.acancel([id], by="Ada") == 1
            await bench.finish(claimed, worker, kind)
            await bench.in_state(id, state)

    @promise
    async def test_a_worker_hears_of_cancel_requests(self, bench: Bench) -> None:
        """A worker is told which of the jobs it has claimed somebody asked to cancel, and why; of no others."""
        worker, other = await bench.worker(), await bench.worker("b")
        mine, untouched = await bench.push(job(), job())
        [theirs] = await bench.push(job(queue="b"))
        claimed = {one.id: one for one in await worker.collect(2)}
        await other.one()
        [waiting] = await bench.push(job(delay=600))
        assert dict(await worker.consumer.cancel_requests()) == {}
        assert await bench.storage.acancel([mine, theirs, waiting], by="Ada") == 3
        requests = await worker.consumer.cancel_requests()
        assert list(requests) == [mine]
        assert "Ada" in requests[mine]
        await bench.finish(claimed[mine], worker)
        assert dict(await worker.consumer.cancel_requests()) == {}
        await bench.finish(claimed[untouched], worker)

    @promise
    async def test_a_receipt_tells_what_a_cancel_request_ended(self, bench: Bench) -> None:
        """The receipt names the jobs whose retry or snooze became their end, the first time and when sent again."""
        worker = await bench.worker()
        for kind in AckKind:
            id = await bench.push_one()
            sent = ack(await worker.one(), kind)
            assert await bench.storage.acancel([id], by="Ada") == 1
            ended = {id: JobState.CANCELLED} if kind in (AckKind.RETRY, AckKind.SNOOZE) else {}
            for _ in range(2):
                receipt = await worker.ack(sent)
                assert (receipt.lost, receipt.busy, dict(receipt.ended)) == (frozenset(), frozenset(), ended)

    @promise
    async def test_a_marked_job_is_cancelled_when_its_worker_dies(self, bench: Bench) -> None:
        """A rescue ends a job that was marked while running, instead of bringing it back."""
        id = await bench.push_one()
        dead, worker = await bench.worker(), await bench.worker()
        await dead.one()
        assert await bench.storage.acancel([id], by="Ada") == 1
        assert await worker.bury(dead) == 1
        record = await bench.in_state(id, JobState.CANCELLED)
        assert record.reason is not None
        assert "Ada" in record.reason
        assert await worker.claimed() == []

    @promise
    async def test_a_marked_job_is_cancelled_when_a_claim_is_recovered(self, bench: Bench) -> None:
        """A job that was marked while nobody knew that it was claimed is not brought back either."""
        id = await bench.push_one()
        worker = await bench.worker()
        await worker.one()
        assert await bench.storage.acancel([id], by="Ada") == 1
        await worker.consumer.recover(worker.tokens, [])
        await bench.in_state(id, JobState.CANCELLED)

    @promise
    async def test_finished_and_unknown_jobs_are_not_counted(self, bench: Bench) -> None:
        """What has ended or was marked stays as it is; ids given twice count once; both colours do the same."""
        worker = await bench.worker()
        done = await bench.push_one()
        await bench.finish(await worker.one(), worker)
        before = await bench.find(done)
        waiting, running = await bench.push(job(delay=600), job())
        await worker.one()
        ids = [done, waiting, waiting, running, running + 1000]
        assert await call(bench.storage.cancel, ids, by="Ada") == 2
        assert await bench.find(done) == before
        assert await bench.storage.acancel([done, waiting, running], by="Bob") == 0
        assert await bench.storage.acancel([], by="Bob") == 0
        record = await bench.in_state(waiting, JobState.CANCELLED)
        assert record.reason is not None
        assert "Bob" not in record.reason
