"""The state of a memory storage and the few ways in which a job moves through it.

Every method that touches jobs is called with `Tables.lock` held: the verbs (push, claim, ack, rescue) are several
moves under one hold, so nobody sees half of one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from math import inf
from threading import Lock
from typing import Any, Protocol
from uuid import UUID

import msgspec

from prinia.changes import AuditEntry, Pause
from prinia.errors import InvalidOptions
from prinia.job import MAX_KEPT_ERRORS, AttemptError, JobSpec, JobState, UniqueKey
from prinia.retention import DEFAULT, Retention
from prinia.storage.memory.line import Line
from prinia.storage.memory.rows import Finished, LiveJob, Registered, live_record
from prinia.storage.text import storable

#: A completed job above this many bytes of arguments is kept without them.
KEPT_ARGS_BYTES = 2048


class WallClock(Protocol):
    """What a memory storage goes by where a database would go by its server's clock."""

    def now(self) -> datetime:
        """The time, aware."""
        ...


class SystemWallClock:
    """The machine's clock, in UTC."""

    def now(self) -> datetime:
        """``datetime.now(UTC)``."""
        return datetime.now(UTC)


class Ringer(Protocol):
    """A bell as seen by whoever makes a job claimable."""

    def ring(self, queue: str, /) -> None:
        """Wake the sleeper if it serves this queue."""
        ...

    def wake(self) -> None:
        """Wake the sleeper."""
        ...

    def summon(self) -> None:
        """Somebody told a worker something."""
        ...


class Hearer(Protocol):
    """Who wants to know of jobs that have ended."""

    def tell(self, id: int, /) -> None:
        """This one has."""
        ...


