"""From how a handler ended to what is recorded: outcomes are values, and `decide` is a pure function.

A handler steers by raising `Retry`, `Snooze`, `Fail` or `Cancel`; any other exception is a failed attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Literal

from prinia.job import AttemptError, ClaimedJob
from prinia.retry import DEFAULT_RETRY, LONGEST_DELAY, RetryPolicy, seconds_of

_RETRY, _SNOOZE = "Retry(delay=60)", "Snooze(60)"


def _seconds(delay: object, *, instead: str) -> float:
    """A handler may compute anything: refused here, the fault shows as the error of its attempt."""
    if (number := seconds_of(delay)) is None:
        raise TypeError(f"delay={delay!r} must be seconds (int or float) or a timedelta; write for example {instead}")
    if not 0 <= number <= LONGEST_DELAY:  # false for NaN too
        raise ValueError(
            f"delay={delay!r} must be from 0 to {LONGEST_DELAY:,.0f} seconds ({LONGEST_DELAY / 86400:.0f} days); "
            f"write for example {instead}"
        )
    return float(number)


class Steering(Exception):
    """Base of the exceptions a handler raises to steer its job. Not an error of Prinia's."""


class Retry(Steering):
    """Run the job again; counts as a failed attempt. ``delay`` (seconds or timedelta) replaces the policy's.

    Raises `TypeError` or `ValueError` for a delay that is none, which then is what the attempt failed of.

    Example::

        raise Retry("rate limited", delay=60)
    """

    def __init__(self, reason: str = "retry asked for", *, delay: timedelta | float | None = None) -> None:
        if not isinstance(reason, str):
            raise TypeError(
                f"Retry({reason!r}): the first argument is the reason, a str; a delay goes by name: {_RETRY}"
            )
        super().__init__(reason)
        self.delay = None if delay is None else _seconds(delay, instead=_RETRY)


class Snooze(Steering):
    """Run the job again ``delay`` (seconds or timedelta) later; no attempt is counted.

    ``Snooze(0)`` runs it again at once, and nothing ends that but the handler. Raises `TypeError` or `ValueError` for a
    delay that is none, which then is what the attempt failed of.

    Example::

        raise Snooze(300)
    """

    def __init__(self, delay: timedelta | float) -> None:
        self.delay = _seconds(delay, instead=_SNOOZE)
        super().__init__(self.delay)  # what it is made of again when it is pickled

    def __str__(self) -> str:
        return f"snoozed for {self.delay:g} s"


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
    ``result`` (encoded) with complete. ``uncounted`` hands the attempt back, whatever the kind. ``within`` is what the
    handler completed its job with in a transaction of its own: where that has committed, it stands and this does not.
    """

    id: int
    token: int
    kind: AckKind
    result: bytes | None = None
    error: AttemptError | None = None
    reason: str | None = None
    delay: float = 0.0
    uncounted: bool = False
    within: Completed | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; ``result`` is encoded already, None for a handler that returned None."""

    result: bytes | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised, timed out, or its arguments did not decode.

    ``steering`` is the exception itself when it was one of the four that steer; ``error`` is it too, for the task's
    retry rule, unless it was no `Exception`. ``policy`` is what that rule has said already, where the error was.
    """

    kind: str
    message: str
    traceback: str | None = None
    steering: Retry | Snooze | Fail | Cancel | None = None
    error: Exception | None = field(default=None, compare=False, repr=False)
    policy: RetryPolicy | Literal[False] | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The job's latest start had passed when it was claimed."""


@dataclass(frozen=True, slots=True)
class CancelledOutside:
    """Somebody asked to cancel the job, and it ended of that, or had not started. ``reason`` says who."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The job never ran, or a stop interrupted it: back to the queue, uncounted, ``delay`` seconds from now."""

    delay: float = 0.0


Outcome = Completed | Failed | Expired | CancelledOutside | HandedBack


def decide(
    job: ClaimedJob, outcome: Outcome, random: float, *, retry: RetryPolicy | Literal[False] = DEFAULT_RETRY
) -> Ack:
    """The ack for a job that ended so. ``random`` in [0, 1) spreads retries; ``retry`` is what its task says of the
    error, False for no further attempt. A policy stored with the job goes first.

    Example::

        decide(job, Completed(b'"ok"'), 0.5).kind   # AckKind.COMPLETE
    """
    match outcome:
        case Completed(result):
            return Ack(job.id, job.token, AckKind.COMPLETE, result=result)
        case Expired():
            return Ack(job.id, job.token, AckKind.CANCEL, reason="expired", uncounted=True)
        case CancelledOutside(reason):
            return Ack(job.id, job.token, AckKind.CANCEL, reason=reason)
        case HandedBack(delay):
            return Ack(job.id, job.token, AckKind.SNOOZE, delay=delay, uncounted=True)
        case Failed():
            return _decide_failed(job, outcome, random, retry)


def _decide_failed(job: ClaimedJob, outcome: Failed, random: float, retry: RetryPolicy | Literal[False]) -> Ack:
    error = AttemptError(attempt=job.attempt, kind=outcome.kind, message=outcome.message, traceback=outcome.traceback)
    match outcome.steering:
        case Snooze(delay=delay):
            return Ack(job.id, job.token, AckKind.SNOOZE, delay=delay, uncounted=True)
        case Cancel():
            return Ack(job.id, job.token, AckKind.CANCEL, reason=outcome.message)
        case Fail():
            return Ack(job.id, job.token, AckKind.FAIL, error=error)
        case _ if job.attempt >= job.max_attempts:
            return Ack(job.id, job.token, AckKind.FAIL, error=error)
        case Retry(delay=float(delay)):
            return Ack(job.id, job.token, AckKind.RETRY, error=error, delay=delay)
        case steering:
            policy = (job.extras and job.extras.retry) or retry
            if policy is False and steering is None:
                return Ack(job.id, job.token, AckKind.FAIL, error=error)
            # A handler that asks for a retry gets one. Jitter may go beyond the longest delay.
            delay = min((policy or DEFAULT_RETRY).delay(job.attempt, random), LONGEST_DELAY)
            return Ack(job.id, job.token, AckKind.RETRY, error=error, delay=delay)
