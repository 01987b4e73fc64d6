"""From what happens in a worker to what its listeners are told: `Event`, ``on_success``, ``on_failure``."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from prinia.context import Context, WorkerContext, context_of
from prinia.events import Event, EventKind, Subscription
from prinia.job import AttemptError, ClaimedJob
from prinia.outcome import Ack
from prinia.task import Task
from prinia.worker.listeners import Ear, Ears

log = logging.getLogger("prinia.worker")

#: By the field of `WorkerStats` that an outcome adds to. What is handed back or lost has no event here.
_KINDS = {
    "completed": EventKind.COMPLETED,
    "failed": EventKind.FAILED,
    "retried": EventKind.RETRYING,
    "snoozed": EventKind.SNOOZED,
    "cancelled": EventKind.CANCELLED,
}
_OUTCOMES = frozenset(_KINDS.values())
_ENDS = frozenset({EventKind.COMPLETED, EventKind.FAILED})


class Announcer:
    """Tells the listeners of one worker. `trouble` and `rescued` may be called from any thread."""

    def __init__(
        self,
        worker: WorkerContext,
        subscriptions: Iterable[Subscription],
        tasks: Mapping[str, Task[Any, Any]],
        ears: Ears,
    ) -> None:
        self._worker = worker
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._ears: dict[EventKind, list[Ear]] = {}
        for subscription in subscriptions:
            for kind in subscription.kinds:
                self._ears.setdefault(kind, []).append(ears.of(subscription.listener))
        self._on_success = {
            name: ears.of(task.reactions.on_success)
            for name, task in tasks.items()
            if task.reactions.on_success is not None
        }
        self._on_failure = {
            name: ears.of(task.reactions.on_failure)
            for name, task in tasks.items()
            if task.reactions.on_failure is not None
        }
        #: Asked for each job, so that a worker without listeners does nothing more.
        self.hears_starts = EventKind.STARTED in self._ears
        self.hears_outcomes = bool(_OUTCOMES & self._ears.keys() or self._on_success or self._on_failure)

    def started(self, job: ClaimedJob) -> None:
        """Its handler is about to be called."""
        self._tell(Event(kind=EventKind.STARTED, worker=self._worker, job=context_of(job, self._worker)))

    def recorded(self, ack: Ack, job: ClaimedJob, counter: str) -> None:
        """This is how a job ended, or how an attempt did, by the counter it added to; it is recorded now."""
        kind = _KINDS.get(counter)
        if kind is None:
            return
        reaction = (self._on_success if kind is EventKind.COMPLETED else self._on_failure) if kind in _ENDS else {}
        if kind not in self._ears and job.task not in reaction:
            return
        context = context_of(job, self._worker)
        if kind in self._ears:
            self._tell(
                Event(
                    kind=kind,
                    worker=self._worker,
                    job=context,
                    error=(ack.error or _unheard(job)) if kind in (EventKind.FAILED, EventKind.RETRYING) else None,
                    reason=(ack.reason or "cancelled on request") if kind is EventKind.CANCELLED else None,
                    delay=ack.delay if kind in (EventKind.RETRYING, EventKind.SNOOZED) else None,
                )
            )
        if (ear := reaction.get(job.task)) is None:
            return
        if kind is EventKind.COMPLETED:
            self._tell_result(ear, job, context, ack.result if ack.within is None else ack.within.result)
        else:
            ear.tell(f"the failure of task {job.task}", context, ack.error or _unheard(job))

    def lost(self, job: ClaimedJob) -> None:
        """What became of this job here counts nowhere."""
        self._trouble("the job is not this worker's any more; its outcome is dropped", None, job)

    def unknown(self, job: ClaimedJob, what: str) -> None:
        """This worker does not know ``what`` the job needs."""
        self._trouble(f"this worker does not know {what}; such jobs are left to others", None, job)

    def trouble(self, reason: str, error: Exception | None = None) -> None:
        """The worker itself has trouble."""
        if EventKind.ERROR in self._ears:
            self._in_loop(self._trouble, reason, error, None)

    def rescued(self, instance: UUID | None, count: int) -> None:
        """This worker, as the leader, brought back so many jobs of an instance that died; None, of no owner."""
        if EventKind.RESCUED in self._ears:
            event = Event(kind=EventKind.RESCUED, worker=self._worker, count=count, instance=instance)
            self._in_loop(self._tell, event)

    def stopped(self) -> None:
        """Nothing follows."""
        self._tell(Event(kind=EventKind.STOPPED, worker=self._worker))

    def _tell_result(self, ear: Ear, job: ClaimedJob, context: Context, data: bytes | None) -> None:
        try:
            result = self._tasks[job.task].decode_result(data, job.codec)
        except BaseException:  # user types and codecs may raise anything, and this runs between two acks
            log.exception("job %d (%s): on_success is not called: the result cannot be read back", job.id, job.task)
        else:
            ear.tell(f"the success of task {job.task}", context, result)

    def _trouble(self, reason: str, error: Exception | None, job: ClaimedJob | None) -> None:
        if EventKind.ERROR in self._ears:
            context = None if job is None else context_of(job, self._worker)
            self._tell(Event(kind=EventKind.ERROR, worker=self._worker, job=context, reason=reason, exception=error))

    def _tell(self, event: Event) -> None:
        for ear in self._ears.get(event.kind, ()):
            ear.tell(event.kind, event)

    def _in_loop(self, function: Any, *arguments: Any) -> None:
        if threading.get_ident() == self._thread:
            function(*arguments)
            return
        with suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(function, *arguments)


def _unheard(job: ClaimedJob) -> AttemptError:
    """Of a failure that was recorded by a try whose answer was lost, in place of an outcome that was refused."""
    return AttemptError(attempt=job.attempt, kind="StorageError", message="the outcome could not be recorded")
