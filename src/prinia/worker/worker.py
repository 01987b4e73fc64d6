"""The worker: lives one after the other until it is stopped, each an instance of its own."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import random as random_module
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self
from uuid import uuid4

from prinia.clock import Clock, SystemClock
from prinia.context import WorkerContext, show_instance
from prinia.errors import ConfigurationError, ResourceError, StorageError
from prinia.events import Listener, subscribe
from prinia.health import HealthServer, WorkerHealth, check_of, read_address
from prinia.hooks import Hooks
from prinia.job import Instance
from prinia.middleware import wraps_runs
from prinia.polling import Poll
from prinia.resources import Plan
from prinia.storage.protocol import Storage
from prinia.task import Task
from prinia.worker.announce import Announcer
from prinia.worker.call import surround
from prinia.worker.ledger import Counts, WorkerStats
from prinia.worker.life import GRACE, Equipment, Life
from prinia.worker.listeners import Ears
from prinia.worker.opened import Opened
from prinia.worker.orders import Hold
from prinia.worker.outage import Backoff
from prinia.worker.pace import LARGEST_CLAIM
from prinia.worker.pool import Pool, check_tasks, references
from prinia.worker.settings import Settings, default_name, known_tasks, served_queues
from prinia.worker.threads import Threads
from prinia.worker.waiting import first, give_up
from prinia.worker.waking import Waking, poll_sources

log = logging.getLogger("prinia.worker")


class Worker:
    """Runs the jobs of these tasks: claims them, calls the handlers, records the outcomes.

    ``name`` is a label that any number of workers may share, the machine's name by default. ``queues`` are those it
    serves, by default those of its tasks. Up to ``concurrency`` jobs run at once; of those whose handlers are plain
    functions, up to ``threads``, and of those that run in processes of their own up to ``pool`` (one for each
    processor). A stop lets jobs finish for ``stop_timeout`` seconds. One claim takes
    up to ``claim_batch`` jobs, 500 at most. It beats every ``heartbeat`` seconds and declares others dead after
    ``dead_after`` seconds of silence. ``strict`` refuses ``ctx.complete()`` where it would warn.
    ``hooks`` has what surrounds its jobs, as an app does. Raises `ConfigurationError` for what makes no sense, before
    anything starts.

    While it is idle it is rung when there is work, over one LISTEN connection that all workers of an event loop
    share, and looks at the due times of what is scheduled. ``poll`` says when it looks besides, as a net below that:
    seconds or timedelta (30 s), a `PollBackoff`, an async iterator of which each item means "look now", or a list of
    these, of which the first wakes it. With ``listen=False`` it needs no LISTEN connection and ``poll`` is how it
    finds jobs (1 s). Where no timer is among the sources the default one stays. An async iterator is followed from
    the worker's start and closed at its end; one that ends or fails (which is logged) wakes no more.

    ``on_event`` is told of all its events, as `prinia.Prinia.on_event` describes. With ``until_empty`` it stops by
    itself once nothing is due and none of its jobs runs; what is due later, retries too, is not waited for.
    ``health`` is where it serves its health while it runs: a port, "host:port" or "unix:PATH", see `prinia.health`.

    Example::

        async with Worker(storage, app.tasks, queues=["email"]):
            ...
    """

    def __init__(
        self,
        storage: Storage,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        name: str | None = None,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        threads: int = 10,
        pool: int | None = None,
        stop_timeout: float = 30.0,
        poll: Poll | None = None,
        listen: bool = True,
        claim_batch: int = LARGEST_CLAIM,
        heartbeat: float = 4.0,
        dead_after: float = 12.0,
        strict: bool = False,
        until_empty: bool = False,
        health: int | str | None = None,
        hooks: Hooks | None = None,
        on_event: Listener | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._storage = storage
        self._tasks = known_tasks(tasks)
        self._settings = Settings(
            name=default_name() if name is None else name,
            queues=served_queues(queues, self._tasks.values()),
            concurrency=concurrency,
            threads=threads,
            pool=(os.cpu_count() or 1) if pool is None else pool,
            stop_timeout=stop_timeout,
            poll=poll_sources(poll, listen=listen),
            listen=listen,
            claim_batch=claim_batch,
            heartbeat=heartbeat,
            dead_after=dead_after,
            strict=strict,
            until_empty=until_empty,
        )
        self._address = None if health is None else read_address(health)
        self._surroundings = surroundings = (Hooks() if hooks is None else hooks).surroundings
        self._plan = Plan(
            self._tasks.values(), surroundings.providers, surroundings.start_hooks, surroundings.stop_hooks
        )
        own = [] if on_event is None else [subscribe(on_event)]
        check_tasks(self._tasks)
        self._process_modules = tuple(surroundings.process_modules)
        self._process_hooks = references(surroundings.process_hooks)
        self._subscriptions = (*surroundings.subscriptions, *own)
        self._middleware = tuple(one for one in surroundings.middleware if wraps_runs(one))
        self._clock = SystemClock() if clock is None else clock
        self._random = random
        self._counts = Counts()
        self._run_number = 0
        self._instance = self._new_instance()
        self._life: Life | None = None
        self._equipment: Equipment | None = None
        self._background: asyncio.Task[None] | None = None
        self._death: ResourceError | None = None
        self._stops = 0

    @property
    def name(self) -> str:
        """The label."""
        return self._settings.name

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it serves, sorted."""
        return self._settings.queues

    @property
    def instance(self) -> Instance:
        """The present life, or the last one: each start has an id of its own."""
        return self._instance

    @property
    def stats(self) -> WorkerStats:
        """What it has done since it was made, and what it is doing."""
        counts, life = Counts(self._counts), self._life
        if life is not None:
            counts.update(started=life.started, running=life.running, waiting=life.waiting, unrecorded=life.unrecorded)
        return WorkerStats(**counts)

    def health(self) -> WorkerHealth:
        """How it is now. Safe from any thread."""
        equipment, life, instance = self._equipment, self._life, self._instance
        known = partial(
            WorkerHealth, name=instance.name, instance=instance.id, run=instance.run,
            dead_after=self._settings.dead_after,
        )  # fmt: skip
        if equipment is None or life is None:
            return known(state="stopped" if equipment is None else "starting")
        state: Literal["starting", "working", "stopping"] = "working" if equipment.opened.ready else "starting"
        vitals = life.vitals()
        return known(
            state="stopping" if equipment.stop.is_set() else state,
            listener=vitals.listener, lag=vitals.lag, beat_age=life.beat_age, blocked=vitals.blocked or 0.0,
            running=life.running, waiting=life.waiting,
        )  # fmt: skip

    def ask_loop(self) -> None:
        """Ask the event loop for a sign of life; `health` tells for how long it has given none. From any thread."""
        if (life := self._life) is not None:
            life.ask_loop()

    def supervise(self, *, run: int, on_event: Listener | None = None) -> None:
        """For a supervisor, before `run`: how often it has started this worker anew, and who else is told of events.

        Raises `ConfigurationError` when the worker runs.
        """
        if self._equipment is not None:
            raise ConfigurationError(f"worker {self.name} runs already; make another Worker for each supervisor")
        self._run_number = run
        self._instance = self._new_instance()
        if on_event is not None:
            self._subscriptions = (*self._subscriptions, subscribe(on_event))

    async def run(self) -> None:
        """Work until `stop`; the database being away is waited out. Cancelling it stops at once, in order. Signals are
        left to the program: `prinia.worker.run_with_signals` handles them.

        It registers, opens its resources, calls the start hooks, and then claims; at the end, once the last outcome is
        recorded and it has left the register, it calls the stop hooks and closes the resources.

        Raises `HealthError` when its ``health`` cannot be served; `StorageError` when the database is there at the
        start and refuses, for example `MigrationsPending`, whose text has the command to run; `ResourceError` and
        `HookError` when a resource or a start hook fails, with nothing claimed and all closed again; `ResourceError`
        also when a resource died meanwhile, after a stop in order. One call at a time; after its end it may be called
        again.
        """
        await self._run(asyncio.Event())

    async def _run(self, tried: asyncio.Event) -> None:
        if self._equipment is not None:
            raise ConfigurationError(f"worker {self.name} runs already; make another Worker to run a second one")
        with nullcontext() if self._address is None else HealthServer(self._address, check_of(lambda: [self])):
            await self._run_lives(tried)

    async def _run_lives(self, tried: asyncio.Event) -> None:
        self._equipment = self._equip(tried)
        living = asyncio.ensure_future(self._live(self._equipment))
        try:
            await asyncio.shield(living)
        except asyncio.CancelledError:
            self._stop_now(self._equipment)
            await living
            raise
        finally:
            self._equipment.threads.close()
            await self._equipment.pool.close()
            self._equipment = self._life = self._death = None
            self._stops = 0

    def stop(self) -> None:
        """Stop claiming, hand back what has not started, and let running jobs finish for ``stop_timeout`` seconds.

        Called a second time: cancel them now and hand them back. Call it from the event loop's thread; it returns at
        once, `run` returns when it is done.
        """
        self._stops += 1
        if self._equipment is not None:
            self._equipment.stop.set()
            if self._stops > 1:
                self._stop_now(self._equipment)

    def _request_stop(self, loop: asyncio.AbstractEventLoop) -> None:
        """A handler's or a listener's wish to stop: from any thread, and twice is no hurry."""
        with suppress(RuntimeError):  # the loop is closed: it has stopped
            loop.call_soon_threadsafe(lambda: None if self._stops else self.stop())

    async def __aenter__(self) -> Self:
        """Start in the background; ready to claim when this returns, unless the database is away. Raises as `run`."""
        if self._background is not None:
            raise ConfigurationError(f"worker {self.name} runs already; make another Worker to run a second one")
        tried = asyncio.Event()
        self._background = background = asyncio.ensure_future(self._run(tried))
        await first(tried.wait(), background)
        if background.done():
            self._background = None
            background.result()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, in order."""
        if self._background is not None:
            background, self._background = self._background, None
            self.stop()
            await background

    def _equip(self, tried: asyncio.Event) -> Equipment:
        variables = copy_context()
        opened = Opened(self._plan, self._surroundings.shared, variables, self._resource_died)
        request_stop = partial(self._request_stop, asyncio.get_running_loop())
        equipment = Equipment(
            storage=self._storage,
            tasks=self._tasks,
            settings=self._settings,
            threads=Threads(self._settings.threads),
            pool=Pool(self._settings.pool, modules=self._process_modules, hooks=self._process_hooks),
            waking=Waking(self._settings.poll, self._random),
            variables=variables,
            subscriptions=self._subscriptions,
            ears=Ears(self._counts, variables),
            opened=opened,
            surround=partial(surround, plan=self._plan, middleware=self._middleware, values=opened.values),
            counts=self._counts,
            hold=Hold(),
            stop=asyncio.Event(),
            stop_now=asyncio.Event(),
            request_stop=request_stop,
            worker=WorkerContext(
                name=self.name, instance=self._instance.id, run=self._instance.run, _stop=request_stop
            ),
            tried=tried,
            clock=self._clock,
            random=self._random,
        )
        if self._stops:
            equipment.stop.set()
        return equipment

    @staticmethod
    def _stop_now(equipment: Equipment) -> None:
        equipment.stop.set()
        equipment.stop_now.set()

    async def _live(self, equipment: Equipment) -> None:
        """All lives, with the sources of ``poll`` followed meanwhile."""
        try:
            async with equipment.waking:
                await self._lives(equipment)
        finally:
            await equipment.opened.close(equipment.stop_now)
            self._announcer(equipment).stopped()
            await equipment.ears.close()
        self._log_stop()
        if self._death is not None:
            raise self._death

    def _announcer(self, equipment: Equipment) -> Announcer:
        if self._life is not None:
            return self._life.announcer
        return Announcer(equipment.worker, equipment.subscriptions, equipment.tasks, equipment.ears)

    def _resource_died(self, error: ResourceError) -> None:
        """Jobs would only fail without it: stop in order, and end with the error."""
        if self._equipment is not None:
            log.error("worker %s stops: %s", self.name, error)
            self._announcer(self._equipment).trouble(str(error), error)
            self._death = self._death or error
            self._equipment.stop.set()

    async def _lives(self, equipment: Equipment) -> None:
        """One life after the other: an instance that was declared dead is followed by a new one."""
        backoff = Backoff(self._random, first=0.01)
        reborn = False
        while not equipment.stop.is_set():
            self._instance = self._new_instance(equipment.hold.command)
            show_instance(equipment.worker, self._instance.id)
            self._life = life = Life(equipment, self._instance)
            try:
                opened = await life.open()
            except StorageError as error:
                life.announcer.trouble(f"it could not start: {error}", error)
                if not reborn:
                    raise
                log.error("worker %s cannot start again: %s; trying again", self.name, error)
            else:
                if opened and await self._get_ready(equipment, life):
                    self._log_start(reborn=reborn)
                    reborn = True
                    if await life.run():
                        break
            await first(self._clock.sleep(backoff.next()), equipment.stop.wait())

    async def _get_ready(self, equipment: Equipment, life: Life) -> bool:
        """Resources are opened and start hooks called, once for all lives; False when stopped before that."""
        if not equipment.opened.ready:
            opening = asyncio.ensure_future(equipment.opened.open(equipment.worker))
            try:
                await first(opening, equipment.stop.wait())
                if opening.done():
                    opening.result()
                else:
                    await give_up(opening, grace=GRACE)
            finally:
                if not equipment.opened.ready:
                    await life.leave()
        equipment.tried.set()
        return equipment.opened.ready

    def _new_instance(self, command: str | None = None) -> Instance:
        settings = self._settings
        return Instance(
            id=uuid4(),
            name=settings.name,
            queues=settings.queues,
            tasks=tuple(sorted(self._tasks)),
            host=socket.gethostname(),
            pid=os.getpid(),
            version=importlib.metadata.version("prinia"),
            concurrency=settings.concurrency,
            run=self._run_number,
            command=command,
        )

    def _log_start(self, *, reborn: bool) -> None:
        log.info(
            "worker %s %s: %d tasks, queues %s, concurrency %d, instance %s, run %d",
            self.name, "goes on" if reborn else "started", len(set(map(id, self._tasks.values()))),
            ", ".join(self.queues), self._settings.concurrency, self._instance.id, self._run_number,
        )  # fmt: skip

    def _log_stop(self) -> None:
        done = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in sorted(self._counts.items()) if count)
        log.info("worker %s stopped: %s", self.name, done or "it had nothing to do")
