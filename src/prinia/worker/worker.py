"""The worker: lives one after the other until it is stopped, each an instance of its own."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import random as random_module
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from prinia.clock import Clock, SystemClock
from prinia.errors import ConfigurationError, StorageError
from prinia.job import Instance
from prinia.storage.protocol import Storage
from prinia.task import Task
from prinia.worker.ledger import Counts, WorkerStats
from prinia.worker.life import Equipment, Life
from prinia.worker.outage import Backoff
from prinia.worker.settings import Settings, default_name, known_tasks, served_queues
from prinia.worker.threads import Threads
from prinia.worker.waiting import first

log = logging.getLogger("prinia.worker")


class Worker:
    """Runs the jobs of these tasks: claims them, calls the handlers, records the outcomes.

    ``name`` is a label that any number of workers may share, the machine's name by default. ``queues`` are those it
    serves, by default those of its tasks. Up to ``concurrency`` jobs run at once; of those whose handlers are plain
    functions, up to ``threads``. A stop lets jobs finish for ``stop_timeout`` seconds. ``poll`` is the longest sleep
    of an idle worker, a net below its bell. It beats every ``heartbeat`` seconds and declares others dead after
    ``dead_after`` seconds of silence. Raises `ConfigurationError` for what makes no sense, before anything starts.

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
        stop_timeout: float = 30.0,
        poll: float = 30.0,
        heartbeat: float = 4.0,
        dead_after: float = 12.0,
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
            stop_timeout=stop_timeout,
            poll=poll,
            heartbeat=heartbeat,
            dead_after=dead_after,
        )
        self._clock = SystemClock() if clock is None else clock
        self._random = random
        self._counts = Counts()
        self._instance = self._new_instance()
        self._life: Life | None = None
        self._equipment: Equipment | None = None
        self._background: asyncio.Task[None] | None = None
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

    async def run(self) -> None:
        """Work until `stop`; the database being away is waited out. Cancelling it stops at once, in order.

        Raises `StorageError` when the database is there at the start and refuses, for example `MigrationsPending`,
        whose text has the command to run. One call at a time; after its end it may be called again.
        """
        await self._run(asyncio.Event())

    async def _run(self, tried: asyncio.Event) -> None:
        if self._equipment is not None:
            raise ConfigurationError(f"worker {self.name} runs already; make another Worker to run a second one")
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
            self._equipment = self._life = None
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
        """Start in the background; registered when this returns, unless the database is away."""
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
        equipment = Equipment(
            storage=self._storage,
            tasks=self._tasks,
            settings=self._settings,
            threads=Threads(self._settings.threads),
            variables=copy_context(),
            counts=self._counts,
            stop=asyncio.Event(),
            stop_now=asyncio.Event(),
            request_stop=partial(self._request_stop, asyncio.get_running_loop()),
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
        """One life after the other: an instance that was declared dead is followed by a new one."""
        backoff = Backoff(self._random, first=0.01)
        reborn = False
        while not equipment.stop.is_set():
            self._instance = self._new_instance()
            self._life = life = Life(equipment, self._instance)
            try:
                opened = await life.open()
            except StorageError as error:
                if not reborn:
                    raise
                log.error("worker %s cannot start again: %s; trying again", self.name, error)
            else:
                if opened:
                    self._log_start(reborn=reborn)
                    reborn = True
                    if await life.run():
                        break
            await first(self._clock.sleep(backoff.next()), equipment.stop.wait())
        self._log_stop()

    def _new_instance(self) -> Instance:
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
        )

    def _log_start(self, *, reborn: bool) -> None:
        log.info(
            "worker %s %s: %d tasks, queues %s, concurrency %d, instance %s",
            self.name, "goes on" if reborn else "started", len(set(map(id, self._tasks.values()))),
            ", ".join(self.queues), self._settings.concurrency, self._instance.id,
        )  # fmt: skip

    def _log_stop(self) -> None:
        done = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in sorted(self._counts.items()) if count)
        log.info("worker %s stopped: %s", self.name, done or "it had nothing to do")
