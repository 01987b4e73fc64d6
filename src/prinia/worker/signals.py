"""A worker in a process of its own: signals in, exit code out.

Exit codes:

- `EXIT_CLEAN` (0): stopped, at the first signal or the second; every claimed job was recorded or handed back.
- `EXIT_LEFT_BEHIND` (3): stopped, but outcomes could not be recorded in time or handlers ignored their cancellation;
  the jobs concerned run again.
- 128 + the signal's number: a third signal ended it at once, as it does while a handler blocks the event loop.
  Nothing was handed back; the jobs are rescued by other workers.

A signal that comes when the worker has ended by itself changes none of this, if the program says that it ends too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from prinia.worker.worker import Worker

log = logging.getLogger("prinia.worker")

EXIT_CLEAN = 0
EXIT_LEFT_BEHIND = 3

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stops(Protocol):
    """A worker, or what runs several."""

    def stop(self) -> None:
        """Stop in order; called a second time: now."""
        ...


class SignalCounter:
    """Turns the first signal into a stop, the second into a stop now, the third into an exit at once.

    Real signal handlers, not ``loop.add_signal_handler``: those wait for the event loop, and a handler that blocks
    it would make the process deaf to signals.
    """

    def __init__(self, worker: Stops, loop: asyncio.AbstractEventLoop, exit: Callable[[int], object]) -> None:
        self._worker = worker
        self._loop = loop
        self._exit = exit
        self._count = 0

    def received(self, number: int, frame: FrameType | None = None) -> None:
        """One more signal."""
        self._count += 1
        if self._count > 2:
            self._exit(128 + number)
            return
        self._loop.call_soon_threadsafe(self._stop, signal.Signals(number).name, self._count)

    def _stop(self, name: str, count: int) -> None:
        if count == 1:
            log.info("%s: stopping; once more to stop now", name)
        else:
            log.info("%s again: stopping now", name)
        self._worker.stop()


@contextmanager
def stopped_by_signals(
    worker: Stops, *, last: bool = False, exit: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """SIGTERM and SIGINT stop the worker meanwhile, as `SignalCounter` does; in the main thread only.

    ``last``: after a normal end they are ignored, else treated as before again.
    """
    counter = SignalCounter(worker, asyncio.get_running_loop(), exit)
    before = {number: signal.signal(number, counter.received) for number in SIGNALS}
    ended = False
    try:
        yield
        ended = True
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if last and ended else handler)


async def run_with_signals(
    worker: Worker, *, last: bool = False, stops: Stops | None = None, exit: Callable[[int], object] = os._exit
) -> int:
    """Run the worker until SIGTERM or SIGINT; returns the exit code. Call it in the main thread.

    ``stops`` is told of signals in its place.

    Where handlers ignored their cancellation the process ends here, by ``exit``: asyncio would wait for them.

    ``last`` says that the program does nothing else: signals that come once the worker has ended, while the interpreter
    winds up, are ignored then, and the exit code is this one. Else signals are treated as before again.

    Raises what `Worker.run` raises.

    Example::

        sys.exit(asyncio.run(run_with_signals(app.worker(), last=True)))
    """
    stats = worker.stats
    try:
        with stopped_by_signals(worker if stops is None else stops, last=last, exit=exit):
            await worker.run()
    finally:
        if worker.stats.abandoned > stats.abandoned:
            logging.shutdown()
            exit(EXIT_LEFT_BEHIND)
    left_behind = worker.stats.abandoned > stats.abandoned or worker.stats.left_behind > stats.left_behind
    return EXIT_LEFT_BEHIND if left_behind else EXIT_CLEAN
