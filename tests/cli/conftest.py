"""The command line as a user has it: real processes, in a folder of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from prinia.cli import main
from tests.conftest import Databases

from .stock import Stock, make_stock

JOBS = """
import asyncio
from pathlib import Path
from prinia import Prinia

app = Prinia()

@app.task(name="greet", queue="greetings")
async def greet(name: str) -> str:
    return f"hello {name}"

@app.task(name="linger", queue="long")
async def linger() -> None:
    Path(__file__).with_name("lingers").touch()
    await asyncio.sleep(600)
"""


class Cli:
    """Runs ``prinia`` in a folder that has a module ``shop.jobs``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "tmp"
        self.scratch.mkdir()
        self._started: list[subprocess.Popen[str]] = []
        self.module("shop/jobs.py", JOBS)

    def module(self, path: str, text: str) -> None:
        """Write a module."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def run(self, *arguments: str, cwd: str = ".", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        process = self.start(*arguments, cwd=cwd, **environment)
        out, err = process.communicate(timeout=100)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def start(self, *arguments: str, cwd: str = ".", **environment: str) -> subprocess.Popen[str]:
        """Start, and leave it running."""
        return self.program("-m", "prinia", *arguments, cwd=cwd, **environment)

    def program(self, *arguments: str, cwd: str = ".", **environment: str) -> subprocess.Popen[str]:
        """Start Python with these arguments, and leave it running."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.folder / cwd, text=True, encoding="utf-8",
            env=os.environ | {"TMPDIR": str(self.scratch), "PYTHONIOENCODING": "utf-8"} | environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def cli() -> Iterator[Cli]:
    """The command line in a new folder."""
    # Not tmp_path, which pytest closes to others: the embedded server of root runs as another user.
    folder = Path(tempfile.mkdtemp(prefix="prinia-cli-"))
    folder.chmod(0o711)
    cli = Cli(folder)
    cli.scratch.chmod(0o711)
    yield cli
    cli.end()
    shutil.rmtree(folder)


class Inside:
    """Runs ``prinia`` in this process, which takes a hundredth of the time, on a migrated database."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder

    def __call__(self, *arguments: str, code: int = 0, input: str | bytes | None = None) -> Result:
        """Run to the end, which must be this exit code, and no traceback."""
        done = CliRunner().invoke(main, arguments, prog_name="prinia", input=input)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            traceback.print_exception(done.exception)
        assert done.exit_code == code, done.output
        return done

    def json(self, *arguments: str, code: int = 0, input: str | bytes | None = None) -> Any:
        """The one JSON document of a run with ``--json``."""
        return json.loads(self(*arguments, "--json", code=code, input=input).stdout)

    def refusal(self, *arguments: str, code: int, input: str | bytes | None = None) -> str:
        """What is said on standard error, in text and in JSON alike, with nothing on standard output."""
        said = set()
        for more in ([], ["--json"]):
            done = self(*arguments, *more, code=code, input=input)
            assert done.stdout == ""
            said.add(done.stderr)
        [text] = said
        return text


@pytest.fixture(scope="module")
def stock_to_read(databases: Databases) -> Iterator[tuple[str, Stock]]:
    """A database with a stock of jobs, and its connection string."""
    dsn = databases.migrated()
    yield dsn, make_stock(dsn)
    databases.drop(dsn)


@pytest.fixture
def stock(stock_to_read: tuple[str, Stock]) -> Stock:
    """Jobs in many states, shared by the tests of a module, which only look."""
    return stock_to_read[1]


@pytest.fixture
def reader(stock_to_read: tuple[str, Stock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """The command line in this process, on the database of `stock`."""
    monkeypatch.setenv("PRINIA_DATABASE_URL", stock_to_read[0])
    monkeypatch.chdir(tmp_path)
    return Inside(stock_to_read[0], tmp_path)


@pytest.fixture
def inside(migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """The command line in this process, in a folder of its own."""
    monkeypatch.setenv("PRINIA_DATABASE_URL", migrated)
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield Inside(migrated, tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]
