"""Tasks: registered functions that are called like functions and enqueued as jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from prinia.arguments import Arguments
from prinia.codec import JsonCodec
from prinia.colour import refuse_in_loop
from prinia.connection import AnyAsync, SyncConn, is_async
from prinia.context import Context
from prinia.errors import DecodeError, InvalidOptions, JobNotFound, NotStorable, TaskDefinitionError
from prinia.handle import Job, check_id
from prinia.job import DEFAULT_QUEUE, MAX_ARGS_BYTES, MAX_RESULT_BYTES, JobRecord, JobSpec
from prinia.newjob import AWithin, Enqueues, NewJob, Within
from prinia.options import JobOptions, check_names, job_fields, task_fields, text
from prinia.pending import Pending
from prinia.signature import qualified, read_signature

P = ParamSpec("P")
R = TypeVar("R")

_CODEC = JsonCodec()


class Definition:
    """What is fixed about a task when it is decorated."""

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, object],
        *,
        max_args_bytes: int = MAX_ARGS_BYTES,
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
        self.arguments = Arguments(self.name, self.signature, limit=max_args_bytes)
        self.injected = MappingProxyType(dict(self.signature.injected))
        self.contexts = tuple(name for name, kind in self.signature.injected.items() if kind is Context)


def _default_name(function: Callable[..., Any]) -> str:
    try:
        return text("name", qualified(function))
    except InvalidOptions as error:
        raise TaskDefinitionError(f"{error}; give the task a name: @app.task(name='...')") from error


class Task(Generic[P, R]):
    """A registered function. Calling it calls the function; `enqueue` and `aenqueue` store a job that calls it.

    Made by ``app.task``; a coroutine function becomes an `AsyncTask`, a plain one a `SyncTask`.

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
        self._encode = definition.arguments.encode
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
        return NewJob(
            JobSpec(task=self._definition.name, args=self._encode(args, kwargs), **self._fields), self.read_result
        )

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

        The job is stored in the connection's open transaction. Raises `ConnectionKindError`.
        """
        kind = AWithin if is_async(connection) else Within
        return kind(self._client, connection, self.job)

    def decode(self, codec: str, data: bytes) -> dict[str, object]:
        """Stored arguments by name, of the annotated types. Raises `DecodeError`, for an unknown codec too."""
        if codec != _CODEC.name:
            raise DecodeError(f"{self.name}: the arguments are stored by codec {codec!r}, which is not known here")
        return self._definition.arguments.decode(data)

    def call(self, arguments: Mapping[str, object], context: Context | None) -> Any:
        """Call the function with decoded arguments and the context: a coroutine when the task is async.

        ``context`` may be None where nothing is injected.
        """
        if contexts := self._definition.contexts:
            arguments = {**arguments, **dict.fromkeys(contexts, context)}
        return self._definition.function(**arguments)

    def encode_result(self, value: object) -> bytes | None:
        """A result as stored, None for None. Raises `NotStorable` with the path of what cannot be stored."""
        if value is None:
            return None
        data = _CODEC.encode(value)
        if len(data) > MAX_RESULT_BYTES:
            raise NotStorable(f"$: {len(data):,} bytes as JSON, the limit is {MAX_RESULT_BYTES:,}")
        return data

    def decode_result(self, data: bytes | None) -> R:
        """A stored result as the type that the function is annotated to return. Raises `DecodeError`."""
        try:
            result: R = _CODEC.decode(data if data is not None else b"null", self._definition.signature.returns)
        except DecodeError as error:
            raise DecodeError(f"{self.name}: the stored result does not fit the return type: {error}") from error
        return result

    def read_result(self, record: JobRecord) -> R:
        """The result in the record of a completed job. Raises `JobNotFound` when the job is another task's."""
        if record.task not in self._definition.names:
            raise JobNotFound(f"job {record.id} is of task {record.task}, not of {self.name}", job_id=record.id)
        return self.decode_result(record.result)

    def _call_here(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function as it is called anywhere, with a detached context unless one is given."""
        for name, position in self._definition.signature.positions.items():
            if name in kwargs or (position is not None and position < len(args)):
                continue
            if name not in self._definition.contexts:
                raise TypeError(f"{self.name}: {name} is injected in a worker only; give it in a direct call")
            kwargs[name] = Context(task=self.name, queue=self.queue)
        return self._definition.function(*args, **kwargs)

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


class Decorator(Protocol):
    """What ``app.task(...)`` with options gives."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> SyncTask[P, R]: ...


class Registry:
    """The tasks of an app, by name; no two tasks share a name or an alias."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._known: dict[str, Task[Any, Any]] = {}
        #: Each task under its own name, aliases left out; it grows as tasks are added.
        self.tasks: Mapping[str, Task[Any, Any]] = MappingProxyType(self._tasks)

    def add(self, task: Task[Any, Any]) -> None:
        """Register a task. Raises `TaskDefinitionError` when one of its names is taken."""
        for name in (task.name, *task.aliases):
            if name in self._known:
                raise TaskDefinitionError(
                    f"a task named {name} exists already ({_place(self._known[name])}), and {_place(task)} would be "
                    f"another; give one of them a name: @app.task(name='...')"
                )
        self._tasks[task.name] = task
        self._known.update(dict.fromkeys((task.name, *task.aliases), task))

    def read_result(self, record: JobRecord) -> Any:
        """The result of a completed job, by the return type of its task; of an unknown task as plain JSON."""
        task = self._known.get(record.task)
        if task is None:
            return _CODEC.decode(record.result, Any) if record.result is not None else None
        return task.read_result(record)


def _place(task: Task[Any, Any]) -> str:
    code = getattr(inspect.unwrap(task.__wrapped__), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(task.__wrapped__)