class Tables:
    """All that a memory storage knows."""

    def __init__(self, clock: WallClock) -> None:
        self.clock = clock
        self.lock = Lock()
        self.live: dict[int, LiveJob] = {}
        self.finished: dict[int, Finished] = {}
        self.lines: defaultdict[str, Line] = defaultdict(Line)
        self.unique: dict[bytes, int] = {}
        #: Keys that are held for a window: by which job, until when.
        self.windows: dict[bytes, tuple[int, datetime]] = {}
        #: Paused queues and tasks by name, and everything.
        self.paused: dict[str, Pause] = {}
        self.paused_tasks: dict[str, Pause] = {}
        self.paused_all: Pause | None = None
        self.audit: dict[int, AuditEntry] = {}
        #: Of queues for which one was set.
        self.retention: dict[str, Retention] = {}
        self.register: dict[UUID, Registered] = {}
        self.leader: UUID | None = None
        self.term = 0
        #: Of sleepers, and of all that listen.
        self.bells: set[Ringer] = set()
        self.listeners: set[Ringer] = set()
        #: Of which jobs the end is announced, until when, and to whom.
        self.expected: dict[int, datetime] = {}
        self.hearers: set[Hearer] = set()
        self.ids = count(1)

    def now(self) -> datetime:
        """The storage's time."""
        return self.clock.now()

    def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
        """A new job enters its queue and takes its unique key."""
        self._enter(new_job(id, spec, meta, now))
        if spec.unique is None:
            return
        if spec.unique.window is None:
            self.unique[spec.unique.hash] = id
        else:
            self.windows[spec.unique.hash] = (id, now + timedelta(seconds=spec.unique.window))

    def holder(self, key: UniqueKey, now: datetime) -> int | None:
        """The job that holds a unique key."""
        if key.window is None:
            return self.unique.get(key.hash)
        id, end = self.windows.get(key.hash, (None, now))
        return id if end > now else None

    def replace_waiting(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
        """A new job takes the place of one that waits, under the same id; one that runs or has ended is kept."""
        old = self.live.get(id)
        if old is None or old.claimed_at is not None:
            return
        old.place += 1
        job = new_job(id, spec, meta, now)
        job.place = old.place
        job.owner, job.token = old.owner, old.token  # an ack of the old one that is sent again is still recognised
        self._enter(job)

    def _enter(self, job: LiveJob) -> None:
        self.live[job.id] = job
        self.lines[job.spec.queue].add(job)

    def select(
        self, queues: Sequence[str], limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]
    ) -> list[LiveJob]:
        """The jobs that a claim takes, out of their queues, which are served in the order given."""
        jobs: list[LiveJob] = []
        for queue in queues:
            if queue not in self.paused:
                jobs += self.lines[queue].pop(limit - len(jobs), now, alone=alone, exclude=exclude)
        return jobs

    def take(self, job: LiveJob, owner: Registered, token: int, now: datetime) -> None:
        """A job runs: it belongs to one claim."""
        job.place += 1
        job.owner, job.token = owner.instance.id, token
        job.claimed_at, job.claimed_beat = now, owner.counter
        job.attempt += 1

    def owns(self, job: LiveJob | None, owner: UUID, token: int) -> bool:
        """The fence: whether this claim owns the job now."""
        return job is not None and job.claimed_at is not None and job.owner == owner and job.token == token

    def recorded(self, id: int, owner: UUID, token: int) -> bool:
        """Whether an ack of this claim was recorded and nobody has claimed the job since."""
        row = self.live.get(id) or self.finished.get(id)
        return row is not None and row.owner == owner and row.token == token

    def hand_back(self, job: LiveJob) -> None:
        """The attempt does not count."""
        job.attempt = max(job.attempt - 1, 0)

    def note(self, job: LiveJob, error: AttemptError, now: datetime) -> None:
        """One more entry in the error history, of which the latest are kept."""
        entry = replace(
            error,
            kind=storable(error.kind),
            message=storable(error.message),
            traceback=None if error.traceback is None else storable(error.traceback),
            at=error.at or now,
        )
        job.errors = (*job.errors, entry)[-MAX_KEPT_ERRORS:]

    def unown(self, job: LiveJob) -> None:
        """No ack of the claim that had the job counts any more."""
        job.owner = job.token = None

    def release(self, job: LiveJob, now: datetime, *, delay: float = 0.0) -> None:
        """A running job waits again, or ends if somebody asked to cancel it."""
        if job.cancel_by is not None:
            self.finish(job, JobState.CANCELLED, now, reason=cancel_reason(job.cancel_by))
            return
        job.claimed_at = None
        job.due = now + timedelta(seconds=delay)
        self.lines[job.spec.queue].add(job)
        self.ring((job.spec.queue,))

    def finish(
        self, job: LiveJob, state: JobState, now: datetime, *, result: bytes | None = None, reason: str | None = None
    ) -> None:
        """A live job ends: out of its queue, its unique key free."""
        big = state is JobState.COMPLETED and len(job.spec.args) > KEPT_ARGS_BYTES
        record = replace(
            live_record(job, now),
            state=state,
            args=None if big else job.spec.args,
            finished_at=now,
            result=result,
            reason=None if reason is None else storable(reason),
        )
        job.place += 1
        del self.live[job.id]
        keep = self.retention.get(job.spec.queue, DEFAULT).of(state)
        drop_at = None if keep == inf else now + timedelta(seconds=keep)
        self.finished[job.id] = Finished(record, job.owner, job.token, drop_at, job)
        self.announce(job.id)
        if job.spec.unique is not None:
            self.unique.pop(job.spec.unique.hash, None)

    def announce(self, id: int) -> None:
        """A job has ended, or is gone."""
        if self.expected.pop(id, None) is not None:
            for hearer in self.hearers:
                hearer.tell(id)

    def cancel(self, job: LiveJob, now: datetime, *, by: str) -> None:
        """One that waits ends, one that runs is marked."""
        if job.claimed_at is None:
            self.finish(job, JobState.CANCELLED, now, reason=cancel_reason(by))
        else:
            job.cancel_by = by

    def redrive(self, row: Finished, now: datetime) -> None:
        """A job that has ended is live again, under its id, with all attempts before it and its errors behind it."""
        old, key = row.job, row.job.spec.unique
        job = LiveJob(old.id, old.spec, old.meta, old.created_at, due=now, expires_at=None)
        job.owner, job.token, job.errors, job.place = row.owner, row.token, row.record.errors, old.place + 1
        del self.finished[job.id]
        if key is not None and key.window is None:
            self.unique[key.hash] = job.id
        self._enter(job)
        self.ring((job.spec.queue,))

    def note_audit(
        self, by: str, operation: str, target: Mapping[str, Any], now: datetime, *,
        values: Mapping[str, Any] | None = None, changed: int = 0, skipped: int = 0,
    ) -> int:  # fmt: skip
        """One more entry in the audit; its id."""
        id = len(self.audit) + 1
        self.audit[id] = AuditEntry(
            id=id,
            at=now,
            by=storable(by),
            operation=operation,
            target=target,
            values=values or {},
            changed=changed,
            skipped=skipped,
        )
        return id

    def ring(self, queues: Iterable[str]) -> None:
        """Jobs of these queues became claimable, or their next due time changed."""
        for queue in queues:
            for bell in self.bells:
                bell.ring(queue)


def new_job(id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> LiveJob:
    """A job as it begins."""
    due = spec.scheduled_at if spec.scheduled_at is not None else now + timedelta(seconds=spec.delay or 0)
    expires = spec.expires_at
    if expires is None and spec.expires_in is not None:
        expires = now + timedelta(seconds=spec.expires_in)
    return LiveJob(id, spec, meta, created_at=now, due=max(due, now), expires_at=expires)


def cancel_reason(by: str) -> str:
    """What a job that somebody cancelled says of it."""
    return f"cancelled by {by}"


def encode_meta(spec: JobSpec) -> bytes | None:
    """A job's meta as JSON, as a database would keep it. Raises `InvalidOptions` when it is none."""
    if spec.meta is None:
        return None
    try:
        return msgspec.json.encode(dict(spec.meta))
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidOptions(f"meta of a job of task {spec.task!r} is not JSON: {error}") from error
