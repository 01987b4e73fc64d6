"""Opening what tasks want injected, closing it again, and calling the start and stop hooks of a worker.

Each resource of scope app or worker is held in an asyncio task of its own: what is opened in a task has to be closed
in the same one when there is a task group or a cancel scope in it. Those of scope job live in the job's own.

A factory may raise whatever there is: it comes out as a `ResourceError` that names it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import Context as ContextVars
from contextvars import copy_context
from typing import Any

from prinia.context import WorkerContext
from prinia.errors import HookError, ResourceError
from prinia.outcome import Steering
from prinia.resources import Hook, Plan, Provider, Shape
from prinia.worker.failure import kind_of, message_of
from prinia.worker.waiting import first, give_up

log = logging.getLogger("prinia.worker")

#: Seconds that each resource has to close and each stop hook to end; in a hurry it is `GRACE`.
CLOSING = 5.0
#: Seconds to heed a cancellation.
GRACE = 1.0

#: Resources by their types.
Values = Mapping[Any, Any]


def pick(needs: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """The arguments that a factory, a hook or a handler gets for its injected parameters."""
    return {name: values[kind] for name, kind in needs.items()}


async def open_in_loop(stack: AsyncExitStack, provider: Provider, values: Values) -> Any:
    """Open a resource, to be closed with the stack. Raises `ResourceError`, and what steers a job as it is."""
    arguments = pick(provider.needs, values)
    if provider.shape is Shape.ASYNC_GENERATOR:
        return await stack.enter_async_context(_held_in_loop(provider, arguments))
    if provider.shape is Shape.COROUTINE:
        with _named(provider, "opened"):
            return await provider.factory(**arguments)
    return open_here(stack, provider, values)


def open_here(stack: ExitStack | AsyncExitStack, provider: Provider, values: Values) -> Any:
    """`open_in_loop` for a plain resource, in any thread."""
    arguments = pick(provider.needs, values)
    if provider.shape is Shape.GENERATOR:
        return stack.enter_context(_held(provider, arguments))
    with _named(provider, "opened"):
        return provider.factory(**arguments)


@contextmanager
def _held(provider: Provider, arguments: Mapping[str, Any]) -> Iterator[Any]:
    manager = contextmanager(provider.factory)(**arguments)
    with _named(provider, "opened"):
        value = manager.__enter__()
    try:
        yield value
    except BaseException as error:
        # Its answer does not count: a resource must not make a failed attempt look as if it had worked.
        with _named(provider, "closed"):
            manager.__exit__(type(error), error, error.__traceback__)
        raise
    with _named(provider, "closed"):
        manager.__exit__(None, None, None)


@asynccontextmanager
async def _held_in_loop(provider: Provider, arguments: Mapping[str, Any]) -> AsyncIterator[Any]:
    manager = asynccontextmanager(provider.factory)(**arguments)
    with _named(provider, "opened"):
        value = await manager.__aenter__()
    try:
        yield value
    except BaseException as error:
        with _named(provider, "closed"):
            await manager.__aexit__(type(error), error, error.__traceback__)
        raise
    with _named(provider, "closed"):
        await manager.__aexit__(None, None, None)


@contextmanager
def _named(provider: Provider, done: str) -> Iterator[None]:
    """Says which resource it was."""
    try:
        yield
    except BaseException as error:  # whatever a factory raises hurts what wanted it, and no more
        steers = provider.scope == "job" and isinstance(error, Steering)
        if steers or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
            raise
        raise ResourceError(
            f"{provider.name}, a resource of scope {provider.scope}, could not be {done}: "
            f"{kind_of(error)}: {message_of(error)}"
        ) from error


def _is_cancelled() -> bool:
    """Whether the asyncio task here was cancelled from outside; a factory may raise CancelledError by itself."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a handler's thread
        return False
    return task is not None and task.cancelling() > 0


class _Kept:
    """One resource that stands while a worker runs, in a task of its own."""

    def __init__(self, provider: Provider, values: Values, variables: ContextVars) -> None:
        loop = asyncio.get_running_loop()
        self._provider = provider
        self._opened: asyncio.Future[Any] = loop.create_future()
        self._leave = asyncio.Event()
        self._task = loop.create_task(self._keep(values), context=variables)

    async def opened(self) -> Any:
        """What it provides, once it is open. Raises `ResourceError`."""
        await first(self._opened, self._task)
        if not self._opened.done():
            self._task.result()
        return self._opened.result()

    async def close(self, hurry: asyncio.Event) -> None:
        """Close it, or give up its opening; what goes wrong is logged."""
        if not self._opened.done():
            self._task.cancel()
        self._leave.set()
        await _end(self._task, hurry)
        error = _error_of(self._task)
        if not self._opened.done():
            return
        if error is not None:
            log.error("%s", error, exc_info=error)
        elif not self._task.done() or self._task.cancelled():
            log.error("%s took too long to close and was cancelled", self._provider.name)

    async def _keep(self, values: Values) -> None:
        async with AsyncExitStack() as stack:
            self._opened.set_result(await open_in_loop(stack, self._provider, values))
            await self._leave.wait()


