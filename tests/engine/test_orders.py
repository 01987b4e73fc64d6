"""What a worker does when somebody says something from outside: quiet, pause, resume, stop; and what is paused.

Seen to fail with: a worker that claims while it is held; waiting jobs not handed back by a pause; a life that forgets
what the one before was told; a held worker that keeps its bell; a stop that is not obeyed; a look that an error ends.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from prinia import Prinia
from prinia.changes import WorkerCommand
from prinia.job import JobState
from prinia.storage.memory import MemoryStorage
from prinia.worker import Worker
from prinia.worker import orders as orders_module
from prinia.worker.orders import Hold
from tests.engine.kit import AWAY, Shop, until


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_module, "LOOK_EVERY", 0.02)


class Desk:
    """A shop whose jobs wait to be let go, one worker in it, and what it has started."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.app = shop.app
        self.started: list[int] = []
        self.gate = asyncio.Event()

        @shop.app.task(name="wait")
        async def wait(number: int) -> None:
            self.started.append(number)
            await self.gate.wait()

        @shop.app.task(name="other")
        async def other(number: int) -> None:
            self.started.append(number)
            await self.gate.wait()

        self.wait, self.other = wait, other

    def states(self, *ids: int) -> list[JobState]:
        return [self.shop.state(id) for id in ids]

    async def enqueue(self, *numbers: int, task: str = "wait") -> list[int]:
        return [(await self.app.tasks[task].aenqueue(number)).id for number in numbers]

    async def heard(self, worker: Worker, command: WorkerCommand | None) -> None:
        """Until the worker knows."""
        assert worker._equipment is not None
        hold = worker._equipment.hold
        await until(lambda: hold.command == command, f"for the worker to hear {command}")


@pytest.fixture
async def desk(shop: Shop) -> Desk:
    return Desk(shop)


@pytest.mark.parametrize("listen", [True, False])
async def test_a_quiet_worker_runs_what_it_has_and_claims_no_more(desk: Desk, listen: bool) -> None:
    async with desk.shop.worker(listen=listen, concurrency=2) as worker:
        ids = await desk.enqueue(1, 2, 3)
        await until(lambda: len(desk.started) == 2)
        assert await desk.app.aquiet_worker(worker.instance.id, by="Ada")
        await desk.heard(worker, WorkerCommand.QUIET)
        desk.gate.set()
        await desk.shop.until(JobState.COMPLETED, *ids[:2])
        await until(lambda: worker.stats.running == 0)
        [late] = await desk.enqueue(4)
        assert desk.states(ids[2], late) == [JobState.READY, JobState.READY]
        async with desk.shop.worker(listen=listen):
            await desk.shop.until(JobState.COMPLETED, ids[2], late)
        [again] = await desk.enqueue(5)
        assert await desk.app.aresume_worker(str(worker.instance.id), by="Ada")
        await desk.shop.until(JobState.COMPLETED, again)


async def test_what_would_have_woken_a_quiet_worker_wakes_others(desk: Desk) -> None:
    """A worker that may not claim lets go of its bell, however long it sleeps."""
    desk.gate.set()
    async with desk.shop.worker(poll=3600) as quiet:
        await until(lambda: desk.shop.storage.tables.bells)
        assert await desk.app.aquiet_worker(quiet.instance.id)
        await desk.heard(quiet, WorkerCommand.QUIET)
        await until(lambda: not desk.shop.storage.tables.bells, "for the quiet worker to let go")
        async with desk.shop.worker(poll=3600):
            await until(lambda: desk.shop.storage.tables.bells)
            [id] = await desk.enqueue(1)
            await desk.shop.until(JobState.COMPLETED, id)


