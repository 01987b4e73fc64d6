"""Start and stop hooks: when they are called, with what, and what becomes of a worker when one fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextvars import ContextVar
from uuid import UUID

import psycopg
import pytest

from prinia import INJECTED, Context, EventKind, HookError, Prinia, WorkerContext
from prinia.job import JobState
from prinia.worker import opened as opened_module
from tests.engine.heard import Heard
from tests.engine.kit import Shop, until

WARMTH: ContextVar[str] = ContextVar("warmth", default="cold")


class Cache:
    """What hooks get injected."""


@pytest.fixture
def steps(shop: Shop) -> list[str]:
    """An app with a resource and a task; what happens is written down."""
    steps: list[str] = []

    @shop.app.provide
    async def cache() -> AsyncIterator[Cache]:
        steps.append("cache opened")
        yield Cache()
        steps.append("cache closed")

    @shop.app.task(name="work")
    async def work() -> str:
        steps.append("job run")
        return WARMTH.get()

    return steps


async def test_they_stand_between_resources_and_jobs(shop: Shop, steps: list[str]) -> None:
    @shop.app.on_start
    def first_start(worker: WorkerContext) -> None:
        steps.append(f"first start of {worker.name}, {len(shop.faults.claims)} claims")

    @shop.app.on_start
    async def second_start(*, cache: Cache = INJECTED) -> None:
        steps.append(f"second start with a {type(cache).__name__}")

    @shop.app.on_stop
    async def first_stop(worker: WorkerContext, cache: Cache = INJECTED) -> None:
        steps.append(f"first stop, job {shop.state(1)}")

    @shop.app.on_stop
    def second_stop() -> None:
        steps.append("second stop")

    job = await shop.app.tasks["work"].aenqueue()
    async with shop.worker(name="w"):
        await shop.until(JobState.COMPLETED, job.id)
    assert steps == [
        "cache opened",
        "first start of w, 0 claims",
        "second start with a Cache",
        "job run",
        "second stop",
        "first stop, job completed",
        "cache closed",
    ]


async def test_stop_hooks_wait_for_the_last_outcome(shop: Shop) -> None:
    gate = asyncio.Event()
    seen: list[JobState] = []

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    @shop.app.on_stop
    def look(worker: WorkerContext) -> None:
        seen.append(shop.state(1))

    job = await hold.aenqueue()
    worker = shop.worker()
    running = asyncio.ensure_future(worker.run())
    await shop.until(JobState.RUNNING, job.id)
    worker.stop()
    await asyncio.sleep(0)
    assert seen == []
    gate.set()
    await running
    assert seen == [JobState.COMPLETED]


async def test_they_are_called_once_for_all_lives(shop: Shop, steps: list[str]) -> None:
    shop.app.on_start(lambda worker: steps.append("start"))
    shop.app.on_stop(lambda worker: steps.append("stop"))
    async with shop.worker(heartbeat=0.02, dead_after=5) as worker:
        before = worker.instance.id
        shop.kill_now(worker)
        await until(lambda: worker.instance.id != before)
        await (await shop.app.tasks["work"].aenqueue()).aresult(timeout=10)
    assert steps == ["start", "job run", "stop"]


async def test_they_see_the_present_life_of_their_worker(shop: Shop, heard: Heard) -> None:
    held: list[WorkerContext] = []
    stopped: list[tuple[bool, UUID | None]] = []
    runs: list[UUID | None] = []

    @shop.app.provide
    def cache(worker: WorkerContext = INJECTED) -> Cache:
        held.append(worker)
        return Cache()

    @shop.app.on_stop
    def stop(worker: WorkerContext, cache: Cache = INJECTED) -> None:
        stopped.append((worker is held[0], worker.instance))

    @shop.app.task(name="who")
    async def who(ctx: Context = INJECTED, cache: Cache = INJECTED) -> None:
        runs.append(ctx.worker.instance)

    async with shop.worker(heartbeat=0.02, dead_after=5, on_event=heard) as worker:
        first = worker.instance.id
        assert held[0].instance == first
        await (await who.aenqueue()).aresult(timeout=10)
        shop.kill_now(worker)
        await until(lambda: worker.instance.id != first)
        await (await who.aenqueue()).aresult(timeout=10)
        second = worker.instance.id
        assert held[0].instance == second
    assert stopped == [(True, second)]
    assert runs == [first, second]
    # What was told of the first life stays so.
    assert [event.worker.instance for event in heard.events if event.kind is EventKind.STARTED] == [first, second]


async def test_jobs_see_context_variables_of_a_start_hook(shop: Shop, steps: list[str]) -> None:
    @shop.app.on_start
    async def warm_up() -> None:
        WARMTH.set("warm")

    async with shop.worker():
        assert await (await shop.app.tasks["work"].aenqueue()).aresult(timeout=10) == "warm"
    assert WARMTH.get() == "cold"


async def test_a_hook_may_stop_its_worker(shop: Shop, steps: list[str]) -> None:
    @shop.app.on_start
    def stop(worker: WorkerContext) -> None:
        worker.stop()

    shop.app.on_stop(lambda: steps.append("stop"))
    await asyncio.wait_for(shop.worker().run(), 20)
    assert steps == ["stop"]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_a_start_hook_that_fails_ends_the_start(shop: Shop, steps: list[str], error: type[BaseException]) -> None:
    @shop.app.on_start
    def fine(cache: Cache = INJECTED) -> None:
        steps.append("start")

    @shop.app.on_start
    async def bad() -> None:
        raise error("no model")

    @shop.app.on_start
    def never() -> None:
        steps.append("not reached")

    shop.app.on_stop(lambda: steps.append("stop"))
    job = await shop.app.tasks["work"].aenqueue()
    with pytest.raises(HookError, match=r"start hook .*bad failed, so worker w does not start: .*: no model") as caught:
        await shop.worker(name="w").run()
    assert type(caught.value.__cause__) is error
    with pytest.raises(HookError):
        async with shop.worker():
            raise AssertionError("it started")
    assert steps == ["cache opened", "start", "stop", "cache closed"] * 2
    assert not shop.storage.tables.register
    assert shop.faults.claims == []
    assert shop.state(job.id) is JobState.READY


async def test_a_start_that_fails_leaves_no_row(migrated: str) -> None:
    app = Prinia(migrated)

    @app.on_start
    async def bad() -> None:
        raise OSError("no model")

    @app.task(name="work")
    async def work() -> None: ...

    with pytest.raises(HookError, match="no model"):
        async with app.worker():
            raise AssertionError("it started")
    async with await psycopg.AsyncConnection.connect(migrated) as connection:
        assert await (await connection.execute("select count(*) from prinia.workers")).fetchone() == (0,)


@pytest.mark.parametrize("fault", ["raises", "hangs", "ignores its cancellation"])
@pytest.mark.parametrize("hurry", [False, True])
async def test_a_stop_hook_that_fails_or_hangs_is_logged_and_left(
    shop: Shop,
    steps: list[str],
    fault: str,
    hurry: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In a hurry nobody waits for the longer limit.
    monkeypatch.setattr(opened_module, "CLOSING", 3600 if hurry else 0.05)
    monkeypatch.setattr(opened_module, "GRACE", 0.05)
    gate = asyncio.Event()

    @shop.app.on_stop
    async def last(cache: Cache = INJECTED) -> None:
        steps.append("last")

    @shop.app.on_stop
    async def bad() -> None:
        if fault == "raises":
            raise SystemExit("in the wrong place")
        if fault == "hangs":
            await asyncio.sleep(3600)
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()

    worker = shop.worker()
    with caplog.at_level(logging.ERROR, "prinia"):
        running = asyncio.ensure_future(worker.run())
        await until(lambda: shop.faults.claims)
        worker.stop()
        if hurry:
            worker.stop()
        await asyncio.wait_for(running, 20)
    assert steps == ["cache opened", "last", "cache closed"]
    [said] = [record.getMessage() for record in caplog.records]
    assert "bad failed: SystemExit: in the wrong place" in said or "bad took too long and was cancelled" in said
    assert (fault == "raises") == ("failed" in said)
    gate.set()
    await asyncio.sleep(0)


async def test_a_cancelled_run_stops_in_order(shop: Shop, steps: list[str]) -> None:
    shop.app.on_start(lambda: steps.append("start"))

    @shop.app.on_stop
    async def stop() -> None:
        await asyncio.sleep(0)
        steps.append("stop")

    running = asyncio.ensure_future(shop.worker().run())
    await until(lambda: shop.faults.claims)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert steps == ["start", "stop"]
