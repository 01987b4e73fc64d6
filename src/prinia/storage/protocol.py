"""What a storage can do, as small capabilities. The engine, the client and maintenance know only these.

Two colours where callers come in two (push, read, cancel): the plain name blocks, the one with an ``a`` awaits.
A worker's side is async (`Consumer`), but for what must go on while its event loop is blocked: heartbeat, watch
and maintenance are blocking calls made from a thread of their own (`Pulse`).

Every method that reaches a database may raise `prinia.errors.StorageUnavailable` (no connection, or lost in
mid-call: whether it took effect is unknown) and `prinia.errors.StorageError` (refused).

`prinia.testing.conformance` is the suite that says whether a storage keeps its promises.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from prinia.job import ClaimedJob, Instance, JobRecord, JobSpec, JobState, Pushed
from prinia.outcome import Ack


class Pushes(Protocol):
    """Put jobs in their queues, all or none, in the order given; the answers come in that order, new ids ascending.

    A unique key is held by the job that took it, while that is live or for the key's window. A job whose key is held
    is not stored: its answer has the holder's id and ``created=False``. When its key says ``raise``,
    `prinia.errors.DuplicateJob` is raised and none is stored. When it says ``replace`` and the holder waits, it takes
    the holder's place: the id stays, and the end of a window; arguments, options and due time are the new ones,
    attempts, crashes and errors start anew. A holder that runs or has ended is kept. A job earlier in the same push is
    a holder like any other.
    """

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """Push in a transaction of its own, in chunks, so that an endless iterable needs bounded memory."""
        ...

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        """`push`, awaited."""
        ...


class PushesWithin(Protocol):
    """Push inside the caller's own transaction: the jobs commit and roll back with it."""

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """Push on a blocking connection: a sequence of one job as it is, all else in a savepoint that is begun before
        the iterable is read.

        Raises `prinia.errors.ConnectionKindError` for an unknown kind or an async one, and
        `prinia.errors.ConnectionUnusable` for a closed connection or a failed transaction.
        """
        ...

    async def apush_within(
        self, connection: Any, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /
    ) -> Sequence[Pushed]:
        """Push on an async connection."""
        ...


class CompletesWithin(Protocol):
    """Record a job's completion inside its handler's own transaction: both commit, or neither."""

    def complete_within(self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None) -> bool:
        """Complete a job on a blocking connection, if the claim of this instance and token still owns it.

        False when it does not, and nothing is changed. Done a second time it stays done, and so does an ack that is
        sent for the claim after the commit: it is recorded. Raises `prinia.errors.ConnectionKindError` for an unknown
        kind, `prinia.errors.ConnectionUnusable` for a closed connection, a failed transaction, or one whose snapshot
        may be older than the claim.
        """
        ...

    async def acomplete_within(
        self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None
    ) -> bool:
        """`complete_within` on an async connection."""
        ...


class Reads(Protocol):
    """Look at jobs, live and finished in one go."""

    def find(self, ids: Sequence[int], /) -> Sequence[JobRecord]:
        """The jobs of these ids that exist, in the order of ``ids``.

        ``owner`` and ``started_at`` are of the run that goes on or that ended the job: None while a job waits.
        """
        ...

    async def afind(self, ids: Sequence[int], /) -> Sequence[JobRecord]:
        """`find`, awaited."""
        ...

    def in_progress(self, xid: int, id: int, /) -> bool:
        """Whether the transaction of `prinia.job.Pushed.xid` has not ended yet and has stored this job, or put another
        in its place, which nobody else sees until then. False for a job that was there and was left alone."""
        ...

    async def ain_progress(self, xid: int, id: int, /) -> bool:
        """`in_progress`, awaited."""
        ...


