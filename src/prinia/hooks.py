"""What an application hangs into its workers and its enqueues: middleware, resources, listeners, start and stop hooks.

`prinia.Prinia` is one of these; what is registered on it is used by every worker made from then on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

from prinia.errors import ConfigurationError
from prinia.events import EventKind, Listener, Subscription, subscribe
from prinia.isolation import check_process_hook
from prinia.middleware import Middleware, check_middleware
from prinia.resources import Hook, Provider, Scope, read_factory, read_hook, read_value

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=Listener)

_NOT_GIVEN: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What was registered, in the order in which it was."""

    middleware: list[Middleware] = field(default_factory=list)
    providers: list[Provider] = field(default_factory=list)
    start_hooks: list[Hook] = field(default_factory=list)
    stop_hooks: list[Hook] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    #: Called at the start of each process of a pool, and the modules that are imported there first.
    process_hooks: list[Callable[[], object]] = field(default_factory=list)
    process_modules: list[str] = field(default_factory=list)
    #: By event loop, the resources of scope "app" that its workers hold open. Kept by the workers.
    shared: MutableMapping[Any, Any] = field(default_factory=WeakKeyDictionary)


class Hooks:
    """Collects what surrounds the jobs of an app."""

    def __init__(self, *, middleware: Iterable[Middleware] = ()) -> None:
        """Raises `ConfigurationError` for what is no middleware."""
        self.surroundings = Surroundings()
        for one in middleware:
            self.add_middleware(one)

    def add_middleware(self, one: Middleware, /) -> None:
        """Put middleware around each enqueue and each run, inside of all that was added before: see `Middleware`.

        Also ``Prinia(middleware=[...])``. Raises `ConfigurationError`.
        """
        self.surroundings.middleware.append(check_middleware(one))

    @overload
    def provide(self, factory: F, /, *, scope: Scope = "worker", type: Any = None) -> F: ...
    @overload
    def provide(self, /, *, scope: Scope = "worker", type: Any = None) -> Callable[[F], F]: ...
    @overload
    def provide(self, /, *, value: object, type: Any = None) -> None: ...
    def provide(
        self,
        factory: Callable[..., Any] | None = None,
        /,
        *,
        scope: Scope = "worker",
        type: Any = None,
        value: object = _NOT_GIVEN,
    ) -> Any:
        """Provide a resource: parameters with its type and the default `INJECTED` get it, in tasks and in factories.

        The factory is a function, a coroutine function, or a generator, async or not, that yields once: what comes
        before the ``yield`` opens, what comes after it closes. What it provides is its return annotation, for a
        generator ``Iterator[...]`` or ``AsyncIterator[...]`` of it, or ``type``. ``provide(value=...)`` provides what
        is there already. Scopes, and what a factory of each may want injected itself:

        - ``"app"``: opened by the first worker in an event loop that needs it, closed by the last of them. Others of
          this scope.
        - ``"worker"`` (the default): opened when a worker starts, before it claims anything, and closed after its last
          job. `WorkerContext` and wider resources too. What it sets in context variables, jobs see.
        - ``"job"``: opened for each attempt of a handler that wants it, inside the job's own context variables, and
          closed before the outcome is recorded. `Context` and wider resources too.

        Only what something wants is opened: after what it wants itself, and closed in reverse order. Factories run in
        the worker's event loop. Of a task that is a plain function the plain job resources are opened, used and closed
        in the handler's thread, inside of its async ones; those may not want plain ones then.

        A handler's exception is raised at the ``yield`` of its job resources. They can put another in its place, which
        then is what the attempt failed of (for ``retry=`` rules too), and not swallow it. A job resource that fails to
        open, or to close after a handler that returned, makes the attempt fail with `ResourceError`, or as it steers
        itself (`Retry`, `Snooze`, `Fail`, `Cancel`); the time limit covers it. A wider one that fails to open
        ends the start: ``run()`` raises `ResourceError`. One that fails to close is logged, and has 5 seconds for it.

        A wider one that dies while workers run, of an error in a task group that it holds open, say, ends every worker
        that uses it, as jobs would only fail without it: the error is logged and told of as an `EventKind.ERROR` at
        once, the worker stops in order, and its ``run()`` raises `ResourceError`. One of scope app is opened anew by a
        worker that starts once all of those have stopped; before that such a start raises `ResourceError` too.

        A missing or doubtful provider is a `ConfigurationError` when the worker is made. Raises the same for a factory
        that is none.

        Example::

            @app.provide
            async def pool(settings: Settings = INJECTED) -> AsyncIterator[Pool]:
                async with Pool(settings.url) as pool:
                    yield pool

            @app.provide(scope="job")
            async def session(pool: Pool = INJECTED) -> AsyncIterator[Session]:
                async with pool.session() as session, session.begin():
                    yield session       # commits when the handler has returned, rolls back when it has raised

            app.provide(value=Settings())

            @app.task
            async def book(order: int, session: Session = INJECTED) -> None: ...
        """
        local_names = sys._getframe(1).f_locals
        if value is not _NOT_GIVEN:
            if factory is not None:
                raise ConfigurationError("provide takes a factory or a value, not both")
            self.surroundings.providers.append(read_value(value, type=type))
            return None
        if factory is not None:
            return self._provide(factory, scope, type, local_names)
        return lambda later: self._provide(later, scope, type, local_names)

    def _provide(self, factory: F, scope: Scope, type: Any, local_names: Mapping[str, Any]) -> F:
        provider = read_factory(factory, scope=scope, type=type, local_names=local_names)
        self.surroundings.providers.append(provider)
        return factory

    def on_start(self, function: F, /) -> F:
        """Call a function, plain or async, when a worker has opened its resources, before it claims anything.

        Its first parameter, if it has one without a default, is the `WorkerContext`; others are `INJECTED` resources
        of scope app and worker. Hooks are called in the order in which they were added, in the event loop. What they
        set in context variables, jobs see. One that fails ends the start: ``run()`` raises `HookError`, and all stop
        hooks are called, whether their start hooks were or not. Raises `ConfigurationError` for a function that could
        not be called so.

        Example::

            @app.on_start
            async def warm_up(worker: WorkerContext, cache: Cache = INJECTED) -> None:
                await cache.load()
        """
        self.surroundings.start_hooks.append(read_hook(function, local_names=sys._getframe(1).f_locals))
        return function

    def on_stop(self, function: F, /) -> F:
        """Call a function when a worker has stopped: its last job has ended and is recorded, its resources are open.

        Parameters as for `on_start`; the last one added is called first. One that fails is logged; an async one that
        takes longer than 5 seconds is cancelled. Raises `ConfigurationError`.
        """
        self.surroundings.stop_hooks.append(read_hook(function, local_names=sys._getframe(1).f_locals))
        return function

    def on_process_start(self, function: F, /) -> F:
        """Call a plain function at the start of each process in which tasks with ``process=True`` run.

        It has to stand at the top level of a module, which the process imports, and takes no arguments: it sets up
        logging, or loads what the functions share, into variables of its module. Hooks are called in the order in
        which they were added. Where one fails, the attempts of the jobs that need a process fail with its error.
        Raises `ConfigurationError`.

        Example::

            model: Model | None = None

            @app.on_process_start
            def load() -> None:
                global model
                model = Model.load("prices")
        """
        check_process_hook(function)
        self.surroundings.process_hooks.append(function)
        return function

    @overload
    def on_event(self, listener: L, /) -> L: ...
    @overload
    def on_event(self, kind: EventKind, /, *kinds: EventKind) -> Callable[[L], L]: ...
    def on_event(self, first: Any, /, *kinds: EventKind) -> Any:
        """Tell a listener of what happens in the workers of this app, of all events or of these kinds: see `EventKind`.

        A plain function is called in the worker's event loop, so it must be short. A coroutine function is awaited
        beside the jobs, its events one after the other, in order; of one that is slow up to 10,000 wait, and further
        ones are dropped, logged and counted (``worker.stats.events_dropped``). What a listener raises is logged, and
        harms nothing.
        At its end a worker waits up to 5 seconds for what its listeners still have to do. Raises `ConfigurationError`.

        Example::

            @app.on_event(EventKind.FAILED, EventKind.ERROR)
            async def tell(event: Event) -> None:
                await chat.post(f"{event.worker.name}: {event.error or event.reason}")
        """
        if isinstance(first, EventKind):
            wanted = (first, *kinds)
            return lambda listener: self._listen(listener, wanted)
        return self._listen(first, kinds)

    def _listen(self, listener: L, kinds: tuple[EventKind, ...]) -> L:
        self.surroundings.subscriptions.append(subscribe(listener, kinds))
        return listener
