"""The two ways around the migrator: the script for psql, and the set for an application's own one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest

from prinia.embedded import find_binaries
from prinia.storage.postgres.migrate import check, migrate, migrations, pending, script

from .catalog import inside, migrated


def psql(dsn: str, text: str) -> subprocess.CompletedProcess[str]:
    """Feed a script to psql, as its default settings are."""
    command = [str(find_binaries().bin / "psql"), "-X", "-q", "-d", dsn, "-f", "-"]
    return subprocess.run(command, input=text, capture_output=True, encoding="utf-8", timeout=60)


@pytest.mark.parametrize("schema", ["prinia", "my jobs", 'a"b', "ünïcode", "100%", "o'neil", "a:b"])
def test_psql_makes_what_migrate_makes(database: str, schema: str) -> None:
    done = psql(database, script(schema))
    assert (done.returncode, done.stderr) == (0, "")
    migrate(database, schema="reference")
    assert inside(database, schema) == inside(database, "reference")
    assert migrated(database, schema) == migrated(database, "reference")
    assert pending(database, schema) == []


def test_a_script_that_was_run_already_changes_nothing(database: str) -> None:
    psql(database, script())
    before = inside(database, "prinia")
    again = psql(database, script())
    assert again.returncode != 0
    assert "already exists" in again.stderr
    assert inside(database, "prinia") == before


def test_since_leaves_out_what_was_applied() -> None:
    last = migrations()[-1]
    assert "create" not in script(since=last.version)
    assert f"-- {last.label}\n" in script(since=last.version - 1)
    assert f"({last.version}, '{last.name}'" in script(since=last.version - 1)


def test_a_migrator_of_ones_own(database: str) -> None:
    with psycopg.connect(database) as connection:
        for migration in migrations():
            connection.execute(migration.sql("mine").encode())
            connection.execute(migration.record_sql("mine").encode())
        check(connection, "mine")
    migrate(database, schema="reference")
    assert inside(database, "mine") == inside(database, "reference")
    assert migrate(database, schema="mine") == []


def test_files_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(migrations()) + 1))
    folder = Path(__file__).parents[2] / "src/prinia/storage/postgres/migrations"
    assert {f"{migration.label}.sql" for migration in migrations()} | {"history.sql"} == {
        path.name for path in folder.iterdir()
    }
