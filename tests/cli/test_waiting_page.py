"""docs/when-jobs-wait.md: it has every reason and every check, in their order, and only commands that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from prinia import ReasonCode
from prinia.cli import main
from prinia.doctor import CHECKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "when-jobs-wait.md").read_text(encoding="utf-8")
SOURCES = ("reasoning.py", "doctor/database.py", "doctor/schema.py", "doctor/deployment.py")


def codes_of_table(after: str) -> list[str]:
    """The first column of the first table after a heading."""
    table = re.search(r"(?:^\|.*\n)+", PAGE[PAGE.index(after) :], re.MULTILINE)
    assert table is not None
    return re.findall(r"^\| `(\w+)` \|", table[0], re.MULTILINE)


def test_every_reason_is_there() -> None:
    assert codes_of_table("## Why a job does not run") == [code.value for code in ReasonCode]


def test_every_check_is_there() -> None:
    assert codes_of_table("## What the doctor checks") == list(CHECKS)


def test_every_command_is_one() -> None:
    """Of the page, and of what explain and the doctor advise."""
    advised = "".join((ROOT / "src" / "prinia" / name).read_text(encoding="utf-8") for name in SOURCES)
    named = re.findall(r"prinia ((?:[a-z]+ )*[a-z]+(?: [A-Za-z:{}.()]+| --[a-z-]+)*)", f"{advised}\n{PAGE}")
    assert len(named) > 50
    for line in named:
        command: click.Command = main
        words = shlex.split(line.replace("{", "").replace("}", "").replace("(", "").replace(")", ""))
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not main, line
        assert not (isinstance(command, click.Group) and words), line
        known = {option for parameter in command.params for option in parameter.opts}
        assert [word for word in words if word.startswith("--") and word not in known] == [], line
