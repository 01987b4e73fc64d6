"""A worker of the newest code: ``prinia dev`` as its parent sees it.

The worker has a process of its own, and another one when a Python file has changed. It tells of the embedded server it
uses; this process holds that too, so that it goes on between two workers and ends with the last one.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from prinia.cli.failing import FAILED
from prinia.cli.reload import changes
from prinia.embedded import Attached, attach
from prinia.supervisor.crew import ending
from prinia.worker import EXIT_CLEAN, EXIT_LEFT_BEHIND

log = logging.getLogger("prinia.dev")

#: The environment variable that tells a process that it is the worker's.
_PART = "PRINIA_DEV_PART"
#: Seconds beyond its limit that a worker may need for a stop before it is killed.
_FAREWELL = 5.0
#: Exit codes above it mean that a signal has ended a process.
_BY_SIGNAL = 128
#: So many bytes a worker's process tells at most.
_LONGEST = 65536
#: So many changed files are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Part:
    """What the worker's process is told: the ``line`` to its parent (a file descriptor), and whether none before it has
    found the database."""

    line: int
    first: bool

    @classmethod
    def taken(cls) -> Self | None:
        """The part of this process, None if it is none of these. Its children do not inherit it."""
        given = os.environ.pop(_PART, None)
        if given is None:
            return None
        part = cls(**json.loads(given))
        os.set_inheritable(part.line, False)
        return part

    def as_environment(self) -> dict[str, str]:
        """How it is handed over."""
        return {_PART: json.dumps(asdict(self))}

    def tell(self, folder: Path | None) -> None:
        """The database is ready; it is the embedded server of this data folder, or another one. To be said once."""
        with suppress(BrokenPipeError):  # the parent is dead, and this process is about to hear of it
            os.write(self.line, json.dumps(None if folder is None else str(folder)).encode())
        os.close(self.line)


def keep_worker(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folders: Sequence[Path] | None,
    *,
    stop_timeout: float,
) -> int:
    """Run ``prinia`` with these arguments, anew when a Python file in the folders has changed (None for never), until a
    signal; returns the exit code. Call it in the main thread."""
    seen = changes(folders or [])
    next(seen)
    keeper = _Keeper(arguments, environment, reloads=folders is not None, patience=stop_timeout + _FAREWELL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, keeper.received)
    code = None
    try:
        while code is None and not keeper.stopping:
            if changed := next(seen):
                keeper.restart(changed)
            code = keeper.look()
    finally:
        left = keeper.end()
    return left if code is None else code


class _Keeper:
    """Keeps a worker, and holds the embedded server that it uses."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, reloads: bool, patience: float
    ) -> None:
        self._arguments = arguments
        self._environment = environment
        self._reloads = reloads
        self._patience = patience
        self._held: Attached | None = None
        self._has_database = False
        self.stopping = False
        self._start()

    def _start(self) -> None:
        self._child = _Child(self._arguments, self._environment, first=not self._has_database)
        self._told = False

    def restart(self, changed: Iterable[Path]) -> None:
        """Have a worker of what the files hold now."""
        log.info("%s changed: the worker is started anew", _named(changed))
        self._child.end(self._patience)
        if not self.stopping:
            self._start()

    def look(self) -> int | None:
        """Look after the worker; its exit code, when it has ended and there is no sense in waiting for a change."""
        self._hear()
        code = self._child.code
        if code is None or self._told or self.stopping:
            return None
        self._told = True
        if not self._reloads or (code == FAILED and not self._has_database):
            return code
        log.warning("the worker ended with %s: it is started again when a Python file changes", ending(code))
        return None

    def _hear(self) -> None:
        if (said := self._child.hear()) is None:
            return
        folder = json.loads(said)
        before, self._held = self._held, attach(folder) if folder else None
        self._has_database = True
        if before is not None:
            before.detach()

    def received(self, number: int, frame: FrameType | None) -> None:
        """A signal: stop, in order at the first, now at the second, at once at the third."""
        self.stopping = True
        self._child.stop()

    def end(self) -> int:
        """Once the worker has ended; returns an exit code for both."""
        code = self._child.end(self._patience)
        if code == -signal.SIGKILL:
            return EXIT_LEFT_BEHIND
        # Any other end is that of a worker that had ended before, or had not begun to work.
        return code if code == EXIT_LEFT_BEHIND or code > _BY_SIGNAL else EXIT_CLEAN


class _Child:
    """The process with the worker. It has a session of its own: a terminal's Ctrl-C reaches its parent alone."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], *, first: bool) -> None:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self._ears = os.fdopen(ours, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "prinia.cli.tethered", *arguments],
                env={**environment, **Part(theirs, first).as_environment()},
                pass_fds=[theirs], stdin=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(theirs)
        self._asked = False

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def hear(self) -> bytes | None:
        """What it has told by its `Part`, once it has."""
        return self._ears.read(_LONGEST) or None

    def stop(self) -> None:
        """Have it stop in order; called a second time: now; a third time: at once."""
        self._asked = True
        if self.code is None:
            self._process.terminate()

    def end(self, patience: float) -> int:
        """The exit code, once it has ended. It is stopped if that was not done, and killed where that takes longer.

        May be called again.
        """
        if not self._asked:
            self.stop()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            log.warning("the worker has not stopped in time and is killed; its running jobs run again in a while")
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._ears.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.returncode


def _named(changed: Iterable[Path]) -> str:
    here = Path.cwd()
    names = sorted(str(path.relative_to(here) if path.is_relative_to(here) else path) for path in changed)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
