"""Heartbeats, death and resurrection: who is dead, whose jobs come back, who leads."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any
from uuid import UUID

import pytest

from prinia import INJECTED, Context
from prinia.errors import StorageError, StorageUnavailable
from prinia.job import Instance, JobSpec, JobState
from prinia.maintenance import Duties, Leader
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.worker import WorkerStats
from tests.engine.kit import Shop, ghost_instance, until

FAST: dict[str, Any] = {"heartbeat": 0.05, "dead_after": 0.25, "poll": 0.05}


class Elsewhere:
    """A worker in a thread and a loop of its own."""

    def __init__(self, shop: Shop, **options: Any) -> None:
        self._worker = shop.worker(**options)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._ready.set)
        await self._worker.run()

    @property
    def id(self) -> UUID:
        return self._worker.instance.id

    @property
    def stats(self) -> WorkerStats:
        return self._worker.stats

    async def __aenter__(self) -> Elsewhere:
        self._thread.start()
        await until(self._ready.is_set)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._worker.stop)
        await until(lambda: not self._thread.is_alive())


async def dead_with(shop: Shop, count: int, *, started: int = 0) -> Instance:
    """An instance that claimed ``count`` jobs, reported ``started`` of them as started, and died."""
    instance = ghost_instance()
    consumer = MemoryConsumer(shop.storage.tables, instance)
    await consumer.open()
    claim = await consumer.claim(count, token=1)
    shop.storage.pulse(instance).beat([1], [job.id for job in claim.jobs[:started]])
    assert len(claim.jobs) == count
    return instance


async def test_jobs_of_a_dead_worker_come_back_and_run(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> None: ...

    jobs = await shop.app.aenqueue_many(work.job() for _ in range(2500))
    ids = [job.id for job in jobs]
    dead = await dead_with(shop, 2500, started=3)
    async with shop.worker(**FAST):
        await shop.until(JobState.COMPLETED, *ids)
        await until(lambda: dead.id not in shop.storage.tables.register)
    records = shop.storage.find(ids)
    assert {(record.attempt, record.crashes) for record in records} == {(1, 1)}
    assert [[error.message for error in record.errors] for record in records[:4]] == [["worker lost"]] * 3 + [[]]


async def test_a_blocked_event_loop_is_no_crash(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []

    @shop.app.task(name="block")
    async def block(ctx: Context = INJECTED) -> None:
        runs.append(ctx.worker.name)
        time.sleep(4 * FAST["dead_after"])

    job = await block.aenqueue()
    async with Elsewhere(shop, name="blocked", **FAST) as blocked:
        await until(lambda: runs == ["blocked"])
        async with shop.worker(name="watching", **FAST):
            await shop.until(JobState.COMPLETED, job.id)
            assert blocked.stats.lost == 0
    assert runs == ["blocked"]
    assert (shop.record(job.id).attempt, shop.record(job.id).crashes) == (1, 0)
    assert sum(f"s, by job {job.id} (block)" in text for text in caplog.messages) == 1


async def test_an_instance_that_was_declared_dead_goes_on_as_a_new_one(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[tuple[UUID | None, bool]] = []
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold(ctx: Context = INJECTED) -> None:
        try:
            await gate.wait()
        finally:
            ended.append((ctx.worker.instance, ctx.lost))

    jobs = await shop.app.aenqueue_many(hold.job() for _ in range(3))
    async with shop.worker(name="w", **FAST) as worker:
        await until(lambda: worker.stats.running == 3)
        first = worker.instance.id
        register = shop.storage.tables.register
        await until(lambda: register[first].started == {job.id for job in jobs}, "for a beat to tell of them")
        shop.kill_now(worker)
        await until(lambda: ended == [(first, True)] * 3)
        await until(lambda: worker.stats.running == 3, "for the rescued jobs to run again")
        assert worker.instance.id != first
        gate.set()
        await shop.until(JobState.COMPLETED, *(job.id for job in jobs))
        assert worker.stats.lost == 3
    assert {shop.record(job.id).crashes for job in jobs} == {1}
    assert [error.message for job in jobs for error in shop.record(job.id).errors] == ["worker lost"] * 3
    assert sum("declared dead" in text for text in caplog.messages) == 1


async def test_outcomes_of_a_dead_instance_are_dropped(shop: Shop) -> None:
    runs: list[int] = []

    @shop.app.task(name="work")
    async def work(ctx: Context = INJECTED) -> None:
        runs.append(ctx.job_id)

    job = await work.aenqueue()
    shop.faults.plan("before", "ack", *[StorageUnavailable("gone")] * 4)
    async with shop.worker(**FAST) as worker:
        await until(lambda: worker.stats.unrecorded == 1)
        shop.kill_now(worker)
        await shop.until(JobState.COMPLETED, job.id)
        assert worker.stats.lost == 1
    assert shop.record(job.id).crashes == 1
    assert runs == [job.id, job.id]


async def test_a_thread_of_a_dead_instance_keeps_its_slot(shop: Shop) -> None:
    gate, running = threading.Event(), []

    @shop.app.task(name="block")
    def block(ctx: Context = INJECTED) -> None:
        running.append(ctx.job_id)
        gate.wait(60)

    await shop.app.aenqueue_many([block.job(), block.job()])
    async with shop.worker(threads=2, **FAST) as worker:
        await until(lambda: len(running) == 2)
        first = worker.instance.id
        shop.kill_now(worker)
        await until(lambda: worker.instance.id != first and worker.stats.claimed >= 3)
        assert len(running) == 2
        gate.set()
        await until(lambda: worker.stats.completed == 2)


async def test_a_dead_leader_is_followed(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> None: ...

    job = await work.aenqueue()
    leader = await dead_with(shop, 1)
    assert shop.storage.pulse(leader).lead(None, 0)
    async with shop.worker(**FAST) as worker:
        await shop.until(JobState.COMPLETED, job.id)
        assert shop.storage.tables.leader == worker.instance.id


async def test_a_leader_that_stops_is_followed(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> None: ...

    async with shop.worker(**FAST) as second:
        async with shop.worker(**FAST) as first:
            with shop.storage.tables.lock:
                shop.storage.tables.leader = first.instance.id
            await asyncio.sleep(0.1)
            assert shop.storage.tables.leader == first.instance.id, "a leader that lives stays"
        await until(lambda: shop.storage.tables.leader == second.instance.id)


async def test_missed_beats_of_our_own_kill_nobody(shop: Shop) -> None:
    """While the database was away nobody could beat: that proves nothing about anybody."""

    @shop.app.task(name="work")
    async def work() -> None: ...

    async with shop.worker(**FAST) as worker:
        await until(lambda: shop.storage.tables.leader == worker.instance.id)
        other = ghost_instance()
        await MemoryConsumer(shop.storage.tables, other).open()
        shop.faults.away = True
        await asyncio.sleep(3 * FAST["dead_after"])
        shop.faults.away = False
        beats = len(shop.faults.tokens_beaten)
        await until(lambda: len(shop.faults.tokens_beaten) >= beats + 2)
        assert not shop.storage.tables.register[other.id].dead
        await until(lambda: other.id not in shop.storage.tables.register, "once it was watched for long enough")


async def test_a_connection_lost_again_and_again_proves_nothing(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> None: ...

    async with shop.worker(**FAST) as worker:
        await until(lambda: shop.storage.tables.leader == worker.instance.id)
        shop.faults.every_third_beat_fails = True
        other = ghost_instance()
        await MemoryConsumer(shop.storage.tables, other).open()
        beats = shop.faults.beats
        await until(lambda: shop.faults.beats >= beats + 30)
        assert not shop.storage.tables.register[other.id].dead
        shop.faults.every_third_beat_fails = False
        await until(lambda: other.id not in shop.storage.tables.register)


async def test_a_leader_that_is_not_registered_is_followed(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> None: ...

    shop.storage.tables.leader = ghost_instance().id
    async with shop.worker(**FAST) as worker:
        await until(lambda: shop.storage.tables.leader == worker.instance.id)


async def test_beats_go_on_while_jobs_finish_after_a_stop(shop: Shop) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    await hold.aenqueue()
    worker = shop.worker(**FAST)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: worker.stats.running == 1)
    worker.stop()
    beats = len(shop.faults.tokens_beaten)
    await until(lambda: len(shop.faults.tokens_beaten) > beats + 5)
    gate.set()
    await running
    assert worker.stats.completed == 1


async def test_expired_jobs_end_without_being_claimed(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> None: ...

    pushed = shop.storage.push(
        [JobSpec(task="work", args=b"{}", queue="served by nobody", expires_in=0.001) for _ in range(2500)]
    )
    await asyncio.sleep(0.01)
    async with shop.worker(**FAST):
        await shop.until(JobState.CANCELLED, *(row.id for row in pushed))


class Pulse:
    """Remembers the calls of a leader; fails or blocks where told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.left = {"rescue": 2500, "sweep_expired": 2500, "sweep_keys": 2500, "free_strays": 2500}
        self.gate = threading.Event()
        self.gate.set()

    def call(self, name: str, batch: int = 0) -> int:
        self.calls.append(name)
        self.gate.wait(30)
        if name in self.errors:
            raise self.errors[name]
        if name not in self.left:
            return batch
        count = min(1000, self.left[name])
        self.left[name] -= count
        return count

    def declare_dead(self, instance: UUID, counter: int) -> bool:
        return bool(self.call("declare_dead", 1)) and counter == 7

    def rescue(self, instance: UUID) -> int:
        return self.call("rescue")

    def free_strays(self) -> int:
        return self.call("free_strays")

    def sweep_expired(self) -> int:
        return self.call("sweep_expired")

    def sweep_keys(self) -> int:
        return self.call("sweep_keys")

    def prepare_archive(self) -> int:
        return self.call("prepare_archive")

    def sweep_archive(self) -> int:
        return self.call("sweep_archive", 1)

    def close(self) -> None:
        self.calls.append("close")


