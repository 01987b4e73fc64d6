"""Opening what tasks want injected, closing it again, and calling the start and stop hooks of a worker.

Each resource of scope app or worker is held in an asyncio task of its own: what is opened in a task has to be closed
in the same one when there is a task group or a cancel scope in it. Those of scope job live in the job's own.

A factory may raise whatever there is: it comes out as a `ResourceError` that names it. What a job's resource makes of
its handler's error is no such trouble: it is what the attempt failed of.

A resource that stands while a worker runs may die meanwhile, of a task group in it, say: who uses it is told at once.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
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
        # It may put another error in its place, and not swallow it: a failed attempt must not look as if it had worked.
        with _answering(provider):
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
        with _answering(provider):
            await manager.__aexit__(type(error), error, error.__traceback__)
        raise
    with _named(provider, "closed"):
        await manager.__aexit__(None, None, None)


def _answering(provider: Provider) -> AbstractContextManager[None]:
    """Around what a resource does with an error at its ``yield``: a job's has its handler's, a wider one its own."""
    return nullcontext() if provider.scope == "job" else _named(provider, "kept open")


@contextmanager
def _named(provider: Provider, done: str) -> Iterator[None]:
    """Says which resource it was."""
    try:
        yield
    except BaseException as error:  # whatever a factory raises hurts what wanted it, and no more
        steers = provider.scope == "job" and isinstance(error, Steering)
        if steers or (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
            raise
        raise ResourceError(f"{_shown(provider)} could not be {done}: {_told(error)}") from error


def _shown(provider: Provider) -> str:
    return f"{provider.name}, a resource of scope {provider.scope},"


def _told(error: BaseException) -> str:
    """With the first of a group: a task group's own words do not say what has happened."""
    told = f"{kind_of(error)}: {message_of(error)}"
    return f"{told}: {_told(error.exceptions[0])}" if isinstance(error, BaseExceptionGroup) else told


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
        self.watch(lambda death: log.error("%s", death, exc_info=death))

    async def opened(self) -> Any:
        """What it provides, once it is open. Raises `ResourceError`."""
        await first(self._opened, self._task)
        if not self._opened.done():
            self._task.result()
        return self._opened.result()

    @property
    def failed(self) -> bool:
        """Whether it has not opened, and will not."""
        return self._task.done() and not self._opened.done()

    @property
    def death(self) -> ResourceError | None:
        """Why it ended before it was to be closed, if it did; an error for each that asks."""
        if not self._task.done() or not self._opened.done() or self._leave.is_set():
            return None
        error = _error_of(self._task)
        said = f"{_shown(self._provider)} could not be kept open: its asyncio task was cancelled"
        death = ResourceError(said if error is None else str(error))
        death.__cause__ = error and error.__cause__
        return death

    def watch(self, died: Callable[[ResourceError], None]) -> None:
        """Call this once it is dead."""

        def look(task: asyncio.Task[None]) -> None:
            if death := self.death:
                died(death)

        self._task.add_done_callback(look)

    async def close(self, hurry: asyncio.Event) -> None:
        """Close it, or give up its opening; what goes wrong is logged, as its death was."""
        if self.death is not None:
            return
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
    """The resources of scope app in one event loop: the first worker that wants one opens it, the last closes it."""

    def __init__(self) -> None:
        self._users: Counter[Provider] = Counter()
        #: Held while something is closed: nobody may want it meanwhile, nor close what it stands on.
        self._closing = asyncio.Lock()
        self._kept: dict[Provider, _Kept] = {}
        self._values: dict[Any, Any] = {}

    async def enter(self, providers: Sequence[Provider]) -> dict[Provider, _Kept]:
        """Open what is not open yet, or wait until others have. Raises `ResourceError`.

        Counts as a use in any case, which needs its `leave`.
        """
        self._users.update(providers)
        for provider in providers:
            async with self._closing:
                kept = self._kept.get(provider)
                if kept is None or kept.failed:
                    # Its context variables are its own: workers that come later would not see them.
                    kept = self._kept[provider] = _Kept(provider, self._values, copy_context())
            self._values[provider.type] = await kept.opened()
            if death := kept.death:
                raise ResourceError(f"{death}; it is opened anew once the workers that used it have stopped") from death
        return {provider: self._kept[provider] for provider in providers}

    async def leave(self, providers: Sequence[Provider], hurry: asyncio.Event) -> bool:
        """Close, last things first, what nobody uses any more; whether nothing is used any more."""
        self._users.subtract(providers)
        if not all(self._users[provider] for provider in providers):
            async with self._closing:
                for provider in reversed(providers):
                    if not self._users[provider] and (kept := self._kept.get(provider)):
                        await kept.close(hurry)
                        del self._kept[provider]
                        self._values.pop(provider.type, None)
        return not self._users.total()


class Opened:
    """What stands around the jobs of a running worker: its resources, and its hooks called in their time.

    Example::

        opened = Opened(plan, shared, variables, died)
        try:
            await opened.open(worker)
            ...
        finally:
            await opened.close(hurry)
    """

    def __init__(
        self,
        plan: Plan,
        shared: MutableMapping[Any, Any],
        variables: ContextVars,
        died: Callable[[ResourceError], None],
    ) -> None:
        """``shared`` has what workers of the app hold open together. ``variables`` are those that jobs start with:
        worker resources and hooks may set them. ``died`` hears of each resource that ends before it is to be closed.
        """
        self._plan = plan
        self._shared = shared
        self._variables = variables
        self._died = died
        self._app: _Shared | None = None
        self._kept: list[_Kept] = []
        self._hooked = False
        #: What the app's resources come to is none of this worker's business any more.
        self._left = False
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
            for provider, kept in (await app.enter(self._plan.app)).items():
                self.values[provider.type] = await kept.opened()
                kept.watch(self._hear_of_death)
        for provider in self._plan.worker:
            kept = _Kept(provider, self.values, self._variables)
            self._kept.append(kept)
            self.values[provider.type] = await kept.opened()
            kept.watch(self._hear_of_death)
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
        self._left = True
        if self._app is not None and await self._app.leave(self._plan.app, hurry):
            self._shared.pop(asyncio.get_running_loop(), None)
        self.values.clear()
        self.ready = False

    def _hear_of_death(self, error: ResourceError) -> None:
        if not self._left:
            self._died(error)

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
