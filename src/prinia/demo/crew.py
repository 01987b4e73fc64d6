"""The demo's worker processes: real ``prinia worker`` processes, which end with the process that started them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from prinia.errors import PriniaError

STOP_TIMEOUT = 5.0
#: Seconds beyond `STOP_TIMEOUT` after which a worker that has not ended is killed.
_GRACE = 10.0


class CrewError(PriniaError):
    """A worker of the demo ended by itself; the text has the end of its log."""


class Crew:
    """Some worker processes, started together and stopped together.

    Example::

        with Crew(2, folder=scratch, environment=os.environ) as crew:
            crew.check()
    """

    def __init__(self, size: int, *, concurrency: int, folder: Path, environment: Mapping[str, str]) -> None:
        """``folder`` gets a log per process."""
        self._size = size
        self._concurrency = concurrency
        self._folder = folder
        self._environment = environment
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            for number in range(1, self._size + 1):
                self._start(f"demo-{number}")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raise `CrewError` when one has ended."""
        for log, process in self._processes.items():
            if process.poll() is not None:
                raise CrewError(f"a worker ended with exit code {process.returncode}. Its log ends:\n{_tail(log)}")

    def stop(self) -> None:
        """Stop all of them, in order if they can, and wait until they have ended."""
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(STOP_TIMEOUT + _GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _start(self, name: str) -> None:
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            self._processes[log] = subprocess.Popen(
                [
                    sys.executable, "-m", "prinia.cli.tethered", "worker", "prinia.demo.tasks:app", "--name", name,
                    "--concurrency", str(self._concurrency), "--stop-timeout", str(STOP_TIMEOUT),
                ],
                env=self._environment, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal goes to every process there; these are stopped by the demo alone.
                start_new_session=True,
            )  # fmt: skip


def _tail(log: Path, lines: int = 10) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
