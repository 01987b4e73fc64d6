"""Expiry: a job that has not started in time does not start."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from time import monotonic

from prinia.job import JobState
from prinia.outcome import AckKind, Expired, decide
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, ack, call, job, promise


class ExpiryPromises(ConformanceBase):
    """``expires`` is the latest start of any attempt."""

    @promise
    async def test_a_claim_says_that_a_job_has_expired(self, bench: Bench) -> None:
        """An expired job is handed out marked as such; its ack ends it as cancelled, no attempt counted."""
        past = datetime.now(UTC) - timedelta(hours=1)
        late, in_time = await bench.push(job(expires_at=past), job(expires_in=600))
        worker = await bench.worker()
        one, two = await worker.collect(2)
        assert (one.id, two.id) == (late, in_time)
        assert one.extras is not None
        assert one.extras.expired
        assert two.extras is None or not two.extras.expired
        await worker.recorded(decide(one, Expired(), 0.5))
        record = await bench.in_state(late, JobState.CANCELLED)
        assert (record.reason, record.attempt) == ("expired", 0)

    @promise
    async def test_a_later_attempt_expires(self, bench: Bench) -> None:
        """A job may start in time and expire before its next attempt."""
        id = await bench.push_one(expires_in=0.15)
        worker = await bench.worker()
        claimed = await worker.one()
        await worker.recorded(ack(claimed, AckKind.RETRY, delay=0.2))
        again = await worker.one()
        assert (again.id, again.attempt) == (id, 2)
        assert again.extras is not None
        assert again.extras.expired

    @promise
    async def test_a_sweep_ends_what_waited_too_long(self, bench: Bench) -> None:
        """A sweep ends expired jobs, due or not, as cancelled with the reason, and counts them."""
        past = datetime.now(UTC) - timedelta(hours=1)
        ids = await bench.push(job(expires_at=past), job(expires_at=past, delay=600), job(expires_in=0.1, delay=600))
        worker = await bench.worker()
        await _sweep(bench, worker, 3)
        for id in ids:
            record = await bench.in_state(id, JobState.CANCELLED)
            assert (record.reason, record.attempt) == ("expired", 0)
            assert record.finished_at is not None
        assert await worker.claimed() == []

    @promise
    async def test_a_sweep_leaves_the_others_alone(self, bench: Bench) -> None:
        """A sweep leaves running jobs alone, expired or not, and those without or with a later latest start."""
        past = datetime.now(UTC) - timedelta(hours=1)
        running = await bench.push_one(expires_at=past)
        worker = await bench.worker()
        claimed = await worker.one()
        plain, later = await bench.push(job(), job(expires_in=600))
        assert await call(worker.pulse.sweep_expired) == 0
        await bench.in_state(running, JobState.RUNNING)
        assert await worker.claimed_ids() == [plain, later]
        await bench.finish(claimed, worker)


async def _sweep(bench: Bench, worker: StandIn, number: int) -> None:
    deadline = monotonic() + bench.patience
    swept = 0
    while (swept := swept + await call(worker.pulse.sweep_expired)) < number:
        assert monotonic() < deadline, f"only {swept} of {number} jobs were swept in time"
        await asyncio.sleep(0.005)
    assert swept == number
