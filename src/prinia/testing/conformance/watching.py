"""Heartbeat, leadership and the declaring of deaths."""

from __future__ import annotations

from prinia.job import JobState
from prinia.testing.conformance.bench import Bench, ConformanceBase, call, promise


class WatchPromises(ConformanceBase):
    """Every instance keeps watch over all; one leads; who stands still can be declared dead."""

    @promise
    async def test_beats_count_up(self, bench: Bench) -> None:
        """Each beat raises the instance's own counter and nobody else's, and shows everybody's."""
        one, two = await bench.worker(), await bench.worker()
        first = await one.beat()
        assert first.alive
        assert set(first.counters) == {one.id, two.id}
        second = await one.beat()
        assert second.counters[one.id] > first.counters[one.id]
        assert second.counters[two.id] == first.counters[two.id]
        seen = await two.beat()
        assert seen.counters[one.id] == second.counters[one.id]
        assert seen.counters[two.id] > first.counters[two.id]
        assert seen.dead == frozenset()

    @promise
    async def test_an_unknown_instance_is_not_alive(self, bench: Bench) -> None:
        """An instance that is not on the register is told so by its beat, and cannot lead."""
        known, unknown = await bench.worker(), await bench.worker(opened=False)
        beat = await unknown.beat()
        assert not beat.alive
        assert not await call(unknown.pulse.lead, beat.leader, beat.term)
        assert unknown.id not in (await known.beat()).counters

    @promise
    async def test_a_closed_instance_is_off_the_register(self, bench: Bench) -> None:
        """An instance that closed with nothing left to do is neither live nor dead."""
        one, two = await bench.worker(), await bench.worker()
        await one.close()
        beat = await two.beat()
        assert set(beat.counters) == {two.id}
        assert beat.dead == frozenset()

    @promise
    async def test_one_leads(self, bench: Bench) -> None:
        """Of those that want to follow a leader in its term one gets it, and all see who, in a newer term."""
        one, two = await bench.worker(), await bench.worker()
        before = await one.beat()
        assert before.leader is None
        assert await call(one.pulse.lead, before.leader, before.term)
        assert not await call(two.pulse.lead, before.leader, before.term)
        seen = await two.beat()
        assert seen.leader == one.id
        assert seen.term > before.term
        assert await call(two.pulse.lead, seen.leader, seen.term)
        assert not await call(one.pulse.lead, seen.leader, seen.term)
        after = await one.beat()
        assert after.leader == two.id
        assert after.term > seen.term

    @promise
    async def test_an_old_term_is_no_claim_to_lead(self, bench: Bench) -> None:
        """Who knows the leader but not its term does not take over: the leader may have led, lost and led again."""
        one, two = await bench.worker(), await bench.worker()
        first = await one.beat()
        assert await call(one.pulse.lead, first.leader, first.term)
        second = await two.beat()
        assert await call(two.pulse.lead, second.leader, second.term)
        third = await one.beat()
        assert await call(one.pulse.lead, third.leader, third.term)
        assert not await call(two.pulse.lead, second.leader, second.term)
        assert (await two.beat()).leader == one.id

    @promise
    async def test_a_leader_that_closed_is_followed(self, bench: Bench) -> None:
        """After its leader has closed nobody live leads, and another can."""
        one, two = await bench.worker(), await bench.worker()
        beat = await one.beat()
        assert await call(one.pulse.lead, beat.leader, beat.term)
        await one.close()
        beat = await two.beat()
        assert beat.leader is None or beat.leader not in beat.counters
        assert await call(two.pulse.lead, beat.leader, beat.term)
        assert (await two.beat()).leader == two.id

    @promise
    async def test_who_beats_is_not_declared_dead(self, bench: Bench) -> None:
        """A death is declared for a counter that was seen; if it has moved since, nothing happens."""
        one, two = await bench.worker(), await bench.worker()
        seen = (await two.beat()).counters[one.id]
        await one.beat()
        assert not await call(two.pulse.declare_dead, one.id, seen)
        beat = await one.beat()
        assert beat.alive
        assert beat.dead == frozenset()

    @promise
    async def test_the_dead_are_told_apart(self, bench: Bench) -> None:
        """A declared dead instance is seen as dead by all until it is rescued, and its own beat says not alive."""
        dead, worker = await bench.worker(), await bench.worker()
        await dead.beat()
        await worker.declare_dead(dead)
        beat = await worker.beat()
        assert set(beat.counters) == {worker.id}
        assert beat.dead == {dead.id}
        assert not (await dead.beat()).alive
        assert await worker.rescue(dead.id) == 0
        assert (await worker.beat()).dead == frozenset()
        assert not (await dead.beat()).alive

    @promise
    async def test_the_dead_do_not_lead(self, bench: Bench) -> None:
        """A declared dead instance cannot become the leader."""
        dead, worker = await bench.worker(), await bench.worker()
        await worker.declare_dead(dead)
        beat = await dead.beat()
        assert not await call(dead.pulse.lead, beat.leader, beat.term)
        assert (await worker.beat()).leader != dead.id

    @promise
    async def test_the_dead_claim_nothing(self, bench: Bench) -> None:
        """A declared dead instance gets no jobs, before its rescue and after."""
        dead, worker = await bench.worker(), await bench.worker()
        id = await bench.push_one()
        await worker.declare_dead(dead)
        assert await dead.claimed() == []
        await worker.rescue(dead.id)
        assert await dead.claimed() == []
        await bench.in_state(id, JobState.READY)
        assert (await worker.one()).id == id
