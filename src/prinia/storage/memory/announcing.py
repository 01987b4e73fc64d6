"""Jobs that somebody awaits: their ends are told to who hears, each in its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Heard

EXPECTED = timedelta(minutes=1)


class MemoryHearing:
    """`prinia.storage.protocol.Hearing`."""

    listening = True

    def __init__(self, heard: Heard) -> None:
        self._heard = heard
        self._loop = asyncio.get_running_loop()

    def tell(self, id: int, /) -> None:
        """A job has ended. Called with the lock held, from any thread."""
        with suppress(RuntimeError):  # a loop that was closed has nobody left who waits
            self._loop.call_soon_threadsafe(self._heard, [id])


class Announcing:
    """`prinia.storage.protocol.Announces`."""

    tables: Tables

    def expect(self, ids: Sequence[int], /) -> None:
        """For a minute the ends of these jobs are announced."""
        with self.tables.lock:
            now, expected = self.tables.now(), self.tables.expected
            for id in [id for id, until in expected.items() if until < now]:
                del expected[id]
            expected.update(dict.fromkeys(ids, now + EXPECTED))

    async def aexpect(self, ids: Sequence[int], /) -> None:
        """`expect`, awaited."""
        self.expect(ids)

    @asynccontextmanager
    async def hear_ends(self, heard: Heard, /) -> AsyncGenerator[MemoryHearing]:
        """While in it, ``heard`` is called for what is announced."""
        hearing = MemoryHearing(heard)
        with self.tables.lock:
            self.tables.hearers.add(hearing)
        try:
            yield hearing
        finally:
            with self.tables.lock:
                self.tables.hearers.discard(hearing)
