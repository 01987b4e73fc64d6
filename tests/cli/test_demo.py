"""``prinia demo``: it ends well, shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import codecs
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import prinia
from prinia.embedded import attach
from tests.users import python_for_everybody
from tests.waiting import until

from .conftest import Cli

DAMAGED = {"cut_off.py": "SyntaxError", "indented.py": "IndentationError", "not_text.py": "UnreadableSource"}


def check_figures(figures: dict[str, Any], files: int | None = None) -> None:
    failed = {one["file"]: one["attempts"] for one in figures["failed"]}
    assert failed == dict.fromkeys(DAMAGED, 3), figures["failed"]
    assert figures["states"] == {"completed": figures["files"], "failed": 3}
    assert files is None or figures["files"] == files
    assert figures["workers"] in (1, 2)  # one may have been too late for anything
    for one in figures["failed"]:
        assert DAMAGED[one["file"]] in one["error"]
        assert f"({one['file']}, line " in one["error"]
    lines = [one["lines"] for one in figures["longest"]]
    assert len(lines) == 5
    assert lines == sorted(lines, reverse=True)
    assert figures["lines"] > figures["functions"] > len(lines)
    assert figures["delayed_started_after"] >= figures["delay"]
    assert figures["jobs_per_second"] > 0


def processes_of(cli: Cli) -> list[int]:
    """Those that have to do with its scratch folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(cli.scratch).encode() in text and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def is_clean(cli: Cli) -> bool:
    """No process, and no folder but what the embedded layer keeps for itself."""
    return not processes_of(cli) and not list(cli.scratch.glob("prinia-demo-*"))


def test_the_whole_library(cli: Cli) -> None:
    done = cli.run("demo", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    check_figures(figures)
    assert figures["files"] > 300
    assert figures["urgent_overtook"] > 50
    until(lambda: is_clean(cli), what="all gone")


def test_in_text(cli: Cli) -> None:
    done = cli.run("demo", "--files", "8")
    assert (done.returncode, done.stderr) == (0, "")
    for said in ("10 jobs enqueued in ", "11/11", "Longest functions", "is a Measured:", "due after 3 s, started "):
        assert said in done.stdout, done.stdout
    assert "indented.py  3 attempts  IndentationError: unexpected indent (indented.py, line " in done.stdout
    assert "\x1b[" not in done.stdout
    until(lambda: is_clean(cli), what="all gone")


def test_in_a_terminal(cli: Cli) -> None:
    pytest.importorskip("rich")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "prinia", "demo", "--files", "6"], cwd=cli.folder, text=True,
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(cli.scratch), "TERM": "xterm-256color", "COLUMNS": "140"},
    )  # fmt: skip
    os.close(theirs)
    shown = "".join(read_all(ours))
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "9/9" in shown
    assert "\x1b[" in shown
    assert "Failed, as they should" in shown
    until(lambda: is_clean(cli), what="all gone")


def read_all(descriptor: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # how Linux says that the other end is closed
            data = b""
        if not data:
            os.close(descriptor)
            return
        yield decoder.decode(data)


def test_keep(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(cli.scratch))
    done = cli.run("demo", "--files", "5", "--keep")
    assert done.returncode == 0, done.stderr
    kept = next(line.removeprefix("Kept: ") for line in done.stdout.splitlines() if line.startswith("Kept: "))
    assert f"PRINIA_DATABASE_URL=embedded:{kept} prinia worker prinia.demo.tasks:app -q demo" in done.stdout
    command = done.stdout.splitlines()[-1].strip()
    server = attach(kept)
    try:
        looked = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert (looked.returncode, looked.stderr) == (0, "")
        assert "(8 rows)" in looked.stdout
    finally:
        server.detach(wait=10)


def test_in_a_database_of_ones_own(cli: Cli, database: str) -> None:
    done = cli.run("demo", "--files", "4", "--json", "--database-url", database)
    assert done.returncode == 0, done.stderr
    check_figures(json.loads(done.stdout), files=4)
    with psycopg.connect(database) as connection:
        schemas = connection.execute("select nspname from pg_namespace where nspname like 'prinia%'").fetchall()
    assert schemas == []
    assert is_clean(cli)


def test_without_server_programs_it_says_what_to_do(cli: Cli) -> None:
    done = cli.run("demo", PRINIA_PG_BIN="/nowhere")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("prinia: ")
    assert "PRINIA_PG_BIN" in done.stderr
    assert "--database-url" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_cleans_up(cli: Cli, number: int) -> None:
    process = cli.start("demo")
    wait_for_progress(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, "prinia: interrupted; everything is cleaned up\n")
    until(lambda: is_clean(cli), what="all gone")


def test_killed_it_leaves_no_process(cli: Cli) -> None:
    process = cli.start("demo")
    wait_for_progress(process)
    process.kill()
    process.wait()
    until(lambda: not processes_of(cli), what="the end of workers and server")


def wait_for_progress(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if "completed" in line:
            return
    pytest.fail(f"it ended before anything was completed: {process.communicate()[1]}")


def test_as_a_plain_user(cli: Cli) -> None:
    if os.geteuid() != 0:
        return test_in_text(cli)
    python = python_for_everybody()
    home = cli.folder / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    packages = [Path(prinia.__file__).parents[1], Path(psycopg.__file__).parents[1]]
    environment = {
        "HOME": str(home), "TMPDIR": str(home), "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(map(str, packages)),
    }  # fmt: skip
    done = subprocess.run(
        [python, "-m", "prinia", "demo", "--files", "5", "--json"], cwd=home, user=65534, group=65534, extra_groups=[],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_figures(json.loads(done.stdout), files=5)
    assert not list(home.glob("prinia-demo-*"))
    return None
