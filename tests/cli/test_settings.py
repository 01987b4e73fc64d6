"""Where a setting may be given, and which one counts."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.waiting import until

from .conftest import Cli

NOWHERE = {"PRINIA_DATABASE_URL": "postgresql://127.0.0.1:1/none"}


def serving(dsn: str) -> tuple[str, list[str], int] | None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "select name, queues, concurrency from prinia.workers"
        return connection.execute(query).fetchone()


def test_argument_environment_file_default(cli: Cli, migrated: str) -> None:
    """Each place beats the next one."""
    cli.module(
        "pyproject.toml",
        '[tool.prinia]\napp = "shop.jobs:app"\nqueues = ["from file", "b"]\nname = "file"\nconcurrency = 3\n'
        "listen = false\nstop_timeout = 5\n",
    )
    process = cli.start(
        "worker", "-c", "5", PRINIA_CONCURRENCY="4", PRINIA_NAME="environment", PRINIA_DATABASE_URL=migrated
    )
    until(lambda: serving(migrated), what="registration")
    assert serving(migrated) == ("environment", ["b", "from file"], 5)
    process.terminate()
    assert process.wait(30) == 0


def test_lists_in_the_environment_have_commas(cli: Cli, migrated: str) -> None:
    (cli.folder / "deep" / "down").mkdir(parents=True)
    process = cli.start("worker", PRINIA_APP="shop.jobs", PRINIA_QUEUES="a b, c ,", PRINIA_DATABASE_URL=migrated)
    until(lambda: serving(migrated), what="registration")
    assert serving(migrated) is not None
    assert serving(migrated)[1] == ["a b", "c"]  # type: ignore[index]
    process.terminate()
    assert process.wait(30) == 0


def test_the_nearest_file_above_counts(cli: Cli) -> None:
    cli.module("pyproject.toml", '[tool.prinia]\napp = "nosuch.module:app"\n')
    cli.module("inner/folder/keep.txt", "")
    done = cli.run("worker", cwd="inner/folder", **NOWHERE)
    assert "there is no module 'nosuch'" in done.stderr
    cli.module("inner/pyproject.toml", "[project]\n")
    done = cli.run("worker", cwd="inner/folder", **NOWHERE)
    assert done.returncode == 2
    assert done.stderr.startswith("prinia: which app? Write prinia worker MODULE:APP, or set PRINIA_APP")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.prinia]\nconcurency = 3\n", r"\[tool.prinia\] has no setting 'concurency'; did you mean concurrency\?"),
        ("[tool.prinia]\nx = 3\n", r"\[tool.prinia\] has no setting 'x'; there are: app, claim_batch, concurrency, "),
        ("[tool.prinia]\nconcurrency = 0\n", r"\[tool.prinia\] concurrency = 0: 0 is not in the range x>=1"),
        ('[tool.prinia]\nlog_level = "loud"\n', r"\[tool.prinia\] log_level = 'loud': 'loud' is not one of"),
        ("[tool.prinia]\nconcurrency = true\n", r"concurrency = True must be a text or a number"),
        ('[tool.prinia]\nqueues = "email"\n', r"queues = 'email' must be a list"),
        ("[tool.prinia]\nlisten = 1\n", r"listen = 1 must be true or false"),
        ("[tool]\nprinia = 3\n", r"\[tool.prinia\] must be a table"),
        ("[tool.prinia\n", r"pyproject.toml cannot be read: "),
    ],
)
def test_a_file_that_makes_no_sense(cli: Cli, text: str, said: str) -> None:
    cli.module("pyproject.toml", text)
    done = cli.run("worker", "shop.jobs", **NOWHERE)
    assert done.returncode == 2
    assert re.search(said, done.stderr), done.stderr
    assert done.stderr.startswith("prinia: ")
    assert "pyproject.toml" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PRINIA_CONCURRENCY", "many", "prinia: PRINIA_CONCURRENCY='many': 'many' is not a valid integer"),
        ("PRINIA_QUEUES", "a,\t\x01", "prinia: PRINIA_QUEUES='a,\\t\\x01': --queue='\\x01' must have no control"),
        ("PRINIA_LISTEN", "perhaps", "prinia: PRINIA_LISTEN='perhaps': 'perhaps' is not a valid boolean"),
    ],
)
def test_an_environment_that_makes_no_sense(cli: Cli, variable: str, value: str, said: str) -> None:
    done = cli.run("worker", "shop.jobs", **{variable: value}, **NOWHERE)
    assert done.returncode == 2
    assert done.stderr.startswith(said)


def test_help_shows_every_variable_and_the_exit_codes(cli: Cli) -> None:
    said = re.sub(r"\s+", " ", cli.run("worker", "--help").stdout)
    for name in ("QUEUES", "IMPORTS", "CONCURRENCY", "THREADS", "POOL", "PROCESSES", "MAX_JOBS", "MAX_RSS", "HEALTH"):
        assert f"PRINIA_{name}" in said
    for code in ("0 every job", "1 it could not start", "2 wrong usage", "3 some jobs", "4 a process failed too often"):
        assert code in said
    assert "[tool.prinia]" in said
