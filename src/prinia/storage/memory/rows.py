"""What the tables hold: live jobs, finished jobs, instances; and how a job reads from outside."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from prinia.changes import WorkerCommand
from prinia.job import AttemptError, Instance, JobRecord, JobSpec, JobState
from prinia.storage.protocol import NO_VITALS, Vitals


@dataclass(slots=True, eq=False)
class LiveJob:
    """A job that has not ended. ``claimed_at`` is set while it runs; ``owner`` and ``token`` may outlast the run."""

    id: int
    spec: JobSpec
    meta: bytes | None
    created_at: datetime
    due: datetime
    expires_at: datetime | None
    attempt: int = 0
    crashes: int = 0
    owner: UUID | None = None
    token: int | None = None
    claimed_at: datetime | None = None
    #: The owner's beat counter when it claimed.
    claimed_beat: int = 0
    cancel_by: str | None = None
    errors: tuple[AttemptError, ...] = ()
    #: Changes whenever the job enters or leaves its queue, so that older entries of it there are void.
    place: int = 0

    def expired(self, now: datetime) -> bool:
        """Whether the latest start has passed."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that has ended, and the fence of the claim whose ack was recorded last."""

    record: JobRecord
    owner: UUID | None
    token: int | None
    #: From when on it may be forgotten; None is never.
    drop_at: datetime | None
    #: As it was at the end.
    job: LiveJob


@dataclass(slots=True)
class Registered:
    """An instance on the register."""

    instance: Instance
    started_at: datetime
    beat_at: datetime
    counter: int = 0
    tokens: frozenset[int] = frozenset()
    started: frozenset[int] = frozenset()
    vitals: Vitals = NO_VITALS
    dead: bool = False
    command: WorkerCommand | None = None
    commanded_by: str | None = None


def decode_meta(data: bytes | None) -> dict[str, Any]:
    """A fresh copy of a job's meta, so that who changes it changes nothing stored."""
    return msgspec.json.decode(data, type=dict[str, Any]) if data is not None else {}


def live_state(job: LiveJob, now: datetime) -> JobState:
    """The state that follows from a live job's columns."""
    if job.claimed_at is not None:
        return JobState.RUNNING
    if job.due <= now:
        return JobState.READY
    return JobState.RETRYING if job.attempt else JobState.SCHEDULED


def live_record(job: LiveJob, now: datetime) -> JobRecord:
    """A live job as read from outside."""
    spec = job.spec
    return JobRecord(
        id=job.id,
        task=spec.task,
        queue=spec.queue,
        state=live_state(job, now),
        priority=spec.priority,
        attempt=job.attempt,
        max_attempts=spec.max_attempts,
        crashes=job.crashes,
        args=spec.args,
        codec=spec.codec,
        created_at=job.created_at,
        scheduled_at=job.due,
        started_at=job.claimed_at,
        owner=job.owner if job.claimed_at is not None else None,
        errors=job.errors,
        reason=None if job.cancel_by is None else f"cancel requested by {job.cancel_by}",
        tags=spec.tags,
        meta=decode_meta(job.meta),
    )
