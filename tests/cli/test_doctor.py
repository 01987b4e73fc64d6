"""``prinia doctor``, in text and in JSON: what it prints, and its exit codes.

What it finds is tested in tests/postgres/test_doctor.py and tests/unit/test_doctor.py.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from prinia import Prinia
from prinia.cli import main
from prinia.doctor import CHECKS

from .conftest import Cli


def doctor(dsn: str, *options: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--database-url", dsn, *options])


def document(dsn: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = doctor(dsn, "--json", *options)
    assert (done.stderr, done.stdout.count("\n")) == ("", 1)
    return done.exit_code, json.loads(done.stdout)


def test_without_a_problem(migrated: str) -> None:
    done = doctor(migrated)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "warning  workers        no worker is live" in lines
    assert lines[lines.index("warning  workers        no worker is live") + 1].split() == [
        "->", "Start", "one:", "prinia", "worker", "MODULE:APP",
    ]  # fmt: skip
    assert lines[-1].startswith("0 problems, ")
    code, told = document(migrated)
    assert (code, told["schema"], told["levels"]["problem"]) == (0, "prinia", 0)
    assert {finding["check"] for finding in told["findings"]} == set(CHECKS)
    assert set(told["findings"][0]) == {"check", "level", "found", "advice"}
    assert sum(told["levels"].values()) == len(told["findings"])


def test_with_a_problem(migrated: str) -> None:
    Prinia(migrated).enqueue_by_name("send", {}, queue="email")
    done = doctor(migrated)
    assert done.exit_code == 1
    assert done.stdout.startswith('problem  queues         nobody serves queue "email": 1 ready\n')
    assert "\n1 problem, " in done.stdout
    code, told = document(migrated)
    assert code == 1
    assert (told["findings"][0]["check"], told["findings"][0]["level"]) == ("queues", "problem")
    order = ["problem", "warning", "note", "ok"]
    levels = [order.index(finding["level"]) for finding in told["findings"]]
    assert levels == sorted(levels), "the worst comes first"


def test_strict_counts_warnings(migrated: str) -> None:
    assert doctor(migrated, "--strict").exit_code == 1
    assert document(migrated, "--strict")[0] == 1
    assert doctor(migrated).exit_code == 0


def test_what_is_to_be_granted_can_be_pasted(migrated: str) -> None:
    with psycopg.connect(migrated, autocommit=True) as connection:
        role = f"pasted_{connection.info.dbname}"
        connection.execute(f"create role {role} login".encode())
        done = doctor(psycopg.conninfo.make_conninfo(migrated, user=role))
        assert done.exit_code == 1
        grants = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("grant ")]
        assert len(grants) == 3
        for grant in grants:
            connection.execute(grant.encode())
        assert doctor(psycopg.conninfo.make_conninfo(migrated, user=role)).exit_code == 0
        connection.execute(f"drop owned by {role}; drop role {role}".encode())


def test_a_server_that_is_not_there() -> None:
    url = "postgresql://shop:geheim@127.0.0.1:1/orders"
    done = doctor(url)
    assert done.exit_code == 1
    assert done.stdout.startswith("problem  server  orders on 127.0.0.1:1 as shop cannot be reached: ")
    assert "geheim" not in done.output
    code, told = document(url)
    assert (code, [finding["check"] for finding in told["findings"]]) == (1, ["server"])
    assert told["database"] == "orders on 127.0.0.1:1 as shop"


@pytest.mark.parametrize("url", ["", "postgresql://shop:geheim@db/orders?nosuch=1"])
def test_no_database_to_look_at(url: str) -> None:
    done = doctor(url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("prinia: ")
    assert done.stderr.count("\n") == 1
    assert "geheim" not in done.stderr


def test_as_a_process_with_an_app(cli: Cli, migrated: str) -> None:
    """It tries the listen_dsn that the app has."""
    cli.module(
        "shop/poor.py", f"from prinia import Prinia\napp = Prinia({migrated!r}, listen_dsn='host=127.0.0.1 port=1')"
    )
    done = cli.run("doctor", "--json", PRINIA_APP="shop.poor:app")
    assert (done.returncode, done.stderr) == (0, "")
    [finding] = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "listen"]
    assert (finding["level"], "could not be had over listen_dsn" in finding["found"]) == ("warning", True)
    cli.module("shop/tests.py", "from prinia import Prinia\nfrom prinia.storage.memory import MemoryStorage\n"
               "app = Prinia(storage=MemoryStorage())")  # fmt: skip
    done = cli.run("doctor", "--app", "shop.tests:app")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("prinia: the app's jobs are in a MemoryStorage")
