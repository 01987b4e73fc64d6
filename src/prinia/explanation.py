"""Why a job does not run, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from prinia.job import JobRecord


class ReasonCode(StrEnum):
    """Why a job does not run. Reasons come in this order: first what somebody has to mend, then what time will do.

    The codes stay as they are; later versions may have more. docs/when-jobs-wait.md says of each what to do.
    """

    NOT_FOUND = "not_found"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    CANCEL_REQUESTED = "cancel_requested"
    DEADLINE_PASSED = "deadline_passed"
    EVERYTHING_PAUSED = "everything_paused"
    QUEUE_PAUSED = "queue_paused"
    TASK_PAUSED = "task_paused"
    UNSERVED = "unserved"
    TASK_UNKNOWN = "task_unknown"
    WORKERS_TOLD = "workers_told"
    WORKERS_LATE = "workers_late"
    WORKERS_BLOCKED = "workers_blocked"
    DEADLINE_BEFORE_DUE = "deadline_before_due"
    OWNER_UNKNOWN = "owner_unknown"
    WORKER_DEAD = "worker_dead"
    WORKER_LATE = "worker_late"
    WORKER_BLOCKED = "worker_blocked"
    CLAIMED = "claimed"
    RUNNING = "running"
    BLOCKED = "blocked"
    RETRYING = "retrying"
    SCHEDULED = "scheduled"
    SUSPECT = "suspect"
    WORKERS_FULL = "workers_full"
    BEHIND = "behind"
    DEADLINE_NEAR = "deadline_near"
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason: what holds, in a sentence, and what to do about it."""

    code: ReasonCode
    text: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job does not run, or how it does, as of ``at`` (aware, in UTC, the database's time).

    ``job`` is None when there is none of this ``id``. There is at least one reason; what has to be mended comes first.

    Example::

        explanation = app.explain(42)
        for reason in explanation.reasons:
            print(reason.code, reason.text, reason.advice)
    """

    id: int
    at: datetime
    job: JobRecord | None
    reasons: Sequence[Reason]

    def __str__(self) -> str:
        return f"job {self.id}: " + " ".join(reason.text for reason in self.reasons)
