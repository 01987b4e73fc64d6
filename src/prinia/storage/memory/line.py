"""The waiting jobs of one queue, in the order in which claims take them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import datetime
from heapq import heapify, heappop, heappush

from prinia.job import SUSPECT_CRASHES
from prinia.storage.memory.rows import LiveJob

# (due, id, place, job) and (-priority, due, id, place, job): place makes entries unique, so jobs are never compared.
_Later = tuple[datetime, int, int, LiveJob]
_Due = tuple[int, datetime, int, int, LiveJob]


class Line:
    """Three heaps: not due yet; due; due but to be claimed alone. Entries of jobs that left are dropped lazily."""

    __slots__ = ("_later", "_ready", "_suspects")

    def __init__(self) -> None:
        self._later: list[_Later] = []
        self._ready: list[_Due] = []
        self._suspects: list[_Due] = []

    def add(self, job: LiveJob) -> None:
        """Let a job wait here until it is due and then until it is claimed."""
        job.place += 1
        heappush(self._later, (job.due, job.id, job.place, job))

    def pop(self, limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]) -> list[LiveJob]:
        """Up to ``limit`` due jobs, best first: only suspects with ``alone``, none of them without."""
        self._promote(now)
        heap = self._suspects if alone else self._ready
        taken: list[LiveJob] = []
        passed: list[_Due] = []
        while heap and len(taken) < limit:
            entry = heappop(heap)
            job = entry[-1]
            if job.place != entry[-2]:
                continue
            if job.spec.task in exclude:
                passed.append(entry)
            else:
                taken.append(job)
        for entry in passed:
            heappush(heap, entry)
        return taken

    def has_suspects(self, now: datetime, exclude: AbstractSet[str]) -> bool:
        """Whether a due job waits to be claimed alone."""
        self._promote(now)
        if self._suspects:
            self._suspects = [entry for entry in self._suspects if entry[-1].place == entry[-2]]
            heapify(self._suspects)
        return any(entry[-1].spec.task not in exclude for entry in self._suspects)

    def next_due(self, now: datetime, exclude: AbstractSet[str]) -> float | None:
        """In how many seconds the next job is due: 0 when one is that needs not be claimed alone, None for never."""
        self._promote(now)
        if any(place == job.place and job.spec.task not in exclude for *_, place, job in self._ready):
            return 0.0
        soonest = self._soonest(exclude)
        return None if soonest is None else (soonest - now).total_seconds()

    def _soonest(self, exclude: AbstractSet[str]) -> datetime | None:
        later = self._later
        while later and later[0][-1].place != later[0][-2]:
            heappop(later)
        if not exclude:
            return later[0][0] if later else None
        dues = (due for due, _, place, job in later if place == job.place and job.spec.task not in exclude)
        return min(dues, default=None)

    def _promote(self, now: datetime) -> None:
        while self._later and self._later[0][0] <= now:
            due, id, place, job = heappop(self._later)
            if place == job.place:
                heap = self._suspects if job.crashes >= SUSPECT_CRASHES else self._ready
                heappush(heap, (-job.spec.priority, due, id, place, job))
