"""Retention: what is past leaves the archive, a leaf at a time, and nobody is held up by it.

Dropping an attached leaf locks the whole archive, and waits for everybody who has read it in a transaction that is
still open; meanwhile every ack would wait behind it. So a leaf is detached concurrently first, which waits without a
lock. That is for the tables' owner, on PostgreSQL 14 or newer and outside of a transaction: for others there is
``drop_leaf()`` in the schema, which empties the leaf, then asks for the lock for a moment only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

import psycopg
from psycopg import errors as pg

from prinia.storage.postgres.connection import KEEPALIVE, SyncLine, translated
from prinia.storage.postgres.sql import Sql

log = logging.getLogger("prinia.maintenance")

#: From this version on a partition can be detached concurrently.
_CONCURRENT = 140_000
#: So long the leader waits, and does nothing else meanwhile. A detach that runs out of it is finished by another try.
_SETTINGS = b"set lock_timeout = '2s'; set statement_timeout = '5s'"
_STEPS = {
    "attached": (
        "alter table {schema}.archive detach partition {schema}.{leaf} concurrently",
        "drop table {schema}.{leaf}",
    ),
    "pending": (
        "alter table {schema}.archive detach partition {schema}.{leaf} finalize",
        "drop table {schema}.{leaf}",
    ),
    "detached": ("drop table {schema}.{leaf}",),
}
#: Somebody reads, or another leader was faster.
_IN_THE_WAY = (
    pg.LockNotAvailable,
    pg.QueryCanceled,
    pg.DeadlockDetected,
    pg.ObjectNotInPrerequisiteState,
    pg.UndefinedTable,
)


class Sweeper:
    """Drops the leaves that are past, one per `sweep`.

    Example::

        while sweeper.sweep(None):
            ...
    """

    def __init__(self, dsn: Callable[[], str], sql: Sql, line: SyncLine) -> None:
        """``line`` is for looking; a detach has a connection of its own."""
        self._dsn = dsn
        self._sql = sql
        self._line = line
        self._past_leaf = sql.query("past_leaf")
        self._drop_leaf = sql.query("drop_leaf")
        #: Leaves of which the log says already that they stay for now.
        self._told: set[str] = set()

    def sweep(self, now: datetime | None) -> int:
        """One step with the leaf that goes next: how many were made, 0 when there is none or it cannot go now."""
        found = self._line.run(self._past_leaf, {"now": now})
        if not found:
            return 0
        [(leaf, stage, owned)] = found
        version = self._line.connect().info.server_version
        gone = self._drop_apart(leaf, stage) if owned and version >= _CONCURRENT else None
        if gone is None:
            [(gone,)] = self._line.run(self._drop_leaf, {"leaf": leaf, "now": now})
        if not gone and leaf not in self._told:
            self._told.add(leaf)
            log.info("%s of the archive is past and stays for now: somebody reads it; it is tried again", leaf)
        return int(bool(gone))

    def _drop_apart(self, leaf: str, stage: str) -> bool | None:
        """Detach and drop. None behind a transaction pooler, where nothing keeps settings for it."""
        with (
            translated(self._sql.schema),
            psycopg.connect(
                self._dsn(), autocommit=True, application_name="prinia retention", prepare_threshold=None, **KEEPALIVE
            ) as connection,
        ):
            if connection.execute("select pg_catalog.pg_backend_pid()").fetchall() != [(connection.info.backend_pid,)]:
                return None
            connection.execute(_SETTINGS)
            try:
                for step in _STEPS[stage]:
                    connection.execute(self._sql.render(step.replace("{leaf}", f'"{leaf}"')).encode())
            except _IN_THE_WAY as error:
                log.debug("%s of the archive stays for now: %s", leaf, error)
                return False
            return True
