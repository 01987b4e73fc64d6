"""The database that workers have served before is told from a copy of it, whose jobs would run a second time.

The first worker to start writes down where it is, in table ``identity``; what is compared, and what cannot be told
apart, is said at ``meet()`` in the schema and in docs/deploying-workers.md.
"""

from __future__ import annotations

from datetime import datetime

from prinia.errors import DatabaseCopied
from prinia.storage.postgres.connection import AsyncLine
from prinia.storage.postgres.migrate import connected
from prinia.storage.postgres.sql import Sql, migrate_command


async def meet(line: AsyncLine, sql: Sql) -> None:
    """Remember the database of this connection. Raises `DatabaseCopied` when another one was remembered."""
    for jobs, name, since in await line.run(sql.query("meet")):
        raise DatabaseCopied(_told(sql.schema, jobs, name, since))


def adopt(dsn: str, schema: str) -> int:
    """Let workers serve the tables in this database, wherever they were served before; how many live jobs there are.

    Raises `StorageUnavailable`, and `MigrationsPending` for a schema without the table.

    Example::

        adopt("postgresql://localhost/shop", "prinia")      # what `prinia migrate --adopt` does
    """
    with connected(dsn) as connection:
        [(jobs,)] = connection.execute(Sql(schema).query("adopt")).fetchall()
    return int(jobs)


def _told(schema: str, jobs: int, name: str, since: datetime) -> str:
    return (
        f"schema {schema!r} has come here from another database, {name!r}, where workers have served it since"
        f" {since:%Y-%m-%d %H:%M} UTC: a dump was restored, or a database copied. Its {jobs} live jobs would run here"
        " too, though they may have run there. Cancel or delete those that must not; then let the others run with:"
        f" {migrate_command(schema)} --adopt"
    )
