"""What a storage can do, as small capabilities. The engine, the client and maintenance know only these.

Two colours where callers come in two (push, read, cancel): the plain name blocks, the one with an ``a`` awaits.
A worker's side is async (`Consumer`), but for what must go on while its event loop is blocked: heartbeat, watch
and maintenance are blocking calls made from a thread of their own (`Pulse`).

Every method that reaches a database may raise `prinia.errors.StorageUnavailable` (no connection, or lost in
mid-call: whether it took effect is unknown) and `prinia.errors.StorageError` (refused).

`prinia.testing.conformance` is the suite that says whether a storage keeps its promises.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

from prinia.changes import AuditEntry, Batch, Orders, Pause, PauseKind, Step, WorkerCommand
from prinia.job import ClaimedJob, Instance, JobRecord, JobSpec, JobState, Pushed
from prinia.outcome import Ack
from prinia.overview import Count, QueueRecord, WorkerRecord
from prinia.retention import Retention
from prinia.selection import Selection
from prinia.situation import Situation


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


#: Is told the ids of jobs that have ended, or None when such may have ended unheard.
Heard = Callable[[Sequence[int] | None], None]


class Hearing(Protocol):
    """Somebody's listening for the ends of jobs."""

    @property
    def listening(self) -> bool:
        """Whether anything can be heard just now. Safe from any thread."""
        ...


class Announces(Protocol):
    """Say of jobs that somebody awaits that they have ended. Who waits must look as well: an announcement may be lost,
    may come for a job that has not ended, and more than once."""

    def expect(self, ids: Sequence[int], /) -> None:
        """For a minute from now on the ends of these jobs are announced to everybody who hears."""
        ...

    async def aexpect(self, ids: Sequence[int], /) -> None:
        """`expect`, awaited."""
        ...

    def hear_ends(self, heard: Heard, /) -> AbstractAsyncContextManager[Hearing]:
        """While in it, ``heard`` is called in the running loop for what is announced. Jobs that others expect may be
        among it."""
        ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """Jobs as they were found, and the id after which to go on: None when there are no more.

    A storage need not look through everything at once: there may be fewer jobs than asked for, or none, and more to
    come all the same.
    """

    records: Sequence[JobRecord]
    after: int | None


class Lists(Protocol):
    """Look for jobs, and at queues and workers. What is seen is committed, and of one moment for each call.

    No call takes long, however many jobs there are: what would is estimated, or is left for the next call.
    """

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        """Up to ``limit`` jobs that meet the selection, newest first: by descending id, below ``after``.

        With ``oldest_first`` by ascending id, above ``after``. Ids never change, so going on after the last one misses
        no job that was there, and shows none twice, whatever is pushed, ends or is deleted meanwhile.
        """
        ...

    async def abrowse(
        self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False
    ) -> Stretch:
        """`browse`, awaited."""
        ...

    def count(self, selection: Selection, /, *, limit: int) -> Count:
        """How many jobs meet the selection: exact if at most ``limit`` do and they are not too far apart to count."""
        ...

    async def acount(self, selection: Selection, /, *, limit: int) -> Count:
        """`count`, awaited."""
        ...

    def queues(self, *, limit: int) -> Sequence[QueueRecord]:
        """Every queue that has live jobs, failed or cancelled ones, or a live worker, by name.

        Counts of a queue's live jobs are exact if these are at most ``limit``; those of its failed and of its cancelled
        ones likewise; those of completed jobs if at most ``limit`` jobs in all have ended and are kept. A queue that
        has completed jobs only, few among many of others, may be missing then.
        """
        ...

    async def aqueues(self, *, limit: int) -> Sequence[QueueRecord]:
        """`queues`, awaited."""
        ...

    def workers(self) -> Sequence[WorkerRecord]:
        """Every instance on the register, by name and start; those declared dead until their jobs are rescued."""
        ...

    async def aworkers(self) -> Sequence[WorkerRecord]:
        """`workers`, awaited."""
        ...


