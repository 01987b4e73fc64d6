"""Many processes migrate one empty database at once, and some are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psycopg

from prinia.storage.postgres.migrate import migrate, migrations
from tests.waiting import until

from .catalog import inside, migrated, outside

ALL = [(migration.version, migration.name) for migration in migrations()]
PROCESSES = 12
CODE = """
import sys
from prinia.storage.postgres.migrate import migrate
print([step.version for step in migrate(sys.argv[1])])
"""


def start(dsn: str, name: str) -> subprocess.Popen[str]:
    """A process that migrates; its session goes by a name."""
    return subprocess.Popen(
        [sys.executable, "-c", CODE, dsn], env=os.environ | {"PGAPPNAME": name}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def waiting(connection: psycopg.Connection[tuple[str, str]]) -> dict[str, str]:
    """What each migrating session waits for."""
    return dict(
        connection.execute(
            "select application_name, wait_event from pg_stat_activity "
            "where application_name like 'migrator%' and wait_event_type = 'Lock'"
        ).fetchall()
    )


def test_all_end_well_though_three_are_killed(database: str) -> None:
    before = outside(database)
    with (
        psycopg.connect(database, autocommit=True) as watcher,
        psycopg.connect(database) as blocker,
    ):
        # Whoever comes first is stuck in the middle of the first migration, the others behind it.
        blocker.execute("create schema prinia")
        processes = {f"migrator {number}": start(database, f"migrator {number}") for number in range(PROCESSES)}
        until(lambda: len(waiting(watcher)) >= PROCESSES - 2, seconds=60, what="all migrators wait")
        in_the_middle = next(name for name, event in waiting(watcher).items() if event == "transactionid")
        victims = {in_the_middle, *[name for name in processes if name != in_the_middle][:2]}
        for name in victims:
            processes[name].kill()
        blocker.rollback()

    applied = []
    for name, process in processes.items():
        out, err = process.communicate(timeout=60)
        if name in victims:
            assert process.returncode == -9
        else:
            assert (process.returncode, err) == (0, "")
            applied += json.loads(out)
    assert len(applied) <= len(ALL)
    assert migrated(database, "prinia") == ALL
    assert outside(database, "prinia") == before
    migrate(database, schema="reference")
    assert inside(database, "prinia") == inside(database, "reference")
    with psycopg.connect(database, autocommit=True) as watcher:
        held = watcher.execute(
            "select count(*) from pg_locks where locktype = 'advisory'"
            " and database = (select oid from pg_database where datname = current_database())"
        ).fetchall()
    assert held == [(0,)]
