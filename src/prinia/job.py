"""What a job is, as data: what is pushed, what a claim answers with, what is read back. Nothing here acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import msgspec

from prinia.retry import RetryPolicy

DEFAULT_QUEUE = "default"
DEFAULT_MAX_ATTEMPTS = 5
DEFAULT_MAX_CRASHES = 3
MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_ARGS_BYTES = 1024 * 1024
MAX_RESULT_BYTES = 1024 * 1024
MAX_ERROR_BYTES = 16 * 1024
MAX_KEPT_ERRORS = 20
MAX_NAME_LENGTH = 200
#: A job that was running in this many crashes is claimed with nothing else running beside it.
SUSPECT_CRASHES = 2

OnConflict = Literal["keep", "raise"]


class JobState(StrEnum):
    """Where a job is in its life. A live job's state is derived from its columns, a finished one's is stored."""

    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    READY = "ready"
    BLOCKED = "blocked"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether nothing happens to the job any more."""
        return self in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A unique key as stored: 16 bytes that hash task, scope and key, and what to do when it is taken."""

    hash: bytes
    text: str
    on_conflict: OnConflict = "keep"


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job about to be pushed: checked, encoded, every default filled in.

    Due is ``scheduled_at`` or ``delay`` seconds after the database's now (at once with neither), ``expires_at`` or
    ``expires_in`` likewise. All times are aware; all durations are seconds. A copy with changes is made by
    ``msgspec.structs.replace``.
    """

    # A struct and no dataclass: it is made once per enqueued job, and a frozen dataclass of this size takes six
    # times as long.
    task: str
    args: bytes
    codec: str = "json"
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    delay: float | None = None
    scheduled_at: datetime | None = None
    expires_in: float | None = None
    expires_at: datetime | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    max_crashes: int = DEFAULT_MAX_CRASHES
    rerun_after_crash: bool = True
    retry: RetryPolicy | None = None
    timeout: float | None = None
    unique: UniqueKey | None = None
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Pushed:
    """The answer for one pushed job: its id, or with ``created`` false the id of the live holder of its unique key.

    ``xid`` is the transaction that pushed it, None where the storage has none.
    """

    id: int
    created: bool = True
    xid: int | None = None


@dataclass(slots=True)
class ClaimedJob:
    """One job as a claim hands it to the worker. (id, owner instance, ``token``) is its fence."""

    id: int
    token: int
    task: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    args: bytes
    extras: ClaimedExtras | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedExtras:
    """What few jobs have; `ClaimedJob.extras` is None where all of it is at its default.

    ``broken`` says why the rest could not be read from the row; such a job is not run.
    """

    codec: str = "json"
    timeout: float | None = None
    retry: RetryPolicy | None = None
    expired: bool = False
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    broken: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptError:
    """One failed attempt, or one crash, in a job's error history."""

    attempt: int
    kind: str
    message: str
    traceback: str | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as read back, live or finished. Times are aware, in UTC; fields that do not apply are None."""

    id: int
    task: str
    queue: str
    state: JobState
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    args: bytes | None
    codec: str
    created_at: datetime
    scheduled_at: datetime | None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    owner: UUID | None = None
    result: bytes | None = None
    errors: tuple[AttemptError, ...] = ()
    reason: str | None = None
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One life of a worker. ``id`` is made anew at every start; ``name`` is a label that any number may share."""

    id: UUID
    name: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    host: str
    pid: int
    version: str
    concurrency: int
