"""The app: where tasks are registered, and where storage, client and worker are put together."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, cast, overload

from prinia.client import AppAWithin, AppWithin, Client
from prinia.colour import refuse_in_loop
from prinia.connection import AnyAsync, SyncConn, is_async
from prinia.errors import ConfigurationError, TaskDefinitionError
from prinia.handle import Job, check_id
from prinia.job import MAX_ARGS_BYTES
from prinia.newjob import NewJob
from prinia.options import TaskOptions, task_fields
from prinia.storage.protocol import Storage
from prinia.task import AsyncTask, Decorator, Definition, Registry, SyncTask, Task

if TYPE_CHECKING:
    from prinia.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

_SCHEMA = "prinia"
_VARIABLES = ("PRINIA_DATABASE_URL", "DATABASE_URL")


class Prinia:
    """A set of tasks and the PostgreSQL database in which their jobs live.

    ``dsn`` is a libpq URL, or ``embedded:./data`` for a server of its own; without it the environment's
    PRINIA_DATABASE_URL, else its DATABASE_URL. It is looked up at first use: making an app and decorating tasks needs
    no database. ``schema`` holds Prinia's tables. ``listen_dsn`` leads to the server itself where ``dsn`` leads to a
    transaction pooler: workers are woken over it. ``storage`` replaces the database, for example by a
    `prinia.storage.memory.MemoryStorage` in tests. ``strict`` turns the warning about a connection that would commit a
    job at once into an error. ``max_args_bytes`` limits the encoded arguments of one job.

    Example::

        app = Prinia()

        @app.task
        async def send_reminder(order: int) -> str: ...

        async with app:
            job = await send_reminder.aenqueue(9)
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str = _SCHEMA,
        listen_dsn: str | None = None,
        storage: Storage | None = None,
        strict: bool = False,
        max_args_bytes: int = MAX_ARGS_BYTES,
    ) -> None:
        """Connects to nothing. Raises `ConfigurationError` for values that make no sense."""
        _check_size("max_args_bytes", max_args_bytes)
        _check_text("dsn", dsn, "such as postgresql://user@host/name, or left out")
        _check_text("listen_dsn", listen_dsn, "such as postgresql://user@host/name, or left out")
        _check_text("schema", schema, "the name of a schema", optional=False)
        _check_storage(storage)
        self.schema = schema
        self._given_dsn = dsn
        self._listen_dsn = None if listen_dsn is None else _as_libpq("listen_dsn", listen_dsn.strip())
        self._storage = storage
        self._has_own_storage = storage is not None
        self._max_args_bytes = max_args_bytes
        self._making = threading.Lock()
        self._registry = Registry()
        self._client = Client(lambda: self.storage, read_any=self._registry.read_result, strict=strict)

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """The registered tasks by name, aliases left out."""
        return self._registry.tasks

    @property
    def dsn(self) -> str:
        """The libpq URL of the database. Of ``embedded:PATH`` it starts the server if need be, and then blocks.

        Raises `ConfigurationError` when none is set, or when the app was given a storage of its own.
        """
        if self._has_own_storage and self._given_dsn is None:
            raise ConfigurationError(
                f"this app was given a storage ({type(self._storage).__name__}): it has no database URL, and Prinia"
                " makes no tables for it"
            )
        dsn = _find_dsn(self._given_dsn)
        if dsn.startswith("embedded:"):
            from prinia.embedded import open_dsn

            return open_dsn(dsn)
        return dsn

    @property
    def storage(self) -> Storage:
        """The storage given, or the PostgreSQL one, made at first use."""
        if self._storage is None:
            with self._making:
                if self._storage is None:
                    from prinia.storage.postgres import PostgresStorage

                    self._storage = PostgresStorage(lambda: self.dsn, schema=self.schema, listen_dsn=self._listen_dsn)
        return self._storage

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def task(self, fn: None = None, /, **options: Unpack[TaskOptions]) -> Decorator: ...
    def task(self, fn: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Register a function as a task, with or without options: see `TaskOptions`.

        Raises `TaskDefinitionError` for a function that cannot be one, `InvalidOptions` for options.

        Example::

            @app.task(queue="email", max_attempts=5, timeout=30)
            async def send_reminder(order: int, ctx: Context = INJECTED) -> str: ...

            send = app.task(mailer.send)      # a bound method
        """
        local_names = sys._getframe(1).f_locals
        given: Mapping[str, object] = {**options}
        if fn is not None and given:
            raise TaskDefinitionError("app.task takes a function or options, not both: app.task(queue=...)(function)")
        if fn is not None:
            return self._register(fn, {}, local_names)
        task_fields(given)  # a wrong option is an error of this line, not of the function below it
        return cast("Decorator", lambda function: self._register(function, given, local_names))

    def _register(
        self, function: Callable[..., Any], options: Mapping[str, object], local_names: Mapping[str, Any]
    ) -> Task[Any, Any]:
        definition = Definition(function, options, max_args_bytes=self._max_args_bytes, local_names=local_names)
        kind: type[Task[..., Any]] = AsyncTask if definition.is_async else SyncTask
        task = kind(definition, self._client)
        self._registry.add(task)
        return task

    def enqueue_many(self, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store any mix of jobs in one transaction, and return a lazy sequence of handles, in their order.

        The iterable may be long: it is read in chunks. Raises, with nothing stored, what making and storing one job
        raises.

        Example::

            jobs = app.enqueue_many(resize.job(path) for path in paths)
        """
        return self._client.enqueue_many(jobs)

    def aenqueue_many(
        self, jobs: Iterable[NewJob[R]] | AsyncIterable[NewJob[R]]
    ) -> Coroutine[Any, Any, Sequence[Job[R]]]:
        """`enqueue_many`, awaited; async iterables do too."""
        return self._client.aenqueue_many(jobs)

    @overload
    def within(self, connection: SyncConn, /) -> AppWithin: ...
    @overload
    def within(self, connection: AnyAsync, /) -> AppAWithin: ...
    def within(self, connection: Any, /) -> AppWithin | AppAWithin:
        """This app on your own connection, for ``enqueue_many`` or ``aenqueue_many`` in its transaction.

        Raises `ConnectionKindError`.
        """
        return AppAWithin(self._client, connection) if is_async(connection) else AppWithin(self._client, connection)

    def get_job(self, id: int, /) -> Job[Any]:
        """A handle on a job of any task. ``task.get_job`` is the typed form. Raises `JobNotFound` as that does."""
        return self._client.get_job(check_id(id))

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        threads: int = 10,
        name: str | None = None,
        stop_timeout: float = 30.0,
        poll: float = 30.0,
        heartbeat: float = 4.0,
        dead_after: float = 12.0,
    ) -> Worker:
        """A worker of this app's tasks: ``async with app.worker(): ...`` or ``await app.worker().run()``.

        ``queues`` are those it serves, by default those of its tasks; ``concurrency`` how many jobs run at once,
        ``threads`` how many of those may be plain functions; ``name`` a label; ``stop_timeout`` how long a stop lets
        jobs finish. ``poll``, ``heartbeat`` and ``dead_after`` are for tuning. Times are seconds. Raises
        `ConfigurationError`.
        """
        from prinia.worker import Worker

        return Worker(
            self.storage,
            self.tasks,
            name=name,
            queues=queues,
            concurrency=concurrency,
            threads=threads,
            stop_timeout=stop_timeout,
            poll=poll,
            heartbeat=heartbeat,
            dead_after=dead_after,
        )

    def migrate(self) -> None:
        """Bring Prinia's tables to this version; nothing happens when they are. Blocks. Raises `MigrationError`."""
        refuse_in_loop("app.migrate()", "asyncio.to_thread(app.migrate)")
        from prinia.storage.postgres.migrate import migrate

        migrate(self.dsn, schema=self.schema)

    def check_migrations(self) -> None:
        """Raise `MigrationsPending` when Prinia's tables are missing or older than this version. Blocks, reads only."""
        refuse_in_loop("app.check_migrations()", "asyncio.to_thread(app.check_migrations)")
        from prinia.storage.postgres.migrate import check

        check(self.dsn, self.schema)

    def open(self) -> None:
        """Open the pool for blocking calls, as ``with app`` does. Opens nest: each needs a `close`.

        Raises `ColourError` inside a running event loop.
        """
        refuse_in_loop("with app", "app.aopen(), or: async with app")
        self.storage.open()

    def close(self) -> None:
        """Undo one `open`."""
        self.storage.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def aopen(self) -> None:
        """Open the pool of the running event loop, as ``async with app`` does. Opens nest: each needs an `aclose`."""
        await self.storage.aopen()

    async def aclose(self) -> None:
        """Undo one `aopen`."""
        await self.storage.aclose()

    async def __aenter__(self) -> Self:
        await self.aopen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _check_size(name: str, size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < len("{}"):
        raise ConfigurationError(f"{name}={size!r} must be a whole number of bytes, 2 or more")


def _check_text(name: str, given: object, meant: str, *, optional: bool = True) -> None:
    if not isinstance(given, str) and not (optional and given is None):
        raise ConfigurationError(f"{name}={given!r} must be a str: {meant}")


def _check_storage(given: object) -> None:
    if given is not None and not (hasattr(given, "push") and hasattr(given, "consumer")):
        raise ConfigurationError(
            f"storage={given!r} must be a storage, such as MemoryStorage() or PostgresStorage(...), or left out"
        )


def _find_dsn(given: str | None) -> str:
    """The DSN given, else the environment's, in a form that libpq knows. Raises `ConfigurationError`."""
    where, dsn = "dsn", (given or "").strip()
    for variable in _VARIABLES:
        if not dsn:
            where, dsn = variable, os.environ.get(variable, "").strip()
    if not dsn:
        raise ConfigurationError(
            "no database is set: set PRINIA_DATABASE_URL (or DATABASE_URL) to postgresql://user@host/name, "
            "or give it: Prinia('postgresql://...'). To try out without a server: embedded:./data"
        )
    return _as_libpq(where, dsn)


def _as_libpq(where: str, dsn: str) -> str:
    """The DSN in a form that libpq knows; ``where`` it comes from is for the `ConfigurationError` it may raise."""
    scheme, separator, rest = dsn.partition("://")
    if re.fullmatch(r"postgres(ql)?\+\w+", scheme):
        return f"postgresql://{rest}"  # SQLAlchemy's form, which names a driver
    # The rest is not shown: it may hold a password.
    if separator and scheme not in ("postgresql", "postgres") and not scheme.startswith("embedded:"):
        raise ConfigurationError(f"{where} starts with {scheme}://, but Prinia needs PostgreSQL: postgresql://...")
    return dsn