class TestDuties:
    def step(self, duties: Duties, now: float, **seen: Any) -> None:
        duties.step(now, **({"silent": {}, "dead": frozenset()} | seen))

    def test_each_has_its_own_time(self) -> None:
        pulse = Pulse()
        told: list[tuple[UUID | None, int]] = []
        duties = Duties(pulse, lambda instance, count: told.append((instance, count)))  # type: ignore[arg-type]
        for now in range(0, 7200, 4):
            self.step(duties, float(now))
        duties_done = ("prepare_archive", "free_strays", "sweep_expired", "sweep_keys", "sweep_archive")
        assert {name: pulse.calls.count(name) for name in duties_done} == {
            "prepare_archive": 2,
            "free_strays": 122,
            "sweep_expired": 452,
            "sweep_keys": 122,
            "sweep_archive": 120 * 10,  # which has no end here, and must not hold up the rest
        }
        assert told == [(None, 1000), (None, 1000), (None, 500)]

    def test_whom_it_declares_dead_is_rescued_until_nothing_is_left(self) -> None:
        pulse = Pulse()
        self.step(Duties(pulse), 0.0, silent={ghost_instance().id: 7})  # type: ignore[arg-type]
        assert pulse.calls[:5] == ["declare_dead", "rescue", "rescue", "rescue", "rescue"]

    def test_whoever_beat_meanwhile_is_left_alone(self) -> None:
        pulse = Pulse()
        self.step(Duties(pulse), 0.0, silent={ghost_instance().id: 6})  # type: ignore[arg-type]
        assert "rescue" not in pulse.calls

    def test_a_refusal_stops_none_of_the_others(self, caplog: pytest.LogCaptureFixture) -> None:
        pulse = Pulse()
        pulse.errors = {"rescue": StorageError("lock timeout"), "prepare_archive": StorageError("no right")}
        self.step(Duties(pulse), 0.0, dead=frozenset([ghost_instance().id]))  # type: ignore[arg-type]
        assert "free_strays" in pulse.calls
        assert "maintenance (rescue) failed, it is tried again later: lock timeout" in caplog.messages

    async def test_slow_duties_do_not_hold_up_whoever_feeds_the_leader(self) -> None:
        pulse = Pulse()
        pulse.gate.clear()
        leader = Leader(lambda: pulse)  # type: ignore[arg-type, return-value]
        for _ in range(3):
            leader.look(silent={}, dead=frozenset())
        await until(lambda: pulse.calls == ["prepare_archive"])
        pulse.gate.set()
        await until(lambda: "free_strays" in pulse.calls)
        leader.close()
        assert leader.join(10)
        assert pulse.calls[-1] == "close"

    async def test_errors_of_any_kind_do_not_end_the_leader(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, "prinia.maintenance")
        pulse = Pulse()
        pulse.errors = {"declare_dead": ZeroDivisionError("a bug")}
        leader = Leader(lambda: pulse)  # type: ignore[arg-type, return-value]
        leader.look(silent={ghost_instance().id: 7}, dead=frozenset())
        await until(lambda: "maintenance failed" in caplog.text)
        pulse.errors = {"prepare_archive": StorageUnavailable("gone")}
        leader.look(silent={}, dead=frozenset())
        await until(lambda: "lost the database" in caplog.text)
        pulse.errors = {}
        leader.look(silent={}, dead=frozenset())
        await until(lambda: "free_strays" in pulse.calls)
        leader.close()
        assert leader.join(10)
