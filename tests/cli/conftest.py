"""The command line as a user has it: real processes, in a folder of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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
