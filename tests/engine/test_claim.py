"""CLAIM: order, waking, unknown tasks, suspects alone, room."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from itertools import pairwise

import pytest

from prinia import INJECTED, Context, Snooze
from prinia.errors import StorageUnavailable
from prinia.job import JobSpec, JobState
from prinia.storage.memory.tables import Tables
from prinia.worker import ack as ack_module
from prinia.worker import claim as claim_module
from tests.engine.kit import Shop, until


async def test_priority_is_strict(shop: Shop) -> None:
    order: list[int] = []

    @shop.app.task(name="note")
    async def note(number: int) -> None:
        order.append(number)

    for number, priority in enumerate([0, 5, -5, 5, 0, 100, -100]):
        await note.options(priority=priority).aenqueue(number)
    async with shop.worker(concurrency=1):
        await until(lambda: len(order) == 7)
    assert order == [5, 1, 3, 0, 4, 2, 6]


async def test_serves_its_queues_and_no_other(shop: Shop) -> None:
    @shop.app.task(name="note")
    async def note() -> None: ...

    jobs = {queue: await note.options(queue=queue).aenqueue() for queue in ("a", "b", "c")}
    async with shop.worker(queues=["a", "b"]) as worker:
        await shop.until(JobState.COMPLETED, jobs["a"].id, jobs["b"].id)
        assert worker.queues == ("a", "b")
    assert shop.state(jobs["c"].id) is JobState.READY


async def test_one_queue_does_not_starve_another(shop: Shop) -> None:
    done: list[str] = []

    @shop.app.task(name="note")
    async def note(queue: str) -> None:
        done.append(queue)

    await shop.app.aenqueue_many(note.options(queue="big").job("big") for _ in range(3000))
    await note.options(queue="small").aenqueue("small")
    async with shop.worker(queues=["big", "small"]) as worker:
        await until(lambda: worker.stats.completed == 3001)
    assert done.index("small") < 1500


async def test_an_idle_worker_is_woken_by_a_push(shop: Shop) -> None:
    @shop.app.task(name="note")
    async def note() -> None: ...

    async with shop.worker(poll=3600):
        await until(lambda: shop.storage.tables.bells, "for the worker to sleep")
        job = await note.aenqueue()
        await shop.until(JobState.COMPLETED, job.id)
        await until(lambda: shop.storage.tables.bells, "for the worker to sleep again")
        shop.storage.push([JobSpec(task="note", args=b"{}", delay=0.05)])
        await until(lambda: not shop.storage.tables.live)


async def test_an_idle_worker_does_not_look_often(shop: Shop) -> None:
    @shop.app.task(name="note")
    async def note() -> None: ...

    async with shop.worker(poll=3600):
        await until(lambda: shop.storage.tables.bells, "for the worker to sleep")
        looks = len(shop.faults.claims)
        await asyncio.sleep(0.3)
        assert len(shop.faults.claims) <= looks + 1


async def test_a_worker_without_a_bell_looks_now_and_then(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(bell: object) -> bool:
        raise StorageUnavailable("no listener")

    monkeypatch.setattr("prinia.storage.memory.bell.MemoryBell.arm", refuse)

    @shop.app.task(name="note")
    async def note() -> None: ...

    async with shop.worker(poll=3600):
        await until(lambda: len(shop.faults.claims) > 15)
        job = await note.aenqueue()
        await shop.until(JobState.COMPLETED, job.id)


async def test_a_woken_worker_passes_on_what_it_cannot_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Tables.ring

    def ring_one(tables: Tables, queues: Iterable[str]) -> None:
        """A push wakes one sleeper, as in PostgreSQL; the memory storage would wake all."""
        everybody, tables.bells = tables.bells, set(list(tables.bells)[:1])
        ring(tables, queues)
        tables.bells = everybody

    monkeypatch.setattr(Tables, "ring", ring_one)
    running: set[str] = set()
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold(ctx: Context = INJECTED) -> None:
        running.add(ctx.worker.name)
        await gate.wait()

    async with shop.worker(name="a", concurrency=1, poll=3600), shop.worker(name="b", concurrency=1, poll=3600):
        await until(lambda: len(shop.storage.tables.bells) == 2, "for both to sleep")
        await shop.app.aenqueue_many([hold.job(), hold.job()])
        await until(lambda: running == {"a", "b"})
        gate.set()


async def test_fast_jobs_are_claimed_in_large_batches(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    await shop.app.aenqueue_many(noop.job() for _ in range(20_000))
    async with shop.worker(concurrency=100) as worker:
        await until(lambda: worker.stats.completed == 20_000)
    assert max(limit for limit, _ in shop.faults.claims) == 500


async def test_a_claim_takes_no_more_than_its_batch(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    await shop.app.aenqueue_many(noop.job() for _ in range(2000))
    async with shop.worker(concurrency=100, claim_batch=7) as worker:
        await until(lambda: worker.stats.completed == 2000)
    assert max(limit for limit, _ in shop.faults.claims) == 7


async def test_slow_jobs_are_not_claimed_ahead(shop: Shop) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    await shop.app.aenqueue_many(hold.job() for _ in range(50))
    async with shop.worker(concurrency=5) as worker:
        await until(lambda: worker.stats.running == 5)
        await asyncio.sleep(0.1)
        assert worker.stats.claimed == 5
        gate.set()


async def test_what_cannot_start_is_handed_back_to_others(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module, "STALLED", 0.05)
    gate, fast = asyncio.Event(), 0

    @shop.app.task(name="work")
    async def work(hold: bool) -> None:
        nonlocal fast
        if not hold:
            fast += 1
        elif fast < 5000:
            raise Snooze(0)  # on a slow machine fast ones may have been handed back, and come after this one
        else:
            await gate.wait()

    def handed_back() -> bool:
        return worker.stats.waiting == 0 and sum(shop.state(id) is JobState.READY for id in held) == 290

    jobs = await shop.app.aenqueue_many(work.job(number >= 5000) for number in range(5300))
    held = [job.id for job in jobs][5000:]
    async with shop.worker(concurrency=10) as worker:
        await until(lambda: fast == 5000 and worker.stats.running == 10 and handed_back())
        assert all(shop.record(id).attempt == 0 for id in held if shop.state(id) is JobState.READY)
        gate.set()
        await shop.until(JobState.COMPLETED, *held)


class TestSuspects:
    async def suspect(self, shop: Shop) -> int:
        """A job that was in two crashes, and waits."""
        [pushed] = shop.storage.push([JobSpec(task="suspect", args=b"{}", max_crashes=3)])
        await shop.crash()
        await shop.crash()
        assert shop.record(pushed.id).crashes == 2
        return pushed.id

    async def test_a_suspect_runs_alone(self, shop: Shop) -> None:
        running: set[int] = set()
        beside: list[set[int]] = []

        @shop.app.task(name="suspect")
        async def suspect(ctx: Context = INJECTED) -> None:
            for _ in range(20):
                beside.append(set(running))
                await asyncio.sleep(0.001)

        @shop.app.task(name="other")
        async def other(ctx: Context = INJECTED) -> None:
            running.add(ctx.job_id)
            await asyncio.sleep(0.005)
            running.discard(ctx.job_id)

        id = await self.suspect(shop)
        await shop.app.aenqueue_many(other.job() for _ in range(50))
        async with shop.worker(concurrency=10) as worker:
            await until(lambda: beside)
            await shop.app.aenqueue_many(other.job() for _ in range(50))
            await shop.until(JobState.COMPLETED, id)
            await until(lambda: worker.stats.completed == 101)
        assert not any(beside)
        assert (1, True) in shop.faults.claims

    async def test_an_idle_worker_takes_a_suspect_at_once(self, shop: Shop) -> None:
        @shop.app.task(name="suspect")
        async def suspect() -> None: ...

        id = await self.suspect(shop)
        async with shop.worker(poll=3600):
            await shop.until(JobState.COMPLETED, id)

    async def test_claiming_goes_on_when_the_worker_does_not_fall_quiet(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(claim_module, "PATIENCE", 0.02)
        monkeypatch.setattr(claim_module, "SUSPECTS_AGAIN", 0.1)
        gate = asyncio.Event()

        @shop.app.task(name="suspect")
        async def suspect() -> None:
            assert gate.is_set()

        @shop.app.task(name="long")
        async def long() -> None:
            await gate.wait()

        @shop.app.task(name="short")
        async def short() -> None: ...

        held = await long.aenqueue()
        async with shop.worker(poll=0.05):
            await shop.until(JobState.RUNNING, held.id)
            id = await self.suspect(shop)
            for _ in range(20):
                await (await short.aenqueue()).aresult(timeout=10)
            assert shop.state(id) is JobState.READY
            gate.set()
            await shop.until(JobState.COMPLETED, id)

    async def test_one_crash_more_ends_it_and_spares_its_neighbours(self, shop: Shop) -> None:
        @shop.app.task(name="suspect")
        async def suspect() -> None: ...

        id = await self.suspect(shop)
        [neighbour] = shop.storage.push([JobSpec(task="suspect", args=b"{}")])
        for _ in range(2):
            assert [job.id for job in await shop.crash(limit=10, alone=True)] == [id]
        assert shop.state(id) is JobState.FAILED
        assert shop.record(neighbour.id).crashes == 0


async def test_claiming_pauses_while_too_much_is_unrecorded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ack_module, "FULL_ROWS", 50)

    @shop.app.task(name="noop")
    async def noop() -> None: ...

    await shop.app.aenqueue_many(noop.job() for _ in range(5000))
    shop.faults.plan("before", "ack", *[StorageUnavailable("gone")] * 3)
    async with shop.worker(concurrency=20) as worker:
        await until(lambda: len(shop.faults.flushes) >= 3)
        assert worker.stats.unrecorded <= 50 + 20 + 500
        await until(lambda: worker.stats.completed == 5000)


async def test_a_token_is_reported_from_before_its_claim_until_all_is_recorded(shop: Shop) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    async with shop.worker(concurrency=1, poll=3600, heartbeat=0.01, dead_after=5):
        job = await hold.aenqueue()
        await shop.until(JobState.RUNNING, job.id)
        token = shop.storage.tables.live[job.id].token
        await until(lambda: shop.faults.tokens_beaten[-1:] == [[token]])
        gate.set()
        await until(lambda: shop.faults.tokens_beaten[-1] == [])


async def test_a_claim_in_flight_is_reported(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    async with shop.worker(poll=3600, heartbeat=0.01, dead_after=5):
        await until(lambda: shop.storage.tables.bells)
        shop.faults.hang = asyncio.Event()
        await noop.aenqueue()
        await until(lambda: len(shop.faults.tokens_beaten[-1]) == 1)
        shop.faults.hang.set()
        await until(lambda: shop.faults.tokens_beaten[-1] == [])


async def test_tokens_rise_and_are_never_used_twice(shop: Shop) -> None:
    seen: list[int] = []

    @shop.app.task(name="noop")
    async def noop() -> None: ...

    await shop.app.aenqueue_many(noop.job() for _ in range(500))
    async with shop.worker(concurrency=3) as worker:
        await until(lambda: worker.stats.completed == 500)
    for flush in shop.faults.flushes:
        seen += [ack.token for ack in flush]
    assert min(seen) >= 1
    assert len(set(seen)) > 1
    by_id = sorted((ack.id, ack.token) for flush in shop.faults.flushes for ack in flush)
    assert all(one[1] <= two[1] for one, two in pairwise(by_id))


async def test_two_workers_share_a_name(shop: Shop) -> None:
    @shop.app.task(name="who")
    async def who(ctx: Context = INJECTED) -> str:
        await asyncio.sleep(0.001)
        return str(ctx.worker.instance)

    async with shop.worker(name="w", concurrency=1) as one, shop.worker(name="w", concurrency=1) as two:
        jobs = await shop.app.aenqueue_many(who.job() for _ in range(100))
        results = {await job.aresult(timeout=10) for job in jobs}
        assert results == {str(one.instance.id), str(two.instance.id)}


async def test_a_worker_is_run_once_at_a_time_and_can_start_again(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    worker = shop.worker()
    async with worker:
        first = worker.instance.id
        with pytest.raises(Exception, match="runs already"):
            await worker.run()
    async with worker:
        await (await noop.aenqueue()).aresult(timeout=10)
        assert worker.instance.id != first
    assert worker.stats.completed == 1


def test_threads_of_the_engine_end_with_the_worker(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @shop.app.task(name="plain")
    def plain() -> None: ...

    async def main() -> None:
        async with shop.worker(heartbeat=0.01, dead_after=5):
            await (await plain.aenqueue()).aresult(timeout=10)
        await until(lambda: not [t for t in threading.enumerate() if t.name.startswith("prinia-")])

    asyncio.run(main())
