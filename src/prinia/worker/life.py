"""One life of a worker: an instance from its registration to its end, by a stop or because it was declared dead."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context as ContextVars
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from prinia.clock import Clock
from prinia.context import WorkerContext
from prinia.errors import StorageError, StorageUnavailable
from prinia.events import Subscription
from prinia.job import Instance
from prinia.storage.protocol import Storage, Vitals
from prinia.task import Task
from prinia.worker.ack import Flusher
from prinia.worker.announce import Announcer
from prinia.worker.call import Surrounded
from prinia.worker.claim import Claimer
from prinia.worker.heartbeat import Heartbeat
from prinia.worker.ledger import Counts, Ledger
from prinia.worker.listeners import Ears
from prinia.worker.loopwatch import LoopWatch
from prinia.worker.opened import Opened
from prinia.worker.orders import Hold, Orders
from prinia.worker.outage import Backoff, Outage
from prinia.worker.pool import Pool
from prinia.worker.run import Runner
from prinia.worker.settings import Settings
from prinia.worker.threads import Threads
from prinia.worker.waiting import first, give_up
from prinia.worker.waking import Waking

log = logging.getLogger("prinia.worker")

#: Seconds, each beyond the limit of a stop: for cancelled handlers to end, for outcomes to be recorded, and to say
#: goodbye to the database.
GRACE = 1.0
FLUSH = 5.0
GOODBYE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a worker's lives have in common."""

    storage: Storage
    tasks: Mapping[str, Task[Any, Any]]
    subscriptions: Sequence[Subscription]
    ears: Ears
    settings: Settings
    threads: Threads
    pool: Pool
    waking: Waking
    variables: ContextVars
    counts: Counts
    hold: Hold
    stop: asyncio.Event
    stop_now: asyncio.Event
    #: Asks the worker to stop, from any thread.
    request_stop: Callable[[], None]
    #: The worker as its resources and hooks see it, in whatever life it is.
    worker: WorkerContext
    #: Resources and hooks, for all lives.
    opened: Opened
    #: What stands around a task's handler.
    surround: Callable[[Task[Any, Any]], Surrounded | None]
    #: Set once the worker is ready to claim, or has found the database away at the start.
    tried: asyncio.Event
    clock: Clock
    random: Callable[[], float]


