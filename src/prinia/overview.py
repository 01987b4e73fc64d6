"""What queues and workers there are and how they stand, as data, and how many jobs there are of a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from prinia.job import JobState

#: Up to so many jobs are counted one by one; above, their number is estimated.
COUNT_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Count:
    """How many jobs. One that is not ``exact`` was estimated, from the database's statistics and a sample.

    Example::

        str(Count(17)), str(Count(1_204_000, exact=False))     # "17", "~1,204,000"
    """

    number: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{'' if self.exact else '~'}{self.number:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """A queue as it stands: one that has jobs, settings, or a worker that serves it. Times are aware, in UTC.

    ``counts`` has the states of which it has jobs. Of one that is ``paused`` no job is claimed. ``oldest_ready_at`` is
    since when the job that has waited longest has been ready, ``age`` for how many seconds. ``workers`` are the ids of
    the live worker instances that serve it.
    """

    name: str
    counts: Mapping[JobState, Count] = field(default_factory=dict)
    paused: bool = False
    oldest_ready_at: datetime | None = None
    age: float | None = None
    workers: tuple[UUID, ...] = ()

    @property
    def unserved(self) -> bool:
        """Whether jobs wait in it, or will, and no live worker serves it."""
        return not self.workers and any(not state.final for state in self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One life of a worker, as it is on the register. Times are aware, in UTC; durations are seconds.

    ``name`` is a label that several may share, ``run`` how often its supervisor has started it anew. ``running`` are
    the ids of the jobs whose handlers run, as of the last beat at ``beat_at``, ``beat_age`` ago. ``listener`` is
    "listening", "polling" (it cannot listen now) or "off", ``lag`` how long the beat before took to the database and
    back, ``blocked`` for how long its event loop had not answered; None where it has not said. One that is not
    ``alive`` was declared dead, and its jobs are about to come back. ``command`` is what it was told from outside,
    ``commanded_by`` by whom; that is None where its instance has it from the one before.
    """

    id: UUID
    name: str
    host: str
    pid: int
    run: int
    version: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    running: tuple[int, ...]
    started_at: datetime
    beat_at: datetime
    beat_age: float
    listener: Literal["listening", "polling", "off"] | None = None
    lag: float | None = None
    blocked: float | None = None
    command: Literal["quiet", "pause", "stop"] | None = None
    alive: bool = True
    commanded_by: str | None = None
