"""Bring Prinia's schema up to date, or say what it lacks.

A migration is a file ``migrations/NNNN_name.sql``; ``{schema}.migrations`` records which were applied. Each runs in a
transaction of its own under a transaction-level advisory lock, which works before the schema exists and is gone with
the process that held it. So any number of processes may migrate at once, and one that is killed leaves nothing half
done. Applied migrations stay compatible with the Prinia before: a newer history is no error.

::

    migrate("postgresql://localhost/shop")         # what `prinia migrate` does
    check(connection, "prinia")                    # what every worker does at its start

An application with a migrator of its own takes the set unapplied::

    for migration in migrations():
        connection.execute(migration.sql("prinia"))
        connection.execute(migration.record_sql("prinia"))
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata
from importlib.resources import files
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from prinia.embedded import open_dsn
from prinia.errors import ConfigurationError, MigrationError, MigrationsPending, StorageError
from prinia.storage.postgres.connection import KEEPALIVE, translate
from prinia.storage.postgres.sql import DEFAULT_SCHEMA, Sql, migrate_command

OLDEST_SERVER = 13
#: A statement that waits longer than this for a table lock gives up, because whoever comes later waits behind it.
LOCK_TIMEOUT = 3.0
LONGEST_PAUSE = 10.0

log = logging.getLogger("prinia.migrate")

Progress = Callable[[str], None]
#: A row of the history: version, name, checksum, and the Prinia that wrote it.
Recorded = tuple[int, str, str, str]

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_HAS_HISTORY = """
select 1 from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = 'migrations'"""
_HISTORY = "select version, name, checksum, prinia from {schema}.migrations order by version"
# pg_catalog alone, so that a migration that forgets to name its schema fails wherever it runs.
_BEGIN = f"""
set local search_path = pg_catalog, pg_temp;
set local statement_timeout = 0;
set local lock_timeout = '{LOCK_TIMEOUT:g}s';
"""
_LOCK = "select pg_advisory_xact_lock(hashtextextended('prinia migrate ' || {schema_literal}, 0));"
_SCRIPT_HEAD = """\
-- Prinia {prinia}: the migrations after {since:04}. To be run with psql, which stops at the first error.
\\set ON_ERROR_STOP on
set client_encoding = 'UTF8';
"""
_RECORD = "insert into {schema}.migrations (version, name, checksum, prinia) values"


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema, unapplied. ``text`` is its file, in which ``{schema}`` stands for the schema."""

    version: int
    name: str
    text: str

    @property
    def label(self) -> str:
        """Number and name, as in the file's name: ``0001_foundation``."""
        return f"{self.version:04}_{self.name}"

    @property
    def checksum(self) -> str:
        """SHA-256 of the file, as hexadecimal digits."""
        return sha256(self.text.encode()).hexdigest()

    def sql(self, schema: str = DEFAULT_SCHEMA) -> str:
        """The statements for one schema; with the first come the schema and its history table.

        To be run in one transaction and as they are: without parameters, so that a percent sign is a percent sign.

        Example, in an Alembic revision::

            op.get_bind().exec_driver_sql(migrations()[0].sql())
        """
        sql = Sql(schema)
        return (sql.migration("history.sql") if self.version == 1 else "") + sql.render(self.text)

    def record_sql(self, schema: str = DEFAULT_SCHEMA) -> str:
        """The statement that records this migration as applied, for the same transaction."""
        values = f"({self.version}, '{self.name}', '{self.checksum}', '{_prinia()}');\n"
        return f"{Sql(schema).render(_RECORD)} {values}"


@dataclass(frozen=True, slots=True)
class Applied:
    """A migration that `migrate` applied, and how many seconds it took."""

    version: int
    name: str
    seconds: float


