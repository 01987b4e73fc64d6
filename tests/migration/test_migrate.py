"""Migrations: once each, whatever the schema's name, whoever else migrates, whatever gets in their way."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from prinia.errors import (
    ConfigurationError,
    MigrationError,
    MigrationsPending,
    StorageUnavailable,
)
from prinia.storage.postgres import migrate as module
from prinia.storage.postgres.migrate import Migration, acheck, check, migrate, migrations, pending

from .catalog import inside, migrated, outside

ALL = [(migration.version, migration.name) for migration in migrations()]
ODD_NAMES = [
    "prinia",
    "my jobs",
    'a"b',
    "ünïcode",
    "Select",
    "100%",
    "%s",
    "%(a)s",
    "o'neil",
    "back\\slash",
    "a:b",
    "s" * 63,
]

SECOND = Migration(len(ALL) + 1, "second", "create table {schema}.second (id int);\n")


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Migration], None]:
    """Pretends that Prinia has one more migration."""
    released = migrations()

    def add(migration: Migration) -> None:
        monkeypatch.setattr(module, "migrations", lambda: (*released, migration))

    return add


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_fresh_then_nothing_to_do_and_nothing_outside(database: str, schema: str) -> None:
    before = outside(database)
    said: list[str] = []

    applied = migrate(database, schema=schema, progress=said.append)

    assert [(step.version, step.name) for step in applied] == ALL == migrated(database, schema)
    assert len(said) == len(ALL)
    assert outside(database, schema) == before
    assert migrate(database, schema=schema) == []
    assert pending(database, schema) == []
    with psycopg.connect(database) as connection:
        check(connection, schema)


def test_two_schemas_in_one_database_are_alike_and_apart(database: str) -> None:
    migrate(database, schema="one")
    before = outside(database)
    alone = inside(database, "one")
    migrate(database, schema='other "two"')
    assert inside(database, "one") == alone == inside(database, 'other "two"')
    assert outside(database, 'other "two"') == before
    assert len(alone["columns"]) > 50
    assert len(alone["functions"]) > 5


@pytest.mark.parametrize(
    "settings",
    [
        "-c search_path=",
        "-c search_path=public,pg_catalog",
        "-c default_transaction_isolation=serializable -c default_transaction_read_only=on",
        "-c client_encoding=latin1 -c quote_all_identifiers=on -c check_function_bodies=on",
    ],
)
def test_settings_of_the_session_do_not_matter(database: str, settings: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create function public.now() returns date language sql as 'select null::date'")
    migrate(database, schema="plain")
    migrate(make_conninfo(database, options=settings), schema="ünïcode")
    assert inside(database, "plain") == inside(database, "ünïcode")


def test_check_says_the_command(database: str) -> None:
    with psycopg.connect(database) as connection:
        with pytest.raises(MigrationsPending, match=r"no Prinia tables in schema 'prinia'. Run: prinia migrate$"):
            check(connection)
        with pytest.raises(MigrationsPending, match=r"Run: prinia migrate --schema 'my jobs'$"):
            check(connection, "my jobs")

    async def from_async() -> None:
        async with await psycopg.AsyncConnection.connect(database) as aconnection:
            with pytest.raises(MigrationsPending, match=r"Run: prinia migrate$"):
                await acheck(aconnection)
            await asyncio.to_thread(migrate, database)
            await acheck(aconnection)

    asyncio.run(from_async())


def test_an_older_schema_gets_only_what_it_lacks(database: str, newer: Callable[[Migration], None]) -> None:
    migrate(database)
    newer(SECOND)
    with psycopg.connect(database) as connection:
        with pytest.raises(MigrationsPending, match=f"older than this Prinia, it lacks {SECOND.label}"):
            check(connection)
        assert pending(connection) == [SECOND]
    assert [step.name for step in migrate(database)] == ["second"]
    assert migrated(database, "prinia") == [*ALL, (SECOND.version, "second")]


def test_a_migration_that_fails_leaves_what_was_before(database: str, newer: Callable[[Migration], None]) -> None:
    newer(Migration(SECOND.version, "second", "create table {schema}.half (id int); select 1 / 0;"))
    with pytest.raises(MigrationError, match=f"{SECOND.label} failed, nothing of it was kept: division by zero"):
        migrate(database)
    assert migrated(database, "prinia") == ALL
    with psycopg.connect(database) as connection:
        assert connection.execute("select to_regclass('prinia.half')").fetchall() == [(None,)]
    newer(SECOND)
    assert [step.name for step in migrate(database)] == ["second"]


def test_an_edited_migration_is_refused(database: str) -> None:
    migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("update prinia.migrations set checksum = 'x' where version = 1")
        with pytest.raises(MigrationError, match=r"0001_foundation.*checksums differ") as refused:
            check(connection)
    assert not isinstance(refused.value, MigrationsPending)
    with pytest.raises(MigrationError, match="checksums differ"):
        migrate(database)


def test_a_newer_history_is_fine_and_logged(database: str, caplog: pytest.LogCaptureFixture) -> None:
    migrate(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("insert into prinia.migrations values (9000, 'of_the_future', 'c', '99.0')")
        with caplog.at_level(logging.INFO, "prinia.migrate"):
            check(connection)
    assert migrate(database) == []
    assert "9000_of_the_future" in caplog.text
    assert "newer Prinia (99.0)" in caplog.text


@pytest.mark.parametrize("schema", ["", "pg_mine", "x" * 64, "nul\0"])
def test_schema_names_that_cannot_be(database: str, schema: str) -> None:
    with pytest.raises(ConfigurationError, match="schema"):
        migrate(database, schema=schema)


def test_a_user_without_rights_is_told_which(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("drop role if exists weak")
        connection.execute("create role weak login")
        weak = make_conninfo(database, user="weak")
        with pytest.raises(MigrationError, match=r"user 'weak' lacks a right.*permission denied.*prinia migrate --sql"):
            migrate(weak)
        assert connection.execute("select to_regnamespace('prinia')").fetchall() == [(None,)]

        # A schema of its own is all it takes: the right to create schemas is not needed then.
        connection.execute("create schema prinia authorization weak")
        migrate(weak)
        owners = connection.execute(
            "select distinct relowner::regrole::text from pg_class where relnamespace = 'prinia'::regnamespace"
        ).fetchall()
        assert owners == [("weak",)]
        connection.execute("drop owned by weak")
        connection.execute("drop role weak")


def test_old_servers_are_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OLDEST_SERVER", 99)
    with pytest.raises(MigrationError, match=r"this server is PostgreSQL \d+; Prinia needs 99"):
        migrate(database)


def test_no_server_and_no_sense(tmp_path: object) -> None:
    with pytest.raises(StorageUnavailable, match="connection"):
        migrate(f"host={tmp_path} dbname=nowhere")
    with pytest.raises(ConfigurationError, match="makes no sense"):
        migrate("host=x nonsense=1")


class Blocker:
    """Holds up the first migration: it has made the schema, and has not committed."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn)
        self._connection.execute("create schema prinia")

    def release(self) -> None:
        self._connection.close()


def test_a_lock_that_is_not_to_be_had_is_tried_again(database: str) -> None:
    blocker = Blocker(database)
    said: list[str] = []

    def progress(text: str) -> None:
        said.append(text)
        blocker.release()

    assert len(migrate(database, progress=progress)) == len(ALL)
    assert "0001_foundation waits for a table that another session has locked; trying again in 0.5 s" in said


def test_patience_ends_with_advice(database: str) -> None:
    blocker = Blocker(database)
    waiting: list[str] = []
    entered = threading.Event()

    def second() -> None:
        # Behind the first one's advisory lock.
        entered.set()
        with pytest.raises(MigrationError) as refused:
            migrate(database, patience=0)
        waiting.append(str(refused.value))

    other = threading.Thread(target=second)
    other.start()
    entered.wait()
    with pytest.raises(MigrationError, match=r"for 0 s now. End what holds it.*goes on where it stopped") as refused:
        migrate(database, patience=0)
    other.join()
    blocker.release()
    texts = sorted([str(refused.value), *waiting])
    assert "waits for a table" in texts[0]
    assert "somebody else migrates" in texts[1] or "waits for a table" in texts[1]
    assert len(migrate(database)) == len(ALL)
