"""What a handler may know of the job it runs and of the worker it runs in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from prinia.connection import AnyAsync, SyncConn
from prinia.job import ClaimedJob
from prinia.pending import Pending


class _Injected:
    """The default of every parameter that Prinia fills in and nobody enqueues."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "INJECTED"


#: Give it as default to a parameter that is filled in when the job runs: ``ctx: Context = INJECTED``.
INJECTED: Any = _Injected()


def _nobody() -> None:
    """There is no worker to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """The worker that runs a job, or that an event is about: ``name`` is its label, ``instance`` this life of it, and
    ``run`` how often its supervisor has started it anew.

    A worker that was declared dead goes on as a new instance. The context that its resources and hooks hold shows the
    present one; those of jobs and events keep the one that they belong to.

    Example::

        @app.on_event
        def stop_on_failure(event: Event) -> None:
            if event.kind is EventKind.FAILED:
                event.worker.stop()
    """

    name: str = ""
    instance: UUID | None = None
    run: int = 0
    _stop: Callable[[], None] = field(default=_nobody, repr=False, compare=False)

    def stop(self) -> None:
        """Stop the worker as a first signal does: it claims nothing more, lets running jobs finish, and its ``run()``
        returns. May be called from any thread, and more than once. Does nothing in a detached context.
        """
        self._stop()


def show_instance(worker: WorkerContext, instance: UUID) -> None:
    """Have the context that a worker's resources and hooks hold, for all its lives, show the present one."""
    # For everybody else it is frozen: nobody but its worker may say who it is.
    object.__setattr__(worker, "instance", instance)


class Completes(Protocol):
    """What completes the job of a context on a connection of its handler."""

    def refuse_loose(self, connection: Any, /) -> None:
        """Warn the handler of a connection that would commit the completion at once; when strict, raise
        `prinia.errors.ConnectionUnusable`, as for one that is closed or whose transaction has failed."""
        ...

    def complete(self, connection: SyncConn, result: Any, /) -> None:
        """On a blocking connection."""
        ...

    async def acomplete(self, connection: AnyAsync, result: Any, /) -> None:
        """On an async connection."""
        ...


@dataclass(slots=True, kw_only=True)
class Context:
    """The job and its worker, for a parameter written ``ctx: Context = INJECTED``.

    Made without arguments it is detached: what a handler gets when the task is called like a plain function.

    Example::

        @app.task
        async def resize(path: str, ctx: Context = INJECTED) -> None:
            print(ctx.job_id, ctx.attempt, "of", ctx.max_attempts)
    """

    job_id: int = 0
    task: str = ""
    queue: str = ""
    priority: int = 0
    attempt: int = 1
    max_attempts: int = 1
    crashes: int = 0
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    worker: WorkerContext = WorkerContext()  # frozen, so it can be shared
    #: The worker wants this run to end soon: it stops, or the job is past its time limit, cancelled or lost. A handler
    #: in a thread does well to look at it now and then: nobody can end a thread from outside.
    #:
    #: ``raise Snooze(0)`` is the way to end then: at a stop the job goes back to its queue with no attempt counted; of
    #: a job past its limit, cancelled or lost, the timeout, the cancellation or the loss counts all the same. Another
    #: exception is a failed attempt while the stop still lets jobs finish. Save first what the next run can go on from.
    #:
    #: Example::
    #:
    #:     @app.task
    #:     def export(table: str, ctx: Context = INJECTED) -> None:
    #:         for page in pages_left(table):
    #:             if ctx.stopping:
    #:                 raise Snooze(0)
    #:             save(page)
    stopping: bool = False
    #: Somebody asked to cancel this job (``job.cancel()``); ``stopping`` is set with it.
    cancel_requested: bool = False
    #: The job was taken from this worker (it was thought dead): nothing it returns is recorded.
    lost: bool = False
    _completes: Completes | None = field(default=None, repr=False, compare=False)

    def complete(self, connection: SyncConn, /, *, result: Any = None) -> None:
        """Complete this job in the connection's open transaction, together with what the handler wrote there.

        Committed, the job has completed with ``result``, exactly once and whatever the handler does afterwards; rolled
        back, it runs again. What the handler returns is not stored then. Does nothing in a detached context.

        A connection in autocommit, outside a transaction, is warned of, or refused by ``Prinia(strict=True)``. Call it
        once in an attempt. Raises `JobLost` when the job was taken from this worker meanwhile: let your transaction
        roll back then. `ConnectionUnusable` also for a transaction of isolation level repeatable read or serializable
        that began before the job was claimed, `CompletedTwice` for a second call, `ConnectionKindError` for an async
        connection, `NotStorable` for the result.

        Example::

            with conn.transaction():
                conn.execute("update accounts set balance = balance - 10 where id = 7")
                ctx.complete(conn)
        """
        if self._completes is not None:
            self._completes.refuse_loose(connection)
            self._completes.complete(connection, result)

    def acomplete(self, connection: AnyAsync, /, *, result: Any = None) -> Coroutine[Any, Any, None]:
        """`complete`, awaited, on an async connection.

        Example::

            async with conn.transaction():
                await conn.execute("update accounts set balance = balance - 10 where id = 7")
                await ctx.acomplete(conn)
        """
        if self._completes is not None:
            self._completes.refuse_loose(connection)  # here, where the handler's line is known
        return Pending(
            "ctx.acomplete(...)", lambda: self._acomplete(connection, result), so="the job was not completed there"
        )

    async def _acomplete(self, connection: AnyAsync, result: Any) -> None:
        if self._completes is not None:
            await self._completes.acomplete(connection, result)


def context_of(job: ClaimedJob, worker: WorkerContext) -> Context:
    """What is known of a claimed job, for its handler or for listeners."""
    extras = job.extras
    return Context(
        job_id=job.id,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        crashes=job.crashes,
        tags=extras.tags if extras is not None else (),
        meta=extras.meta if extras is not None else {},
        worker=worker,
    )
