"""The line between `prinia.supervisor.crew.Crew` and one of its processes, seen from the process.

The crew says "stop" and "now"; the process says "ready" once it works, and "tired" when it is to be replaced. A line
that ends is the death of the crew: the process stops in order then, and in any case ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self

from prinia.worker import Worker
from prinia.worker.signals import run_with_signals

log = logging.getLogger("prinia.supervisor")

#: The environment variable that tells a process that it is one of a crew.
SEAT = "PRINIA_SEAT"
STOP, NOW, READY, TIRED = b"stop\n", b"now\n", b"ready\n", b"tired\n"
#: Seconds beyond its limit that a process may need for a stop before it is killed.
FAREWELL = 30.0
#: Seconds between two looks at what the process has done, and at whether it works yet.
LOOK_EVERY, LOOK_FIRST = 1.0, 0.05
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a process of a crew is told: the ``line`` to it (a file descriptor), its run, where to serve its health."""

    line: int
    run: int
    health: str

    def as_environment(self) -> dict[str, str]:
        """How it is handed over."""
        return {SEAT: json.dumps(asdict(self))}

    @classmethod
    def taken(cls) -> Self | None:
        """The seat of this process, None if it is none of a crew. Its children do not inherit it."""
        given = os.environ.pop(SEAT, None)
        return None if given is None else cls(**json.loads(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamina:
    """After how many jobs, or with how many MB of memory, a process is to be replaced; None for never."""

    max_jobs: int | None = None
    max_rss: float | None = None

    def is_over(self, worker: Worker) -> bool:
        """Whether it is time."""
        if self.max_jobs is not None and worker.stats.started >= self.max_jobs:
            return True
        return self.max_rss is not None and resident_bytes() >= self.max_rss * _MEGABYTE


class _Gently:
    """Stops a worker in order, however often it is asked to: a service manager may signal every process at once, and
    the crew's own "stop" comes besides."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._asked = False

    def stop(self) -> None:
        if not self._asked and self._worker.health().state != "stopping":
            self._worker.stop()
        self._asked = True

    def stop_now(self) -> None:
        self.stop()
        self._worker.stop()


async def run_in_crew(worker: Worker, seat: Seat, *, stamina: Stamina, stop_timeout: float) -> int:
    """Run the worker as one of a crew; returns the exit code. See `prinia.worker.run_with_signals`."""
    os.set_inheritable(seat.line, False)
    line = socket.socket(fileno=seat.line)
    worker.supervise(run=seat.run)
    gently, loop = _Gently(worker), asyncio.get_running_loop()

    def listen() -> None:
        with suppress(OSError), line.makefile("rb") as words:
            for word in words:
                _in_loop(loop, gently.stop_now if word == NOW else gently.stop)
        _in_loop(loop, gently.stop)
        time.sleep(stop_timeout + FAREWELL)
        os._exit(1)  # the crew is dead, nobody else would end this process

    # In threads, because a handler may block the event loop.
    threading.Thread(target=listen, name="prinia-tether", daemon=True).start()
    threading.Thread(target=_report, args=(worker, line, stamina), name="prinia-report", daemon=True).start()
    return await run_with_signals(worker, stops=gently)


def _report(worker: Worker, line: socket.socket, stamina: Stamina) -> None:
    while worker.health().state not in ("working", "stopping"):
        time.sleep(LOOK_FIRST)
    with suppress(OSError):  # the crew is dead
        line.sendall(READY)
        while not stamina.is_over(worker):
            time.sleep(LOOK_EVERY)
        line.sendall(TIRED)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: it has stopped
        loop.call_soon_threadsafe(call)


def resident_bytes() -> int:
    """The memory that this process has now; where that is not to be had, the most that it had."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes where there is no /proc
