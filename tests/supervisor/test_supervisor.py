"""The supervisor in one process: runs, restarts, the cap, one bounded stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prinia import INJECTED, ConfigurationError, Context, Event, EventKind, HealthError, WorkerContext
from prinia.job import JobState
from prinia.supervisor import EXIT_GAVE_UP, Supervisor
from prinia.supervisor.restarts import RestartPolicy, Restarts
from prinia.worker import EXIT_CLEAN, EXIT_LEFT_BEHIND, Worker
from tests.engine.kit import Shop, until

QUICK: dict[str, Any] = {"restart_delay": 0.001, "longest_delay": 0.002}


@pytest.fixture
def shop() -> Shop:
    return Shop()


class Running:
    """A supervisor in the background, stopped by an event in place of a signal."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.signal = asyncio.Event()

    async def __aenter__(self) -> Running:
        self.task = asyncio.ensure_future(self.supervisor.run(until=self.signal.wait()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.signal.set()
        await self.task

    async def end(self) -> int:
        self.signal.set()
        return await self.task


def failing(shop: Shop, fails: Callable[[int], bool], runs: list[int]) -> Callable[[int], Worker]:
    """A factory of workers whose start hook fails in some runs."""

    @shop.app.on_start
    def hook(worker: WorkerContext) -> None:
        if worker.name == "shaky" and fails(worker.run):
            raise OSError(f"no route in run {worker.run}")

    def make(run: int) -> Worker:
        runs.append(run)
        return shop.worker(name="shaky")

    return make


async def test_workers_work_together_and_are_stopped_by_the_callers_signal(shop: Shop) -> None:
    seen: set[str] = set()

    @shop.app.task
    async def work(ctx: Context = INJECTED) -> None:
        seen.add(ctx.worker.name)
        await asyncio.sleep(0)

    supervisor = Supervisor()
    for number in range(3):
        supervisor.register(partial(lambda number, run: shop.worker(name=f"w{number}", concurrency=1), number))
    async with Running(supervisor) as running:
        await until(
            lambda: len(supervisor.workers) == 3 and all(worker.health().ready for worker in supervisor.workers)
        )
        while len(seen) < 3:
            await shop.app.aenqueue_many(work.job() for _ in range(20))
            await asyncio.sleep(0)
        assert await running.end() == EXIT_CLEAN
    assert seen == {"w0", "w1", "w2"}
    assert shop.storage.tables.register == {}
    assert supervisor.workers == []


async def test_a_worker_that_fails_is_started_anew_with_the_next_run_number(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    contexts: list[WorkerContext] = []
    events: list[Event] = []
    runs: list[int] = []

    @shop.app.task(name="work")
    async def work(ctx: Context = INJECTED) -> None:
        contexts.append(ctx.worker)

    supervisor = Supervisor(on_event=events.append, **QUICK)
    supervisor.register(failing(shop, lambda run: run < 2, runs))
    async with Running(supervisor):
        job = await work.aenqueue()
        await shop.until(JobState.COMPLETED, job.id)
        [worker] = supervisor.workers
        assert shop.storage.tables.register[worker.instance.id].instance.run == 2
    assert runs == [0, 1, 2]
    assert [(one.name, one.run, one.instance) for one in contexts] == [("shaky", 2, worker.instance.id)]
    assert sum("worker shaky started" in text and text.endswith("run 2") for text in caplog.messages) == 1
    failures = [text for text in caplog.messages if "is started anew in" in text]
    assert [text.partition(" failed")[0] for text in failures] == ["worker shaky (run 0)", "worker shaky (run 1)"]
    assert "no route in run 0" in failures[0]
    told = [(event.kind, event.worker.run) for event in events if event.kind is not EventKind.STARTED]
    assert told == [
        (EventKind.STOPPED, 0), (EventKind.ERROR, 0), (EventKind.STOPPED, 1), (EventKind.ERROR, 1),
        (EventKind.COMPLETED, 2), (EventKind.STOPPED, 2),
    ]  # fmt: skip
    assert isinstance(next(event for event in events if event.kind is EventKind.ERROR).exception, Exception)


async def test_at_the_cap_all_is_stopped_with_the_reason(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    @shop.app.task
    async def work() -> None: ...

    supervisor = Supervisor(max_restarts=2, **QUICK)
    supervisor.register(failing(shop, lambda run: True, runs))
    steady: list[int] = []

    @supervisor.register
    def other(run: int) -> Worker:
        steady.append(run)
        return shop.worker(name="steady")

    assert await supervisor.run(until=asyncio.Event().wait()) == EXIT_GAVE_UP
    assert runs == [0, 1, 2]
    assert steady == [0], "no innocent is started anew"
    assert shop.storage.tables.register == {}
    assert supervisor.reason is not None
    assert supervisor.reason.startswith("worker shaky (run 2) failed, 3 times in a row: prinia.errors.HookError: ")
    assert f"giving up, all workers are stopped: {supervisor.reason}" in caplog.messages


@pytest.mark.parametrize("broken", ["makes no worker", "raises"])
async def test_a_factory_that_makes_no_sense_is_not_tried_again(shop: Shop, broken: str) -> None:
    runs: list[int] = []

    def make(run: int) -> Any:
        runs.append(run)
        return shop.worker(concurrency=0) if broken == "raises" else "a worker"

    shop.app.task(name="work")(_nothing)
    supervisor = Supervisor(**QUICK)
    supervisor.register(make)
    assert await supervisor.run(until=asyncio.Event().wait()) == EXIT_GAVE_UP
    assert runs == [0]
    reason = "concurrency=0" if broken == "raises" else "'a worker', which is no worker"
    assert reason in str(supervisor.reason)


async def _nothing() -> None: ...


async def test_two_supervisors_with_one_worker_leave_each_other_alone(shop: Shop) -> None:
    shop.app.task(name="work")(_nothing)
    shared = shop.worker(name="shared")
    one, two = Supervisor(), Supervisor(**QUICK)
    one.register(lambda run: shared)
    two.register(lambda run: shared)
    async with Running(one) as running:
        await until(lambda: shared.health().ready)
        assert await two.run(until=asyncio.Event().wait()) == EXIT_GAVE_UP
        assert "worker shared runs already" in str(two.reason)
        assert shared.health().ready
        assert shared.instance.run == 0
        assert await running.end() == EXIT_CLEAN


async def test_a_worker_that_ends_by_itself_is_not_started_anew(shop: Shop) -> None:
    @shop.app.task(name="stop")
    async def stop(ctx: Context = INJECTED) -> None:
        ctx.worker.stop()

    await stop.aenqueue()
    runs: list[int] = []
    supervisor = Supervisor()

    @supervisor.register
    def make(run: int) -> Worker:
        runs.append(run)
        return shop.worker()

    assert await supervisor.run(until=asyncio.Event().wait()) == EXIT_CLEAN
    assert runs == [0]


async def test_it_ends_when_all_is_done(shop: Shop) -> None:
    @shop.app.task(name="work", queue="other")
    async def work(left: int) -> None:
        await asyncio.sleep(0.05)  # meanwhile nothing is due, and more is to come
        if left:
            await work.aenqueue(left - 1)

    await shop.app.aenqueue_many(work.job(3) for _ in range(20))
    later = await work.options(delay=600).aenqueue(0)
    supervisor = Supervisor()
    for _ in range(2):
        supervisor.register(lambda run: shop.worker(until_empty=True, queues=["other"]))
    assert await supervisor.run(until=asyncio.Event().wait()) == EXIT_CLEAN
    assert [job.id for job in shop.storage.tables.live.values()] == [later.id], "what is due later is not waited for"


async def test_nothing_is_started_anew_while_stopping(shop: Shop) -> None:
    """A worker waits for its next start when the stop comes: it does not come back."""
    runs: list[int] = []
    shop.app.task(name="work")(_nothing)
    supervisor = Supervisor(restart_delay=600, longest_delay=600)
    supervisor.register(failing(shop, lambda run: True, runs))
    supervisor.register(lambda run: shop.worker(name="steady"))
    async with Running(supervisor) as running:
        await until(lambda: runs == [0] and len(supervisor.workers) == 1)
        assert await running.end() == EXIT_CLEAN
    assert runs == [0]


async def test_the_stop_is_one_and_bounded(shop: Shop) -> None:
    """Workers that would wait for their jobs for long are held to the supervisor's limit."""
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    jobs = await shop.app.aenqueue_many(hold.job() for _ in range(2))
    supervisor = Supervisor(stop_timeout=0.05)
    for _ in range(2):
        supervisor.register(lambda run: shop.worker(concurrency=1, stop_timeout=600))
    async with Running(supervisor) as running:
        await shop.until(JobState.RUNNING, *(job.id for job in jobs))
        await until(lambda: sum(worker.stats.running for worker in supervisor.workers) == 2)
        assert await running.end() == EXIT_CLEAN
    assert {(shop.record(job.id).state, shop.record(job.id).attempt) for job in jobs} == {(JobState.READY, 0)}


async def test_a_handlers_own_stop_is_not_hurried_by_the_signal(shop: Shop) -> None:
    gate, stopping = asyncio.Event(), asyncio.Event()

    @shop.app.task(name="last")
    async def last(ctx: Context = INJECTED) -> str:
        ctx.worker.stop()
        stopping.set()
        await gate.wait()
        return "finished"

    job = await last.aenqueue()
    supervisor = Supervisor()
    supervisor.register(lambda run: shop.worker())
    async with Running(supervisor) as running:
        await stopping.wait()
        await until(lambda: supervisor.workers[0].health().state == "stopping")
        running.signal.set()
        await until(lambda: supervisor._stop.is_set())
        gate.set()
        assert await running.task == EXIT_CLEAN
    assert shop.record(job.id).result == b'"finished"'


async def test_a_second_stop_is_now_and_what_cannot_be_recorded_is_told(shop: Shop) -> None:
    @shop.app.task(name="hold")
    async def hold() -> None:
        await asyncio.sleep(3600)

    await hold.aenqueue()
    supervisor = Supervisor()
    supervisor.register(lambda run: shop.worker())
    async with Running(supervisor) as running:
        await until(lambda: bool(supervisor.workers) and supervisor.workers[0].stats.running == 1)
        supervisor.stop()
        await until(lambda: supervisor.workers[0].health().state == "stopping")
        shop.faults.away = True
        supervisor.stop()
        assert await running.task == EXIT_LEFT_BEHIND


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
async def test_it_handles_signals_itself(shop: Shop, signals: list[int]) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    job = await hold.aenqueue()
    before = signal.getsignal(signal.SIGTERM)
    supervisor = Supervisor()
    supervisor.register(lambda run: shop.worker())
    running = asyncio.ensure_future(supervisor.run())
    await until(lambda: bool(supervisor.workers) and supervisor.workers[0].stats.running == 1)
    for number in signals:
        os.kill(os.getpid(), number)
        await until(lambda: supervisor._stop.is_set())
    if len(signals) == 1:
        gate.set()
    assert await running == EXIT_CLEAN
    assert shop.state(job.id) is (JobState.COMPLETED if len(signals) == 1 else JobState.READY)
    assert signal.getsignal(signal.SIGTERM) is before


async def test_what_the_callers_signal_raises_is_raised_after_the_stop(shop: Shop) -> None:
    shop.app.task(name="work")(_nothing)

    async def broken() -> None:
        await until(lambda: bool(supervisor.workers) and supervisor.workers[0].health().ready)
        raise LookupError("no signal")

    supervisor = Supervisor()
    supervisor.register(lambda run: shop.worker())
    with pytest.raises(LookupError, match="no signal"):
        await supervisor.run(until=broken())
    assert shop.storage.tables.register == {}


async def test_a_cancelled_supervisor_stops_all_at_once(shop: Shop) -> None:
    @shop.app.task(name="hold")
    async def hold() -> None:
        await asyncio.sleep(3600)

    job = await hold.aenqueue()
    supervisor = Supervisor(**QUICK)
    supervisor.register(lambda run: shop.worker())
    running = asyncio.ensure_future(supervisor.run(until=asyncio.Event().wait()))
    await until(lambda: bool(supervisor.workers) and supervisor.workers[0].stats.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert shop.state(job.id) is JobState.READY
    assert shop.storage.tables.register == {}


async def test_health_tells_of_all_and_of_who_is_away(shop: Shop, tmp_path: Path) -> None:
    from prinia.health import ask

    runs: list[int] = []
    shop.app.task(name="work")(_nothing)
    address = tmp_path / "health.sock"
    supervisor = Supervisor(restart_delay=600, longest_delay=600, health=f"unix:{address}")
    supervisor.register(failing(shop, lambda run: True, runs))
    supervisor.register(lambda run: shop.worker(name="steady"))
    async with Running(supervisor):
        await until(lambda: runs == [0] and len(supervisor.workers) == 1 and supervisor.workers[0].health().ready)
        ok, said = await ask(str(address), "ready", seconds=20)
        assert not ok
        assert [(one["name"], one["ready"]) for one in said["workers"]] == [("shaky", False), ("steady", True)]
        assert "it is restarting: prinia.errors.HookError: " in said["workers"][0]["trouble"]
        assert (await ask(str(address), "live", seconds=20))[0]
        assert json.dumps(said)
    assert not address.exists()


async def test_health_in_use_is_told_before_anything_starts(shop: Shop, tmp_path: Path) -> None:
    address = tmp_path / "health.sock"
    address.write_text("")
    supervisor = Supervisor(health=f"unix:{address}")
    runs: list[int] = []
    supervisor.register(failing(shop, lambda run: True, runs))
    with pytest.raises(HealthError):
        await supervisor.run()
    assert runs == []


async def test_misuse() -> None:
    with pytest.raises(ConfigurationError, match="there is no worker"):
        await Supervisor().run()
    with pytest.raises(ConfigurationError, match="takes a function"):
        Supervisor().register("worker")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="on_event"):
        Supervisor(on_event=3)  # type: ignore[arg-type]


async def test_it_runs_once(shop: Shop) -> None:
    shop.app.task(name="work")(_nothing)
    supervisor = Supervisor()
    supervisor.register(lambda run: shop.worker(until_empty=True))
    assert await supervisor.run() == EXIT_CLEAN
    with pytest.raises(ConfigurationError, match="make another one"):
        await supervisor.run()
    with pytest.raises(ConfigurationError, match="runs already"):
        supervisor.register(lambda run: shop.worker())


@pytest.mark.parametrize(
    "settings",
    [{"max_restarts": -1}, {"max_restarts": True}, {"max_restarts": 1.5}, {"delay": -1}, {"reset_after": float("nan")}],
)
def test_policies_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"^supervisor: "):
        RestartPolicy(**settings)


def test_waits_grow_are_spread_and_start_over_after_a_good_run() -> None:
    restarts = Restarts(RestartPolicy(max_restarts=5, delay=1, longest_delay=10, reset_after=60), lambda: 1.0)
    assert [restarts.failed(ran=1) for _ in range(6)] == [1, 2, 4, 8, 10, None]
    restarts = Restarts(RestartPolicy(max_restarts=2, delay=1, longest_delay=10, reset_after=60), lambda: 1.0)
    assert [restarts.failed(ran=ran) for ran in (1, 1, 60, 1, 1)] == [1, 2, 1, 2, None]
    low = Restarts(RestartPolicy(delay=1), lambda: 0.0)
    assert [low.failed(ran=1) for _ in range(3)] == [0.5] * 3
