"""Claim: in what order, and when the next job is due."""

from __future__ import annotations

from collections import Counter

from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise


class OrderPromises(ConformanceBase):
    """Priority, then due time, then id; queues take turns; nothing early."""

    @promise
    async def test_bigger_priority_goes_first(self, bench: Bench) -> None:
        """Within a queue a bigger priority goes first, in one claim and from claim to claim."""
        priorities = (0, -100, 5, 100, 5, -1, 0)
        ids = await bench.push(*(job(priority=priority) for priority in priorities))
        expected = [id for _, id in sorted((-priority, id) for priority, id in zip(priorities, ids, strict=True))]
        worker = await bench.worker()
        first, second = await worker.claimed_ids(1), await worker.claimed_ids(1)
        assert first + second + await worker.claimed_ids() == expected

    @promise
    async def test_a_late_important_job_overtakes(self, bench: Bench) -> None:
        """A job of bigger priority pushed later goes before jobs that wait already."""
        first, second = await bench.push(job(), job())
        worker = await bench.worker()
        assert await worker.claimed_ids(1) == [first]
        urgent = await bench.push_one(priority=1)
        assert await worker.claimed_ids(1) == [urgent]
        assert await worker.claimed_ids(1) == [second]

    @promise
    async def test_earlier_due_goes_first(self, bench: Bench) -> None:
        """Of jobs of one priority the one due earlier goes first, whatever their ids."""
        at_once, late, early = await bench.push(job(), job(delay=0.15), job(delay=0.05))
        for id in (late, early):
            await bench.until(id, JobState.READY)
        worker = await bench.worker()
        assert await worker.claimed_ids() == [at_once, early, late]

    @promise
    async def test_equal_jobs_go_in_the_order_of_their_push(self, bench: Bench) -> None:
        """Jobs without priority and delay are claimed first in, first out, over several pushes."""
        ids = [*await bench.push(*(job() for _ in range(3))), await bench.push_one(), await bench.push_one()]
        worker = await bench.worker()
        assert await worker.claimed_ids(2) == ids[:2]
        assert await worker.claimed_ids() == ids[2:]

    @promise
    async def test_queues_take_turns(self, bench: Bench) -> None:
        """Small claims over several queues serve each in turn: a full queue, or an important one, starves no other."""
        queues = ("a", "b", "c")
        await bench.push(*(job(queue=queue, priority=10 if queue == "a" else 0) for queue in queues for _ in range(6)))
        worker = await bench.worker(*queues)
        served = Counter([(await worker.one()).queue for _ in range(6)])
        assert set(served) == set(queues), f"queues were starved: {served}"

    @promise
    async def test_nothing_is_claimed_before_it_is_due(self, bench: Bench) -> None:
        """A delayed job is scheduled until it is due, then ready, then claimed, never started before its due time."""
        soon, late = await bench.push(job(delay=0.1, priority=5), job(delay=600))
        worker = await bench.worker()
        assert (await worker.one()).id == soon
        record = await bench.find(soon)
        assert record.started_at is not None
        assert record.scheduled_at is not None
        assert record.created_at < record.scheduled_at <= record.started_at
        assert await worker.claimed() == []
        await bench.in_state(late, JobState.SCHEDULED)

    @promise
    async def test_scheduled_jobs_of_bigger_priority_hold_nothing_up(self, bench: Bench) -> None:
        """Many jobs scheduled far ahead at a bigger priority are passed over."""
        await bench.push(*(job(delay=600, priority=100) for _ in range(300)))
        id = await bench.push_one()
        worker = await bench.worker()
        assert await worker.claimed_ids(5) == [id]

    @promise
    async def test_a_short_claim_says_when_the_next_job_is_due(self, bench: Bench) -> None:
        """A claim that got fewer jobs than asked for says in how many seconds the next is due, None for never."""
        worker = await bench.worker("default", "email")
        claim = await worker.claim()
        assert (list(claim.jobs), claim.next_due, claim.suspects) == ([], None, False)
        await bench.push(job(delay=900), job(delay=300, queue="email"), job(delay=5, queue="other"), job())
        claim = await worker.claim()
        assert len(claim.jobs) == 1
        assert claim.next_due is not None
        assert 200 < claim.next_due <= 300

    @promise
    async def test_what_a_hasty_claim_overlooks_is_found(self, bench: Bench) -> None:
        """A claim that is not thorough keeps the order and names no next due time; a thorough one gets the rest."""
        urgent, *plain = await bench.push(job(priority=9), *(job() for _ in range(4)))
        await bench.push(job(delay=600), job(queue="other"))
        worker = await bench.worker()
        hasty = await worker.claim(2, thorough=False)
        got = [claimed.id for claimed in hasty.jobs]
        assert got == [urgent, *plain][: len(got)]
        assert len(got) <= 2
        got += await worker.claimed_ids(10)
        assert sorted(got) == sorted([urgent, *plain])
        hasty = await worker.claim(thorough=False)
        assert (list(hasty.jobs), hasty.next_due) == ([], None)

    @promise
    async def test_paused_queues_do_not_keep_a_worker_awake(self, bench: Bench) -> None:
        """What waits in a paused queue is not said to be due, neither now nor later."""
        await bench.push(job(queue="email"), job(queue="email", delay=5), job(delay=300))
        await call(bench.storage.pause, "queue", "email", by="Ada")
        worker = await bench.worker("default", "email")
        claim = await worker.claim()
        assert list(claim.jobs) == []
        assert claim.next_due is not None
        assert claim.next_due > 200

    @promise
    async def test_what_comes_back_waits_its_turn(self, bench: Bench) -> None:
        """A job that comes back is due now, not when it was first: it goes behind those that wait already."""
        back, waiting = await bench.push(job(), job())
        worker = await bench.worker()
        [claimed] = await worker.claimed(1)
        await worker.recorded(ack(claimed, AckKind.SNOOZE))
        assert await worker.claimed_ids() == [waiting, back]