async def test_a_paused_worker_hands_back_what_has_not_started(shop: Shop) -> None:
    """Jobs that wait for a thread go back at once; what runs goes on."""
    gate = threading.Event()
    started = []

    @shop.app.task(name="block")
    def block(number: int) -> None:
        started.append(number)
        assert gate.wait(20)

    async with shop.worker(threads=1, concurrency=10) as worker:
        ids = [(await block.aenqueue(number)).id for number in range(2)]
        await until(lambda: worker.stats.running == 1 and worker.stats.waiting == 1)
        assert await shop.app.apause_worker(worker.instance.id, by="Ada")
        await until(lambda: shop.state(ids[1]) is JobState.READY)
        assert shop.record(ids[1]).attempt == 0
        assert shop.state(ids[0]) is JobState.RUNNING
        gate.set()
        await shop.until(JobState.COMPLETED, ids[0])
        assert await shop.app.aresume_worker(worker.instance.id, by="Ada")
        await shop.until(JobState.COMPLETED, ids[1])
    assert started == [0, 1]


async def test_a_quiet_worker_keeps_what_has_not_started(shop: Shop) -> None:
    gate = threading.Event()

    @shop.app.task(name="block")
    def block(number: int) -> None:
        assert gate.wait(20)

    async with shop.worker(threads=1, concurrency=10) as worker:
        ids = [(await block.aenqueue(number)).id for number in range(2)]
        await until(lambda: worker.stats.running == 1 and worker.stats.waiting == 1)
        assert await shop.app.aquiet_worker(worker.instance.id)
        assert worker._equipment is not None
        hold = worker._equipment.hold
        await until(lambda: hold.held)
        gate.set()
        await shop.until(JobState.COMPLETED, *ids)


@pytest.mark.parametrize("what", [{"queue": "default"}, {"task": "block"}, {"everything": True}])
async def test_what_waits_of_something_paused_is_handed_back(shop: Shop, what: dict[str, object]) -> None:
    gate = threading.Event()

    @shop.app.task(name="block")
    def block(number: int) -> None:
        assert gate.wait(20)

    async with shop.worker(threads=1, concurrency=10) as worker:
        ids = [(await block.aenqueue(number)).id for number in range(2)]
        await until(lambda: worker.stats.running == 1 and worker.stats.waiting == 1)
        assert await shop.app.apause(by="Ada", **what)  # type: ignore[arg-type]
        await until(lambda: shop.state(ids[1]) is JobState.READY)
        gate.set()
        await shop.until(JobState.COMPLETED, ids[0])
        assert shop.state(ids[1]) is JobState.READY
        assert await shop.app.aresume(by="Ada", **what)  # type: ignore[arg-type]
        await shop.until(JobState.COMPLETED, ids[1])


async def test_a_paused_task_does_not_stop_the_others(desk: Desk) -> None:
    desk.gate.set()
    await desk.app.apause(task="wait", by="Ada")
    async with desk.shop.worker():
        [held] = await desk.enqueue(1)
        [free] = await desk.enqueue(2, task="other")
        await desk.shop.until(JobState.COMPLETED, free)
        assert desk.shop.state(held) is JobState.READY
        await desk.app.aresume(task="wait", by="Ada")
        await desk.shop.until(JobState.COMPLETED, held)


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize("busy", [True, False])
async def test_a_worker_is_stopped(desk: Desk, listen: bool, busy: bool) -> None:
    """It ends as after a first signal: what runs finishes, nothing else is claimed."""
    worker = desk.shop.worker(listen=listen, concurrency=1)
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.instance.id in desk.shop.storage.tables.register)
    ids = await desk.enqueue(1, 2) if busy else []
    await until(lambda: worker.stats.running == len(ids[:1]))
    assert await desk.app.astop_worker(worker.instance.id, by="Ada")
    await until(lambda: worker.health().state in ("stopping", "stopped"))
    assert not running.done() or not busy
    desk.gate.set()
    await asyncio.wait_for(running, 20)
    assert desk.states(*ids) == ([JobState.COMPLETED, JobState.READY] if busy else [])
    assert worker.instance.id not in desk.shop.storage.tables.register


async def test_a_stopping_worker_cannot_be_held_or_freed(desk: Desk) -> None:
    worker = desk.shop.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.instance.id in desk.shop.storage.tables.register)
    await desk.enqueue(1)
    await until(lambda: desk.started)
    assert await desk.app.astop_worker(worker.instance.id)
    assert not await desk.app.aresume_worker(worker.instance.id)
    assert not await desk.app.astop_worker(worker.instance.id)
    await until(lambda: worker.health().state == "stopping")
    desk.gate.set()
    await asyncio.wait_for(running, 20)


