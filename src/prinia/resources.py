"""Resources: what tasks want injected, who provides it, and the plan that is checked before a worker starts.

A provider is a factory with a scope. What it provides is known by its type, which is that of its return annotation; a
parameter gets the resource whose type is its annotation, exactly. Opening is the worker's: `prinia.worker.opened`.
"""

from __future__ import annotations

import collections.abc
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeAlias

from prinia.context import INJECTED, Context, WorkerContext
from prinia.errors import ConfigurationError
from prinia.payload.signature import qualified, read_hints
from prinia.task import Task

Scope: TypeAlias = Literal["app", "worker", "job"]

#: Widest first: what has a scope may want resources of the same or an earlier one.
_SCOPES: Sequence[Scope] = ("app", "worker", "job")
_LIVES: Mapping[str, str] = {"app": "with the app's workers", "worker": "with its worker", "job": "with its job"}
#: What Prinia itself provides, and from which scope on it exists.
_OWN: Mapping[Any, Scope] = {WorkerContext: "worker", Context: "job"}

_YIELDING = (
    collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator,
    collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator,
)  # fmt: skip


class Shape(Enum):
    """How a factory is called, and whether what it provides is closed again."""

    FUNCTION = "function"
    COROUTINE = "coroutine"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"


# Known by identity: two are never the same, whatever their fields say.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Provider:
    """What provides one resource. ``needs`` are the factory's injected parameters with their types."""

    type: Any
    scope: Scope
    factory: Callable[..., Any]
    shape: Shape
    needs: Mapping[str, Any]
    name: str

    @property
    def is_async(self) -> bool:
        """Whether it can only be opened in an event loop."""
        return self.shape in (Shape.COROUTINE, Shape.ASYNC_GENERATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A function to be called when a worker starts or stops; ``takes_worker``: its first argument is the worker."""

    function: Callable[..., Any]
    takes_worker: bool
    needs: Mapping[str, Any]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one task gets. ``in_loop`` and ``in_thread`` are its job's resources, in the order in which they open."""

    parameters: Mapping[str, Any]
    in_loop: tuple[Provider, ...]
    in_thread: tuple[Provider, ...]

    @property
    def only_contexts(self) -> bool:
        """Whether nothing but the job's context is wanted."""
        return all(kind is Context for kind in self.parameters.values())


def read_factory(
    factory: Callable[..., Any], *, scope: Scope, type: Any, local_names: Mapping[str, Any] | None
) -> Provider:
    """The provider that a factory is. Raises `ConfigurationError` with what to change."""
    _check_scope(scope)
    shown = _refuse_odd_functions(factory, "a resource is made by a function, a coroutine function or a generator")
    shape = _shape_of(factory, shown)
    hints = read_hints(factory, shown, local_names)
    provided = _provided(hints.get("return"), shape, shown) if type is None else type
    _check_type(provided, shown)
    parameters = inspect.signature(factory).parameters.values()
    needs = _read_needs(parameters, hints, shown)
    return Provider(type=provided, scope=scope, factory=factory, shape=shape, needs=needs, name=shown)


def read_value(value: object, *, type: Any) -> Provider:
    """The provider of a value that is there already. Raises `ConfigurationError`."""
    provided = value.__class__ if type is None else type
    shown = f"the value given for {_shown(provided)}"
    _check_type(provided, shown)
    return Provider(
        type=provided, scope="app", factory=lambda: value, shape=Shape.FUNCTION, needs={}, name=shown
    )  # fmt: skip


def read_hook(function: Callable[..., Any], *, local_names: Mapping[str, Any] | None) -> Hook:
    """A start or stop hook. Raises `ConfigurationError` with what to change."""
    shown = _refuse_odd_functions(function, "a hook is a function or a coroutine function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{shown} yields: what is opened at the start and closed at the end is a resource: "
            f'@app.provide(scope="worker")'
        )
    hints = read_hints(function, shown, local_names)
    parameters = list(inspect.signature(function).parameters.values())
    takes_worker = bool(parameters) and _takes_worker(parameters[0], hints, shown)
    needs = _read_needs(parameters[1:] if takes_worker else parameters, hints, shown)
    return Hook(function=function, takes_worker=takes_worker, needs=needs, name=shown)


def _takes_worker(first: inspect.Parameter, hints: Mapping[str, Any], shown: str) -> bool:
    """Whether a hook's first parameter gets the worker."""
    if first.default is not inspect.Parameter.empty or first.kind is inspect.Parameter.VAR_KEYWORD:
        return False
    if first.kind is inspect.Parameter.KEYWORD_ONLY:
        return False  # refused as one that nobody would give
    hint = hints.get(first.name, WorkerContext)
    if hint not in (WorkerContext, Any, object):
        raise ConfigurationError(
            f"{shown}: its first parameter gets the WorkerContext, and {first.name} is to be {_shown(hint)}; for a "
            f"resource write {first.name}: {_shown(hint)} = INJECTED (from prinia import INJECTED)"
        )
    return True


class Plan:
    """Who gets what, for the tasks and hooks of one worker. Raises `ConfigurationError` with all that is wrong.

    ``app`` and ``worker`` are the resources of these scopes that are needed, in the order in which they open.
    """

    def __init__(
        self,
        tasks: Iterable[Task[Any, Any]],
        providers: Iterable[Provider] = (),
        start_hooks: Iterable[Hook] = (),
        stop_hooks: Iterable[Hook] = (),
    ) -> None:
        self.start_hooks = tuple(start_hooks)
        self.stop_hooks = tuple(stop_hooks)
        self._by_type: dict[Any, Provider] = {}
        # A task may be known by several names.
        self._tasks = list({id(task): task for task in tasks}.values())
        hooks = [*self.start_hooks, *self.stop_hooks]
        providers = list(providers)
        faults = [
            *self._add(providers),
            *(fault for one in providers for fault in self._faults_of(one.name, one.needs, one.scope)),
            *(fault for task in self._tasks for fault in self._faults_of(f"task {task.name}", task.injected, "job")),
            *(fault for hook in hooks for fault in self._faults_of(hook.name, hook.needs, "worker")),
        ]
        _raise([*faults, *self._cycles()] or list(self._out_of_thread()))
        needs = [*(task.injected for task in self._tasks), *(hook.needs for hook in hooks)]
        standing = [one for one in self._opening(*needs) if one.scope != "job"]
        self.app = tuple(one for one in standing if one.scope == "app")
        self.worker = tuple(one for one in standing if one.scope == "worker")

    def needs_of(self, task: Task[Any, Any]) -> Needs:
        """What a task gets, and what is opened for its job."""
        opened = [one for one in self._opening(task.injected) if one.scope == "job"]
        return Needs(
            parameters=task.injected,
            in_loop=tuple(one for one in opened if task.is_async or one.is_async),
            in_thread=tuple(one for one in opened if not (task.is_async or one.is_async)),
        )

    def _add(self, providers: Iterable[Provider]) -> Iterator[str]:
        for one in providers:
            other = self._by_type.setdefault(one.type, one)
            if other is not one:
                yield (
                    f"two resources provide {_shown(one.type)}: {other.name} and {one.name}; remove one, or give one "
                    f"of them another type=..."
                )

    def _faults_of(self, who: str, needs: Mapping[str, Any], scope: Scope) -> Iterator[str]:
        for parameter, kind in needs.items():
            wish = f"{who} wants {parameter}: {_shown(kind)}"
            if not _has_hash(kind):
                yield f"{wish}, a type that cannot be looked up: it has no hash"
                continue
            provider = self._by_type.get(kind)
            if kind in _OWN:
                if _wider(scope, _OWN[kind]):
                    yield f'{wish}, which there is in scope "{_OWN[kind]}", but it has scope "{scope}"'
            elif provider is None:
                yield f"{wish} injected, but nothing provides it; {self._close_to(kind)}"
            elif _wider(scope, provider.scope):
                yield (
                    f'{wish}, but has scope "{scope}" and lives longer: {provider.name} has scope "{provider.scope}", '
                    f"it is opened and closed {_LIVES[provider.scope]}"
                )

    def _close_to(self, kind: Any) -> str:
        for one in self._by_type.values():
            # Not issubclass: for a protocol it may raise.
            if inspect.isclass(one.type) and kind in one.type.__mro__:
                return (
                    f"{one.name} provides {_shown(one.type)}, which is one: give that provider type={_shown(kind)}, or "
                    f"annotate the parameter with {_shown(one.type)}"
                )
        names = {_shown(provided): one.name for provided, one in self._by_type.items()}
        if close := difflib.get_close_matches(_shown(kind), names, 1, 0.5):
            return f"is {close[0]} meant, which {names[close[0]]} provides?"
        return f"register what does: @app.provide on a function that returns {_shown(kind)}"

    def _cycles(self) -> list[str]:
        faults: list[str] = []
        done: set[Provider] = set()

        def visit(one: Provider, path: tuple[Provider, ...]) -> None:
            if one in path:
                ring = [*path[path.index(one) :], one]
                faults.append(f"resources want each other: {' -> '.join(each.name for each in ring)}")
            elif one not in done:
                done.add(one)
                for wanted in self._wanted(one.needs):
                    visit(wanted, (*path, one))

        for one in self._by_type.values():
            visit(one, ())
        return faults

    def _out_of_thread(self) -> Iterator[str]:
        """A plain function's job has its plain resources in its thread, where its async ones cannot have them."""
        for task in self._tasks:
            if task.is_async:
                continue
            for one in self._opening(task.injected):
                for wanted in self._wanted(one.needs):
                    if one.is_async and one.scope == wanted.scope == "job" and not wanted.is_async:
                        yield (
                            f"task {task.name} runs in a thread, and {wanted.name} is opened there, after {one.name}, "
                            f"which is async and wants it; make both async, both plain, or the task a coroutine "
                            f"function"
                        )

    def _wanted(self, needs: Mapping[str, Any]) -> Iterator[Provider]:
        return (self._by_type[kind] for kind in needs.values() if _has_hash(kind) and kind in self._by_type)

    def _opening(self, *needs: Mapping[str, Any]) -> list[Provider]:
        """What these needs need in turn, each once and after what it needs itself."""
        order: dict[Provider, None] = {}

        def add(wanted: Iterable[Provider]) -> None:
            for one in wanted:
                if one not in order:
                    add(self._wanted(one.needs))
                    order[one] = None

        for each in needs:
            add(self._wanted(each))
        return list(order)


def _raise(faults: Sequence[str]) -> None:
    if len(faults) == 1:
        raise ConfigurationError(f"worker: {faults[0]}")
    if faults:
        raise ConfigurationError(f"worker: {len(faults)} faults in what is injected:\n- " + "\n- ".join(faults))


def _wider(scope: Scope, other: Scope) -> bool:
    return _SCOPES.index(scope) < _SCOPES.index(other)


def _refuse_odd_functions(function: object, rule: str) -> str:
    """The name to show for it."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise ConfigurationError(f"{rule}, not {ascii(function)[:80]}; a ready object goes in by provide(value=...)")
    return qualified(function)


def _shape_of(factory: Callable[..., Any], shown: str) -> Shape:
    if inspect.isasyncgenfunction(factory):
        return Shape.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(factory):
        return Shape.GENERATOR
    inner = inspect.unwrap(factory)
    if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise ConfigurationError(
            f"{shown} is a generator behind another decorator, such as @contextmanager; leave that out: a generator "
            f"that yields once is what provide takes"
        )
    return Shape.COROUTINE if inspect.iscoroutinefunction(factory) else Shape.FUNCTION


def _provided(hint: Any, shape: Shape, shown: str) -> Any:
    if hint is None:
        raise ConfigurationError(
            f"{shown} does not say what it provides; annotate what it returns (-> Database, and for generators "
            f"-> Iterator[Database] or AsyncIterator[Database]) or write provide(type=Database)"
        )
    if shape in (Shape.FUNCTION, Shape.COROUTINE):
        return hint
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) not in _YIELDING or not arguments:
        raise ConfigurationError(
            f"{shown} yields, so annotate -> Iterator[...] or AsyncIterator[...] of what it provides, not "
            f"{_shown(hint)}"
        )
    return arguments[0]


def _check_type(provided: Any, shown: str) -> None:
    if provided in (None, types.NoneType, Any, object, Context, WorkerContext):
        raise ConfigurationError(
            f"{shown} provides {_shown(provided)}, which nothing can be told apart by; give it a type of its own"
        )
    if not _has_hash(provided):
        raise ConfigurationError(
            f"{shown} provides {_shown(provided)}, a type that cannot be looked up: it has no hash"
        )


def _has_hash(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:  # Annotated with a list
        return False
    return True


def _check_scope(scope: object) -> None:
    if scope not in _SCOPES:
        raise ConfigurationError(f'scope={scope!r} must be "app", "worker" or "job"')


def _read_needs(
    parameters: Iterable[inspect.Parameter], hints: Mapping[str, Any], shown: str
) -> types.MappingProxyType[str, Any]:
    needs: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        by_name = parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        if parameter.default is INJECTED and by_name and parameter.name in hints:
            needs[parameter.name] = hints[parameter.name]
        elif parameter.default is INJECTED or parameter.default is inspect.Parameter.empty:
            kind = _shown(hints[parameter.name]) if parameter.name in hints else "Database"
            raise ConfigurationError(
                f"{shown}: nobody would give it {parameter.name}; write {parameter.name}: {kind} = INJECTED (from "
                f"prinia import INJECTED), with the type of a resource"
            )
    return types.MappingProxyType(needs)


def _shown(kind: Any) -> str:
    return str(kind.__qualname__) if inspect.isclass(kind) and not typing.get_args(kind) else repr(kind)
