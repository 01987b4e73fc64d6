"""Bugs of announcements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from prinia.job import JobState
from prinia.storage.memory.announcing import MemoryHearing
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Heard

from .base import Broken


class EndsUnannounced(Broken):
    """A failed job ends in silence."""

    class tables_class(Tables):
        def finish(self, job: LiveJob, state: JobState, now: datetime, **more: Any) -> None:
            if state is JobState.FAILED:
                self.expected.pop(job.id, None)
            super().finish(job, state, now, **more)


class EveryEndAnnounced(Broken):
    """Whatever ends is announced."""

    class tables_class(Tables):
        def announce(self, id: int) -> None:
            self.expected[id] = self.now()
            super().announce(id)


class AnnouncedToOne(Broken):
    """The first who hears keeps it to itself."""

    class tables_class(Tables):
        def announce(self, id: int) -> None:
            if self.expected.pop(id, None) is not None:
                for hearer in list(self.hearers)[:1]:
                    hearer.tell(id)


class FewAnnounced(Broken):
    """Of very many only some are expected."""

    async def aexpect(self, ids: Sequence[int], /) -> None:
        self.expect(ids[:1000])


class HeardForEver(Broken):
    """Who has gone is still told."""

    @asynccontextmanager
    async def hear_ends(self, heard: Heard, /) -> AsyncGenerator[MemoryHearing]:
        hearing = MemoryHearing(heard)
        self.tables.hearers.add(hearing)
        yield hearing
        await asyncio.sleep(0)
