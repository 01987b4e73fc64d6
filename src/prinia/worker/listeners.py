"""Telling listeners: what one raises harms no job, no worker and no other listener; a plain one must be short.

A plain function is called at once, in the event loop. A coroutine function has a task and a queue of its own, so that
its calls come one after the other and in order, and one that hangs holds up nobody else. A full queue drops what comes,
which is counted and logged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context as ContextVars
from typing import Any

from prinia.callables import how_it_runs
from prinia.worker.ledger import Counts

log = logging.getLogger("prinia.worker")

#: How many calls may wait for one coroutine function.
LONGEST_QUEUE = 10_000
#: A listener's trouble is logged once in so many seconds for each thing it is told of.
WARN_AGAIN = 60.0
#: Seconds, at the end of a worker, for coroutine functions to work off their queues, and then to end when cancelled.
FAREWELL = 5.0
GRACE = 1.0


class Ear:
    """One function that is told things. Used from the event loop's thread."""

    def __init__(self, function: Callable[..., object], counts: Counts, variables: ContextVars) -> None:
        self._function = function
        self._counts = counts
        self._variables = variables
        is_async = how_it_runs(function) == "a coroutine"
        self._queue: deque[tuple[str, tuple[Any, ...]]] | None = deque() if is_async else None
        self._filled = asyncio.Event()
        self._closing = False
        self._given_up = False
        self._task: asyncio.Task[None] | None = None
        self._logged_at: dict[str, float] = {}

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that works off the queue, if one was needed."""
        return self._task

    def tell(self, what: str, *arguments: Any) -> None:
        """Call it with these, now or in its turn. ``what`` it is told of is for the log."""
        if self._closing:
            return
        if self._queue is None:
            self._call(what, arguments)
        elif len(self._queue) >= LONGEST_QUEUE:
            self._counts["events_dropped"] += 1
            self._complain(what, "is so slow that %d events wait for it: more are dropped", LONGEST_QUEUE)
        else:
            self._queue.append((what, arguments))
            self._filled.set()
            if self._task is None:
                loop = asyncio.get_running_loop()
                self._task = loop.create_task(self._work_off(self._queue), context=self._variables.copy())

    def close(self) -> None:
        """It is told nothing more; its task ends once its queue is worked off."""
        self._closing = True
        self._filled.set()

    def give_up(self) -> None:
        """Cancel what it does. Its queue counts as dropped."""
        self._given_up = True
        if self._queue and self._task is not None:
            self._counts["events_dropped"] += len(self._queue)
        log.warning("listener %s did not end in time and is cancelled", _name(self._function))
        if self._task is not None:
            self._task.cancel()

    def _call(self, what: str, arguments: tuple[Any, ...]) -> None:
        try:
            # In a copy of the worker's context: this may be called from within a job, whose variables are its own.
            result = self._variables.copy().run(self._function, *arguments)
        except BaseException as error:  # down to SystemExit: a listener harms nothing
            self._complain(what, "raised", error=error)
            return
        if inspect.iscoroutine(result):
            result.close()
            self._complain(what, "gave a coroutine and was not recognised: make it an 'async def'")

    async def _work_off(self, queue: deque[tuple[str, tuple[Any, ...]]]) -> None:
        task = asyncio.current_task()
        while not self._given_up and (queue or not self._closing):
            if not queue:
                self._filled.clear()
                await self._filled.wait()  # a cancellation here is the end of the event loop
                continue
            what, arguments = queue.popleft()
            try:
                await self._function(*arguments)  # type: ignore[misc]
                if task is not None and task.cancelling():
                    task.uncancel()
                    await asyncio.sleep(0)  # where a cancellation of its own task strikes
            except BaseException as error:  # down to SystemExit, and to cancelling its own task
                if not self._given_up:
                    self._complain(what, "raised", error=error)

    def _complain(self, what: str, trouble: str, *details: object, error: BaseException | None = None) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(what, -WARN_AGAIN) >= WARN_AGAIN:
            self._logged_at[what] = now
            log.error(f"listener %s, told of %s, {trouble}", _name(self._function), what, *details, exc_info=error)


class Ears:
    """The functions of one worker, each with one `Ear`."""

    def __init__(self, counts: Counts, variables: ContextVars) -> None:
        self._counts = counts
        self._variables = variables
        self._ears: list[tuple[Callable[..., object], Ear]] = []

    def of(self, function: Callable[..., object]) -> Ear:
        """Its ear, made when first asked for: a function that is given twice is told in one order."""
        for known, ear in self._ears:
            if known == function:
                return ear
        ear = Ear(function, self._counts, self._variables)
        self._ears.append((function, ear))
        return ear

    async def close(self) -> None:
        """Wait until all queues are worked off, for a bounded time, then cancel what still goes on."""
        for _, ear in self._ears:
            ear.close()
        await _ended((ear for _, ear in self._ears), FAREWELL)
        late = [ear for _, ear in self._ears if ear.task is not None and not ear.task.done()]
        for ear in late:
            ear.give_up()
        await _ended(late, GRACE)


async def _ended(ears: Iterable[Ear], seconds: float) -> None:
    tasks = [ear.task for ear in ears if ear.task is not None]
    if tasks:
        await asyncio.wait(tasks, timeout=seconds)


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
