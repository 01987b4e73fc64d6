"""Rescue: a worker died, its jobs come back."""

from __future__ import annotations

from prinia.job import JobRecord, JobState
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, ack, call, job, promise

WORKER_LOST = "worker lost"


class RescuePromises(ConformanceBase):
    """A crash costs no attempt and no innocents; who was thought dead changes nothing any more."""

    @promise
    async def test_jobs_come_back_uncounted(self, bench: Bench) -> None:
        """Jobs of a dead worker are claimed again with the same attempt number, and one crash is counted."""
        ids = await bench.push(job(), job())
        dead, worker = await bench.worker(), await bench.worker()
        await dead.collect(2)
        assert await worker.bury(dead) == 2
        for id in ids:
            record = await bench.in_state(id, JobState.READY)
            assert (record.attempt, record.crashes, record.owner, record.started_at) == (0, 1, None, None)
        again = await worker.collect(2)
        assert sorted(claimed.id for claimed in again) == ids
        assert {(claimed.attempt, claimed.crashes) for claimed in again} == {(1, 1)}

    @promise
    async def test_only_what_had_started_says_so(self, bench: Bench) -> None:
        """Only jobs whose handlers ran have "worker lost" in their history."""
        ids = await bench.push(job(), job())
        dead, worker = await bench.worker(), await bench.worker()
        started, *_ = await dead.collect(2)
        await dead.beat(started=[started.id])
        await worker.bury(dead)
        records = {record.id: record for record in await bench.storage.afind(ids)}
        [error] = records.pop(started.id).errors
        assert WORKER_LOST in error.message
        assert error.at is not None
        assert [record.errors for record in records.values()] == [()]

    @promise
    async def test_others_keep_their_jobs(self, bench: Bench) -> None:
        """The rescue of one instance leaves the jobs of others alone, and that of a live one does nothing."""
        ids = await bench.push(job(), job())
        dead, worker = await bench.worker(), await bench.worker()
        [kept] = await worker.claimed(1)
        await dead.one()
        assert await call(worker.pulse.rescue, worker.id) == 0
        assert await call(worker.pulse.rescue, dead.id) == 0, "rescued from an instance that is not dead"
        assert await worker.bury(dead) == 1
        await bench.in_state(kept.id, JobState.RUNNING)
        await bench.finish(kept, worker)
        await bench.in_state(next(id for id in ids if id != kept.id), JobState.READY)

    @promise
    async def test_a_late_ack_of_a_dead_worker_is_lost(self, bench: Bench) -> None:
        """After a rescue the dead worker's acks are lost and change nothing, before and after the next claim."""
        id = await bench.push_one()
        dead, worker = await bench.worker(), await bench.worker()
        old = await dead.one()
        await worker.bury(dead)
        for kind in AckKind:
            assert (await dead.ack(ack(old, kind))).lost == {id}, kind
            await bench.in_state(id, JobState.READY)
        claimed = await worker.one()
        for kind in AckKind:
            assert (await dead.ack(ack(old, kind))).lost == {id}, kind
        record = await bench.in_state(id, JobState.RUNNING)
        assert (record.owner, record.attempt, record.errors) == (worker.id, 1, ())
        await bench.finish(claimed, worker)
        assert (await dead.ack(ack(old, AckKind.FAIL))).lost == {id}
        await bench.in_state(id, JobState.COMPLETED)

    @promise
    async def test_an_ack_before_the_rescue_counts_or_is_lost(self, bench: Bench) -> None:
        """An ack between death and rescue is recorded, and then not rescued, or lost, and then rescued; not both."""
        id = await bench.push_one()
        dead, worker = await bench.worker(), await bench.worker()
        claimed = await dead.one()
        await worker.declare_dead(dead)
        receipt = await dead.ack(ack(claimed, AckKind.COMPLETE))
        rescued = await worker.rescue(dead.id)
        record = await bench.find(id)
        expected = (1, JobState.READY) if receipt.lost else (0, JobState.COMPLETED)
        assert (rescued, record.state) == expected

    @promise
    async def test_what_was_recorded_is_not_rescued(self, bench: Bench) -> None:
        """Jobs that their worker had ended, or sent to their next attempt, are untouched by its death."""
        ids = await bench.push(job(), job(), job())
        dead, worker = await bench.worker(), await bench.worker()
        kinds = (AckKind.COMPLETE, AckKind.RETRY, AckKind.SNOOZE)
        acks = [ack(claimed, kind, delay=600) for claimed, kind in zip(await dead.collect(3), kinds, strict=True)]
        await dead.recorded(*acks)
        before = await bench.storage.afind(ids)
        assert await worker.bury(dead) == 0
        assert await bench.storage.afind(ids) == before
        await dead.recorded(*acks)
        assert await bench.storage.afind(ids) == before

    @promise
    async def test_a_crash_keeps_failed_attempts(self, bench: Bench) -> None:
        """A crash hands back its own attempt only: those that failed before stay counted and remembered."""
        id = await bench.push_one()
        dead, worker = await bench.worker(), await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY))
        await dead.one()
        await worker.bury(dead)
        record = await bench.in_state(id, JobState.READY)
        assert (record.attempt, record.crashes, len(record.errors)) == (1, 1, 1)
        assert (await worker.one()).attempt == 2

    @promise
    async def test_a_job_that_keeps_killing_ends_as_failed(self, bench: Bench) -> None:
        """Above its max_crashes a job ends as failed and says that its worker was lost; it is not claimed again."""
        id = await bench.push_one(max_crashes=1)
        worker = await bench.worker()
        await _crash(bench, worker)
        await bench.in_state(id, JobState.READY)
        await _crash(bench, worker)
        record = await bench.in_state(id, JobState.FAILED)
        assert record.crashes == 2
        assert record.finished_at is not None
        assert _says_lost(record)
        assert await worker.claimed() == []

    @promise
    async def test_what_may_not_rerun_ends(self, bench: Bench) -> None:
        """With rerun_after_crash=False a claimed job ends as failed, reported as started or not: it may have been."""
        await bench.push(*(job(rerun_after_crash=False) for _ in range(2)))
        dead, worker = await bench.worker(), await bench.worker()
        started, unreported = await dead.collect(2)
        await dead.beat(started=[started.id])
        assert await worker.bury(dead) == 2
        for id in (started.id, unreported.id):
            record = await bench.in_state(id, JobState.FAILED)
            assert _says_lost(record)
            assert record.crashes == 1
        assert await worker.claimed_ids() == []

    @promise
    async def test_suspects_are_claimed_alone(self, bench: Bench) -> None:
        """Jobs that were in two crashes are claimed one at a time, only by a claim that asks for it."""
        suspects = await bench.push(*(job(max_crashes=9) for _ in range(2)))
        worker = await bench.worker()
        for _ in range(2):
            await _crash(bench, worker, number=2)
        innocent = await bench.push_one(priority=-5)
        claim = await worker.claim()
        assert [claimed.id for claimed in claim.jobs] == [innocent], "a suspect was claimed beside others"
        assert claim.suspects
        assert claim.next_due is None, "jobs that must be claimed alone keep the worker awake"
        await bench.push(job())
        first, second = await worker.claimed(10, alone=True), await worker.claimed(10, alone=True)
        assert sorted(claimed.id for claimed in (*first, *second)) == suspects
        assert [claimed.crashes for claimed in (*first, *second)] == [2, 2]
        assert await worker.claimed(10, alone=True) == [], "an innocent job was claimed alone"
        claim = await worker.claim()
        assert len(claim.jobs) == 1
        assert not claim.suspects

    @promise
    async def test_a_rescue_goes_in_batches(self, bench: Bench) -> None:
        """Each call brings back at most a thousand jobs, until none is left and the instance is off the register."""
        ids = await bench.push(*(job() for _ in range(1500)))
        dead, worker = await bench.worker(), await bench.worker()
        await dead.collect(len(ids))
        await worker.declare_dead(dead)
        first = await call(worker.pulse.rescue, dead.id)
        assert 0 < first <= 1000
        assert (await worker.beat()).dead == {dead.id}
        assert first + await worker.rescue(dead.id) == len(ids)
        assert (await worker.beat()).dead == frozenset()
        assert sorted(claimed.id for claimed in await worker.collect(len(ids))) == ids

    @promise
    async def test_the_jobs_of_a_closed_instance_come_back(self, bench: Bench) -> None:
        """An instance that closes while it owns jobs loses them to others: by rescue, if need be as strays."""
        id = await bench.push_one()
        gone, worker = await bench.worker(), await bench.worker()
        claimed = await gone.one()
        await gone.close()
        for dead in (await worker.beat()).dead:
            await worker.rescue(dead)
        await call(worker.pulse.free_strays)
        record = await bench.in_state(id, JobState.READY)
        assert (record.attempt, record.owner) == (0, None)
        assert (await worker.ack(ack(claimed, AckKind.COMPLETE))).lost == {id}


async def _crash(bench: Bench, worker: StandIn, number: int = 1) -> None:
    """Another worker claims so many jobs, starts them and dies."""
    dead = await bench.worker()
    jobs = await dead.collect(number)
    await dead.beat(started=[claimed.id for claimed in jobs])
    assert await worker.bury(dead) == number


def _says_lost(record: JobRecord) -> bool:
    return any(WORKER_LOST in text for text in (record.reason or "", *(error.message for error in record.errors)))
