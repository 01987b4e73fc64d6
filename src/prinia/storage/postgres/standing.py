"""How queues stand, put together from rows: what was counted, and for what there is too much of, a sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from prinia.job import JobState
from prinia.overview import Count, QueueRecord
from prinia.selection import FINAL_STATES, LIVE_STATES
from prinia.storage.postgres.records import utc

Rows = Iterable[tuple[Any, ...]]


class Standing:
    """Collects rows and makes `QueueRecord`s of them."""

    def __init__(self, limit: int) -> None:
        """Up to ``limit`` jobs of a queue were looked at in a table."""
        self._limit = limit
        self._known: dict[str, tuple[datetime | None, float | None, bool, tuple[UUID, ...]]] = {}
        self._counted: defaultdict[tuple[str, JobState], int] = defaultdict(int)
        self._sampled: dict[tuple[str, JobState], int] = {}
        #: Of which queue and state there are more than were counted; None for all queues.
        self._more: set[tuple[str | None, JobState]] = set()

    def add_queues(self, rows: Rows) -> None:
        """The rows of ``queues.sql``."""
        for queue, state, jobs, more, oldest, now, paused, workers in rows:
            if state == "queue":
                age = None if oldest is None else (now - oldest).total_seconds()
                self._known[queue] = (utc(oldest), age, paused, tuple(workers or ()))
                continue
            self._counted[queue, JobState(state)] = min(jobs, self._limit)
            if more:
                states = LIVE_STATES if JobState(state) in LIVE_STATES else (JobState(state),)
                self._more.update((queue, one) for one in states)

    def add_completed(self, rows: Rows) -> None:
        """The rows of ``completed.sql``."""
        for queue, jobs, more in rows:
            if jobs:
                self._counted[queue, JobState.COMPLETED] = min(jobs, self._limit)
            if more:
                self._more.add((None, JobState.COMPLETED))

    @property
    def needs_sample(self) -> bool:
        """Whether something has more than was counted."""
        return bool(self._more)

    def add_sample(self, rows: Rows, live_percent: float, finished_percent: float) -> None:
        """The rows of ``sample_states.sql``, which looked at so much of each table."""
        for queue, state, jobs in rows:
            key = (queue, JobState(state))
            percent = finished_percent if key[1] in FINAL_STATES else live_percent
            if self._more.isdisjoint((key, (None, key[1]))):
                continue
            self._sampled[key] = round(jobs * 100 / percent)

    def queues(self) -> list[QueueRecord]:
        """All queues, by name."""
        names = {*self._known, *(queue for queue, _ in (*self._counted, *self._sampled))}
        return [self._queue(name) for name in sorted(names)]

    def _queue(self, name: str) -> QueueRecord:
        oldest, age, paused, workers = self._known.get(name, (None, None, False, ()))
        return QueueRecord(
            name=name,
            counts={state: count for state in JobState if (count := self._count(name, state)).number},
            paused=paused,
            oldest_ready_at=oldest,
            age=age,
            workers=workers,
        )

    def _count(self, name: str, state: JobState) -> Count:
        counted, sampled = self._counted.get((name, state), 0), self._sampled.get((name, state), 0)
        return Count(max(counted, sampled), exact=self._more.isdisjoint(((name, state), (None, state))))
