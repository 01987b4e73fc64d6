"""Middleware: what an application puts around each enqueue and each run of a job."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar

from prinia.callables import how_it_runs, takes
from prinia.context import Context
from prinia.errors import ConfigurationError, InvalidArguments
from prinia.newjob import NewJob

R = TypeVar("R")


class CallNext(Protocol):
    """Runs what is further inside, down to the handler, and returns its result. For one call per attempt."""

    def __call__(self) -> Awaitable[Any]:
        """To be awaited."""
        ...


class Middleware:
    """Base of what surrounds enqueuing and running; override any of the three methods.

    The first one added is the outermost, on both sides. From outside to inside, an enqueue is: each `enqueue` is
    entered; each `prepare` sees the job, the first added first; the job is stored; each `enqueue` is left. A run is:
    each `run` up to its ``call_next()``; the arguments are decoded; the job's resources are opened; the handler; the
    resources are closed; each `run` from its ``call_next()`` on; the result is encoded and recorded.

    Example::

        class Tenant(Middleware):
            def prepare(self, job: NewJob[R]) -> NewJob[R]:
                return job.options(meta={**job.meta, "tenant": TENANT.get()})

            async def run(self, ctx: Context, call_next: CallNext) -> Any:
                TENANT.set(ctx.meta["tenant"])      # seen by the handler, in a thread too
                return await call_next()

        app.add_middleware(Tenant())
    """

    def prepare(self, job: NewJob[R]) -> NewJob[R]:
        """The job as it is to be stored: itself, or one with other options (``job.options(...)``).

        Called for each job, be it enqueued alone or one of many. What it raises, the enqueue raises, and nothing is
        stored.
        """
        return job

    def enqueue(self) -> AbstractContextManager[None]:
        """A context manager around each call that stores jobs: one, or many at once.

        It is left once they are stored, or with the error of the call, which it cannot swallow. On a caller's own
        connection they are stored, and not committed yet.
        """
        return nullcontext()

    async def run(self, ctx: Context, call_next: CallNext) -> Any:
        """Around each attempt of each handler: ``return await call_next()`` runs it and gives its result.

        What it returns is the job's result, what it raises is the attempt's error: it may do all that a handler may,
        `Retry`, `Snooze`, `Fail` and `Cancel` included, and not call ``call_next`` at all. A second ``call_next()``
        raises `RuntimeError`: a handler runs once per attempt. The job's time limit covers all of it.
        """
        return await call_next()


def check_middleware(one: object) -> Middleware:
    """What ``add_middleware`` was given. Raises `ConfigurationError` with what to change."""
    if inspect.isclass(one) and issubclass(one, Middleware):
        raise ConfigurationError(f"middleware is an object: write {one.__name__}(), not {one.__name__}")
    if not isinstance(one, Middleware):
        raise ConfigurationError(f"middleware must be of a class derived from prinia.Middleware, not {ascii(one)[:80]}")
    for name, count, form in _FORMS:
        method, shown = getattr(one, name), f"{type(one).__qualname__}.{name}"
        if not takes(method, count):
            raise ConfigurationError(f"{shown} cannot be called as it will be; write {form}")
        if name == "run":
            if how_it_runs(method) != "a coroutine":
                raise ConfigurationError(f"{shown} must be a coroutine function; write {form}")
        elif gives := how_it_runs(method):
            raise ConfigurationError(f"{shown} gives {gives}, and blocking enqueues cannot await; write {form}")
        elif name == "enqueue" and inspect.isasyncgenfunction(inspect.unwrap(method)):
            raise ConfigurationError(f"{shown} is an async context manager; write {form}")
    return one


_FORMS = (
    ("prepare", 1, "def prepare(self, job): return job.options(...)"),
    ("enqueue", 0, "def enqueue(self), decorated with @contextlib.contextmanager when it yields"),
    ("run", 2, "async def run(self, ctx, call_next): return await call_next()"),
)


def wraps_runs(one: Middleware) -> bool:
    """Whether it does something around runs: where nobody does, a run costs nothing more."""
    return type(one).run is not Middleware.run


class Enqueuing:
    """The enqueuing side of an app's middleware: a live view, for it may be added later."""

    def __init__(self, middleware: Sequence[Middleware] = ()) -> None:
        self._middleware = middleware

    def around(self) -> AbstractContextManager[Any]:
        """What surrounds one call that stores."""
        return _Around(self._middleware) if self._middleware else _NOTHING

    def prepare(self, job: NewJob[R]) -> NewJob[R]:
        """The job as it is to be stored."""
        for one in self._middleware:
            job = one.prepare(job)
            if not isinstance(job, NewJob):
                raise InvalidArguments(
                    f"{type(one).__qualname__}.prepare returned {ascii(job)[:80]}: it must return the job, or "
                    f"job.options(...)"
                )
        return job


class _Around:
    """Enters each ``enqueue()``, and leaves them in reverse order."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = middleware
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for one in self._middleware:
                around = one.enqueue()
                if not isinstance(around, AbstractContextManager):
                    raise InvalidArguments(
                        f"{type(one).__qualname__}.enqueue returned {ascii(around)[:80]}: it must return a context "
                        f"manager; decorate it with @contextlib.contextmanager, and let it yield"
                    )
                around.__enter__()
                stack.push(partial(_leave, around))
            self._stack = stack.pop_all()

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def _leave(around: AbstractContextManager[Any], *error: Any) -> None:
    """Its answer is not passed on: a call that stored nothing must not look as if it had, to those further out too."""
    around.__exit__(*error)


_NOTHING = nullcontext()
