"""What people do to jobs, queues and workers from outside, as data: changes of jobs, pauses, commands, the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from prinia.errors import WorkerNotFound
from prinia.job import JobState
from prinia.selection import Selection

#: Who did it, where nobody says.
SOMEBODY = "the application"


class ChangeKind(StrEnum):
    """What can be done to a job from outside."""

    CANCEL = "cancel"
    RETRY = "retry"
    RUN_NOW = "run_now"
    RESCHEDULE = "reschedule"
    REPRIORITISE = "reprioritise"
    MOVE = "move"
    DELETE = "delete"

    @property
    def reaches_ended(self) -> bool:
        """Whether jobs that have ended can be changed so; others are skipped where their ids are given."""
        return self in (ChangeKind.RETRY, ChangeKind.DELETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One of them with its values: ``at`` or ``delay`` (seconds) of a reschedule, a ``priority``, the ``queue`` to move
    to. Checked by who makes it."""

    kind: ChangeKind
    at: datetime | None = None
    delay: float | None = None
    priority: int | None = None
    queue: str | None = None

    def values(self) -> dict[str, Any]:
        """The values given, as JSON has them, for the audit."""
        given = ((one.name, getattr(self, one.name)) for one in fields(self) if one.name != "kind")
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in given
            if value is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of an operation on many jobs: the next 1,000 at most whose id is above ``after``, in one transaction.

    ``ended`` says in which half to look: among the jobs that have ended, or among those that have not. ``note`` is the
    audit entry that the steps before have made. A ``dry`` step changes nothing and makes none.
    """

    change: Change
    selection: Selection
    by: str
    ended: bool = False
    after: int = 0
    note: int | None = None
    dry: bool = False


#: So many jobs are in a step.
STEP = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a step did. ``matched`` are the ids that met the selection, in order; ``after`` is where the next step goes
    on, None when there is nothing beyond.

    ``skipped`` counts those left alone, by reason; ``left`` are the ids of those that somebody has locked or changed
    in this moment: they want another step. ``changed`` counts the rest. ``note`` is the audit entry.
    """

    matched: Sequence[int] = ()
    changed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    left: Sequence[int] = ()
    note: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """What an operation on jobs has done, or with ``dry_run`` would do.

    ``matched`` is how many jobs met the query, ``changed`` how many of them were changed. ``skipped`` counts the others
    by the reason: the state of a job for which the operation is not made ("running", "completed", ...), "unchanged" (it
    is so already), "cancel requested" (earlier), "unique key taken", "arguments not kept", "locked" (by a transaction
    that stayed open), "changed meanwhile" (it met the query a moment before). ``missing`` are ids asked for that no job
    has which meets the query.

    Example::

        print(app.jobs(queue="email", state="failed").retry(by="Ada"))
        # 1,200 of 1,203 jobs changed; skipped: 3 unique key taken
    """

    matched: int = 0
    changed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    dry_run: bool = False

    def __str__(self) -> str:
        if not self.matched and not self.missing:
            return "no job meets the query: nothing to change"
        jobs = "job" if self.matched == 1 else "jobs"
        would = "would be changed (dry run)" if self.dry_run else "changed"
        text = f"{self.changed:,} of {self.matched:,} {jobs} {would}"
        if self.skipped:
            text += "; skipped: " + ", ".join(f"{number:,} {reason}" for reason, number in self.skipped.items())
        if self.missing:
            more = len(self.missing) - 5
            shown = ", ".join(map(str, self.missing[:5])) + (f" and {more:,} more" if more > 0 else "")
            text += f"; not found: {shown}"
        return text


PauseKind = Literal["queue", "task", "everything"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A queue, a task, or everything that is paused: since when, by whom. Of everything the name is empty."""

    kind: PauseKind
    name: str = ""
    at: datetime
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """What is paused now, for a worker that looks."""

    queues: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    everything: bool = False

    def holds(self, *, queue: str, task: str) -> bool:
        """Whether a job of this queue and task may not start."""
        return self.everything or queue in self.queues or task in self.tasks


class WorkerCommand(StrEnum):
    """What a worker can be told from outside. In each case it claims nothing more, and running jobs go on.

    - ``quiet``: what it has claimed it also runs.
    - ``pause``: what has not started is handed back at once, for others to run.
    - ``stop``: it stops as by a first SIGTERM: hands back what has not started, lets running jobs finish for its
      ``stop_timeout``, and ends. This cannot be taken back.
    """

    QUIET = "quiet"
    PAUSE = "pause"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Orders:
    """What was said to one worker instance, and what is paused."""

    command: WorkerCommand | None = None
    paused: Paused = Paused()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who did what from outside, to what, and how many jobs it changed. ``at`` is aware, in UTC.

    ``operation`` is a `ChangeKind`, "pause" or "resume" (of a queue, a task or everything), or "quiet_worker",
    "pause_worker", "stop_worker", "resume_worker". ``target`` has the conditions of a query (empty: every job), or
    ``{"queue": ...}``, ``{"task": ...}``, ``{"everything": True}``, ``{"instance": ...}``. ``values`` are what jobs
    were given, such as ``{"priority": 5}``. ``changed`` and ``skipped`` are how many jobs, of operations on jobs.
    """

    id: int
    at: datetime
    by: str
    operation: str
    target: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    changed: int = 0
    skipped: int = 0


#: What a retry is about where a query names no state: cancelled and completed jobs have to be asked for.
RETRIED = (JobState.RETRYING, JobState.FAILED)


def retried_states(selection: Selection) -> frozenset[str]:
    """The states of ended jobs that a retry brings back."""
    named = selection.state or ()
    return frozenset({JobState.FAILED, *(state for state in named if state.final)})


def pause_target(kind: PauseKind, name: str) -> dict[str, Any]:
    """How the audit names what was paused or resumed."""
    return {"everything": True} if kind == "everything" else {kind: name}


def command_name(command: WorkerCommand | None) -> str:
    """How the audit names a command; None lets the worker go on."""
    return f"{command or 'resume'}_worker"


def no_such_worker(instance: UUID) -> WorkerNotFound:
    """The error for a command to a worker that is not there."""
    return WorkerNotFound(
        f"there is no live worker instance {instance}: it has stopped, was declared dead, or never was; "
        "app.workers() has those that live"
    )


def worker_target(instance: UUID) -> dict[str, Any]:
    """How the audit names a worker instance."""
    return {"instance": str(instance)}
