"""What a worker tells its listeners: events, and who wants to hear of which."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from prinia.callables import how_it_runs, takes
from prinia.context import Context, WorkerContext
from prinia.errors import ConfigurationError
from prinia.job import AttemptError


class EventKind(StrEnum):
    """What happened. How jobs end, and attempts, is told of once it is recorded in the database, and then once.

    A run has no event after ``started`` when a stop interrupts it, so that its job is handed back, or when its job was
    lost to another worker (that is an ``error``).
    """

    #: A handler is about to be called.
    STARTED = "started"
    #: A job ended as completed.
    COMPLETED = "completed"
    #: A job ended as failed, for good.
    FAILED = "failed"
    #: An attempt failed, and there will be another.
    RETRYING = "retrying"
    #: A handler raised `Snooze`.
    SNOOZED = "snoozed"
    #: A job ended as cancelled: by its handler, from outside, or because it expired before it could start.
    CANCELLED = "cancelled"
    #: This worker, as the leader, brought back the jobs of one that died, or jobs whose owner knew nothing of them.
    RESCUED = "rescued"
    #: Trouble of the worker itself: the database away or refusing, an unknown task or codec, a job lost to another
    #: worker, a resource that died.
    ERROR = "error"
    #: The worker has stopped: the last event of each of its runs, be it one that was stopped before it had begun.
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened in a worker. Fields that do not apply are None.

    ``job`` is the job it is about. ``error`` is what an attempt failed of (failed, retrying), ``delay`` in how many
    seconds the job is due again (retrying, snoozed), ``reason`` why a job was cancelled or what trouble the worker has,
    ``exception`` the exception behind that trouble. Of a rescue ``count`` says how many jobs came back or ended, and
    ``instance`` which life of a worker had died; it is None of jobs whose owner knew nothing of them.

    Example::

        @app.on_event(EventKind.FAILED)
        async def page(event: Event) -> None:
            assert event.job and event.error      # events of this kind have both
            await pager.send(f"job {event.job.job_id} failed: {event.error.message}")
    """

    kind: EventKind
    worker: WorkerContext
    job: Context | None = None
    error: AttemptError | None = None
    reason: str | None = None
    delay: float | None = None
    exception: Exception | None = None
    count: int | None = None
    instance: UUID | None = None


#: A plain function is called in the event loop and should be short; a coroutine function is awaited beside the jobs.
Listener: TypeAlias = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A listener, and the kinds of events that it is told of."""

    listener: Listener
    kinds: frozenset[EventKind]


def subscribe(listener: Listener, kinds: Iterable[EventKind] = ()) -> Subscription:
    """The listener with these kinds, with all without any. Raises `ConfigurationError` for what is neither."""
    if not takes(listener, 1):
        raise ConfigurationError(f"on_event: {listener!r} must be a function or a coroutine function of one event")
    if how_it_runs(listener) == "a generator":
        raise ConfigurationError(f"on_event: {listener!r} yields, so that nothing would run it; leave the yield out")
    wanted = tuple(kinds)
    for kind in wanted:
        if not isinstance(kind, EventKind):
            raise ConfigurationError(
                f"on_event: {kind!r} is no kind of event; there are: "
                + ", ".join(f"EventKind.{known.name}" for known in EventKind)
            )
    return Subscription(listener, frozenset(wanted or EventKind))