class _Shared:
    """The resources of scope app in one event loop: the first user opens them, the last one closes them."""

    def __init__(self) -> None:
        self._users = 0
        self._busy = asyncio.Lock()
        self._kept: dict[Provider, _Kept] = {}
        self._values: dict[Any, Any] = {}

    async def enter(self, providers: Sequence[Provider]) -> Values:
        """Open what is not open yet. Raises `ResourceError`. Counts as a use in any case, which needs its `leave`."""
        self._users += 1
        async with self._busy:
            for provider in providers:
                if provider not in self._kept:
                    # Its context variables are its own: workers that come later would not see them.
                    kept = _Kept(provider, self._values, copy_context())
                    try:
                        self._values[provider.type] = await kept.opened()
                    except BaseException:
                        await kept.close(asyncio.Event())
                        raise
                    self._kept[provider] = kept
        return self._values

    async def leave(self, hurry: asyncio.Event) -> bool:
        """Close everything when nobody else uses it; whether it is so."""
        self._users -= 1
        if self._users:
            return False
        async with self._busy:
            while self._kept and not self._users:
                provider, kept = self._kept.popitem()
                del self._values[provider.type]
                await kept.close(hurry)
        return not self._users


class Opened:
    """What stands around the jobs of a running worker: its resources, and its hooks called in their time.

    Example::

        opened = Opened(plan, shared, variables)
        try:
            await opened.open(worker)
            ...
        finally:
            await opened.close(hurry)
    """

    def __init__(self, plan: Plan, shared: MutableMapping[Any, Any], variables: ContextVars) -> None:
        """``shared`` has what workers of the app hold open together. ``variables`` are those that jobs start with:
        worker resources and hooks may set them.
        """
        self._plan = plan
        self._shared = shared
        self._variables = variables
        self._app: _Shared | None = None
        self._kept: list[_Kept] = []
        self._hooked = False
        #: Resources of scope app and worker by type. It is filled when they open, and read by every job.
        self.values: dict[Any, Any] = {}
        #: Whether all is open, and every start hook has ended.
        self.ready = False

    async def open(self, worker: WorkerContext) -> None:
        """Open what is needed, widest first, then call the start hooks. Raises `ResourceError` and `HookError`.

        `close` is needed in any case.
        """
        self.values[WorkerContext] = worker
        if self._plan.app:
            self._app = app = self._shared.setdefault(asyncio.get_running_loop(), _Shared())
            values = await app.enter(self._plan.app)
            self.values.update((one.type, values[one.type]) for one in self._plan.app)
        for provider in self._plan.worker:
            kept = _Kept(provider, self.values, self._variables)
            self._kept.append(kept)
            self.values[provider.type] = await kept.opened()
        self._hooked = True
        for hook in self._plan.start_hooks:
            error = await self._calling(hook)
            if error is not None:
                raise HookError(
                    f"start hook {hook.name} failed, so worker {worker.name} does not start: "
                    f"{kind_of(error)}: {message_of(error)}"
                ) from error
        self.ready = True

    async def close(self, hurry: asyncio.Event) -> None:
        """Call the stop hooks if a start hook may have been called, then close what is open. Raises nothing.

        Each has `CLOSING` seconds, and `GRACE` once ``hurry`` is set.
        """
        if self._hooked:
            for hook in reversed(self._plan.stop_hooks):
                await self._stop(hook, hurry)
        while self._kept:
            await self._kept.pop().close(hurry)
        if self._app is not None and await self._app.leave(hurry):
            self._shared.pop(asyncio.get_running_loop(), None)
        self.values.clear()
        self.ready = False

    async def _stop(self, hook: Hook, hurry: asyncio.Event) -> None:
        calling = self._calling(hook)
        await _end(calling, hurry)
        if not calling.done() or calling.cancelled():
            log.error("stop hook %s took too long and was cancelled", hook.name)
        elif (error := calling.result()) is not None:
            log.error("stop hook %s failed: %s: %s", hook.name, kind_of(error), message_of(error), exc_info=error)

    def _calling(self, hook: Hook) -> asyncio.Task[BaseException | None]:
        return asyncio.get_running_loop().create_task(self._call(hook), context=self._variables)

    async def _call(self, hook: Hook) -> BaseException | None:
        worker = (self.values[WorkerContext],) if hook.takes_worker else ()
        try:
            answer = hook.function(*worker, **pick(hook.needs, self.values))
            if inspect.isawaitable(answer):
                await answer
        except BaseException as error:  # asyncio would stop the whole loop for some
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            return error
        return None


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


async def _end(task: asyncio.Task[Any], hurry: asyncio.Event) -> None:
    """Wait for it as long as it may take, then cancel it."""
    await first(task, hurry.wait(), seconds=CLOSING)
    if not task.done() and hurry.is_set():
        await first(task, seconds=GRACE)
    await give_up(task, grace=GRACE)
