"""What all commands have in common."""

from __future__ import annotations

from importlib import metadata

import pytest

from .conftest import Cli


def test_version_and_help(cli: Cli) -> None:
    version = cli.run("--version")
    assert (version.returncode, version.stdout) == (0, f"prinia {metadata.version('prinia')}\n")
    top = cli.run("--help")
    assert top.returncode == 0
    for command in ("migrate", "worker", "demo"):
        assert command in top.stdout
        one = cli.run(command, "-h")
        assert one.returncode == 0
        assert "Usage: prinia " + command in one.stdout
    assert "Exit codes" in top.stdout


@pytest.mark.parametrize("arguments", [["nosuch"], ["migrate", "--nosuch"], ["demo", "--files", "2"]])
def test_wrong_usage_is_2(cli: Cli, arguments: list[str]) -> None:
    done = cli.run(*arguments)
    assert done.returncode == 2
    assert "Usage: prinia" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_of_no_app_is_told_how_to_name_one(cli: Cli) -> None:
    done = cli.run("worker")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("prinia: which app? Write prinia worker MODULE:APP")


def test_no_database(cli: Cli) -> None:
    done = cli.run("migrate")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("prinia: no database is set: set PRINIA_DATABASE_URL")
    assert done.stderr.count("\n") == 1


def test_an_unreachable_database_is_one_line_without_the_password(cli: Cli) -> None:
    url = "postgresql://shop:geheim@127.0.0.1:1/orders"
    for done in (cli.run("migrate", "--database-url", url), cli.run("migrate", "--check", PRINIA_DATABASE_URL=url)):
        assert done.returncode == 1
        assert done.stderr.startswith("prinia: ")
        assert done.stderr.count("\n") == 1
        assert "geheim" not in done.stderr + done.stdout


def test_debug_shows_the_traceback(cli: Cli) -> None:
    done = cli.run("migrate", PRINIA_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ConfigurationError: no database is set" in done.stderr
