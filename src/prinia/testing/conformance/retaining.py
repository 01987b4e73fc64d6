"""Retention: how long finished jobs are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.retention import DAY, DEFAULT, Retention
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, call, promise

_ENDS = {AckKind.COMPLETE: 1, AckKind.CANCEL: 7, AckKind.FAIL: 30}
#: Days. A storage may keep jobs for so much longer than they were to be kept, if that was up to 31 days, or longer.
_SLACK, _LONG_SLACK = 3, 40


class RetentionPromises(ConformanceBase):
    """Finished jobs are kept as long as their queue says, by the state they ended in, and then they go."""

    @promise
    async def test_finished_jobs_are_kept_by_their_state(self, bench: Bench) -> None:
        """By default a completed job is kept for a day, a cancelled one for 7, a failed one for 30, and then goes."""
        worker = await bench.worker()
        ids = {kind: await _ended(bench, worker, kind) for kind in _ENDS}
        for kind, days in _ENDS.items():
            await _sweep(worker, days - 0.01)
            assert await _kept(bench, ids[kind])
            await _sweep(worker, days + _SLACK)
            assert not await _kept(bench, ids[kind])

    @promise
    async def test_a_queue_has_its_own_retention(self, bench: Bench) -> None:
        """A retention set for a queue counts for the jobs of that queue, and for no others."""
        await bench.storage.aset_retention("mine", Retention(completed=20 * DAY))
        worker, other = await bench.worker("mine"), await bench.worker()
        mine, default = await _ended(bench, worker, queue="mine"), await _ended(bench, other)
        await _sweep(worker, 19.9)
        assert await _kept(bench, mine)
        assert not await _kept(bench, default)
        await _sweep(worker, 20 + _SLACK)
        assert not await _kept(bench, mine)

    @promise
    async def test_jobs_can_be_kept_for_long(self, bench: Bench) -> None:
        """A retention of many months holds, and so does the short one of other queues meanwhile."""
        await bench.storage.aset_retention("mine", Retention(failed=500 * DAY))
        worker, other = await bench.worker("mine"), await bench.worker()
        mine, default = await _ended(bench, worker, AckKind.FAIL, queue="mine"), await _ended(bench, other)
        await _sweep(worker, 1 + _SLACK)
        assert not await _kept(bench, default)
        await _sweep(worker, 499.9)
        assert await _kept(bench, mine)
        await _sweep(worker, 500 + _LONG_SLACK)
        assert not await _kept(bench, mine)

    @promise
    async def test_jobs_can_be_kept_for_ever(self, bench: Bench) -> None:
        """An infinite retention has no end."""
        await bench.storage.aset_retention("mine", Retention(completed=inf, failed=inf, cancelled=inf))
        worker = await bench.worker("mine")
        ids = [await _ended(bench, worker, kind, queue="mine") for kind in _ENDS]
        await _sweep(worker, 36_500)
        assert [await _kept(bench, id) for id in ids] == [True] * 3

    @promise
    async def test_what_has_ended_goes_as_was_said_then(self, bench: Bench) -> None:
        """Setting a retention changes nothing for jobs that have ended."""
        worker = await bench.worker()
        before = await _ended(bench, worker)
        await bench.storage.aset_retention("default", Retention(completed=20 * DAY))
        after = await _ended(bench, worker)
        await _sweep(worker, 1 + _SLACK)
        assert not await _kept(bench, before)
        assert await _kept(bench, after)

    @promise
    async def test_a_retention_reads_as_it_was_set(self, bench: Bench) -> None:
        """A retention reads back, in both colours; of a queue for which none was set, the default does."""
        storage = bench.storage
        assert await storage.aretention("mine") == DEFAULT
        for retention in (Retention(completed=0, failed=inf, cancelled=500 * DAY), Retention(failed=1.5), DEFAULT):
            await storage.aset_retention("mine", retention)
            assert await storage.aretention("mine") == retention
            await call(storage.set_retention, "other", retention)
            assert await call(storage.retention, "other") == retention

    @promise
    async def test_live_jobs_are_not_swept(self, bench: Bench) -> None:
        """A job that has not ended is none of retention's business, however old it is."""
        waiting = await bench.push_one(delay=900)
        running = await bench.push_one()
        worker = await bench.worker()
        await worker.one()
        await _sweep(worker, 36_500)
        await bench.in_state(waiting, JobState.SCHEDULED)
        await bench.in_state(running, JobState.RUNNING)


async def _ended(bench: Bench, worker: StandIn, kind: AckKind = AckKind.COMPLETE, queue: str = "default") -> int:
    """A job that has ended; its id."""
    id = await bench.push_one(queue=queue)
    await bench.finish(await worker.one(), worker, kind)
    return id


async def _kept(bench: Bench, id: int) -> bool:
    return bool(await bench.storage.afind([id]))


async def _sweep(worker: StandIn, days: float) -> None:
    """Sweep until nothing is left, as if so many days had passed."""
    now = datetime.now(UTC) + timedelta(days=days)
    while await call(worker.pulse.sweep_archive, now):
        pass
