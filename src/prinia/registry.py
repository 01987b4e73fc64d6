"""Tasks by name: those of an app, and those of a `Tasks`, which is a registry that apps include."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, Unpack, cast, overload

from prinia.errors import (
    ConfigurationError,
    DecodeError,
    InvalidArguments,
    NotStorable,
    PayloadTooLarge,
    TaskDefinitionError,
)
from prinia.handle import Job
from prinia.job import JobRecord, JobSpec
from prinia.newjob import Enqueues, NewJob
from prinia.options import DeclareOptions, TaskOptions, job_fields, task_fields, text
from prinia.payload.codec import naive_time_in
from prinia.payload.coding import Codecs, Coder, shown_name
from prinia.payload.storable import find_culprit
from prinia.task import AsyncTask, DeclareDecorator, DeclaredTask, Decorator, Definition, SyncTask, Task
from prinia.waiting.waiter import Waiter

P = ParamSpec("P")
R = TypeVar("R")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class Registry:
    """Tasks by name, no two of them with a name or an alias in common.

    ``client`` is where their jobs go, ``codecs`` how they are encoded. Registries that include this one (``hosts``)
    have each of its tasks too, as their own.
    """

    def __init__(self, codecs: Codecs) -> None:
        """Until it is given another ``client``, its jobs go to the one registry that includes it."""
        self.codecs = codecs
        self.client: Enqueues = _ClientOfHost(self)
        self.hosts: list[Registry] = []
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._known: dict[str, Task[Any, Any]] = {}
        #: Each task that can be run, under its own name, aliases left out; it grows as tasks are added.
        self.tasks: Mapping[str, Task[Any, Any]] = MappingProxyType(self._tasks)

    def register(
        self, kind: type[Task[..., Any]] | None, function: Callable[..., Any],
        options: Mapping[str, object], local_names: Mapping[str, Any],
    ) -> Task[Any, Any]:  # fmt: skip
        """Make a task of a function. Raises `TaskDefinitionError` and `InvalidOptions`."""
        definition = Definition(function, options, codecs=self.codecs, local_names=local_names)
        if kind is None:
            kind = AsyncTask if definition.is_async else SyncTask
        task = kind(definition, self.client)
        for registry in (self, *self.hosts):
            registry._refuse_taken(task)
        theirs = [(host, host._own(task)) for host in self.hosts]
        for registry, one in ((self, task), *theirs):
            registry._add(one)
        return task

    def include(self, other: Registry) -> None:
        """Have the tasks of another registry, present and future. Raises `ConfigurationError` when names clash."""
        if self in other.hosts:
            return
        tasks = list(dict.fromkeys(other._known.values()))
        for task in tasks:
            self._refuse_taken(task)
        for own in [self._own(task) for task in tasks]:
            self._add(own)
        other.hosts.append(self)
        # With one host there is no doubt how it encodes.
        other.codecs = self.codecs if len(other.hosts) == 1 else Codecs()
        for task in tasks:
            task.definition.use(other.codecs)

    def bind(self, task: AnyTask) -> AnyTask:
        """The task of this registry that is made of the same function. Raises `ConfigurationError`."""
        own = self._known.get(task.name)
        if own is None or own.definition.function != task.definition.function:
            raise ConfigurationError(f"{task.name} ({_place(task)}) is no task of this app: {_INCLUDE}")
        return task.moved(self.client, own.definition)

    def _own(self, task: Task[Any, Any]) -> Task[Any, Any]:
        return task.moved(self.client, task.definition.copy(self.codecs))

    def _add(self, task: Task[Any, Any]) -> None:
        self._known.update(dict.fromkeys(task.definition.names, task))
        if not isinstance(task, DeclaredTask):
            self._tasks[task.name] = task

    def _refuse_taken(self, task: Task[Any, Any]) -> None:
        for name in (task.name, *task.aliases):
            if name in self._known:
                raise TaskDefinitionError(
                    f"a task named {name} exists already ({_place(self._known[name])}), and {_place(task)} would be "
                    f"another; give one of them a name: @app.task(name='...')"
                )

    def read_result(self, record: JobRecord) -> Any:
        """The result of a completed job, by the return type of its task; of an unknown task as plain values."""
        task = self._known.get(record.task)
        if task is not None:
            return task.read_result(record)
        if record.result is None:
            return None
        coder = self.codecs.find(record.codec)
        if coder is None:
            raise DecodeError(f"job {record.id} ({record.task}) is stored by codec {record.codec!r}, {_UNKNOWN}")
        return coder.decode(record.result, Any)

    def find(self, name: str) -> Task[Any, Any]:
        """The task that goes by this name: its own or an alias; declared ones too. Raises `ConfigurationError`."""
        if (task := self._known.get(name)) is not None:
            return task
        close = difflib.get_close_matches(name, self._known, 1)
        names = sorted({task.name for task in self._known.values()})
        hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(names) or 'none'}"
        raise ConfigurationError(f"the app has no task {name!r}; {hint}")

    def job(
        self, name: str, arguments: Mapping[str, Any] | bytes, codec: str | None, options: Mapping[str, Any]
    ) -> NewJob[Any]:
        """A job of a task known by name only, or not even that. Raises `EnqueueError`."""
        if codec is not None and not isinstance(arguments, bytes):
            raise InvalidArguments("codec says what encoded the arguments; they are not bytes, so leave it out")
        if not isinstance(arguments, bytes | Mapping):
            raise InvalidArguments(f"{name}: arguments are a mapping by name, or bytes, not {type(arguments).__name__}")
        task = self._known.get(name)
        if task is None:
            return self._foreign_job(text("name", name), arguments, codec, options)
        task = task.options(**options) if options else task
        if isinstance(arguments, bytes):
            return task.job_encoded(arguments, codec=codec)
        return task.job(**_by_name(name, arguments))

    def _foreign_job(
        self, name: str, arguments: Mapping[str, Any] | bytes, codec: str | None, options: Mapping[str, Any]
    ) -> NewJob[Any]:
        fields = job_fields(name, {}, options)
        coder = self.codecs.default if codec is None else self.codecs.find(codec)
        if coder is None:
            raise InvalidArguments(f"{name}: codec {codec!r}, {_UNKNOWN}")
        data = arguments if isinstance(arguments, bytes) else _encode(name, _by_name(name, arguments), coder)
        if len(data) > (limit := self.codecs.max_args_bytes):
            raise PayloadTooLarge(
                f"{name}: the arguments are {len(data):,} bytes as {shown_name(coder)}, the limit is {limit:,}"
            )
        try:
            coder.decode(data, dict[str, Any])
        except DecodeError as error:
            raise InvalidArguments(f"{name}: the arguments are no {shown_name(coder)} object: {error}") from error
        return NewJob(JobSpec(task=name, args=data, codec=coder.name, **fields), self.read_result, self.codecs)


def _by_name(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    for name in arguments:
        if not isinstance(name, str):
            raise InvalidArguments(f"{task}: arguments are given by name, and {name!r} is no str")
    return dict(arguments)


def _encode(task: str, arguments: dict[str, Any], coder: Coder) -> bytes:
    try:
        data = coder.encode(arguments)
    except NotStorable as error:
        raise InvalidArguments(f"{task}: argument {error}") from error.__cause__
    may_hide_time = coder.name != "json" or naive_time_in(data)
    if may_hide_time and (culprit := find_culprit(arguments, naive=True)):
        raise InvalidArguments(f"{task}: argument {culprit}")
    return data


def _place(task: Task[Any, Any]) -> str:
    code = getattr(inspect.unwrap(task.__wrapped__), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(task.__wrapped__)


_INCLUDE = "include the Tasks it was made by: app.include(tasks)"
_UNKNOWN = "which is not known here; give it to the app: Prinia(codecs=[...])"


class _ClientOfHost:
    """Where jobs of a `Tasks` go: to the app that includes it, which is looked up at each use, as it may come late."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def _find(self) -> Enqueues:
        hosts = self._registry.hosts
        if not hosts:
            raise ConfigurationError(f"no app includes this task, so there is no place for its jobs; {_INCLUDE}")
        if len(hosts) > 1:
            raise ConfigurationError(
                f"{len(hosts)} apps include this task; say which one is meant: app.bind(task).enqueue(...)"
            )
        return hosts[0].client

    @property
    def waiter(self) -> Waiter:
        return self._find().waiter

    @property
    def strict(self) -> bool:
        return self._find().strict

    def enqueue(self, job: NewJob[R], /) -> Job[R]:
        return self._find().enqueue(job)

    async def aenqueue(self, job: NewJob[R], /) -> Job[R]:
        return await self._find().aenqueue(job)

    def enqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        return self._find().enqueue_within(connection, job)

    async def aenqueue_within(self, connection: Any, job: NewJob[R], /) -> Job[R]:
        return await self._find().aenqueue_within(connection, job)


