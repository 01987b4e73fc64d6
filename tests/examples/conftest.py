"""Running an example in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Starts ``python examples/NAME ARGUMENTS``, its output to be read line by line.
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(migrated: str) -> Iterator[Start]:
    """Starts examples on a database of their own; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(name: str, *arguments: str) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, EXAMPLES / name, *arguments],
                env=os.environ | {"PRINIA_DATABASE_URL": migrated},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()
