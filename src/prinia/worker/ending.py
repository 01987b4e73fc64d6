"""How a run ends that the worker wants to end, or whose handler completed its job itself: which outcome counts."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

from prinia.context import Context
from prinia.errors import CompletionRolledBack
from prinia.job import ClaimedJob
from prinia.outcome import Ack, AckKind, CancelledOutside, Completed, Expired, Failed, HandedBack, Outcome
from prinia.worker.call import Handler
from prinia.worker.completion import Completion
from prinia.worker.deadlines import Deadline
from prinia.worker.failure import failed
from prinia.worker.pool import Place
from prinia.worker.threads import Slot

if TYPE_CHECKING:
    from typing import Self

log = logging.getLogger("prinia.worker")


class Ending(Enum):
    """Why the worker wants a run to end before it does by itself."""

    TIMEOUT = auto()
    #: Somebody asked to cancel the job.
    CANCEL = auto()
    STOP = auto()
    LOST = auto()
    #: It ignored its cancellation until the end of a bounded stop: what becomes of it was recorded already.
    ABANDONED = auto()


class Run:
    """One job while its handler runs."""

    __slots__ = ("cancel_reason", "completion", "context", "deadline", "ending", "future", "handler", "job", "slot")

    def __init__(self, job: ClaimedJob, handler: Handler) -> None:
        self.job = job
        self.handler = handler
        self.context: Context | None = None
        self.completion: Completion | None = None
        self.deadline: Deadline[Self] | None = None
        self.ending: Ending | None = None
        self.cancel_reason = ""
        self.future: asyncio.Task[None] | None = None
        #: The process kept for its handler, or the thread when something stands around it.
        self.slot: Slot | Place | None = None

    @property
    def cancellable(self) -> bool:
        """Whether it is in the event loop or in a process: nobody can end a thread."""
        return self.handler.is_async or (self.slot is not None and not self.slot.busy)

    @property
    def within(self) -> Completed | None:
        """What its handler has completed the job with, if that transaction has committed or will."""
        return self.completion.tried if self.completion is not None else None


def judged(run: Run, outcome: Outcome) -> Outcome:
    """What counts of a run that ended so."""
    if run.ending is Ending.TIMEOUT:
        return timed_out(run)
    if run.ending is not None and isinstance(outcome, Failed) and outcome.steering is None:
        return interrupted(run)
    if run.within is not None and isinstance(outcome, Completed):
        return failed(CompletionRolledBack("the handler returned, but its transaction with ctx.complete rolled back"))
    return outcome


def interrupted(run: Run) -> Outcome:
    """What becomes of a run that the worker has ended, or has let go of."""
    match run.ending:
        case Ending.TIMEOUT:
            return timed_out(run)
        case Ending.CANCEL:
            return CancelledOutside(run.cancel_reason)
        case _:
            return HandedBack()


def timed_out(run: Run) -> Failed:
    """The failure of a run past its time limit."""
    limit = (run.job.extras and run.job.extras.timeout) or 0.0
    message = f"timeout after {limit:g} s"
    return Failed(kind="Timeout", message=message, error=TimeoutError(message))


def report(job: ClaimedJob, ack: Ack, outcome: Outcome) -> None:
    """One line per run that did not end well; handlers that steer say so at a lower level."""
    match outcome:
        case Failed():
            _report_failed(job, ack, outcome)
        case Expired():
            log.info("job %d (%s) expired before it could start", job.id, job.task)
        case CancelledOutside(reason):
            log.info("job %d (%s) was %s", job.id, job.task, reason)


def _report_failed(job: ClaimedJob, ack: Ack, outcome: Failed) -> None:
    level, what = {
        AckKind.RETRY: (logging.WARNING, f"failed and is tried again in {ack.delay:.1f} s"),
        AckKind.FAIL: (logging.WARNING, "failed for good"),
        AckKind.SNOOZE: (logging.DEBUG, f"snoozes for {ack.delay:.1f} s"),
        AckKind.CANCEL: (logging.INFO, "was cancelled by its handler"),
    }.get(ack.kind, (logging.WARNING, "ended"))
    log.log(
        level,
        "job %d (%s), attempt %d/%d, %s: %s: %s",
        job.id, job.task, job.attempt, job.max_attempts, what, outcome.kind, outcome.message,
    )  # fmt: skip