async def test_a_new_life_keeps_to_what_the_last_was_told(desk: Desk) -> None:
    """A worker that was declared dead by mistake goes on as another instance, and claims nothing still."""
    desk.gate.set()
    async with desk.shop.worker() as worker:
        first = worker.instance.id
        assert await desk.app.aquiet_worker(first)
        await desk.heard(worker, WorkerCommand.QUIET)
        desk.shop.kill_now(worker)
        await until(lambda: worker.instance.id != first, "for a new life")
        second = worker.instance.id
        register = desk.shop.storage.tables.register
        await until(lambda: second in register)
        [id] = await desk.enqueue(1)
        assert register[second].command is WorkerCommand.QUIET
        assert await desk.app.aresume_worker(second)
        await desk.shop.until(JobState.COMPLETED, id)


async def test_a_held_worker_that_empties_the_queue_waits_until_it_may(desk: Desk) -> None:
    """``until_empty`` counts what others may claim: a worker that may not does not end for it."""
    desk.gate.set()
    worker = desk.shop.worker(until_empty=True, concurrency=1)
    await desk.app.apause(everything=True)
    [id] = await desk.enqueue(1)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(running, 20)  # what is paused is not due
    assert desk.shop.state(id) is JobState.READY


async def test_looking_survives_an_outage(desk: Desk) -> None:
    async with desk.shop.worker(listen=False) as worker:
        assert worker._life is not None
        consumer = worker._life._consumer
        inner, errors = consumer.orders, [AWAY, AWAY]

        async def orders() -> object:
            if errors:
                raise errors.pop()
            return await inner()

        consumer.orders = orders  # type: ignore[method-assign,assignment]
        assert await desk.app.aquiet_worker(worker.instance.id)
        await desk.heard(worker, WorkerCommand.QUIET)
        assert errors == []


async def test_a_held_worker_that_lost_the_database_still_looks_after_its_jobs(desk: Desk) -> None:
    """What others took meanwhile is cancelled here, though nothing is claimed."""
    async with desk.shop.worker() as worker:
        [id] = await desk.enqueue(1)
        await until(lambda: desk.started)
        assert await desk.app.aquiet_worker(worker.instance.id)
        await desk.heard(worker, WorkerCommand.QUIET)
        desk.shop.storage.tables.live[id].token = 99
        assert worker._life is not None
        worker._life._ledger.recheck = True
        await until(lambda: worker.stats.running == 0, "for the lost job to be cancelled")


async def test_a_stopped_worker_is_told_by_its_own_log(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="prinia.worker"):
        async with desk.shop.worker(name="web-1") as worker:
            for command in (WorkerCommand.QUIET, WorkerCommand.PAUSE, None):
                desk.shop.storage.command_worker(worker.instance.id, command, by="Ada")
                await desk.heard(worker, command)
    told = [record.message for record in caplog.records if "was told" in record.message]
    assert told == [f"worker web-1 was told to {what}" for what in ("quiet", "pause", "go on")]


async def test_a_hold() -> None:
    hold = Hold()
    assert not hold.obey(None)
    await asyncio.wait_for(hold.lifted(), 1)
    assert hold.obey(WorkerCommand.QUIET)
    assert hold.obey(WorkerCommand.PAUSE)
    assert not hold.obey(WorkerCommand.PAUSE)
    assert hold.held
    await asyncio.wait_for(hold.imposed(), 1)
    waiting = asyncio.ensure_future(hold.lifted())
    await asyncio.sleep(0)
    assert not waiting.done()
    assert hold.obey(None)
    await asyncio.wait_for(waiting, 1)


def test_one_app_for_the_outside_is_enough() -> None:
    """Whoever operates needs no task of the app's."""
    storage = MemoryStorage()
    app = Prinia(storage=storage)
    assert app.pause(task="shop.greet", by="Ada")
    assert storage.tables.paused_tasks.keys() == {"shop.greet"}
