"""``prinia migrate``."""

from __future__ import annotations

import json
import subprocess

import psycopg

from prinia.embedded import find_binaries
from prinia.storage.postgres.migrate import check, migrations

from .conftest import JOBS, Cli

LABELS = ", ".join(migration.label for migration in migrations())


def test_from_nothing_to_up_to_date(cli: Cli, database: str) -> None:
    before = cli.run("migrate", "--check", "--database-url", database)
    assert before.returncode == 1
    assert "schema 'prinia' of " in before.stdout
    assert before.stdout.endswith(f"lacks {LABELS}.\nRun: prinia migrate\n")

    first = cli.run("migrate", PRINIA_DATABASE_URL=database)
    assert first.returncode == 0
    assert f"applied {migrations()[0].label} in " in first.stdout
    assert "is now up to date." in first.stdout

    again = cli.run("migrate", DATABASE_URL=database)
    assert again.returncode == 0
    assert "is already up to date." in again.stdout
    after = cli.run("migrate", "--check", "--database-url", database)
    assert after.returncode == 0
    assert "is up to date." in after.stdout


def test_json(cli: Cli, database: str) -> None:
    names = [{"version": migration.version, "name": migration.name} for migration in migrations()]
    before = cli.run("migrate", "--check", "--json", "--schema", "my jobs", "--database-url", database)
    assert before.returncode == 1
    found = json.loads(before.stdout)
    said = cli.run("migrate", "--check", "--schema", "my jobs", "--database-url", database).stdout
    assert said.endswith("\nRun: prinia migrate --schema 'my jobs'\n")
    assert (found["schema"], found["applied"], found["pending"]) == ("my jobs", [], names)
    first = cli.run("migrate", "--json", "--schema", "my jobs", "--database-url", database)
    found = json.loads(first.stdout)
    assert first.returncode == 0
    assert found["pending"] == []
    assert [{"version": one["version"], "name": one["name"]} for one in found["applied"]] == names
    with psycopg.connect(database) as connection:
        check(connection, "my jobs")


def test_sql_needs_no_database_and_can_be_run_by_psql(cli: Cli, database: str) -> None:
    done = cli.run("migrate", "--sql", "--schema", "ünïcode")
    assert (done.returncode, done.stderr) == (0, "")
    psql = [str(find_binaries().bin / "psql"), "-X", "-q", "-d", database, "-f", "-"]
    subprocess.run(psql, input=done.stdout, encoding="utf-8", check=True, stdout=subprocess.DEVNULL)
    assert cli.run("migrate", "--check", "--schema", "ünïcode", "--database-url", database).returncode == 0
    assert "create" not in cli.run("migrate", "--sql", "--since", str(len(migrations()))).stdout


def test_adopting_a_copy(cli: Cli, database: str) -> None:
    """After the migrations, of any schema; a worker that met the copy is told of this command."""
    first = cli.run("migrate", "--adopt", "--schema", "my jobs", "--database-url", database)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.endswith(
        "is now up to date.\nWorkers take it as the original from now on; it has 0 live jobs.\n"
    )
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            """select "my jobs".enqueue('[{"task": "greet", "queue": "greetings", "args": {"name": "Ada"}}]')"""
        )
        connection.execute('update "my jobs".identity set database = 1')
    cli.module("shop/other.py", JOBS.replace("Prinia()", "Prinia(schema='my jobs')"))
    refused = cli.run("worker", "shop.other:app", PRINIA_DATABASE_URL=database)
    assert refused.returncode == 1
    assert refused.stderr.startswith("prinia: schema 'my jobs' has come here from another database")
    assert refused.stderr.endswith(": prinia migrate --schema 'my jobs' --adopt\n")
    assert "Traceback" not in refused.stderr
    again = cli.run("migrate", "--adopt", "--json", "--schema", "my jobs", "--database-url", database)
    assert json.loads(again.stdout)["adopted"] == 1
    taken = cli.run("worker", "shop.other:app", "--until-empty", PRINIA_DATABASE_URL=database)
    assert (taken.returncode, "Traceback" in taken.stderr) == (0, False)


def test_options_that_do_not_go_together(cli: Cli) -> None:
    for options in (
        ["--check", "--sql"], ["--since", "1"], ["--json", "--sql"], ["--adopt", "--check"], ["--adopt", "--sql"],
    ):  # fmt: skip
        assert cli.run("migrate", *options).returncode == 2


def test_a_schema_that_cannot_be(cli: Cli, database: str) -> None:
    done = cli.run("migrate", "--schema", "pg_mine", "--database-url", database)
    assert done.returncode == 1
    assert done.stderr.startswith("prinia: schema 'pg_mine' cannot be used")
    assert done.stderr.count("\n") == 1