class Explains(Protocol):
    """Look at all that bears on whether a job runs."""

    def situation(self, id: int, /, *, limit: int) -> Situation:
        """A job and what is around it, as committed and of one moment, with up to ``limit`` jobs ahead counted."""
        ...

    async def asituation(self, id: int, /, *, limit: int) -> Situation:
        """`situation`, awaited."""
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
    """Stop and restart the claiming of a queue, of a task or of everything; running jobs go on."""

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """No job of the queue, of the task, or at all, is claimed any more, by any worker.

        Whether that is new: what is paused already stays so. It goes to the audit if it is.
        """
        ...

    async def apause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`pause`, awaited."""
        ...

    def resume(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """Claiming goes on, as far as no other pause is in its way. Whether it was paused so."""
        ...

    async def aresume(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`resume`, awaited."""
        ...

    def pauses(self) -> Sequence[Pause]:
        """What is paused: everything first, then queues, then tasks, by name."""
        ...

    async def apauses(self) -> Sequence[Pause]:
        """`pauses`, awaited."""
        ...


class Operates(Protocol):
    """Change many jobs from outside, step by step."""

    def operate(self, step: Step, /) -> Batch:
        """One step of an operation, in one transaction, which counts in the audit too.

        What each kind of change does, and whom it leaves alone, is said by `prinia.operations.Operations`. A job that
        somebody else has locked is not waited for. Whatever becomes claimable rings.
        """
        ...

    async def aoperate(self, step: Step, /) -> Batch:
        """`operate`, awaited."""
        ...


class Commands(Protocol):
    """Tell single workers what to do."""

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        """Whether that is new to the worker; None lets it go on. It claims nothing from now on, if told anything.

        A stop cannot be taken back. It goes to the audit if it is new. Raises `prinia.errors.WorkerNotFound`.
        """
        ...

    async def acommand_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        """`command_worker`, awaited."""
        ...


class Audits(Protocol):
    """Read what was done from outside."""

    def audit(self, *, before: int | None, limit: int, by: str | None, operation: str | None) -> Sequence[AuditEntry]:
        """Up to ``limit`` entries, latest first, of ids below ``before``; by somebody, of one operation, if given."""
        ...

    async def aaudit(
        self, *, before: int | None, limit: int, by: str | None, operation: str | None
    ) -> Sequence[AuditEntry]:
        """`audit`, awaited."""
        ...


class Retains(Protocol):
    """Say how long finished jobs are kept."""

    def set_retention(self, queue: str, retention: Retention, /) -> None:
        """Of jobs of this queue that end from now on; what ended before goes when it was to go."""
        ...

    async def aset_retention(self, queue: str, retention: Retention, /) -> None:
        """`set_retention`, awaited."""
        ...

    def retention(self, queue: str, /) -> Retention:
        """What was set for this queue, or the default."""
        ...

    async def aretention(self, queue: str, /) -> Retention:
        """`retention`, awaited."""
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

    @property
    def listening(self) -> bool:
        """Whether it can be rung just now. Safe from any thread."""
        ...

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

    async def summons(self) -> None:
        """Return when the instance should look at its `Orders`: somebody said something, or may have while nothing
        could be heard. Not before that, and never where nothing is heard at all."""
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

        Order: strict priority within a queue, then due time, then id; queues take turns. What is paused and the
        tasks given to `exclude` are left alone; an instance that was told something (`Commands`) gets nothing.
        ``token`` is the caller's own counter and never used twice.
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

    async def orders(self) -> Orders:
        """What this instance was told, and what is paused of its queues, of all tasks, or altogether."""
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
class Vitals:
    """How an instance is, as it says with a heartbeat, for those who look at the register.

    ``listener`` is "listening", "polling" (it cannot listen now) or "off"; ``lag`` how many seconds the beat before
    took to the database and back, ``blocked`` for how many the event loop has not answered. None for what is unknown.
    """

    listener: Literal["listening", "polling", "off"] | None = None
    lag: float | None = None
    blocked: float | None = None


#: Of an instance that says nothing of itself.
NO_VITALS = Vitals()


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

    def beat(self, tokens: Sequence[int], started: Sequence[int], vitals: Vitals = NO_VITALS, /) -> Beat:
        """Count one up. ``tokens`` are all claims of this instance in flight or with jobs not yet recorded,
        ``started`` the ids of jobs whose handlers run. ``vitals`` are kept on the register."""
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

    def sweep_archive(self, now: datetime | None = None, /) -> int:
        """Forget some of the finished jobs that were kept for as long as they were to be kept.

        Returns how many pieces of work were done: 0 when nothing is left, or others are in the way. It holds up nobody
        else for longer than a moment. ``now`` is for tests, by default the storage's own time.
        """
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Storage(
    Pushes,
    PushesWithin,
    CompletesWithin,
    Reads,
    Announces,
    Lists,
    Explains,
    Cancels,
    Operates,
    Pauses,
    Commands,
    Audits,
    Retains,
    Protocol,
):
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
