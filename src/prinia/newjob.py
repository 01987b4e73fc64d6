"""Jobs that are not stored yet, and enqueuing them on a caller's connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar, Unpack

import msgspec

from prinia.connection import refuse_loose
from prinia.errors import ConnectionKindError
from prinia.handle import Job, ReadResult
from prinia.job import JobSpec
from prinia.options import JobOptions, job_fields
from prinia.payload.coding import Codecs
from prinia.pending import Pending
from prinia.waiting.waiter import Waiter

P = ParamSpec("P")
R = TypeVar("R")
Ro = TypeVar("Ro", covariant=True)


class NewJob(msgspec.Struct, Generic[Ro], frozen=True):
    """A job that is not stored yet: a value, checked and encoded, made by ``task.job(...)``.

    ``spec`` is what will be pushed, ``read`` makes the result when the job has ended, ``codecs`` are those by which the
    arguments were encoded; None when they came encoded already.

    Example::

        app.enqueue_many([send_reminder.job(9), resize.options(queue="images").job("a.png")])
    """

    spec: JobSpec
    read: ReadResult[Ro]
    codecs: Codecs | None = None

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.spec.task

    @property
    def queue(self) -> str:
        """The queue it will be stored in."""
        return self.spec.queue

    @property
    def meta(self) -> Mapping[str, Any]:
        """Its meta, empty when it has none."""
        return self.spec.meta if self.spec.meta is not None else {}

    def options(self, **options: Unpack[JobOptions]) -> Self:
        """The same job with other options: see `JobOptions`. Raises `InvalidOptions`.

        Example::

            job.options(meta={**job.meta, "tenant": "acme"})
        """
        spec = self.spec
        fields = job_fields(spec.task, msgspec.structs.asdict(spec), options)
        return msgspec.structs.replace(self, spec=JobSpec(**fields))

    def __repr__(self) -> str:
        # Arguments may be private: a log of this value must not show them.
        return f"<NewJob of {self.spec.task}>"


class Enqueues(Protocol):
    """What a task needs of its app: a place to put its jobs, and to wait for them."""

    @property
    def waiter(self) -> Waiter:
        """Waits for results."""
        ...

    @property
    def strict(self) -> bool:
        """Whether a connection that would commit a job at once is refused, not only warned of."""
        ...

    def enqueue(self, job: NewJob[R], /) -> Job[R]:
        """Store the job in a transaction of its own."""
        ...

    async def aenqueue(self, job: NewJob[R], /) -> Job[R]:
        """`enqueue`, awaited."""
        ...

    def enqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        """Store the job in the connection's transaction."""
        ...

    async def aenqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        """`enqueue_within`, awaited."""
        ...


class Within(Generic[P, R]):
    """A task on a blocking connection of yours: its jobs commit and roll back with your transaction.

    Example::

        with conn.transaction():
            conn.execute("insert into orders (id) values (9)")
            send_reminder.within(conn).enqueue(9)
    """

    __slots__ = ("_client", "_connection", "_job")

    def __init__(self, client: Enqueues, connection: Any, job: Callable[P, NewJob[R]]) -> None:
        """Made by ``task.within(connection)``."""
        self._client = client
        self._connection = connection
        self._job = job

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job in the connection's transaction. May be called in a running event loop.

        Raises as ``task.enqueue`` does, `ConnectionKindError` and `ConnectionUnusable`.
        """
        job = self._job(*args, **kwargs)
        refuse_loose_push(self._connection, strict=self._client.strict)
        return self._client.enqueue_within(self._connection, job)

    if not TYPE_CHECKING:  # type checkers know that there is no such method

        def aenqueue(self, *args: object, **kwargs: object) -> NoReturn:
            """Raises `ConnectionKindError`: the connection is a blocking one."""
            refuse_colour("aenqueue", "enqueue")


class AWithin(Generic[P, R]):
    """A task on an async connection of yours: its jobs commit and roll back with your transaction.

    Example::

        async with conn.transaction():
            await conn.execute("insert into orders (id) values (9)")
            await send_reminder.within(conn).aenqueue(9)
    """

    __slots__ = ("_client", "_connection", "_job")

    def __init__(self, client: Enqueues, connection: Any, job: Callable[P, NewJob[R]]) -> None:
        """Made by ``task.within(connection)``."""
        self._client = client
        self._connection = connection
        self._job = job

    def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R]]:
        """Store a job in the connection's transaction.

        Raises as ``task.aenqueue`` does, `ConnectionKindError` and `ConnectionUnusable`.
        """
        job = self._job(*args, **kwargs)
        refuse_loose_push(self._connection, strict=self._client.strict)
        start = partial(self._client.aenqueue_within, self._connection, job)
        return Pending(f"{job.spec.task}.within(...).aenqueue(...)", start)

    if not TYPE_CHECKING:

        def enqueue(self, *args: object, **kwargs: object) -> NoReturn:
            """Raises `ConnectionKindError`: the connection is an async one."""
            refuse_colour("enqueue", "aenqueue")


def refuse_colour(asked: str, right: str) -> NoReturn:
    """Raise `ConnectionKindError` for a call of the other colour than the connection's."""
    write = f"within(...).{right}(...)"
    kind, write = ("async", f"await {write}") if right.startswith("a") else ("blocking", write)
    raise ConnectionKindError(f"within(...).{asked}() on a connection that is {kind}: write {write}")


def refuse_loose_push(connection: Any, *, strict: bool) -> None:
    """`refuse_loose` for a push on a caller's connection, called where that is asked for."""
    refuse_loose(connection, "within()", strict=strict, instead=", or enqueue without within()", above=3)
