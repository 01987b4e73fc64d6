"""The enqueuing side: pushes jobs to a storage, in both colours, and hands out handles on them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack

from prinia.colour import refuse_in_loop
from prinia.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from prinia.handle import Job, Jobs, ReadResult
from prinia.job import JobSpec, Pushed
from prinia.middleware import Enqueuing
from prinia.newjob import NewJob, refuse_colour, refuse_loose_push
from prinia.options import JobOptions
from prinia.payload.coding import Codecs, shown_name
from prinia.pending import Pending
from prinia.registry import Registry
from prinia.storage.protocol import Storage
from prinia.waiting.waiter import Waiter

R = TypeVar("R")


class Client:
    """Pushes to the storage that ``storage()`` gives, which is asked for at each use and not before."""

    def __init__(
        self,
        storage: Callable[[], Storage],
        *,
        read_any: ReadResult[Any],
        strict: bool,
        codecs: Codecs,
        middleware: Enqueuing | None = None,
        waiter: Waiter | None = None,
    ) -> None:
        """``read_any`` makes the result of a job of any task; ``codecs`` are those of the app."""
        self._storage = storage
        self._read_any = read_any
        self._middleware = middleware or Enqueuing()
        self._codecs = codecs
        self.strict = strict
        self.waiter = waiter or Waiter(storage)

    def enqueue(self, job: NewJob[R], /) -> Job[R]:
        """Store one job. Raises `EnqueueError` and `StorageError`."""
        with self._middleware.around():
            job = self._prepare(job)
            (pushed,) = self._storage().push((job.spec,))
        return self._handle(pushed, job)

    async def aenqueue(self, job: NewJob[R], /) -> Job[R]:
        """`enqueue`, awaited."""
        with self._middleware.around():
            job = self._prepare(job)
            (pushed,) = await self._storage().apush((job.spec,))
        return self._handle(pushed, job)

    def enqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        """Store one job in the connection's transaction. Raises `ConnectionKindError` too."""
        with self._middleware.around():
            job = self._prepare(job)
            (pushed,) = self._storage().push_within(connection, (job.spec,))
        return self._handle(pushed, job)

    async def aenqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        """`enqueue_within`, awaited."""
        with self._middleware.around():
            job = self._prepare(job)
            (pushed,) = await self._storage().apush_within(connection, (job.spec,))
        return self._handle(pushed, job)

    def enqueue_many(self, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store jobs, all or none. Raises `ColourError` in a running event loop."""
        refuse_in_loop("enqueue_many()", "app.aenqueue_many(...)")
        with self._middleware.around():
            return self._handles(self._storage().push(self._specs(jobs)))

    def aenqueue_many(
        self, jobs: Iterable[NewJob[R]] | AsyncIterable[NewJob[R]]
    ) -> Coroutine[Any, Any, Sequence[Job[R]]]:
        """`enqueue_many`, awaited."""

        async def push() -> Sequence[Job[R]]:
            with self._middleware.around():
                return self._handles(await self._storage().apush(self._any_specs(jobs)))

        # One frame more: the app's method of this name lies between.
        return Pending("aenqueue_many(...)", push, depth=3)

    def many_within(self, connection: Any, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store jobs in the connection's transaction."""
        with self._middleware.around():
            return self._handles(self._storage().push_within(connection, self._specs(jobs)))

    async def amany_within(
        self, connection: Any, jobs: Iterable[NewJob[R]] | AsyncIterable[NewJob[R]]
    ) -> Sequence[Job[R]]:
        """`many_within`, awaited."""
        with self._middleware.around():
            return self._handles(await self._storage().apush_within(connection, self._any_specs(jobs)))

    def get_job(self, id: int, /) -> Job[Any]:
        """A handle on a job of any task."""
        return Job(id, waiter=self.waiter, read=self._read_any)

    def _specs(self, jobs: Iterable[NewJob[Any]]) -> Iterator[JobSpec]:
        if not isinstance(jobs, Iterable):
            raise InvalidArguments(f"enqueue_many takes an iterable of task.job(...), not {ascii(jobs)[:80]}")
        return (self._spec(job) for job in jobs)

    def _any_specs(
        self, jobs: Iterable[NewJob[Any]] | AsyncIterable[NewJob[Any]]
    ) -> Iterator[JobSpec] | AsyncIterator[JobSpec]:
        return (self._spec(job) async for job in jobs) if isinstance(jobs, AsyncIterable) else self._specs(jobs)

    def _spec(self, job: NewJob[Any]) -> JobSpec:
        if not isinstance(job, NewJob):
            raise InvalidArguments(f"enqueue_many takes jobs made by task.job(...), not {ascii(job)[:80]}")
        return self._prepare(job).spec

    def _prepare(self, job: NewJob[R]) -> NewJob[R]:
        job = self._middleware.prepare(job)
        if job.codecs is not self._codecs:
            self._refuse_otherwise_encoded(job)
        return job

    def _refuse_otherwise_encoded(self, job: NewJob[Any]) -> None:
        """A job of a task of another app, or of one that several apps include, was encoded by rules of its own."""
        spec, limit, made_by = job.spec, self._codecs.max_args_bytes, job.codecs
        if len(spec.args) > limit:
            raise PayloadTooLarge(f"{spec.task}: the arguments are {len(spec.args):,} bytes, the limit is {limit:,}")
        # Another codec than its default was the task's own choice.
        if made_by is None or spec.codec != made_by.default.name or self._codecs.writes_as(made_by):
            return
        raise ConfigurationError(
            f"{spec.task}: the job's arguments are {shown_name(made_by.default)}, and this app writes "
            f"{shown_name(self._codecs.default)}; make the job by this app's own task: app.bind(task).job(...)"
        )

    def _handle(self, pushed: Pushed, job: NewJob[R]) -> Job[R]:
        return Job(pushed.id, created=pushed.created, xid=pushed.xid, waiter=self.waiter, read=job.read)

    def _handles(self, pushed: Sequence[Pushed]) -> Jobs[Any]:
        return Jobs(pushed, waiter=self.waiter, read=self._read_any)


class AppWithin:
    """An app on a blocking connection of yours: what it enqueues commits and rolls back with your transaction.

    Example::

        with conn.transaction():
            app.within(conn).enqueue_many(send_reminder.job(order) for order in orders)
    """

    __slots__ = ("_client", "_connection", "_registry")

    def __init__(self, client: Client, connection: Any, registry: Registry) -> None:
        """Made by ``app.within(connection)``."""
        self._client = client
        self._connection = connection
        self._registry = registry

    def enqueue_many(self, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store jobs in the connection's transaction, all or none, by a savepoint. A running event loop may call it.

        Raises as ``app.enqueue_many`` does, `ConnectionKindError` and `ConnectionUnusable`.
        """
        refuse_loose_push(self._connection, strict=self._client.strict)
        return self._client.many_within(self._connection, jobs)

    def enqueue_by_name(
        self, name: str, arguments: Mapping[str, Any] | bytes, /, *, codec: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Any]:  # fmt: skip
        """``app.enqueue_by_name`` in the connection's transaction. May be called in a running event loop.

        Raises as that does, `ConnectionKindError` and `ConnectionUnusable`.
        """
        job = self._registry.job(name, arguments, codec, options)
        refuse_loose_push(self._connection, strict=self._client.strict)
        return self._client.enqueue_within(self._connection, job)

    if not TYPE_CHECKING:  # type checkers know that there is no such method

        def aenqueue_many(self, jobs: object) -> NoReturn:
            """Raises `ConnectionKindError`: the connection is a blocking one."""
            refuse_colour("aenqueue_many", "enqueue_many")

        def aenqueue_by_name(self, *args: object, **options: object) -> NoReturn:
            """Raises `ConnectionKindError`: the connection is a blocking one."""
            refuse_colour("aenqueue_by_name", "enqueue_by_name")


class AppAWithin:
    """An app on an async connection of yours: what it enqueues commits and rolls back with your transaction.

    Example::

        async with conn.transaction():
            await app.within(conn).aenqueue_many(send_reminder.job(order) for order in orders)
    """

    __slots__ = ("_client", "_connection", "_registry")

    def __init__(self, client: Client, connection: Any, registry: Registry) -> None:
        """Made by ``app.within(connection)``."""
        self._client = client
        self._connection = connection
        self._registry = registry

    def aenqueue_many(
        self, jobs: Iterable[NewJob[R]] | AsyncIterable[NewJob[R]]
    ) -> Coroutine[Any, Any, Sequence[Job[R]]]:
        """Store jobs in the connection's transaction, all or none, by a savepoint.

        Raises as ``app.aenqueue_many`` does, `ConnectionKindError` and `ConnectionUnusable`.
        """
        refuse_loose_push(self._connection, strict=self._client.strict)
        start = partial(self._client.amany_within, self._connection, jobs)
        return Pending("within(...).aenqueue_many(...)", start)

    def aenqueue_by_name(
        self, name: str, arguments: Mapping[str, Any] | bytes, /, *, codec: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Coroutine[Any, Any, Job[Any]]:  # fmt: skip
        """``app.aenqueue_by_name`` in the connection's transaction.

        Raises as that does, `ConnectionKindError` and `ConnectionUnusable`.
        """
        job = self._registry.job(name, arguments, codec, options)
        refuse_loose_push(self._connection, strict=self._client.strict)
        start = partial(self._client.aenqueue_within, self._connection, job)
        return Pending(f"within(...).aenqueue_by_name({name!r}, ...)", start)

    if not TYPE_CHECKING:

        def enqueue_many(self, jobs: object) -> NoReturn:
            """Raises `ConnectionKindError`: the connection is an async one."""
            refuse_colour("enqueue_many", "aenqueue_many")

        def enqueue_by_name(self, *args: object, **options: object) -> NoReturn:
            """Raises `ConnectionKindError`: the connection is an async one."""
            refuse_colour("enqueue_by_name", "aenqueue_by_name")
