"""What docs/command-line.md says to type runs as it stands there, and prints what stands below it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prinia import Prinia
from prinia.cli import main
from tests.waiting import until

from .conftest import Inside

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
STEP = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
#: What differs from run to run.
VARYING = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "THEN"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "INSTANCE"),
    (r"--after (\d+)-\S+", r"--after \1-CURSOR"),
    (r"\b(?:\d+(?:ms|[dhms]))+\b", "SPAN"),
    (r"^[0-9a-f]{8}  (\S+)  \S+ +\d+ ", r"ID \1 HOST PID "),
    (r" on \S+, process \d+", " on HOST, process PID"),
    (r"\S+( \(prinia \w+\))", r"WHO\1"),
    (r'File ".*", line \d+', "File, line N"),
    (r"(?<=ago)(?: +(?:listening|polling))?(?: +SPAN)*$", ""),
    (r" +", " "),
)


def alike(text: str) -> list[str]:
    for pattern, instead in VARYING:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return [line.strip() for line in text.splitlines()]


def shell(inside: Inside, script: str) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-e", "-o", "pipefail", "-c", script], cwd=inside.folder, env=os.environ | {"PATH": path}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def run(inside: Inside, script: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a block prints. Plain calls of ``prinia`` run in this process, which is faster; all else in a shell."""
    if re.search(r"[|&<]|^prinia worker ", script):
        process = shell(inside, script)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out
    said = ""
    for line in script.splitlines():
        words = shlex.split(line)
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
        else:
            assert words[0] == "prinia"
            said += inside(*words[1:]).stdout
    return said


def test_every_block(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    [shop] = re.findall(r"^```python\n(# shop.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (inside.folder / "shop.py").write_text(shop, encoding="utf-8")
    app, started = Prinia(inside.dsn), []
    steps = STEP.findall(PAGE)
    assert len(steps) == PAGE.count("```sh")
    try:
        for script, expected in steps:
            if script.endswith("&\n"):
                started.append(shell(inside, f"{script}wait"))
                until(lambda: app.workers() and not list(app.jobs(state="ready")), what="it has run what was ready")
            else:
                assert alike(run(inside, script, monkeypatch)) == alike(expected) or not expected, script
        assert started
        until(lambda: not app.workers(), what="the worker has stopped")
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def test_every_command_is_on_it() -> None:
    for name, command in main.commands.items():
        assert f"`prinia {name}`" in PAGE, name
        for sub in getattr(command, "commands", {}):
            assert re.search(rf"`(prinia {name} )?{sub}`|`{sub} -", PAGE) or (name, sub) in (
                ("queues", "pause"), ("queues", "resume")
            ), f"{name} {sub}"  # fmt: skip
