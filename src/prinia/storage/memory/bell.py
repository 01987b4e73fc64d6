"""The bell: a flag and a future, rung from any thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from prinia.storage.memory.tables import Tables


class MemoryBell:
    """`prinia.storage.protocol.Bell` over the queues of one instance."""

    def __init__(self, tables: Tables, queues: tuple[str, ...]) -> None:
        self._tables = tables
        self._queues = frozenset(queues)
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None
        self._summoned = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def listening(self) -> bool:
        """Always, of one that serves a queue."""
        return bool(self._queues)

    async def arm(self) -> bool:
        """Ask to be rung. Always promised: no push is ever half done here."""
        with self._tables.lock:
            self._rung = False
            self._tables.bells.add(self)
        return True

    async def disarm(self) -> None:
        """No ring is needed."""
        with self._tables.lock:
            self._tables.bells.discard(self)

    async def wait(self, seconds: float, /) -> bool:
        """Sleep until rung or until the time is over (real seconds, whatever the storage's clock)."""
        with self._tables.lock:
            if not self._rung:
                self._sleeper = asyncio.get_running_loop().create_future()
        try:
            if self._sleeper is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._sleeper
        finally:
            with self._tables.lock:
                self._sleeper = None
        with self._tables.lock:
            rung, self._rung = self._rung, False
        return rung

    async def pass_on(self) -> None:
        """Wake the other sleepers of these queues."""
        with self._tables.lock:
            for queue in self._queues:
                for bell in self._tables.bells - {self}:
                    bell.ring(queue)

    def ring(self, queue: str, /) -> None:
        """Wake the sleeper if it serves this queue. Called with the lock held, from any thread."""
        if queue in self._queues:
            self.wake()

    async def summons(self) -> None:
        """Return when somebody has told a worker something."""
        waiter = asyncio.get_running_loop().create_future()
        with self._tables.lock:
            self._waiter = waiter
            if self._summoned:
                waiter.set_result(None)
        await waiter
        self._summoned = False

    def summon(self) -> None:
        """Somebody told a worker something. Called with the lock held, from any thread."""
        self._summoned = True
        _wake(self._waiter)

    def wake(self) -> None:
        """Wake the sleeper. Called with the lock held, from any thread."""
        self._rung = True
        _wake(self._sleeper)


def _wake(sleeper: asyncio.Future[None] | None) -> None:
    if sleeper is not None:
        # A loop that was closed has nobody left to wake.
        with suppress(RuntimeError):
            sleeper.get_loop().call_soon_threadsafe(_end, sleeper)


def _end(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