@cache
def migrations() -> tuple[Migration, ...]:
    """Every migration of this Prinia, oldest first, for a migrator of your own.

    Example::

        [migration.label for migration in migrations()]     # ['0001_foundation', ...]
    """
    found = [
        Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8"))
        for entry in (files("prinia.storage.postgres") / "migrations").iterdir()
        if (match := _FILE.fullmatch(entry.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


def judge(recorded: Sequence[Recorded], known: Sequence[Migration] | None = None) -> tuple[Migration, ...]:
    """The migrations that a history lacks; an empty history lacks all. It touches no database.

    Raises `MigrationError` when a recorded migration is not the one that this Prinia has. A history that goes on
    beyond this Prinia is fine: an older worker goes on working, and the log says so.
    """
    known = migrations() if known is None else known
    by_version = {migration.version: migration for migration in known}
    for version, name, checksum, prinia in recorded:
        migration = by_version.pop(version, None)
        if migration is None:
            log.info("migration %04d_%s came from a newer Prinia (%s); this is %s", version, name, prinia, _prinia())
        elif migration.checksum != checksum:
            raise MigrationError(
                f"the schema has a migration {version:04}_{name}, recorded by Prinia {prinia}, that is not the "
                f"{migration.label} of this Prinia {_prinia()}: their checksums differ. A released migration is never "
                "edited; install the Prinia that wrote it, or start with a fresh schema."
            )
    return tuple(by_version.values())


def require(recorded: Sequence[Recorded], schema: str) -> None:
    """Raise `MigrationsPending`, with the command to run, when a history lacks something."""
    lacking = judge(recorded)
    if not lacking:
        return
    what = f"schema {schema!r} is older than this Prinia, it lacks {', '.join(m.label for m in lacking)}"
    if not recorded:
        what = f"there are no Prinia tables in schema {schema!r}"
    raise MigrationsPending(f"{what}. Run: {migrate_command(schema)}")


def history(connection: psycopg.Connection[Any], schema: str) -> list[Recorded]:
    """What the schema has recorded, oldest first; empty when it has no history, or does not exist."""
    cursor = connection.cursor(row_factory=tuple_row)
    if not cursor.execute(_HAS_HISTORY, (schema,)).fetchall():
        return []
    return cursor.execute(_sql(_HISTORY, schema)).fetchall()


async def ahistory(connection: psycopg.AsyncConnection[Any], schema: str) -> list[Recorded]:
    """`history`, awaited."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(_HAS_HISTORY, (schema,))
    if not await cursor.fetchall():
        return []
    await cursor.execute(_sql(_HISTORY, schema))
    return await cursor.fetchall()


def check(database: psycopg.Connection[Any] | str, schema: str = DEFAULT_SCHEMA) -> None:
    """Raise `MigrationsPending` or `MigrationError` unless the schema fits this Prinia. Reads only.

    ``database`` is a connection or a database URL.
    """
    require(_recorded(database, schema), schema)


async def acheck(connection: psycopg.AsyncConnection[Any], schema: str = DEFAULT_SCHEMA) -> None:
    """`check`, awaited."""
    require(await ahistory(connection, schema), schema)


def pending(database: psycopg.Connection[Any] | str, schema: str = DEFAULT_SCHEMA) -> list[Migration]:
    """The migrations that the schema lacks. ``database`` is a connection or a database URL.

    Raises what `judge` raises, and `StorageUnavailable`.
    """
    return list(judge(_recorded(database, schema)))


def _recorded(database: psycopg.Connection[Any] | str, schema: str) -> list[Recorded]:
    if isinstance(database, psycopg.Connection):
        return history(database, schema)
    with connected(database) as connection:
        return history(connection, schema)


def migrate(
    dsn: str, *, schema: str = DEFAULT_SCHEMA, progress: Progress | None = None, patience: float = 120.0
) -> list[Applied]:
    """Apply what the schema lacks, one transaction per migration, and return what this call applied.

    Workers may go on meanwhile. A migration that cannot get its locks within 3 seconds is rolled back and tried again
    after a pause, for up to ``patience`` seconds; ``progress`` is told in a line of text. Calling it at every start,
    from any number of processes at once, is fine.

    Example::

        migrate("postgresql://localhost/shop", progress=print)

    Raises `MigrationError` (what was applied before stays), `StorageUnavailable`, `ConfigurationError`.
    """
    sql = Sql(schema)
    say = progress or log.info
    applied: list[Applied] = []
    with connected(dsn) as connection:
        if not judge(history(connection, schema)):
            return applied
        while step := _persist(lambda: _apply_next(connection, sql), say, patience):
            say(f"applied {step.version:04}_{step.name} in {step.seconds:.2f} s")
            applied.append(step)
    return applied


def script(schema: str = DEFAULT_SCHEMA, *, since: int = 0) -> str:
    """All migrations after version ``since`` as one text for ``psql``: one transaction each, history included."""
    sql = Sql(schema)
    parts = [_SCRIPT_HEAD.format(prinia=_prinia(), since=since)]
    for migration in migrations():
        if migration.version > since:
            body = migration.sql(schema) + migration.record_sql(schema)
            parts.append(f"\n-- {migration.label}\nbegin;{_BEGIN}{sql.render(_LOCK)}\n\n{body}commit;\n")
    return "".join(parts)


class _Locked(Exception):
    """A lock was not to be had in time; the transaction was rolled back."""


def _apply_next(connection: psycopg.Connection[Any], sql: Sql) -> Applied | None:
    """Apply the first migration that is lacking once nobody else migrates. None when none is."""
    with connection.transaction():
        connection.execute(_query(_BEGIN))
        try:
            connection.execute(_sql(_LOCK, sql.schema))
        except psycopg.errors.LockNotAvailable as error:
            raise _Locked("somebody else migrates this schema") from error
        lacking = judge(history(connection, sql.schema))
        return _apply(connection, lacking[0], sql.schema) if lacking else None


def _apply(connection: psycopg.Connection[Any], migration: Migration, schema: str) -> Applied:
    started = time.monotonic()
    try:
        connection.execute(_query(migration.sql(schema) + migration.record_sql(schema)))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise _Locked(f"{migration.label} waits for a table that another session has locked") from error
    except psycopg.errors.InsufficientPrivilege:
        raise
    except psycopg.Error as error:
        if connection.broken:
            raise
        raise MigrationError(f"{migration.label} failed, nothing of it was kept: {_message(error)}") from error
    return Applied(migration.version, migration.name, time.monotonic() - started)


def _persist(attempt: Callable[[], Applied | None], say: Progress, patience: float) -> Applied | None:
    """Attempt until it gets its locks. The pauses let through who waited behind it."""
    deadline = time.monotonic() + patience
    pause = 0.5
    while True:
        try:
            return attempt()
        except _Locked as locked:
            if time.monotonic() + pause > deadline:
                raise MigrationError(
                    f"{locked}, for {patience:g} s now. End what holds it (pg_stat_activity shows long transactions), "
                    "then run it again: it goes on where it stopped."
                ) from locked.__cause__
            say(f"{locked}; trying again in {pause:g} s")
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


@contextmanager
def connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection for migrating or looking; the driver's errors come out as Prinia's."""
    connection = _connect(dsn)
    try:
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = False
        if connection.info.server_version < OLDEST_SERVER * 10000:
            raise MigrationError(
                f"this server is PostgreSQL {connection.info.server_version // 10000}; Prinia needs {OLDEST_SERVER} "
                "or later"
            )
        yield connection
    except psycopg.Error as error:
        raise _translated(error, connection) from error
    finally:
        connection.close()


def _connect(dsn: str) -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(
            open_dsn(dsn), autocommit=True, prepare_threshold=None, client_encoding="utf8",
            fallback_application_name="prinia migrate", **KEEPALIVE,
        )  # fmt: skip
    except psycopg.ProgrammingError as error:
        raise ConfigurationError(f"the database URL makes no sense: {_message(error)}") from error
    except psycopg.Error as error:
        raise translate(error) from error


def _translated(error: psycopg.Error, connection: psycopg.Connection[Any]) -> StorageError:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        user, database = connection.info.user, connection.info.dbname
        return MigrationError(
            f"user {user!r} lacks a right in database {database!r}: {_message(error)}. The first migration needs "
            f"the right to create a schema (or the schema, owned by {user!r}), later ones the user who ran the "
            "first; or give the output of prinia migrate --sql to whoever has it."
        )
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return MigrationError("this server is read-only, perhaps a standby; migrate on the primary")
    return translate(error)


def _message(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error)).splitlines()[0]


def _sql(text: str, schema: str) -> Any:
    return _query(Sql(schema).render(text))


def _query(text: str) -> Any:
    """Any, because to type checkers the driver takes literals only, and a schema's name is none."""
    return text


def _prinia() -> str:
    return metadata.version("prinia")
