"""Bugs of retention."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from prinia.job import JobState
from prinia.retention import DAY, DEFAULT, Retention
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables

from .base import Broken


class NothingForgotten(Broken):
    """Finished jobs stay."""

    class pulse_class(MemoryPulse):
        def sweep_archive(self, now: datetime | None = None, /) -> int:
            return 0


class OneRetentionForAllStates(Broken):
    """Whatever state a job ended in, it is kept as a completed one."""

    class tables_class(Tables):
        def finish(self, job: LiveJob, state: JobState, now: datetime, **ended: Any) -> None:
            super().finish(job, state, now, **ended)
            drop_at = now + timedelta(days=1)
            self.finished[job.id] = replace(self.finished[job.id], drop_at=drop_at)


class RetentionForAllQueues(Broken):
    """A retention is set for every queue."""

    def set_retention(self, queue: str, retention: Retention, /) -> None:
        for one in (queue, "default"):
            super().set_retention(one, retention)


class LongRetentionCut(Broken):
    """What is to be kept for more than a year is not."""

    class tables_class(Tables):
        def finish(self, job: LiveJob, state: JobState, now: datetime, **ended: Any) -> None:
            super().finish(job, state, now, **ended)
            longest = now + timedelta(days=365)
            row = self.finished[job.id]
            self.finished[job.id] = replace(row, drop_at=min(row.drop_at or longest, longest))


class RetentionForTheEnded(Broken):
    """A new retention counts for what has ended before, too."""

    def set_retention(self, queue: str, retention: Retention, /) -> None:
        super().set_retention(queue, retention)
        for id, row in self.tables.finished.items():
            keep = timedelta(seconds=min(retention.of(row.record.state), 600 * DAY))
            assert row.record.finished_at is not None
            self.tables.finished[id] = replace(row, drop_at=row.record.finished_at + keep)


class RetentionForgotten(Broken):
    """A retention is taken and not kept."""

    def set_retention(self, queue: str, retention: Retention, /) -> None:
        super().set_retention(queue, DEFAULT)


class LiveJobsSwept(Broken):
    """Jobs that have not ended go with the others."""

    class pulse_class(MemoryPulse):
        def sweep_archive(self, now: datetime | None = None, /) -> int:
            self._tables.live.clear()
            return super().sweep_archive(now)