class Cancels(Protocol):
    """End jobs from outside."""

    def cancel(self, ids: Sequence[int], /, *, by: str) -> int:
        """Cancel waiting jobs now; mark running ones, which end as cancelled unless their result arrives first.

        A complete or fail is a result; a retry, a snooze, a hand-back, a rescue ends the job as cancelled.
        Returns how many were cancelled or marked. The reason names ``by``.
        """
        ...

    async def acancel(self, ids: Sequence[int], /, *, by: str) -> int:
        """`cancel`, awaited."""
        ...


class Pauses(Protocol):
    """Stop and restart the claiming of a queue; running jobs go on."""

    def pause(self, queue: str, /) -> None:
        """No job of the queue is claimed any more. A queue that is paused already stays so."""
        ...

    def resume(self, queue: str, /) -> None:
        """Claiming goes on."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """What one claim got. ``next_due`` is in how many seconds the next job of these queues is due, None for never.

    ``next_due`` is only looked up when the claim got fewer jobs than asked for (and is 0 while more are due). Jobs of
    paused queues and excluded tasks do not count, nor do due ones that must be claimed alone: ``suspects`` says that
    there are such.
    """

    jobs: Sequence[ClaimedJob]
    next_due: float | None = None
    suspects: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a flush of acks, by job id. What is in neither set was recorded (now or by an earlier try).

    ``lost``: the claim no longer owns the job, nothing was changed. ``busy``: the row is locked by somebody, send
    that ack again. ``ended``: recorded too, but the job ended in another state than its ack would have left it in: it
    was completed before, within its handler's transaction, or somebody had asked to cancel it.
    """

    lost: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()
    ended: Mapping[int, JobState] = field(default_factory=dict)


class Bell(Protocol):
    """How a worker that ran dry sleeps without missing a job.

    The order is: claim nothing, `arm`, claim once more, `wait`. Whoever makes a job claimable rings, and so does a
    push of a job due later (the sleeper has to look up how long it may sleep); an armed bell may not miss that,
    whatever the order of commits. A ring too many is no harm.
    """

    async def arm(self) -> bool:
        """Ask to be rung. False: it cannot be promised now (a push is in flight), so wait only briefly."""
        ...

    async def disarm(self) -> None:
        """No ring is needed: the worker claims by itself."""
        ...

    async def wait(self, seconds: float, /) -> bool:
        """Sleep until rung (True) or until the time is over (False). A ring since `arm` counts."""
        ...

    async def pass_on(self) -> None:
        """There is more work than this worker can start: wake another sleeper."""
        ...


