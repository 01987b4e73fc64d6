"""A stop is bounded, hands back what has not started, and leaves nothing claimed while the database is there."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from prinia import INJECTED, Context, Snooze
from prinia.errors import MigrationsPending, StorageUnavailable
from prinia.job import JobState
from prinia.worker import Worker, life
from tests.engine.kit import Shop, until


@pytest.fixture(autouse=True)
def _short_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRACE", "FLUSH", "GOODBYE"):
        monkeypatch.setattr(life, name, 0.2)


def start(worker: Worker) -> asyncio.Task[None]:
    return asyncio.ensure_future(worker.run())


async def test_running_jobs_finish_and_waiting_ones_go_back_uncounted(shop: Shop) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="work")
    async def work(hold: bool, ctx: Context = INJECTED) -> bool:
        if hold:
            await gate.wait()
        return ctx.stopping

    jobs = await shop.app.aenqueue_many(work.job(number >= 2000) for number in range(2200))
    worker = shop.worker(concurrency=1)
    running = start(worker)
    await until(lambda: worker.stats.completed == 2000 and worker.stats.waiting > 0, "for jobs claimed ahead")
    [held, *waiting] = [job.id for job in jobs][2000:]
    worker.stop()
    await until(lambda: all(shop.state(id) is JobState.READY for id in waiting), "for them to be handed back")
    assert shop.state(held) is JobState.RUNNING
    assert all(shop.record(id).attempt == 0 for id in waiting)
    gate.set()
    await running
    assert shop.record(held).result == b"true"
    assert worker.stats.handed_back > 0
    assert not shop.storage.tables.register


async def test_past_the_limit_handlers_are_cancelled_and_handed_back_uncounted(shop: Shop) -> None:
    @shop.app.task(name="hold", max_attempts=1)
    async def hold() -> None:
        await asyncio.sleep(3600)

    @shop.app.task(name="trip", max_attempts=1)
    async def trip() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise OSError("connection closed under me") from None

    jobs = [await hold.aenqueue(), await trip.aenqueue()]
    worker = shop.worker(stop_timeout=0.05)
    running = start(worker)
    await until(lambda: worker.stats.running == 2)
    worker.stop()
    await running
    for job in jobs:
        record = shop.record(job.id)
        assert (record.state, record.attempt, record.crashes, record.errors) == (JobState.READY, 0, 0, ())
    assert worker.stats.handed_back == 2


async def test_a_handler_may_use_its_cancellation_to_finish_or_to_steer(shop: Shop) -> None:
    @shop.app.task(name="finish")
    async def finish() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "in time"
        return ""

    @shop.app.task(name="steer")
    async def steer() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise Snooze(600) from None

    finished, snoozed = await finish.aenqueue(), await steer.aenqueue()
    worker = shop.worker(stop_timeout=0)
    running = start(worker)
    await until(lambda: worker.stats.running == 2)
    worker.stop()
    await running
    assert shop.record(finished.id).result == b'"in time"'
    assert shop.state(snoozed.id) is JobState.SCHEDULED


async def test_a_handler_that_ignores_its_cancellation_is_left_behind(shop: Shop) -> None:
    let_go: list[int] = []
    cancelled: list[int] = []

    @shop.app.task(name="stubborn")
    async def stubborn() -> str:
        while not let_go:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(1)
        return "late"

    job = await stubborn.aenqueue()
    worker = shop.worker(stop_timeout=0.05)
    running = start(worker)
    try:
        await until(lambda: worker.stats.running == 1)
        [handler] = [task for task in asyncio.all_tasks() if "Runner._run" in repr(task)]
        worker.stop()
        await running
        assert worker.stats.abandoned == 1
        assert shop.state(job.id) is JobState.READY
        assert cancelled
    finally:
        let_go.append(1)  # or the end of the loop would wait for it
    handler.cancel()
    await asyncio.wait([handler])
    assert shop.state(job.id) is JobState.READY, "its late result counts for nothing"


async def test_a_thread_that_does_not_end_is_left_behind(shop: Shop) -> None:
    gate = threading.Event()

    @shop.app.task(name="block")
    def block() -> None:
        gate.wait(60)

    @shop.app.task(name="polite")
    def polite(ctx: Context = INJECTED) -> str:
        while not ctx.stopping:
            time.sleep(0.001)
        return "ended"

    blocked, told = await block.aenqueue(), await polite.aenqueue()
    worker = shop.worker(stop_timeout=0.05)
    running = start(worker)
    await until(lambda: worker.stats.running == 2)
    worker.stop()
    await running
    assert shop.state(blocked.id) is JobState.READY
    assert shop.record(told.id).result == b'"ended"'
    gate.set()


async def test_the_second_stop_is_now(shop: Shop) -> None:
    @shop.app.task(name="hold")
    async def hold() -> None:
        await asyncio.sleep(3600)

    job = await hold.aenqueue()
    worker = shop.worker(stop_timeout=3600)
    running = start(worker)
    await until(lambda: worker.stats.running == 1)
    worker.stop()
    await asyncio.sleep(0.02)
    assert not running.done()
    worker.stop()
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert (shop.state(job.id), shop.record(job.id).attempt) == (JobState.READY, 0)


async def test_a_cancelled_run_stops_at_once_and_in_order(shop: Shop) -> None:
    @shop.app.task(name="hold")
    async def hold() -> None:
        await asyncio.sleep(3600)

    job = await hold.aenqueue()
    worker = shop.worker(stop_timeout=3600)
    running = start(worker)
    await until(lambda: worker.stats.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    assert shop.state(job.id) is JobState.READY
    assert not shop.storage.tables.register


async def test_a_stop_before_the_start_counts(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    worker = shop.worker()
    running = start(worker)
    worker.stop()
    await asyncio.wait_for(running, 20)


async def test_a_stop_with_the_database_away_is_bounded(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    jobs = [await hold.aenqueue() for _ in range(3)]
    worker = shop.worker(stop_timeout=0.05)
    running = start(worker)
    await until(lambda: worker.stats.running == 3)
    shop.faults.away = True
    worker.stop()
    await asyncio.wait_for(running, 20)
    assert worker.stats.left_behind == 3
    assert "3 outcomes could not be recorded" in caplog.text
    assert {shop.state(job.id) for job in jobs} == {JobState.RUNNING}, "for others to rescue"


async def test_a_stop_with_a_database_that_does_not_answer_is_bounded(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    worker = shop.worker(stop_timeout=0.05, poll=0.05)
    running = start(worker)
    await until(lambda: shop.storage.tables.bells)
    shop.faults.hang = asyncio.Event()
    await noop.aenqueue()
    await asyncio.sleep(0.05)
    worker.stop()
    await asyncio.wait_for(running, 20)


async def test_a_stop_waits_for_the_database_to_come_back_within_its_limit(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "FLUSH", 20)
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> str:
        await gate.wait()
        return "done"

    job = await hold.aenqueue()
    worker = shop.worker(stop_timeout=20)
    running = start(worker)
    await until(lambda: worker.stats.running == 1)
    shop.faults.away = True
    worker.stop()
    gate.set()
    await until(lambda: len(shop.faults.flushes) > 1)
    shop.faults.away = False
    await running
    assert shop.state(job.id) is JobState.COMPLETED
    assert worker.stats.left_behind == 0


async def test_a_claim_in_flight_at_the_stop_is_handed_back(shop: Shop) -> None:
    runs: list[int] = []

    @shop.app.task(name="noop")
    async def noop() -> None:
        runs.append(1)

    worker = shop.worker(poll=3600)
    running = start(worker)
    await until(lambda: shop.storage.tables.bells)
    shop.faults.hang = asyncio.Event()
    looks = len(shop.faults.claims)
    job = await noop.aenqueue()
    await until(lambda: len(shop.faults.claims) > looks, "for a claim on its way")
    worker.stop()
    shop.faults.hang.set()
    await running
    assert (shop.state(job.id), shop.record(job.id).attempt, runs) == (JobState.READY, 0, [])


async def test_a_claim_whose_answer_was_lost_before_the_stop_is_handed_back(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    worker = shop.worker(poll=3600)
    running = start(worker)
    await until(lambda: shop.storage.tables.bells)
    shop.faults.plan("after", "claim", StorageUnavailable("reset by peer"))
    shop.faults.plan("before", "recover", *[StorageUnavailable("still away")] * 1)
    job = await noop.aenqueue()
    await shop.until(JobState.RUNNING, job.id)
    worker.stop()
    await running
    assert shop.state(job.id) in (JobState.READY, JobState.COMPLETED)
    assert not shop.storage.tables.register


async def test_the_start_waits_for_the_database(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    shop.faults.away = True
    async with shop.worker(name="w"):
        job = await noop.aenqueue()
        assert caplog.messages.count("worker w: database unreachable: connection refused; trying again") == 1
        shop.faults.away = False
        await shop.until(JobState.COMPLETED, job.id)


async def test_a_stop_ends_the_wait_for_the_database(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    shop.faults.away = True
    worker = shop.worker()
    running = start(worker)
    await asyncio.sleep(0.05)
    worker.stop()
    await asyncio.wait_for(running, 20)


@pytest.mark.parametrize("start", [Worker.run, Worker.__aenter__])
async def test_pending_migrations_are_raised_at_the_start(
    shop: Shop, start: Callable[[Worker], Coroutine[Any, Any, object]]
) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    shop.faults.plan("before", "open", MigrationsPending("run prinia migrate"))
    worker = shop.worker()
    with pytest.raises(MigrationsPending, match="run prinia migrate"):
        await start(worker)
    async with worker:
        await (await noop.aenqueue()).aresult(timeout=10)
