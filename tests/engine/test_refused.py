"""What stands around jobs is checked where it is written: middleware, hooks, listeners."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from prinia import (
    INJECTED,
    CallNext,
    ConfigurationError,
    Context,
    Event,
    EventKind,
    InvalidArguments,
    Middleware,
    Prinia,
    WorkerContext,
)
from prinia.storage.memory import MemoryStorage
from tests.engine.layers import OnlyEnqueue
from tests.engine.things import Pool


@pytest.fixture
def app() -> Prinia:
    return Prinia(storage=MemoryStorage())


class PlainRun(Middleware):
    def run(self, ctx: Context, call_next: CallNext) -> Any:
        return call_next()


class RunOfOne(Middleware):
    async def run(self, ctx: Context) -> None: ...  # type: ignore[override]


class RunByName(Middleware):
    async def run(self, *, ctx: Context, call_next: CallNext) -> None: ...  # type: ignore[override]


class AsyncPrepare(Middleware):
    async def prepare(self, job: Any) -> Any:  # type: ignore[override]
        return job


class PrepareOfNone(Middleware):
    def prepare(self) -> Any:  # type: ignore[override]
        return None


class YieldingPrepare(Middleware):
    def prepare(self, job: Any) -> Any:
        yield job


class AsyncEnqueue(Middleware):
    async def enqueue(self) -> None: ...  # type: ignore[override]


class YieldingEnqueue(Middleware):
    def enqueue(self) -> Iterator[None]:  # type: ignore[override]
        yield


class AsyncAround(Middleware):
    @contextlib.asynccontextmanager
    async def enqueue(self) -> AsyncIterator[None]:  # type: ignore[override]
        yield


class EnqueueOfOne(Middleware):
    @contextlib.contextmanager
    def enqueue(self, job: Any) -> Iterator[None]:  # type: ignore[override]
        yield


class NoMethod(Middleware):
    prepare = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (OnlyEnqueue, r"write OnlyEnqueue\(\), not OnlyEnqueue"),
        (print, r"derived from prinia.Middleware"),
        (PlainRun(), r"PlainRun.run must be a coroutine function; write async def run\(self, ctx, call_next\)"),
        (RunOfOne(), r"RunOfOne.run cannot be called as it will be; write async def run\(self, ctx, call_next\)"),
        (RunByName(), r"RunByName.run cannot be called as it will be"),
        (AsyncPrepare(), r"AsyncPrepare.prepare gives a coroutine, and blocking .*; write def prepare\(self, job\)"),
        (PrepareOfNone(), r"PrepareOfNone.prepare cannot be called as it will be; write def prepare\(self, job\)"),
        (YieldingPrepare(), r"YieldingPrepare.prepare gives a generator"),
        (AsyncEnqueue(), r"AsyncEnqueue.enqueue gives a coroutine, .*; write def enqueue\(self\)"),
        (YieldingEnqueue(), r"YieldingEnqueue.enqueue gives a generator, .* @contextlib.contextmanager"),
        (AsyncAround(), r"AsyncAround.enqueue is an async context manager; write def enqueue\(self\)"),
        (EnqueueOfOne(), r"EnqueueOfOne.enqueue cannot be called as it will be"),
        (NoMethod(), r"NoMethod.prepare cannot be called as it will be"),
    ],
    ids=lambda value: getattr(type(value), "__name__", "") if isinstance(value, Middleware) else "",
)
def test_middleware(app: Prinia, one: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        app.add_middleware(one)
    with pytest.raises(ConfigurationError, match=said):
        Prinia(middleware=[one])
    assert app.surroundings.middleware == []


def test_middleware_of_another_form_is_taken(app: Prinia) -> None:
    class Wide(Middleware):
        def prepare(self, *jobs: Any, **more: Any) -> Any:
            return jobs[0]

        @contextlib.contextmanager
        def enqueue(self, extra: int = 0) -> Iterator[None]:
            yield

        async def run(self, ctx: Context, call_next: CallNext, *rest: Any) -> Any:
            return await call_next()

    app.add_middleware(Wide())
    assert len(app.surroundings.middleware) == 1


@pytest.mark.parametrize("given", [None, AsyncAround().enqueue()])
def test_an_enqueue_that_gives_no_context_manager(app: Prinia, given: Any) -> None:
    class Gives(Middleware):
        def enqueue(self) -> AbstractContextManager[None]:
            return given  # type: ignore[no-any-return]

    app.add_middleware(Gives())

    @app.task(name="work")
    def work() -> None: ...

    with pytest.raises(InvalidArguments, match=r"Gives.enqueue returned .*: it must return a context manager; decor"):
        work.enqueue()


class Cache(Pool): ...


async def yields() -> AsyncIterator[None]:
    yield


def second(worker: WorkerContext, cache: Cache) -> None: ...


def forgotten(cache: Cache) -> None: ...


def by_name(*, worker: WorkerContext) -> None: ...


def by_position(worker: WorkerContext, cache: Cache, /) -> None: ...


def untyped(worker: WorkerContext, cache=INJECTED) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (yields, r"yields: what is opened at the start and closed at the end is a resource"),
        (second, r"nobody would give it cache; write cache: Cache = INJECTED"),
        (forgotten, r"its first parameter gets the WorkerContext, .*; for a resource write cache: Cache = INJECTED"),
        (by_name, r"nobody would give it worker; write worker: WorkerContext = INJECTED"),
        (by_position, r"nobody would give it cache; write cache: Cache = INJECTED"),
        (untyped, r"nobody would give it cache; write cache: Database = INJECTED"),
        ("start", r"a hook is a function or a coroutine function, not 'start'"),
    ],
)
def test_hooks(app: Prinia, hook: Any, said: str) -> None:
    for register in (app.on_start, app.on_stop):
        with pytest.raises(ConfigurationError, match=said):
            register(hook)
    assert app.surroundings.start_hooks == app.surroundings.stop_hooks == []


async def test_hooks_of_another_form_are_called(app: Prinia) -> None:
    calls: list[object] = []

    @app.on_start
    def anything(*args: object, **kwargs: object) -> None:
        calls.append((args[0].name, kwargs))  # type: ignore[attr-defined]

    @app.on_start
    def by_name(*, worker: WorkerContext = INJECTED, **kwargs: object) -> None:
        calls.append((worker.name, kwargs))

    @app.on_start
    def nothing(**kwargs: object) -> None:
        calls.append(kwargs)

    @app.on_start
    def untyped(worker: Any, /, more: int = 3) -> None:
        calls.append((worker.name, more))

    @app.task(name="work")
    def work() -> None: ...

    async with app.worker(name="w"):
        pass
    assert calls == [("w", {}), ("w", {}), {}, ("w", 3)]


def test_a_factory_whose_parameter_nobody_would_give(app: Prinia) -> None:
    def cache(pool: Pool, /) -> Cache:
        return Cache()

    with pytest.raises(ConfigurationError, match=r"nobody would give it pool; write pool: Pool = INJECTED"):
        app.provide(cache)


def none() -> None: ...


def two(event: Event, more: int) -> None: ...


def named(*, event: Event) -> None: ...


def generator(event: Event) -> Iterator[None]:
    yield


async def async_generator(event: Event) -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        *((wrong, "must be a function or a coroutine function of one event") for wrong in (3, None, "failed")),
        *((wrong, "must be a function or a coroutine function of one event") for wrong in (none, two, named)),
        *((wrong, "yields, so that nothing would run it") for wrong in (generator, async_generator)),
    ],
)
def test_listeners(app: Prinia, listener: Any, said: str) -> None:
    @app.task(name="t")
    async def t() -> None: ...

    registers: list[Callable[[Any], object]] = [
        app.on_event,
        app.on_event(EventKind.FAILED),
        lambda listener: app.worker(on_event=listener),
    ]
    for register in registers:
        if listener is not None or register is not registers[2]:
            with pytest.raises(ConfigurationError, match=said):
                register(listener)
    assert app.surroundings.subscriptions == []


def test_kinds_of_events(app: Prinia) -> None:
    with pytest.raises(ConfigurationError, match=r"'failed' is no kind of event; there are: EventKind.STARTED"):
        app.on_event(EventKind.STARTED, "failed")(print)  # type: ignore[call-overload]
