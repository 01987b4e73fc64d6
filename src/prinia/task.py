"""Tasks: registered functions that are called like functions and enqueued as jobs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from prinia.colour import refuse_in_loop
from prinia.connection import AnyAsync, SyncConn, is_async
from prinia.context import Context, WorkerContext
from prinia.errors import (
    DecodeError,
    InvalidArguments,
    InvalidOptions,
    JobNotFound,
    NotStorable,
    TaskDefinitionError,
)
from prinia.handle import Job, check_id
from prinia.isolation import Isolation, check_isolated, read_isolation
from prinia.job import DEFAULT_QUEUE, MAX_RESULT_BYTES, JobRecord, JobSpec
from prinia.newjob import AWithin, Enqueues, NewJob, Within
from prinia.options import JobOptions, check_codec, check_names, job_fields, task_fields, text
from prinia.payload.arguments import Arguments
from prinia.payload.coding import JSON, Codecs, Coder, for_arguments, shown_name
from prinia.payload.signature import qualified, read_signature
from prinia.payload.storable import NAIVE
from prinia.payload.survival import find_changes, returns_may_change
from prinia.pending import Pending
from prinia.reactions import Reactions, read_reactions

P = ParamSpec("P")
R = TypeVar("R")

_KNOW_IT = "give it to the app: Prinia(codecs=[...])"


class Definition:
    """What is fixed about a task when it is decorated; only its codecs may change, until an app includes it."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, object],
        *,
        codecs: Codecs,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `TaskDefinitionError` for a function that cannot be a task, `InvalidOptions` for its options."""
        self.function = function
        self.fields = task_fields(options)
        self.signature = read_signature(function, local_names)
        name, self.aliases = check_names(options)
        self.name = name or _default_name(function)
        self.names = frozenset((self.name, *self.aliases))
        self.is_async = inspect.iscoroutinefunction(function)
        self.codec = check_codec(options)
        self.reactions = read_reactions(options)
        self.isolation = read_isolation(options)
        if self.isolation is not None:
            check_isolated(function, self.signature.injected)
        self.result_may_change = returns_may_change(self.signature.returns)
        self.arguments = Arguments(self.name, self.signature, limit=codecs.max_args_bytes)
        self.use(codecs)
        self.injected = MappingProxyType(dict(self.signature.injected))
        self.contexts = tuple(name for name, kind in self.signature.injected.items() if kind is Context)

    def use(self, codecs: Codecs) -> None:
        """Encode and decode as an app does, except for what the task says itself.

        Raises `ConfigurationError` when the task's codec has the name of another.
        """
        if self.codec is not None:
            codecs.refuse_clash(self.codec)
        self.codecs = codecs
        self.arguments.coder = for_arguments(self.codec) if self.codec is not None else codecs.default
        self.arguments.limit = codecs.max_args_bytes

    def copy(self, codecs: Codecs) -> Definition:
        """The same task for another app."""
        other = copy.copy(self)
        other.arguments = copy.copy(self.arguments)
        other.use(codecs)
        return other

    def coder(self, name: str) -> Coder | None:
        """The codec of that name, if it is known here."""
        return self.codec if self.codec is not None and self.codec.name == name else self.codecs.find(name)


def _default_name(function: Callable[..., Any]) -> str:
    try:
        return text("name", qualified(function))
    except InvalidOptions as error:
        raise TaskDefinitionError(f"{error}; give the task a name: @app.task(name='...')") from error


class Task(Generic[P, R]):
    """A registered function: `enqueue` and `aenqueue` store a job that calls it.

    Made by ``app.task``: a coroutine function becomes an `AsyncTask`, a plain one a `SyncTask`, and calling those calls
    the function. Made by ``app.declare`` it cannot be called.

    Example::

        @app.task(queue="email")
        async def send_reminder(order: int, ctx: Context = INJECTED) -> str: ...

        job = await send_reminder.options(delay=60).aenqueue(9)
    """

    __name__: str
    __qualname__: str

    def __init__(self, definition: Definition, client: Enqueues) -> None:
        """Made by ``app.task``."""
        self._definition = definition
        self._client = client
        self._fields: Mapping[str, Any] = definition.fields
        self._arguments = definition.arguments
        # What help(), inspect.signature() and documentation tools look at.
        for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(self, attribute, getattr(definition.function, attribute))
        self.__wrapped__: Callable[..., Any] = definition.function

    @property
    def name(self) -> str:
        """The name under which jobs are stored: the one given, else ``module.qualname``.

        In a module that runs as a program the module is the one a worker would import: ``shop.jobs`` for
        ``python -m shop.jobs``, ``jobs`` for ``python jobs.py``.
        """
        return self._definition.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names under which jobs were stored before a rename."""
        return self._definition.aliases

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return self._definition.is_async

    @property
    def injected(self) -> Mapping[str, Any]:
        """The parameters that are filled in when a job runs, with their types."""
        return self._definition.injected

    @property
    def reactions(self) -> Reactions:
        """What the task does when an attempt has ended: ``retry`` by rule, ``on_success``, ``on_failure``."""
        return self._definition.reactions

    @property
    def isolation(self) -> Isolation | None:
        """How the process of its own is set up in which the function runs, None where it runs in the worker."""
        return self._definition.isolation

    @property
    def queue(self) -> str:
        """The queue of this task's jobs."""
        return str(self._fields.get("queue", DEFAULT_QUEUE))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Store a job, in a transaction of its own, and return a handle on it.

        Raises, with nothing stored: `ColourError` in a running event loop, `InvalidArguments`, `PayloadTooLarge`,
        `DuplicateJob`, `StorageUnavailable`.
        """
        refuse_in_loop("enqueue()", "task.aenqueue(...)")
        return self._client.enqueue(self.job(*args, **kwargs))

    def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R]]:
        """`enqueue`, awaited. Arguments are checked and encoded by the call, the job is stored by the ``await``.

        An awaitable that is dropped is logged with the place of the call.
        """
        job = self.job(*args, **kwargs)
        return Pending(f"{self.name}.aenqueue(...)", partial(self._client.aenqueue, job))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob[R]:
        """A job as a value, for ``enqueue_many``. Raises `InvalidArguments` and `PayloadTooLarge`."""
        arguments, definition = self._arguments, self._definition
        data = arguments.encode(args, kwargs)
        spec = JobSpec(task=definition.name, args=data, codec=arguments.coder.name, **self._fields)
        return NewJob(spec, self.read_result, definition.codecs)

    def job_encoded(self, data: bytes, /, *, codec: str | None = None) -> NewJob[R]:
        """A job of arguments that are encoded already: one object by parameter name, stored to the letter.

        ``codec`` is the name of what encoded them, by default what the task would use. They are decoded once, to see
        that they fit. ``app.enqueue_by_name(task.name, data)`` enqueues such a job in one call.

        Raises `InvalidArguments` and `PayloadTooLarge`.

        Example::

            app.enqueue_many([send_reminder.job_encoded(b'{"order": 9}')])
        """
        coder = self._arguments.coder if codec is None else self._definition.coder(codec)
        if coder is None:
            raise InvalidArguments(f"{self.name}: codec {codec!r} is not known here; {_KNOW_IT}")
        self._arguments.check(data, coder)
        return NewJob(JobSpec(task=self.name, args=data, codec=coder.name, **self._fields), self.read_result)

    def get_job(self, id: int, /) -> Job[R]:
        """A handle on a job enqueued earlier. Nothing is looked up yet. Raises `JobNotFound` for an impossible id."""
        return Job(check_id(id), waiter=self._client.waiter, read=self.read_result)

    def options(self, **options: Unpack[JobOptions]) -> Self:
        """The same task, its jobs with other options: see `JobOptions`. Raises `InvalidOptions`.

        Example::

            send_reminder.options(unique="order:9", priority=10).enqueue(9)
        """
        # Not copy.copy: this is a third of its time, and a call per job is usual.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._fields = job_fields(self._definition.name, self._fields, options)
        return other

    @overload
    def within(self, connection: SyncConn, /) -> Within[P, R]: ...
    @overload
    def within(self, connection: AnyAsync, /) -> AWithin[P, R]: ...
    def within(self, connection: Any, /) -> Within[P, R] | AWithin[P, R]:
        """This task on your own connection: ``enqueue`` on a blocking one, ``aenqueue`` on an async one.

        The job is stored in the connection's open transaction, and commits and rolls back with it. It may be one of
        psycopg, asyncpg, SQLAlchemy (Connection or Session, of either colour), Django (``connection``) or psycopg2.
        It is one statement, without a savepoint, and flushes no Session. Raises `ConnectionKindError`.

        A connection that would commit the job at once is warned of (``strict``: refused). Two are told from others only
        in part: of a driver that SQLAlchemy was given in autocommit (``connect_args``) a Session knows after its first
        statement; in a pipeline of psycopg in autocommit only ``connection.transaction()`` counts as a transaction.

        Example::

            with Session(engine) as session:
                session.add(Order(id=9))
                send_reminder.within(session).enqueue(9)
                session.commit()
        """
        kind = AWithin if is_async(connection) else Within
        return kind(self._client, connection, self.job)

    def decode(self, codec: str, data: bytes) -> dict[str, object]:
        """Stored arguments by name, of the annotated types. Raises `DecodeError`, for an unknown codec too."""
        return self._arguments.decode(data, self._coder(codec))

    def _coder(self, codec: str) -> Coder:
        if codec == "json":
            return JSON  # most are, and this runs for every job
        coder = self._definition.coder(codec)
        if coder is None:
            raise DecodeError(f"{self.name}: the job is stored by codec {codec!r}, which is not known here; {_KNOW_IT}")
        return coder

    def call(self, arguments: Mapping[str, object], context: Context | None) -> Any:
        """Call the function with decoded arguments and the context: a coroutine when the task is async.

        ``context`` may be None where nothing is injected.
        """
        if contexts := self._definition.contexts:
            arguments = {**arguments, **dict.fromkeys(contexts, context)}
        return self._definition.function(**arguments)

    def encode_result(self, value: object, codec: str = "json") -> bytes | None:
        """A result as stored by the job's codec, None for None.

        Raises `NotStorable` with the path of what cannot be stored, or would be read as something else.
        """
        if value is None:
            return None
        coder = self._coder(codec)
        data = coder.encode(value)
        if len(data) > MAX_RESULT_BYTES:
            raise NotStorable(f"$: {len(data):,} bytes as {shown_name(coder)}, the limit is {MAX_RESULT_BYTES:,}")
        if self._definition.result_may_change:
            self._refuse_changed_result(value, data, coder)
        return data

    def _refuse_changed_result(self, value: object, data: bytes, coder: Coder) -> None:
        try:
            arriving = coder.decode(data, self._definition.signature.returns)
        except DecodeError:
            return  # of another type than the annotated one: whoever reads it is told
        for culprit in find_changes(value, arriving):
            if culprit.reason != NAIVE:  # in results they are taken
                raise NotStorable(str(culprit))

    def decode_result(self, data: bytes | None, codec: str = "json") -> R:
        """A stored result as the type that the function is annotated to return. Raises `DecodeError`."""
        coder = JSON if data is None else self._coder(codec)
        try:
            result: R = coder.decode(b"null" if data is None else data, self._definition.signature.returns)
        except DecodeError as error:
            raise DecodeError(f"{self.name}: the stored result does not fit the return type: {error}") from error
        return result

    def read_result(self, record: JobRecord) -> R:
        """The result in the record of a completed job. Raises `JobNotFound` when the job is another task's."""
        if record.task not in self._definition.names:
            raise JobNotFound(f"job {record.id} is of task {record.task}, not of {self.name}", job_id=record.id)
        return self.decode_result(record.result, record.codec)

    def _call_here(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function as it is called anywhere, with a detached context unless one is given."""
        for name, position in self._definition.signature.positions.items():
            if name in kwargs or (position is not None and position < len(args)):
                continue
            kind = self._definition.injected[name]
            if kind is not Context and kind is not WorkerContext:
                raise TypeError(f"{self.name}: {name} is injected in a worker only; give it in a direct call")
            kwargs[name] = Context(task=self.name, queue=self.queue) if kind is Context else WorkerContext()
        return self._definition.function(*args, **kwargs)

    def moved(self, client: Enqueues, definition: Definition) -> Self:
        """The same task, its options kept, of another app. ``app.bind`` is the way to it."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._client, other._definition, other._arguments = client, definition, definition.arguments
        return other

    @property
    def definition(self) -> Definition:
        """What is fixed about it, for the app."""
        return self._definition

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class AsyncTask(Task[P, R]):
    """A task made of a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Call the function here and now, no job involved. The context may be given, or is a detached one."""
        coroutine: Coroutine[Any, Any, R] = self._call_here(args, kwargs)
        return coroutine


class SyncTask(Task[P, R]):
    """A task made of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, no job involved. The context may be given, or is a detached one."""
        result: R = self._call_here(args, kwargs)
        return result


class DeclaredTask(Task[P, R]):
    """A task whose code lives elsewhere, made by ``app.declare``: it can be enqueued, and neither called nor run."""

    if not TYPE_CHECKING:  # for a type checker there is nothing to call

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Raises `TaskDefinitionError`."""
            raise TaskDefinitionError(f"{self.name} is declared here only, its code lives elsewhere: enqueue it")


class DeclareDecorator(Protocol):
    """What ``app.declare(...)`` gives."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> DeclaredTask[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> DeclaredTask[P, R]: ...


class Decorator(Protocol):
    """What ``app.task(...)`` with options gives."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...
