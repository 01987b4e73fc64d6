"""Bugs of recovering a claim whose reply was lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from prinia.job import ClaimedJob
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.rows import LiveJob, Registered
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Vitals

from .base import Broken


class RecoverDoesNothing(Broken):
    """A claim whose reply was lost is not handed back by the worker that reconnects."""

    class consumer_class(MemoryConsumer):
        async def recover(self, tokens: Sequence[int], running: Sequence[ClaimedJob], /) -> frozenset[int]:
            return frozenset()


class StraysStay(Broken):
    """A claim whose reply was lost is never found."""

    class pulse_class(MemoryPulse):
        def free_strays(self) -> int:
            return 0


class StraysTooSoon(Broken):
    """A claim in flight is taken for a stray."""

    class tables_class(Tables):
        def take(self, job: LiveJob, owner: Registered, token: int, now: datetime) -> None:
            super().take(job, owner, token, now)
            job.claimed_beat -= 2


class StraysOfAll(Broken):
    """Reported tokens are not looked at when strays are freed."""

    class pulse_class(MemoryPulse):
        def beat(self, tokens: Sequence[int], started: Sequence[int], *vitals: Vitals) -> Any:
            return super().beat((), started, *vitals)


class RecoverTakesAll(Broken):
    """A recovery hands back whatever carries the token, whoever owns it and whether it runs or not."""

    class consumer_class(MemoryConsumer):
        async def recover(self, tokens: Sequence[int], running: Sequence[ClaimedJob], /) -> frozenset[int]:
            tables = self._tables
            for job in list(tables.live.values()):
                if job.token in tokens:
                    tables.hand_back(job)
                    tables.release(job, tables.now())
            return frozenset()
