"""The enqueuing side: pushes jobs to a storage, in both colours, and hands out handles on them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from prinia.colour import refuse_in_loop
from prinia.errors import InvalidArguments
from prinia.handle import Job, Jobs, ReadResult, Waiter
from prinia.job import JobSpec, Pushed
from prinia.newjob import NewJob, refuse_loose
from prinia.pending import Pending
from prinia.storage.protocol import Storage

R = TypeVar("R")


class Client:
    """Pushes to the storage that ``storage()`` gives, which is asked for at each use and not before."""

    def __init__(
        self, storage: Callable[[], Storage], *, read_any: ReadResult[Any], strict: bool, waiter: Waiter | None = None
    ) -> None:
        """``read_any`` makes the result of a job of any task."""
        self._storage = storage
        self._read_any = read_any
        self.strict = strict
        self.waiter = waiter or Waiter(storage)

    def enqueue(self, job: NewJob[R], /) -> Job[R]:
        """Store one job. Raises `EnqueueError` and `StorageError`."""
        (pushed,) = self._storage().push((job.spec,))
        return self._handle(pushed, job)

    async def aenqueue(self, job: NewJob[R], /) -> Job[R]:
        """`enqueue`, awaited."""
        (pushed,) = await self._storage().apush((job.spec,))
        return self._handle(pushed, job)

    def enqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        """Store one job in the connection's transaction. Raises `ConnectionKindError` too."""
        (pushed,) = self._storage().push_within(connection, (job.spec,))
        return self._handle(pushed, job)

    async def aenqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        """`enqueue_within`, awaited."""
        (pushed,) = await self._storage().apush_within(connection, (job.spec,))
        return self._handle(pushed, job)

    def enqueue_many(self, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store jobs, all or none. Raises `ColourError` in a running event loop."""
        refuse_in_loop("enqueue_many()", "app.aenqueue_many(...)")
        return self._handles(self._storage().push(_specs(jobs)))

    def aenqueue_many(
        self, jobs: Iterable[NewJob[R]] | AsyncIterable[NewJob[R]]
    ) -> Coroutine[Any, Any, Sequence[Job[R]]]:
        """`enqueue_many`, awaited."""

        async def push() -> Sequence[Job[R]]:
            return self._handles(await self._storage().apush(_any_specs(jobs)))

        # One frame more: the app's method of this name lies between.
        return Pending("aenqueue_many(...)", push, depth=3)

    def many_within(self, connection: Any, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store jobs in the connection's transaction."""
        return self._handles(self._storage().push_within(connection, _specs(jobs)))

    async def amany_within(
        self, connection: Any, jobs: Iterable[NewJob[R]] | AsyncIterable[NewJob[R]]
    ) -> Sequence[Job[R]]:
        """`many_within`, awaited."""
        return self._handles(await self._storage().apush_within(connection, _any_specs(jobs)))

    def get_job(self, id: int, /) -> Job[Any]:
        """A handle on a job of any task."""
        return Job(id, waiter=self.waiter, read=self._read_any)

    def _handle(self, pushed: Pushed, job: NewJob[R]) -> Job[R]:
        return Job(pushed.id, created=pushed.created, xid=pushed.xid, waiter=self.waiter, read=job.read)

    def _handles(self, pushed: Sequence[Pushed]) -> Jobs[Any]:
        return Jobs(pushed, waiter=self.waiter, read=self._read_any)


class AppWithin:
    """An app on a blocking connection of yours: what it enqueues commits and rolls back with your transaction."""

    __slots__ = ("_client", "_connection")

    def __init__(self, client: Client, connection: Any) -> None:
        """Made by ``app.within(connection)``."""
        self._client = client
        self._connection = connection

    def enqueue_many(self, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store jobs in the connection's transaction, all or none. May be called in a running event loop."""
        refuse_loose(self._connection, strict=self._client.strict)
        return self._client.many_within(self._connection, jobs)


class AppAWithin:
    """An app on an async connection of yours: what it enqueues commits and rolls back with your transaction."""

    __slots__ = ("_client", "_connection")

    def __init__(self, client: Client, connection: Any) -> None:
        """Made by ``app.within(connection)``."""
        self._client = client
        self._connection = connection

    def aenqueue_many(
        self, jobs: Iterable[NewJob[R]] | AsyncIterable[NewJob[R]]
    ) -> Coroutine[Any, Any, Sequence[Job[R]]]:
        """Store jobs in the connection's transaction, all or none."""
        refuse_loose(self._connection, strict=self._client.strict)
        start = partial(self._client.amany_within, self._connection, jobs)
        return Pending("within(...).aenqueue_many(...)", start)


def _specs(jobs: Iterable[NewJob[Any]]) -> Iterator[JobSpec]:
    if not isinstance(jobs, Iterable):
        raise InvalidArguments(f"enqueue_many takes an iterable of task.job(...), not {ascii(jobs)[:80]}")
    return (_spec(job) for job in jobs)


def _any_specs(jobs: Iterable[NewJob[Any]] | AsyncIterable[NewJob[Any]]) -> Iterator[JobSpec] | AsyncIterator[JobSpec]:
    return (_spec(job) async for job in jobs) if isinstance(jobs, AsyncIterable) else _specs(jobs)


def _spec(job: NewJob[Any]) -> JobSpec:
    if not isinstance(job, NewJob):
        raise InvalidArguments(f"enqueue_many takes jobs made by task.job(...), not {ascii(job)[:80]}")
    return job.spec
