"""A bounded set of daemon threads for synchronous handlers.

Not a ``ThreadPoolExecutor``: the interpreter waits for its threads at exit, so that one handler that never ends
would keep a stopped worker from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """Up to ``size`` threads, made when first needed and kept until `close`.

    Example::

        threads = Threads(10)
        result = await threads.call(handler)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._busy = 0
        self._made = 0
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        #: Called in the caller's event loop each time a thread has become free.
        self.freed: Callable[[], None] = _nobody_waits

    @property
    def free(self) -> int:
        """How many calls can start at once. A thread that its caller has given up on is not free."""
        return self.size - self._busy

    def reserve(self) -> Slot:
        """Keep a thread for a call that comes later."""
        with self._lock:
            self._busy += 1
        return Slot(self)

    def release(self) -> None:
        """Give back what was reserved and not used."""
        with self._lock:
            self._busy -= 1
        self.freed()

    def call(self, function: Callable[[], T], *, reserved: bool = False) -> asyncio.Future[T]:
        """Run it in a thread, in the one that was ``reserved`` if so. The function must not raise."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            result = function()
            with self._lock:
                self._busy -= 1
            try:
                loop.call_soon_threadsafe(self._deliver, future, result)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
                return

        with self._lock:
            if not reserved:
                self._busy += 1
            if self._busy > self._made and self._made < self.size:
                self._made += 1
                threading.Thread(target=self._loop, name=f"prinia-handler-{self._made}", daemon=True).start()
        self._calls.put(work)
        return future

    def close(self) -> None:
        """Let the threads end once they are free."""
        with self._lock:
            made, self._made = self._made, 0
        for _ in range(made):
            self._calls.put(None)

    def _loop(self) -> None:
        while (work := self._calls.get()) is not None:
            work()

    def _deliver(self, future: asyncio.Future[T], result: T) -> None:
        if not future.done():
            future.set_result(result)
        self.freed()


class Slot:
    """A thread reserved for one call. ``busy`` while it runs: nobody can end it then.

    Once it is ``given_up`` nobody waits for it any more.
    """

    __slots__ = ("_threads", "_used", "busy", "given_up")

    def __init__(self, threads: Threads) -> None:
        """Made by `Threads.reserve`."""
        self._threads = threads
        self._used = False
        self.busy = False
        self.given_up = False

    async def call(self, function: Callable[[], T]) -> T:
        """Run it in the thread, in a copy of the context variables here; it returns or raises what the function does.

        For one call. A cancellation meanwhile is raised once the function has ended: what stands around it (a time
        limit in middleware, say) cannot end it, and must not let its job run beside itself.
        """
        variables = copy_context()
        self._used = self.busy = True
        called = self._threads.call(lambda: variables.run(_caught, function), reserved=True)
        cancelled: asyncio.CancelledError | None = None
        while not called.done():
            try:
                await asyncio.wait([called])
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
                if self.given_up:
                    raise
        self.busy = False
        if cancelled is not None:
            raise cancelled
        value, error = called.result()
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def release(self) -> None:
        """Let others have the thread if it was not used."""
        if not self._used:
            self._used = True
            self._threads.release()


def _caught(function: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # raised again in the event loop
        return None, error


def _nobody_waits() -> None:
    """Before the first caller wants to know."""
