"""What a job is, as data: what is pushed, what a claim answers with, what is read back. Nothing here acts."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, overload
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

OnConflict = Literal["keep", "raise", "replace"]


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
    """A unique key as stored: 16 bytes that hash task, scope and key, and what to do when it is taken.

    ``window`` is for how many seconds from the push the key is held, whether or not its job has ended; None: while its
    job is live.
    """

    hash: bytes
    text: str
    on_conflict: OnConflict = "keep"
    window: float | None = None


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
    """The answer for one pushed job: its id, or with ``created`` false the id of the holder of its unique key, replaced
    or not.

    ``xid`` is the transaction that pushed it, None where the storage has none.
    """

    id: int
    created: bool = True
    xid: int | None = None


class Answers(Sequence[Pushed]):
    """The answers of a push in its order, kept as runs of consecutive ids: a million take a few kilobytes.

    Example::

        answers = Answers([Pushed(1), Pushed(2)])
        answers.extend_new(range(3, 1_000_003), xid=7)
        answers[-1]     # Pushed(id=1000002, created=True, xid=7)
    """

    __slots__ = ("_created", "_following", "_ids", "_length", "_starts", "_xids")

    def __init__(self, pushed: Iterable[Pushed] = ()) -> None:
        self._starts, self._ids, self._xids, self._created = array("q"), array("q"), array("q"), bytearray()
        self._length = 0
        #: What the next answer must be to belong to the last run: id, transaction, created.
        self._following: tuple[int, int, bool] | None = None
        self.extend(pushed)

    def append(self, pushed: Pushed, /) -> None:
        """One more answer."""
        self._add(pushed.id, 1, -1 if pushed.xid is None else pushed.xid, pushed.created)

    def extend(self, pushed: Iterable[Pushed], /) -> None:
        """More answers."""
        for one in pushed:
            self.append(one)

    def extend_new(self, ids: Sequence[int], *, xid: int) -> None:
        """More answers: ascending ids of jobs that one transaction created."""
        if ids and ids[-1] - ids[0] + 1 == len(ids):
            self._add(ids[0], len(ids), xid, True)
            return
        for id in ids:
            self._add(id, 1, xid, True)

    def _add(self, id: int, number: int, xid: int, created: bool) -> None:
        if (id, xid, created) != self._following:
            self._starts.append(self._length)
            self._ids.append(id)
            self._xids.append(xid)
            self._created.append(created)
        self._following = (id + number, xid, created)
        self._length += number

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> Pushed: ...
    @overload
    def __getitem__(self, at: slice) -> Answers: ...
    def __getitem__(self, at: int | slice) -> Pushed | Answers:
        index = range(self._length)[at]
        if isinstance(index, range):
            return Answers(map(self._get, index))
        return self._get(index)

    def _get(self, index: int) -> Pushed:
        run = bisect_right(self._starts, index) - 1
        xid = self._xids[run]
        id = self._ids[run] + index - self._starts[run]
        return Pushed(id, bool(self._created[run]), None if xid < 0 else xid)


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

    @property
    def codec(self) -> str:
        """The codec of its arguments and of its result."""
        return self.extras.codec if self.extras is not None else "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedExtras:
    """What few jobs have; `ClaimedJob.extras` is None where all of it is at its default.

    ``history`` says that it has errors from before its first attempt, because it was brought back. ``broken`` says why
    the rest could not be read from the row; such a job is not run.
    """

    codec: str = "json"
    timeout: float | None = None
    retry: RetryPolicy | None = None
    expired: bool = False
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    history: bool = False
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
    """One life of a worker. ``id`` is made anew at every start; ``name`` is a label that any number may share.

    ``run`` counts how often its supervisor has started it anew: 0 for the first time, and without a supervisor.
    ``command`` is a `prinia.changes.WorkerCommand` that was said to its worker in the life before.
    """

    id: UUID
    name: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    host: str
    pid: int
    version: str
    concurrency: int
    run: int = 0
    command: str | None = None
