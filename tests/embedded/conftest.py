"""Real servers and real processes, each test in a folder of its own that must be free of processes at its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

import prinia.embedded
from prinia.embedded.pidfile import read_pidfile
from tests.waiting import until

if sys.platform == "win32":
    collect_ignore_glob = ["*"]

HOLD = """
import sys
from prinia.embedded import attach
print(attach(sys.argv[1]).dsn, flush=True)
sys.stdin.read()
"""


def processes_naming(text: str) -> dict[int, str]:
    """The live processes whose command line has this text in it."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and int(folder.name) != os.getpid():
            found[int(folder.name)] = line
    return found


def ask(dsn: str, sql: str = "select 1") -> object:
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(sql.encode())
        while cursor.nextset():
            pass  # the answer is that of the last statement
        row = cursor.fetchone()
        return row[0] if row else None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that attaches to a folder and holds it until told otherwise."""

    process: subprocess.Popen[str]
    dsn: str

    def kill(self) -> None:
        Place.end(self.process)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for one test, with what tests want to know about the servers in it."""

    path: Path
    template: Path

    def filled(self, name: str = "data") -> Path:
        """A data folder that need not go through initdb."""
        subprocess.run(["cp", "-a", self.template, self.path / name], check=True)
        return self.path / name

    def script(self, code: str, *arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def expect(process: subprocess.Popen[str], start: str) -> str:
        """The next line that the process prints, which must begin like this."""
        assert process.stdout
        line = process.stdout.readline().strip()
        assert line.startswith(start)
        return line

    @staticmethod
    def end(process: subprocess.Popen[str]) -> None:
        """Kill -9, and close the pipes, which also ends a child of it that reads from there."""
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()

    def hold(self, data: Path) -> Holder:
        process = self.script(HOLD, data)
        return Holder(process, self.expect(process, "postgresql:"))

    def watchdogs(self, data: Path) -> list[int]:
        return [pid for pid, line in processes_naming(f'"{data}"').items() if "watchdog.py" in line]

    def postmaster(self, data: Path) -> int:
        running = read_pidfile(data)
        assert running
        return running.pid

    def processes(self) -> dict[int, str]:
        return processes_naming(str(self.path))

    def is_quiet(self) -> bool:
        return not any("watchdog.py" in line or "postgres" in line for line in self.processes().values())


def _new_folder() -> Path:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="pe-", dir=memory if os.access(memory, os.W_OK) else "/tmp"))
    folder.chmod(0o711)  # root's server runs as nobody; what is closed to nobody has tests of its own
    (folder / "t").mkdir(mode=0o711)
    return folder


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    folder = _new_folder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "t"))
        assert prinia.embedded.attach(folder / "data").detach(wait=20)
    yield folder / "data"
    shutil.rmtree(folder)


@pytest.fixture
def place(template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    folder = _new_folder()
    monkeypatch.setenv("TMPDIR", str(folder / "t"))
    here = Place(folder, template)
    yield here
    for pid, line in here.processes().items():
        with contextlib.suppress(ProcessLookupError):
            if "watchdog.py" in line:
                os.kill(pid, signal.SIGTERM)  # that they also end by themselves is a test of its own
            elif "postgres" not in line:
                os.kill(pid, signal.SIGKILL)  # holders that a failed test left
    until(here.is_quiet, seconds=20, what="all servers of the test ended")
    shutil.rmtree(folder)
