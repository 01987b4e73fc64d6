"""A bounded set of daemon threads for synchronous handlers.

Not a ``ThreadPoolExecutor``: the interpreter waits for its threads at exit, so that one handler that never ends
would keep a stopped worker from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
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

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run it in a thread. The function must not raise."""
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


def _nobody_waits() -> None:
    """Before the first caller wants to know."""
