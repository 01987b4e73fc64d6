"""All that bears on whether a job runs, as it stood at one moment, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from prinia.changes import Pause
from prinia.job import JobRecord
from prinia.overview import WorkerRecord

#: So many jobs before another one are counted.
AHEAD_LIMIT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job and what is around it. ``now`` is the storage's time; ``job`` is None when there is no such job.

    ``expires_at`` is the job's latest start, None when it has none. ``ahead`` is how many jobs of its queue a claim
    would take before it, if it is ready: `AHEAD_LIMIT` and one more for any number above; jobs of paused tasks do not
    count. Pauses and workers are told of a live job only.
    """

    now: datetime
    job: JobRecord | None = None
    expires_at: datetime | None = None
    ahead: int = 0
    pauses: Sequence[Pause] = ()
    workers: Sequence[WorkerRecord] = ()
