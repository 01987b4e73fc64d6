"""A claim's reply was lost: the jobs are the worker's, and it does not know."""

from __future__ import annotations

from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise


class StrayPromises(ConformanceBase):
    """What was claimed and never heard of comes back, uncounted; what runs is left alone."""

    @promise
    async def test_recover_hands_back_what_was_not_heard(self, bench: Bench) -> None:
        """After a lost connection the jobs of unheard claims are handed back uncounted; they were no crash."""
        heard, *unheard = await bench.push(job(), job(), job())
        worker = await bench.worker()
        [running] = await worker.claimed(1)
        lost = await worker.claimed(2)
        assert await worker.consumer.recover([lost[0].token], [running]) == frozenset()
        await bench.in_state(heard, JobState.RUNNING)
        for id in unheard:
            record = await bench.in_state(id, JobState.READY)
            assert (record.attempt, record.crashes, record.errors, record.owner) == (0, 0, (), None)
        assert (await worker.ack(ack(lost[0], AckKind.COMPLETE))).lost == {lost[0].id}
        assert [claimed.id for claimed in await worker.collect(2)] == unheard
        await bench.finish(running, worker)

    @promise
    async def test_recover_names_what_is_lost(self, bench: Bench) -> None:
        """Of the jobs that still run the worker is told which it no longer owns: rescued, or claimed by others."""
        await bench.push(*(job() for _ in range(3)))
        dead, worker = await bench.worker(), await bench.worker()
        mine = await worker.claimed(1)
        theirs = await dead.collect(2)
        assert await dead.consumer.recover([], theirs) == frozenset()
        await worker.bury(dead)
        await worker.claimed(1)
        assert await dead.consumer.recover([], theirs) == {claimed.id for claimed in theirs}
        assert await worker.consumer.recover([], mine) == frozenset()

    @promise
    async def test_recover_leaves_others_alone(self, bench: Bench) -> None:
        """Another worker's claim with the same token is not handed back, nor is a job that waits for its retry."""
        theirs, retried = await bench.push(job(), job())
        worker, other = await bench.worker(), await bench.worker()
        await other.one()
        claimed = await worker.one()
        await worker.recorded(ack(claimed, AckKind.RETRY, delay=600))
        assert other.tokens == [claimed.token]
        await worker.consumer.recover([claimed.token], [])
        await bench.in_state(theirs, JobState.RUNNING)
        record = await bench.in_state(retried, JobState.RETRYING)
        assert record.attempt == 1

    @promise
    async def test_a_claim_no_longer_reported_is_a_stray(self, bench: Bench) -> None:
        """Jobs whose live owner has beaten twice without naming their token come back uncounted; they were no crash."""
        id = await bench.push_one()
        owner, worker = await bench.worker(), await bench.worker()
        claimed = await owner.one()
        for _ in range(2):
            await owner.beat(tokens=[])
        assert await call(worker.pulse.free_strays) == 1
        record = await bench.in_state(id, JobState.READY)
        assert (record.attempt, record.crashes, record.errors, record.owner) == (0, 0, (), None)
        assert (await owner.ack(ack(claimed, AckKind.COMPLETE))).lost == {id}
        assert (await worker.one()).id == id

    @promise
    async def test_a_claim_may_be_in_flight(self, bench: Bench) -> None:
        """A claim is no stray before its owner has beaten twice since: its reply may be on the way."""
        id = await bench.push_one()
        owner, worker = await bench.worker(), await bench.worker()
        for _ in range(3):
            await owner.beat(tokens=[])
        claimed = await owner.one()
        assert await call(worker.pulse.free_strays) == 0
        await owner.beat(tokens=[])
        assert await call(worker.pulse.free_strays) == 0
        await bench.in_state(id, JobState.RUNNING)
        await bench.finish(claimed, owner)

    @promise
    async def test_a_reported_claim_is_no_stray(self, bench: Bench) -> None:
        """Jobs whose owner names their token stay its own, however long they run; so do recorded ones."""
        running, retried, done = await bench.push(job(), job(), job())
        owner, worker = await bench.worker(), await bench.worker()
        first = await owner.one()
        second, third = await owner.collect(2)
        await owner.recorded(ack(second, AckKind.RETRY, delay=600), ack(third, AckKind.COMPLETE))
        before = await bench.storage.afind([running, retried, done])
        for _ in range(4):
            await owner.beat(tokens=[first.token])
        assert await call(worker.pulse.free_strays) == 0
        assert await bench.storage.afind([running, retried, done]) == before
        await bench.finish(first, owner)
