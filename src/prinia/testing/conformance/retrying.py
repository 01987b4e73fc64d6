"""Retry and snooze: the same job again, with its history."""

from __future__ import annotations

from prinia.job import MAX_KEPT_ERRORS, JobState
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, failure, promise


class RetryPromises(ConformanceBase):
    """A failed attempt counts and is remembered; a snooze does neither."""

    @promise
    async def test_attempts_are_counted_and_remembered(self, bench: Bench) -> None:
        """Each retry raises the attempt of the next claim, and all errors are in the history, oldest first."""
        id = await bench.push_one(max_attempts=3)
        worker = await bench.worker()
        for attempt, kind in enumerate((AckKind.RETRY, AckKind.RETRY, AckKind.FAIL), 1):
            claimed = await worker.one()
            assert (claimed.id, claimed.attempt) == (id, attempt)
            await worker.recorded(ack(claimed, kind, error=failure(attempt, f"boom {attempt}")))
            errors = (await bench.find(id)).errors
            assert [error.message for error in errors] == [f"boom {n}" for n in range(1, attempt + 1)]
        record = await bench.in_state(id, JobState.FAILED)
        assert [error.attempt for error in record.errors] == [1, 2, 3]
        assert record.attempt == 3

    @promise
    async def test_a_completed_job_remembers_its_failed_attempts(self, bench: Bench) -> None:
        """The history of a job that completes in the end stays readable."""
        id = await bench.push_one()
        worker = await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY))
        await bench.finish(await worker.one(), worker)
        record = await bench.in_state(id, JobState.COMPLETED)
        assert [error.message for error in record.errors] == ["boom"]
        assert record.attempt == 2

    @promise
    async def test_a_retry_waits_for_its_delay(self, bench: Bench) -> None:
        """A job to be retried later is retrying, without owner, and is not claimed before it is due."""
        id = await bench.push_one()
        worker = await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=600))
        claim = await worker.claim()
        assert list(claim.jobs) == []
        assert claim.next_due is not None
        assert 500 < claim.next_due <= 600
        record = await bench.in_state(id, JobState.RETRYING)
        assert (record.owner, record.started_at, record.finished_at) == (None, None, None)

    @promise
    async def test_a_retry_comes_back_after_its_delay(self, bench: Bench) -> None:
        """After its delay a job is claimed again, by any worker, no earlier than it was due."""
        id = await bench.push_one()
        worker, other = await bench.worker(), await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=0.1))
        due = (await bench.find(id)).scheduled_at
        claimed = await other.one()
        assert (claimed.id, claimed.attempt) == (id, 2)
        started = (await bench.find(id)).started_at
        assert due is not None
        assert started is not None
        assert due <= started

    @promise
    async def test_a_snooze_costs_no_attempt(self, bench: Bench) -> None:
        """A snoozed job comes back with the same attempt number, as often as it likes, and without an error."""
        id = await bench.push_one(max_attempts=1)
        worker = await bench.worker()
        for _ in range(4):
            claimed = await worker.one()
            assert (claimed.id, claimed.attempt) == (id, 1)
            await worker.recorded(ack(claimed, AckKind.SNOOZE))
        record = await bench.find(id)
        assert (record.attempt, record.errors) == (0, ())

    @promise
    async def test_a_snooze_waits_for_its_delay(self, bench: Bench) -> None:
        """A job snoozed before its first counted attempt is scheduled; one that failed before is retrying."""
        fresh = await bench.push_one()
        worker = await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.SNOOZE, delay=600))
        await bench.in_state(fresh, JobState.SCHEDULED)
        failed = await bench.push_one()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY))
        await worker.recorded(ack(await worker.one(), AckKind.SNOOZE, delay=600))
        record = await bench.in_state(failed, JobState.RETRYING)
        assert (record.attempt, len(record.errors)) == (1, 1)
        assert await worker.claimed() == []

    @promise
    async def test_the_latest_errors_are_kept(self, bench: Bench) -> None:
        """The history is bounded: of many failed attempts the latest are kept."""
        attempts = MAX_KEPT_ERRORS + 4
        id = await bench.push_one(max_attempts=attempts + 1)
        worker = await bench.worker()
        for attempt in range(1, attempts + 1):
            await worker.recorded(ack(await worker.one(), AckKind.RETRY, error=failure(attempt, f"boom {attempt}")))
        latest = list(range(attempts - MAX_KEPT_ERRORS + 1, attempts + 1))
        assert [error.attempt for error in (await bench.find(id)).errors] == latest
        await bench.finish(await worker.one(), worker)
        assert [error.attempt for error in (await bench.find(id)).errors] == latest