class Consumer(Protocol):
    """The storage's side of one worker instance, used from one event loop.

    An instance claims only after `open`, and until it is declared dead.
    """

    @property
    def bell(self) -> Bell:
        """This instance's bell over the queues it serves."""
        ...

    async def open(self) -> None:
        """Connect, check the schema, register the instance."""
        ...

    async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
        """Take up to ``limit`` due jobs of the instance's queues, marked with this instance and ``token``.

        Order: strict priority within a queue, then due time, then id; queues take turns. Paused queues and the
        tasks given to `exclude` are left alone. ``token`` is the caller's own counter and never used twice.
        With ``alone`` the claim takes one job that has been in too many crashes, and no other; without, none such.
        A claim that is not ``thorough`` may overlook jobs that became visible late and says nothing of ``next_due``:
        it is for a worker that will look again in a moment. Before it sleeps it must have looked thoroughly.
        """
        ...

    def exclude(self, task: str, /) -> None:
        """Claim no job of this task any more: the worker does not know it."""
        ...

    async def ack(self, acks: Sequence[Ack], /) -> Receipt:
        """Record outcomes, each only if its job is still owned by this instance and token.

        Safe to send again: until the job is claimed anew, an ack of a claim whose ack was recorded is neither lost
        nor busy and changes nothing. Any text is accepted in errors and reasons: what cannot be kept (NUL, lone
        surrogates, what is too long) is kept as `prinia.storage.text.storable` writes it. The latest
        `prinia.job.MAX_KEPT_ERRORS` errors are kept.
        """
        ...

    async def cancel_requests(self) -> Mapping[int, str]:
        """The claimed jobs of this instance that somebody asked to cancel, and for each the reason, which says who."""
        ...

    async def recover(self, tokens: Sequence[int], running: Sequence[ClaimedJob], /) -> frozenset[int]:
        """After a lost connection: hand back what claims with ``tokens`` got without their answer being heard,
        and return which of ``running`` are no longer owned."""
        ...

    async def close(self) -> None:
        """Take the instance off the register and disconnect.

        With jobs still owned it is declared dead instead, so that they are rescued.
        """
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat: whether this instance is still registered, and what was seen of all of them.

    ``counters`` maps each live instance to its beat counter; ``dead`` are declared dead and not yet rescued.
    ``leader`` leads, in its ``term``.
    """

    alive: bool
    counters: Mapping[UUID, int] = field(default_factory=dict)
    dead: frozenset[UUID] = frozenset()
    leader: UUID | None = None
    term: int = 0


class Pulse(Protocol):
    """What goes on while the event loop may be blocked: blocking calls from one thread, on a connection of their own.

    After `StorageUnavailable` the next call connects anew; what was watched before does not count any more.
    """

    def beat(self, tokens: Sequence[int], started: Sequence[int], /) -> Beat:
        """Count one up. ``tokens`` are all claims of this instance in flight or with jobs not yet recorded,
        ``started`` the ids of jobs whose handlers run."""
        ...

    def lead(self, leader: UUID | None, term: int, /) -> bool:
        """Become the leader, in the next term, if ``leader`` still leads in ``term`` and this instance is alive.

        Idempotent work only follows from it.
        """
        ...

    def declare_dead(self, instance: UUID, counter: int, /) -> bool:
        """Mark an instance as dead if its counter still stands at ``counter``: from now on it cannot claim.

        What it owns it may still ack, until `rescue` takes it away.
        """
        ...

    def rescue(self, instance: UUID, /) -> int:
        """Bring back up to 1,000 jobs of an instance declared dead; 0 when none is left and it is off the register.

        Each comes back with its attempt handed back and one crash more; one that had started has "worker lost" in
        its error history. Above its ``max_crashes``, or when it must not run again after a crash, it ends as failed
        (reports of what has started are seconds old: nobody knows that a claimed job had not). With a cancel request
        it ends as cancelled.
        """
        ...

    def free_strays(self) -> int:
        """Bring back jobs whose owner is not registered, or whose live owner no longer reports their token.

        A claim by a live owner counts as stray only when that owner has beaten twice since. Attempts are handed
        back, no crash is counted. Returns how many.
        """
        ...

    def sweep_expired(self) -> int:
        """End up to 1,000 waiting jobs whose latest start has passed as cancelled ("expired")."""
        ...

    def sweep_keys(self) -> int:
        """Forget up to 1,000 unique keys whose window is over. Returns how many; keys are free without it, too."""
        ...

    def prepare_archive(self) -> int:
        """Make room for finished jobs ahead of time. Returns how many leaves were made."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Storage(Pushes, PushesWithin, CompletesWithin, Reads, Cancels, Pauses, Protocol):
    """All of it: what `prinia.Prinia` needs from the place where jobs live."""

    def consumer(self, instance: Instance, /, *, listen: bool = True) -> Consumer:
        """The worker's side for this instance. Without ``listen`` nothing rings its bell: ``wait`` sleeps its time."""
        ...

    def pulse(self, instance: Instance, /) -> Pulse:
        """The heartbeat's side for this instance."""
        ...

    def open(self) -> None:
        """Open what is shared between blocking calls (a pool). Opens nest; without one each call connects."""
        ...

    def close(self) -> None:
        """Undo one `open`."""
        ...

    async def aopen(self) -> None:
        """`open` for awaited calls of the running event loop."""
        ...

    async def aclose(self) -> None:
        """Undo one `aopen`."""
        ...
