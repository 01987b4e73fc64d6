"""Bugs of reading, cancelling and expiry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from prinia.job import JobRecord, JobState
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables

from .base import Broken


class FindByIdOrder(Broken):
    """Jobs are found in the order in which they were made."""

    async def afind(self, ids: Sequence[int], /) -> list[JobRecord]:
        return await super().afind(sorted(ids))


class ArgumentsDropped(Broken):
    """No ended job keeps big arguments, whatever its end."""

    async def afind(self, ids: Sequence[int], /) -> list[JobRecord]:
        records = await super().afind(ids)
        return [replace(record, args=None) if record.state.final else record for record in records]


class ClaimUnmarked(Broken):
    """A claimed job does not say that it runs."""

    async def afind(self, ids: Sequence[int], /) -> list[JobRecord]:
        records = await super().afind(ids)
        return [replace(record, owner=None, started_at=None) for record in records]


class CancelCountsAll(Broken):
    """A cancel counts what it was asked for."""

    async def acancel(self, ids: Sequence[int], /, *, by: str) -> int:
        self.cancel(ids, by=by)
        return len(ids)


class CancelOnlyMarks(Broken):
    """A waiting job is only marked as to be cancelled: it runs first."""

    async def acancel(self, ids: Sequence[int], /, *, by: str) -> int:
        for id in ids:
            self.tables.live[id].cancel_by = by
        return len(ids)


class SweepTakesRunning(Broken):
    """A sweep ends expired jobs that run."""

    class pulse_class(MemoryPulse):
        def sweep_expired(self) -> int:
            now = self._tables.now()
            for job in self._tables.live.values():
                if job.expired(now):
                    job.claimed_at = None
            return super().sweep_expired()


class CancelForgotten(Broken):
    """A running job that somebody cancelled is retried all the same."""

    class tables_class(Tables):
        def release(self, job: LiveJob, now: datetime, *, delay: float = 0.0) -> None:
            job.cancel_by = None
            super().release(job, now, delay=delay)


class CancelUnheard(Broken):
    """A worker never hears that somebody asked to cancel a job it runs."""

    class consumer_class(MemoryConsumer):
        async def cancel_requests(self) -> dict[int, str]:
            return {}


class CancelHeardByAll(Broken):
    """A worker hears of cancel requests for the jobs of others, too."""

    class consumer_class(MemoryConsumer):
        async def cancel_requests(self) -> dict[int, str]:
            with self._tables.lock:
                return {job.id: job.cancel_by for job in self._tables.live.values() if job.cancel_by is not None}


class CancelBeatsResult(Broken):
    """A result that arrives after somebody asked to cancel is thrown away."""

    class tables_class(Tables):
        def finish(
            self,
            job: LiveJob,
            state: JobState,
            now: datetime,
            *,
            result: bytes | None = None,
            reason: str | None = None,
        ) -> None:
            super().finish(job, JobState.CANCELLED if job.cancel_by else state, now, result=result, reason=reason)
