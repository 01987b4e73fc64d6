"""Whether the event loop answers, and what it is in when it does not: seen from another thread."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from prinia.job import ClaimedJob

log = logging.getLogger("prinia.worker")

#: So many frames of what blocks the loop are shown, the innermost ones.
_FRAMES = 8
#: Frames up to the last one of these modules are what calls a handler, and are left out.
_CALLERS = ("asyncio.", "prinia.")


class LoopWatch:
    """Says when a handler blocks the event loop, and which. Made in the loop's thread, used from others.

    Example::

        watch = LoopWatch(loop, runner.current)
        watch.look(time.monotonic())     # at each beat
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, current: Callable[[], ClaimedJob | None]) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._current = current
        self._asked_at: float | None = None
        self._warned = False

    @property
    def blocked(self) -> float:
        """For how many seconds the loop has not answered; 0.0 when it has, or was not asked."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def ask(self, now: float) -> None:
        """Ask the loop to answer, unless a question is open."""
        if self._asked_at is None:
            self._asked_at = now
            with suppress(RuntimeError):  # the loop is closed: the worker ended without its stop
                self._loop.call_soon_threadsafe(self._answer)

    def look(self, now: float) -> None:
        """Ask the loop to answer; warn, once each time, if it has not answered since the last look."""
        asked_at = self._asked_at
        if asked_at is None:
            self.ask(now)
        elif not self._warned:
            self._warned = True
            job = self._current()
            culprit = f"by job {job.id} ({job.task})" if job is not None else "not by a job"
            log.warning(
                "the event loop has been blocked for %.1f s, %s; make the handler a plain function, "
                "which runs in a thread. It is in:\n%s",
                now - asked_at, culprit, self._stack(),
            )  # fmt: skip

    def _answer(self) -> None:
        self._asked_at = None
        self._warned = False

    def _stack(self) -> str:
        """Where the loop's thread is just now, without what called the handler."""
        frame = sys._current_frames().get(self._thread)
        frames = list(traceback.walk_stack(frame)) if frame is not None else []
        callers = [
            place for place, (one, _) in enumerate(frames) if str(one.f_globals.get("__name__")).startswith(_CALLERS)
        ]
        inner = frames[: callers[0]] if callers and callers[0] else frames
        shown = traceback.StackSummary.extract(iter(inner[:_FRAMES]), lookup_lines=False)
        shown.reverse()
        return "".join(shown.format()).rstrip() or "  (no frame to be seen)"
