"""The app: where tasks are registered, and where storage, client and worker are put together."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from prinia.client import AppAWithin, AppWithin, Client
from prinia.colour import refuse_in_loop
from prinia.connection import AnyAsync, SyncConn, is_async
from prinia.controlling import Controlling
from prinia.discovery import check_modules, import_module
from prinia.dsn import as_libpq, find_dsn
from prinia.errors import ConfigurationError
from prinia.events import Listener
from prinia.explaining import Explaining
from prinia.handle import Job, Waiting, check_id
from prinia.hooks import Hooks
from prinia.job import MAX_ARGS_BYTES
from prinia.middleware import Enqueuing, Middleware
from prinia.newjob import NewJob
from prinia.options import JobOptions
from prinia.payload.codec import Codec
from prinia.payload.coding import Codecs
from prinia.payload.signature import importable_name
from prinia.pending import Pending
from prinia.polling import Poll
from prinia.reading import Reading
from prinia.registry import AnyTask, Registry, Tasks
from prinia.retaining import Retaining
from prinia.storage.protocol import Storage
from prinia.task import Task

if TYPE_CHECKING:
    from prinia.worker import Worker

R = TypeVar("R")

_SCHEMA = "prinia"


class Prinia(Tasks, Hooks, Reading, Controlling, Retaining, Explaining):
    """A set of tasks and the PostgreSQL database in which their jobs live.

    ``dsn`` is a libpq URL, or ``embedded:./data`` for a server of its own; without it the environment's
    PRINIA_DATABASE_URL, else its DATABASE_URL. It is looked up at first use: making an app and decorating tasks needs
    no database. ``schema`` holds Prinia's tables. ``listen_dsn`` leads to the server itself where ``dsn`` leads to a
    transaction pooler: workers are woken over it. ``storage`` replaces the database, for example by a
    `prinia.storage.memory.MemoryStorage` in tests. ``strict`` turns the warning about a connection that would commit a
    job, or the completion of one, at once into an error. ``max_args_bytes`` limits the encoded arguments of one job.
    ``codec`` encodes new jobs (JSON); ``codecs`` are others whose jobs are read too. ``imports`` are modules with
    tasks, imported when a worker is made. ``middleware`` surrounds each enqueue and each run, the first one outermost:
    see `Middleware`.

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
        codec: Codec | None = None,
        codecs: Iterable[Codec] = (),
        imports: Sequence[str] = (),
        middleware: Iterable[Middleware] = (),
    ) -> None:
        """Connects to nothing. Raises `ConfigurationError` for values that make no sense."""
        _check_size("max_args_bytes", max_args_bytes)
        _check_text("dsn", dsn, "such as postgresql://user@host/name, or left out")
        _check_text("listen_dsn", listen_dsn, "such as postgresql://user@host/name, or left out")
        _check_text("schema", schema, "the name of a schema", optional=False)
        _check_storage(storage)
        self.schema = schema
        self._given_dsn = dsn
        self._listen_dsn = None if listen_dsn is None else as_libpq("listen_dsn", listen_dsn.strip())
        self._storage = storage
        self._has_own_storage = storage is not None
        self._imports = check_modules("imports", imports)
        self._making = threading.Lock()
        self._registry = Registry(Codecs(codec, codecs, max_args_bytes=max_args_bytes))
        Hooks.__init__(self, middleware=middleware)
        # So that a process of a worker's pool finds what is included in this app, its codecs among it.
        home = importable_name(sys._getframe(1).f_globals.get("__name__", "__main__"))
        if home != "__main__":
            self.surroundings.process_modules.append(home)
        self._client = Client(
            lambda: self.storage,
            read_any=self._registry.read_result,
            strict=strict,
            codecs=self._registry.codecs,
            middleware=Enqueuing(self.surroundings.middleware),
        )
        self._registry.client = self._client

    @property
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """The registered tasks by name, aliases left out."""
        return self._registry.tasks

    @property
    def dsn(self) -> str:
        """The libpq URL of the database. Of ``embedded:PATH`` it starts the server if need be, and then blocks.

        Raises `ConfigurationError` when none is set, or when the app was given a storage of its own.
        """
        dsn = self.database_url
        if dsn.startswith("embedded:"):
            from prinia.embedded import open_dsn

            return open_dsn(dsn)
        return dsn

    @property
    def database_url(self) -> str:
        """The URL of the database as it was given or is in the environment: `dsn`, but of ``embedded:PATH`` as it is.

        Raises `ConfigurationError` as that does.
        """
        if self._has_own_storage and self._given_dsn is None:
            raise ConfigurationError(
                f"this app was given a storage ({type(self._storage).__name__}): it has no database URL, and Prinia"
                " makes no tables for it"
            )
        return find_dsn(self._given_dsn)

    @property
    def storage(self) -> Storage:
        """The storage given, or the PostgreSQL one, made at first use."""
        if self._storage is None:
            with self._making:
                if self._storage is None:
                    from prinia.storage.postgres import PostgresStorage

                    self._storage = PostgresStorage(lambda: self.dsn, schema=self.schema, listen_dsn=self._listen_dsn)
        return self._storage

    def include(self, tasks: Tasks, /) -> None:
        """Have the tasks of a `Tasks`, those too that are added to it later. A second time changes nothing.

        Raises `TaskDefinitionError`, with nothing included, when one of their names is taken, `ConfigurationError` when
        a task's codec has the name of another one of this app.
        """
        given: object = tasks  # which it should be, but may not
        if not isinstance(given, Tasks) or isinstance(given, Prinia):
            raise ConfigurationError(f"app.include() takes a Tasks, not {ascii(given)[:80]}: tasks = Tasks()")
        self._registry.include(tasks._registry)

    def bind(self, task: AnyTask, /) -> AnyTask:
        """The same task, its jobs encoded by this app and going to it: for one that several apps include.

        Raises `ConfigurationError` when this app does not have it.

        Example::

            shop.bind(send_reminder).options(delay=60).enqueue(9)
        """
        return self._registry.bind(task)

    def import_tasks(self, *modules: str) -> None:
        """Import these modules and those of ``imports``, so that their tasks register themselves.

        Making a worker does this. Raises `ConfigurationError` for one that is missing or that fails, saying where.
        """
        for name in (*self._imports, *modules):
            import_module(name)

    def job_by_name(
        self, name: str, arguments: Mapping[str, Any] | bytes, /, *, codec: str | None = None,
        **options: Unpack[JobOptions],
    ) -> NewJob[Any]:  # fmt: skip
        """A job as a value, for ``enqueue_many``: see `enqueue_by_name`."""
        return self._registry.job(name, arguments, codec, options)

    def enqueue_by_name(
        self, name: str, arguments: Mapping[str, Any] | bytes, /, *, codec: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Job[Any]:  # fmt: skip
        """Store a job of a task known by its name only. A task of this app checks its arguments, and gives defaults.

        An unknown name takes plain values: what JSON has. ``arguments`` may be encoded already; ``codec`` is then the
        name of what encoded them, by default what would have been used. Raises as ``task.enqueue`` does.

        Example::

            app.enqueue_by_name("billing.charge", {"customer": 7, "cents": 1200}, queue="billing")
        """
        refuse_in_loop("enqueue_by_name()", "app.aenqueue_by_name(...)")
        return self._client.enqueue(self._registry.job(name, arguments, codec, options))

    def aenqueue_by_name(
        self, name: str, arguments: Mapping[str, Any] | bytes, /, *, codec: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Coroutine[Any, Any, Job[Any]]:  # fmt: skip
        """`enqueue_by_name`, awaited. Arguments are checked and encoded by the call."""
        job = self._registry.job(name, arguments, codec, options)
        return Pending(f"aenqueue_by_name({name!r}, ...)", partial(self._client.aenqueue, job))

    def enqueue_many(self, jobs: Iterable[NewJob[R]]) -> Sequence[Job[R]]:
        """Store any mix of jobs in one transaction, and return a lazy sequence of handles, in their order.

        The iterable may be long: it is read in chunks. Raises, with nothing stored, what making and storing one job
        raises, and `ConfigurationError` for a job that another codec than this app's has encoded, because its task is
        another app's, or included by several (see `bind`). Two that run at once with the same unique keys, and more
        jobs than go in one statement (1,000, or 1 MiB of arguments), may lock each other out: one of them raises
        `StorageUnavailable` then, and can be tried again.

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

        The connection is one that ``task.within`` takes. The jobs go in a savepoint, which is begun before the first of
        them is read: all or none of them, and of what a generator does on the connection meanwhile. A Session of
        SQLAlchemy is flushed by it, as by any savepoint of its own. Raises `ConnectionKindError`.

        Example::

            async with conn.transaction():
                await app.within(conn).aenqueue_many(send_reminder.job(order) for order in orders)
        """
        kind = AppAWithin if is_async(connection) else AppWithin
        return kind(self._client, connection, self._registry)

    def get_job(self, id: int, /) -> Job[Any]:
        """A handle on a job of any task. ``task.get_job`` is the typed form. Raises `JobNotFound` as that does."""
        return self._client.get_job(check_id(id))

    def wait(self, jobs: Iterable[Job[R]], /, *, timeout: float | None = None) -> Waiting[R]:
        """Wait for many jobs: iterate over them as they end, or get all of them, or all results.

        ``timeout`` in seconds is for all of them together, None for ever, 0 for one look. One connection listens for
        everybody who waits in a process; no notification is sent for jobs that nobody awaits.

        Example::

            async for done in app.wait(jobs, timeout=60):
                print(done.job.id, done.result())

            sizes = app.wait(jobs).results()
        """
        return Waiting(jobs, waiter=self._client.waiter, timeout=timeout)

    def worker(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        threads: int = 10,
        pool: int | None = None,
        name: str | None = None,
        stop_timeout: float = 30.0,
        poll: Poll | None = None,
        listen: bool = True,
        claim_batch: int = 500,
        heartbeat: float = 4.0,
        dead_after: float = 12.0,
        until_empty: bool = False,
        health: int | str | None = None,
        on_event: Listener | None = None,
    ) -> Worker:
        """A worker of this app's tasks: ``async with app.worker(): ...`` or ``await app.worker().run()``.

        ``queues`` are those it serves, by default those of its tasks; ``concurrency`` how many jobs run at once,
        ``threads`` how many of those may be plain functions, and ``pool`` how many may be in processes of their own
        (one for each processor); ``name`` a label; ``stop_timeout`` how long a stop lets
        jobs finish; ``claim_batch`` (1 to 500) how many jobs one claim takes at most. An idle worker is woken over
        a LISTEN connection; ``poll`` says when it looks besides: seconds or timedelta (30 s), a `PollBackoff`, an
        async iterator of which each item means "look now", or a list of these, of which the first wakes it. With
        ``listen=False`` it needs no such connection, and ``poll`` is how it finds jobs (1 s). ``heartbeat`` and
        ``dead_after`` are for tuning. ``on_event`` is told of all events of this worker: see `on_event`. With
        ``until_empty`` it stops once nothing is due and none of its jobs runs; ``health`` is a port, "host:port" or
        "unix:PATH" on which it serves ``/live`` and ``/ready``. Times are seconds. Raises `ConfigurationError`.

        Example::

            async with app.worker(queues=["email"], poll=[60, signals()]):
                ...
        """
        from prinia.worker import Worker

        self.import_tasks()
        return Worker(
            self.storage,
            self.tasks,
            name=name,
            queues=queues,
            concurrency=concurrency,
            threads=threads,
            pool=pool,
            stop_timeout=stop_timeout,
            poll=poll,
            listen=listen,
            claim_batch=claim_batch,
            heartbeat=heartbeat,
            dead_after=dead_after,
            strict=self._client.strict,
            until_empty=until_empty,
            health=health,
            hooks=self,
            on_event=on_event,
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
