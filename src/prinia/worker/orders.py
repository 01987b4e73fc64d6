"""ORDERS from outside: jobs that somebody asked to cancel, what this worker was told, and what is paused.

While a worker has jobs it looks twice a second: that is one query of an index that is nearly always empty, and one of a
few rows. To be notified instead would need this as its net: not every worker can listen, and a notification takes a
database-wide lock. An idle worker is summoned over its LISTEN connection, with a look now and then as the net; one that
cannot listen looks every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prinia.changes import Orders as Said
from prinia.changes import WorkerCommand
from prinia.clock import Clock
from prinia.errors import StorageError
from prinia.storage.protocol import Consumer
from prinia.worker.outage import Outage
from prinia.worker.run import Runner
from prinia.worker.waiting import first

log = logging.getLogger("prinia.worker")

#: Seconds from one look to the next: a running job must hear of its cancellation within one second.
LOOK_EVERY = 0.5
#: An idle worker looks at every so manieth of these times: one that is not rung, and one that is.
UNHEARD, NET = 2, 20

_PART = "look for orders"


class Hold:
    """Whether a worker may claim, through all of its lives: it may not while it has a command.

    Example::

        hold = Hold()
        hold.obey(WorkerCommand.QUIET)      # from now on `held`, until `obey` with another word
        await hold.lifted()
    """

    def __init__(self) -> None:
        self.command: WorkerCommand | None = None
        self._free = asyncio.Event()
        self._free.set()
        self._held = asyncio.Event()

    @property
    def held(self) -> bool:
        """Whether it may not claim."""
        return self.command is not None

    def obey(self, command: WorkerCommand | None) -> bool:
        """This is the word now; whether that is new."""
        if command == self.command:
            return False
        self.command = command
        (self._free if command is None else self._held).set()
        (self._held if command is None else self._free).clear()
        return True

    async def lifted(self) -> None:
        """Return once it may claim."""
        await self._free.wait()

    async def imposed(self) -> None:
        """Return once it may not."""
        await self._held.wait()


class Orders:
    """Looks until it is cancelled."""

    def __init__(
        self,
        consumer: Consumer,
        runner: Runner,
        hold: Hold,
        outage: Outage,
        *,
        stop: Callable[[], None],
        name: str,
        clock: Clock,
    ) -> None:
        """``stop`` stops the worker, ``name`` is for its log."""
        self._consumer = consumer
        self._runner = runner
        self._hold = hold
        self._outage = outage
        self._stop = stop
        self._name = name
        self._clock = clock
        self._idle_ticks = 0

    async def run(self) -> None:
        """Look regularly, and when summoned; survives every error of the storage."""
        summons = asyncio.ensure_future(self._consumer.bell.summons())
        try:
            while True:
                await first(summons, self._clock.sleep(LOOK_EVERY))
                if summons.done():
                    summons = asyncio.ensure_future(self._consumer.bell.summons())
                    await self.look()
                elif self._is_time():
                    await self.look()
        finally:
            summons.cancel()

    def _is_time(self) -> bool:
        if self._busy:
            self._idle_ticks = 0
            return True
        self._idle_ticks += 1
        return self._idle_ticks % (NET if self._consumer.bell.listening else UNHEARD) == 0

    @property
    def _busy(self) -> bool:
        return bool(self._runner.running or self._runner.waiting)

    async def look(self) -> None:
        """Look once."""
        try:
            if self._busy and (requests := await self._consumer.cancel_requests()):
                self._runner.cancel_requested(requests)
            said = await self._consumer.orders()
        except StorageError as error:
            self._outage.began(_PART, error)
            return
        self._outage.ended(_PART)
        self._obey(said)

    def _obey(self, said: Said) -> None:
        if self._hold.obey(said.command):
            log.info("worker %s was told to %s", self._name, said.command or "go on")
            if said.command is WorkerCommand.STOP:
                self._stop()
        if said.command is WorkerCommand.PAUSE:
            self._runner.hand_back_waiting()
        elif said.paused.queues or said.paused.tasks or said.paused.everything:
            self._runner.hand_back_waiting(lambda job: said.paused.holds(queue=job.queue, task=job.task))