class Life:
    """Wires the parts of one instance, runs them, and winds them down. Used once."""

    def __init__(self, equipment: Equipment, instance: Instance) -> None:
        self._equipment = equipment
        self._instance = instance
        self._settings = settings = equipment.settings
        clock, random, counts = equipment.clock, equipment.random, equipment.counts
        self._loop = asyncio.get_running_loop()
        self._dead = asyncio.Event()
        self._ledger = ledger = Ledger()
        self.context = WorkerContext(
            name=settings.name, instance=instance.id, run=instance.run, _stop=equipment.request_stop
        )
        self.announcer = announcer = Announcer(self.context, equipment.subscriptions, equipment.tasks, equipment.ears)
        self._outage = outage = Outage(settings.name, announcer.trouble)
        self._backoff = Backoff(random)
        self._consumer = consumer = equipment.storage.consumer(instance, listen=settings.listen)
        changed = asyncio.Event()
        self._flusher = Flusher(
            consumer, ledger, counts, outage,
            jobs_run=lambda: bool(self._runner.running), changed=changed, clock=clock, random=random,
            announcer=announcer,
        )  # fmt: skip
        self._runner = Runner(
            equipment.tasks, self._flusher, ledger, counts,
            concurrency=settings.concurrency, threads=equipment.threads, pool=equipment.pool,
            variables=equipment.variables, changed=changed, random=random,
            worker=self.context, instance=instance.id, storage=equipment.storage,
            strict=settings.strict, surround=equipment.surround, announcer=announcer,
        )  # fmt: skip
        self._claimer = Claimer(
            consumer, self._runner, self._flusher, ledger, counts, outage,
            known=equipment.tasks, concurrency=settings.concurrency,
            claim_batch=settings.claim_batch, waking=equipment.waking,
            changed=changed, hold=equipment.hold, stop=equipment.stop, clock=clock, random=random, announcer=announcer,
            when_empty=equipment.request_stop if settings.until_empty else None,
        )  # fmt: skip
        self._orders = Orders(
            consumer, self._runner, equipment.hold, outage,
            stop=equipment.request_stop, name=settings.name, clock=clock,
        )  # fmt: skip
        self._loop_watch = LoopWatch(self._loop, self._runner.current)
        self._heartbeat = Heartbeat(
            partial(equipment.storage.pulse, instance), instance.id, outage,
            every=settings.heartbeat, dead_after=settings.dead_after,
            tokens=ledger.tokens, started=self._runner.started_ids, vitals=self.vitals,
            declared_dead=self._declared_dead,
            rescued=announcer.rescued, loop_watch=self._loop_watch, random=random,
        )  # fmt: skip

    @property
    def started(self) -> int:
        """How many handlers were started."""
        return self._runner.started

    @property
    def running(self) -> int:
        """How many handlers run."""
        return len(self._runner.running)

    @property
    def waiting(self) -> int:
        """How many jobs are claimed and not started."""
        return self._runner.waiting

    @property
    def unrecorded(self) -> int:
        """How many outcomes are not recorded yet."""
        return self._flusher.unrecorded

    @property
    def beat_age(self) -> float | None:
        """Seconds since the last heartbeat that the database answered. Safe from any thread."""
        beaten_at = self._heartbeat.beaten_at
        return None if beaten_at is None else time.monotonic() - beaten_at

    def ask_loop(self) -> None:
        """Ask the event loop for a sign of life: `vitals` tell of it. Safe from any thread."""
        self._loop_watch.ask(time.monotonic())

    def vitals(self) -> Vitals:
        """How it is. Safe from any thread."""
        listener: Literal["listening", "polling", "off"] = "off"
        if self._settings.listen:
            listener = "listening" if self._consumer.bell.listening else "polling"
        return Vitals(listener=listener, lag=self._heartbeat.lag, blocked=self._loop_watch.blocked)

    async def open(self) -> bool:
        """Register, however long the database is away, and beat from then on; False when stopped before that.

        After it, `run` or `leave`.

        Raises `StorageError` when the database is there and refuses, for example `MigrationsPending`.
        """
        while not self._equipment.stop.is_set():
            opening = asyncio.ensure_future(self._consumer.open())
            await first(opening, self._equipment.stop.wait())
            if not opening.done():
                await give_up(opening, grace=GRACE)
                break
            try:
                opening.result()
            except StorageUnavailable as error:
                self._equipment.tried.set()
                self._outage.began("start", error)
                await first(self._equipment.clock.sleep(self._backoff.next()), self._equipment.stop.wait())
            else:
                self._outage.ended("start")
                self._heartbeat.start()
                return True
        await self._say_goodbye()
        return False

    async def run(self) -> bool:
        """Work until stopped (True) or until this instance is declared dead (False)."""
        # No TaskGroup: it waits for its tasks without limit, and a call on a stalled connection may ignore its
        # cancellation for long, where a stop must be bounded.
        flushing = asyncio.ensure_future(self._flusher.run())
        claiming = asyncio.ensure_future(self._claimer.run())
        hearing = asyncio.ensure_future(self._orders.run())
        try:
            await first(self._equipment.stop.wait(), self._dead.wait(), claiming, flushing, hearing)
            if not self._equipment.stop.is_set() and not self._dead.is_set():
                self._equipment.stop_now.set()  # one of the tasks broke: end in order, then raise what it raised
            if not self._dead.is_set():
                await self._wind_down(claiming, flushing)
        finally:
            await give_up(claiming, flushing, hearing, grace=GRACE)
            await self._end()
        for task in (claiming, flushing, hearing):
            if task.done() and not task.cancelled():
                task.result()
        return not self._dead.is_set()

    async def leave(self) -> None:
        """Leave the register without having claimed anything."""
        await self._end()

    def _declared_dead(self) -> None:
        """Called from the heartbeat's thread."""
        with suppress(RuntimeError):  # the loop is closed: the worker ended without its stop
            self._loop.call_soon_threadsafe(self._dead.set)

    async def _wind_down(self, claiming: asyncio.Task[None], flushing: asyncio.Task[None]) -> None:
        """Stop claiming, hand back what has not started, let jobs finish until the limit, then cancel; record all."""
        self._claimer.stop()
        self._runner.stop()
        self._runner.hand_back_waiting()
        hurry = self._equipment.stop_now.wait()
        await self._before_death(self._jobs_ended(claiming), hurry, self._settings.stop_timeout)
        self._runner.cancel()
        await self._before_death(self._jobs_ended(claiming), None, GRACE)
        # A claim that hangs still is given up, so that nothing is added from here on.
        await give_up(claiming, grace=GRACE)
        if self._dead.is_set():
            return
        self._runner.abandon()
        self._flusher.close()
        await self._before_death(_done(flushing), None, FLUSH)

    async def _jobs_ended(self, claiming: asyncio.Task[None]) -> None:
        await _done(claiming)
        await self._runner.until_idle()

    async def _before_death(self, ended: Awaitable[None], hurry: Awaitable[Any] | None, seconds: float) -> None:
        others = [self._dead.wait()] if hurry is None else [self._dead.wait(), hurry]
        await first(ended, *others, seconds=seconds)

    async def _end(self) -> None:
        """What is still there is lost or left behind; then off the register."""
        died = self._dead.is_set()
        self._runner.close()
        lost = self._runner.lose() + self._flusher.unrecorded
        self._flusher.drop() if died else self._leave_behind()
        if lost and died:
            log.error(
                "worker %s (%s) was declared dead: %d jobs are lost to it and run again",
                self._settings.name, self._instance.id, lost,
            )  # fmt: skip
        if died:
            self.announcer.trouble(f"this instance was declared dead; {lost} jobs are lost to it and run again")
        await first(self._runner.until_idle(), seconds=GRACE)
        self._runner.abandon()
        if self._ledger.doubtful and not died:
            await self._bounded(self._recover())
        await self._heartbeat.stop(GOODBYE)
        self._equipment.counts["started"] += self._runner.started
        self._runner.started = 0
        await self._say_goodbye()

    def _leave_behind(self) -> None:
        if left := self._flusher.unrecorded:
            self._flusher.drop(counter="left_behind")
            log.error(
                "worker %s: %d outcomes could not be recorded before the end of the stop; these jobs will run again",
                self._settings.name, left,
            )  # fmt: skip
            self.announcer.trouble(f"{left} outcomes could not be recorded before the end of the stop")

    async def _recover(self) -> None:
        """Hand back what claims without an answer may have got; tried until it works, or the time is over."""
        while True:
            try:
                await self._consumer.recover(self._ledger.doubtful, [])
                return
            except StorageError:
                await self._equipment.clock.sleep(self._backoff.next())

    async def _say_goodbye(self) -> None:
        await self._bounded(self._consumer.close())

    async def _bounded(self, call: Awaitable[None]) -> None:
        """A farewell: tried for a while, and no matter if it fails."""
        calling = asyncio.ensure_future(call)
        await first(calling, seconds=GOODBYE)
        await give_up(calling, grace=GRACE)
        if not calling.done() or calling.cancelled():
            log.warning("worker %s: the database does not answer; leaving without a goodbye", self._settings.name)
        elif isinstance(error := calling.exception(), StorageError):
            log.debug("worker %s: while leaving: %s", self._settings.name, error)
        else:
            calling.result()


async def _done(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
