"""From how a handler ended to what is recorded: outcomes are values, and `decide` is a pure function.

A handler steers by raising `Retry`, `Snooze`, `Fail` or `Cancel`; any other exception is a failed attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from prinia.job import AttemptError, ClaimedJob
from prinia.retry import DEFAULT_RETRY, LONGEST_DELAY


class Steering(Exception):
    """Base of the exceptions a handler raises to steer its job. Not an error of Prinia's."""


class Retry(Steering):
    """Run the job again; counts as a failed attempt. ``delay`` in seconds replaces the policy's.

    Example::

        raise Retry("rate limited", delay=60)
    """

    def __init__(self, reason: str = "retry asked for", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Snooze(Steering):
    """Run the job again ``delay`` seconds later; no attempt is counted.

    Example::

        raise Snooze(300)
    """

    def __init__(self, delay: float) -> None:
        super().__init__(f"snoozed for {delay} s")
        self.delay = delay


class Fail(Steering):
    """End the job as failed now, whatever attempts are left.

    Example::

        raise Fail("customer is gone")
    """

    def __init__(self, reason: str = "failed by its handler") -> None:
        super().__init__(reason)


class Cancel(Steering):
    """End the job as cancelled.

    Example::

        raise Cancel("order was withdrawn")
    """

    def __init__(self, reason: str = "cancelled by its handler") -> None:
        super().__init__(reason)


class AckKind(StrEnum):
    """What an ack does to the job's row."""

    COMPLETE = "complete"
    FAIL = "fail"
    CANCEL = "cancel"
    RETRY = "retry"
    #: Back to the queue with its attempt handed back, after a delay.
    SNOOZE = "snooze"


# Not frozen: one is made for every job, and setting the fields of a frozen one takes as long as running a small job.
@dataclass(slots=True)
class Ack:
    """What is to be recorded of one claimed job. Treat it as frozen.

    ``delay`` (seconds) goes with retry and snooze, ``error`` with retry and fail, ``reason`` with cancel,
    ``result`` (encoded) with complete. ``uncounted`` hands the attempt back, whatever the kind.
    """

    id: int
    token: int
    kind: AckKind
    result: bytes | None = None
    error: AttemptError | None = None
    reason: str | None = None
    delay: float = 0.0
    uncounted: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; ``result`` is encoded already, None for a handler that returned None."""

    result: bytes | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, timed out, or its arguments did not decode.

    ``steering`` is the exception itself when it was one of the four that steer.
    """

    kind: str
    message: str
    traceback: str | None = None
    steering: Retry | Snooze | Fail | Cancel | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The job's latest start had passed when it was claimed."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The job never ran, or a stop interrupted it: back to the queue, uncounted, ``delay`` seconds from now."""

    delay: float = 0.0


Outcome = Completed | Failed | Expired | HandedBack


def decide(job: ClaimedJob, outcome: Outcome, random: float) -> Ack:
    """The ack for a job that ended so. ``random`` in [0, 1) spreads retries.

    Example::

        decide(job, Completed(b'"ok"'), 0.5).kind   # AckKind.COMPLETE
    """
    match outcome:
        case Completed(result):
            return Ack(job.id, job.token, AckKind.COMPLETE, result=result)
        case Expired():
            return Ack(job.id, job.token, AckKind.CANCEL, reason="expired", uncounted=True)
        case HandedBack(delay):
            return Ack(job.id, job.token, AckKind.SNOOZE, delay=delay, uncounted=True)
        case Failed():
            return _decide_failed(job, outcome, random)


def _decide_failed(job: ClaimedJob, outcome: Failed, random: float) -> Ack:
    error = AttemptError(attempt=job.attempt, kind=outcome.kind, message=outcome.message, traceback=outcome.traceback)
    match outcome.steering:
        case Snooze(delay=delay):
            return Ack(job.id, job.token, AckKind.SNOOZE, delay=_bounded(delay), uncounted=True)
        case Cancel():
            return Ack(job.id, job.token, AckKind.CANCEL, reason=outcome.message)
        case Fail():
            return Ack(job.id, job.token, AckKind.FAIL, error=error)
        case _ if job.attempt >= job.max_attempts:
            return Ack(job.id, job.token, AckKind.FAIL, error=error)
        case Retry(delay=float() | int() as delay):
            return Ack(job.id, job.token, AckKind.RETRY, error=error, delay=_bounded(delay))
        case _:
            policy = (job.extras and job.extras.retry) or DEFAULT_RETRY
            delay = _bounded(policy.delay(job.attempt, random))
            return Ack(job.id, job.token, AckKind.RETRY, error=error, delay=delay)


def _bounded(delay: float) -> float:
    """A handler may compute any number; NaN and what is out of range must not reach the database."""
    return min(max(delay, 0.0), LONGEST_DELAY) if delay == delay else 0.0