class Tasks:
    """A set of tasks without an app, for a module that the app imports: ``app.include(tasks)``.

    Its tasks are used like those of an app; their jobs go to the app that includes it, before or after. Tasks that are
    added later reach the app too. When several apps include it, ``app.bind(task)`` says which one is meant.

    Example::

        # shop/mail.py knows nothing of the app
        tasks = Tasks()

        @tasks.task(queue="email")
        async def send_reminder(order: int) -> None: ...

        # shop/app.py
        app = Prinia()
        app.include(mail.tasks)
    """

    def __init__(self) -> None:
        """It has no settings: it takes those of its app."""
        self._registry = Registry(Codecs())

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
            return self._registry.register(None, fn, {}, local_names)
        task_fields(given)  # a wrong option is an error of this line, not of the function below it
        return cast("Decorator", lambda function: self._registry.register(None, function, given, local_names))

    def get_task(self, name: str, /) -> Task[Any, Any]:
        """The task that goes by this name, its own or an alias; declared ones too.

        Raises `ConfigurationError` when there is none, with the name that may be meant.

        Example::

            app.get_task("shop.send_reminder").options(delay=60).enqueue(9)
        """
        return self._registry.find(name)

    def declare(self, *, name: str, **options: Unpack[DeclareOptions]) -> DeclareDecorator:
        """Type a task whose code lives elsewhere: in another repository, or in another language.

        Its jobs are checked and stored like those of any task; the function's body is never run. Workers of this app
        leave them to others. ``name`` is the one under which the other side knows the task. See `DeclareOptions`.

        Example::

            @app.declare(name="billing.charge", queue="billing")
            def charge(customer: int, cents: int) -> str:
                raise NotImplementedError   # never run; a type checker wants it

            charge.enqueue(7, 1200)
        """
        local_names = sys._getframe(1).f_locals
        given: Mapping[str, object] = {"name": name, **options}
        task_fields(given)
        return cast(
            "DeclareDecorator", lambda function: self._registry.register(DeclaredTask, function, given, local_names)
        )
