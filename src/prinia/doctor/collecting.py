"""The facts of a database, each looked up by itself, in a statement that takes long of nothing and changes nothing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg

from prinia.doctor.facts import (
    Facts,
    Failures,
    Holder,
    Identity,
    Leader,
    Listening,
    Rights,
    Schema,
    Server,
    Slots,
    Table,
    Thing,
    Waiting,
)
from prinia.errors import MigrationsPending, StorageError, StorageUnavailable
from prinia.storage.postgres import PostgresStorage
from prinia.storage.postgres.connection import KEEPALIVE, SyncLine, translated
from prinia.storage.postgres.listing import READ_SETTINGS
from prinia.storage.postgres.migrate import history
from prinia.storage.postgres.sql import Sql

_SETTINGS = READ_SETTINGS | {"statement_timeout": "10s", "lock_timeout": "2s"}
#: So many jobs of a lane are looked at for their tasks, and so many of those that ended badly.
_FIRST, _LATEST = 1_000, 10_000
#: Up to so many jobs of a queue are counted.
_COUNTED = 1_000
#: A notification to oneself must arrive within this time, in seconds.
PROOF_TIMEOUT = 3.0


def collect(storage: PostgresStorage, *, place: str) -> Facts:
    """All that can be known; ``place`` is the database in words. Raises nothing of the database's.

    Example::

        collect(PostgresStorage("postgresql://db/shop"), place="shop on db")
    """
    try:
        dsn = storage.dsn
    except StorageUnavailable as error:
        return Facts(server=Server(place=place, error=str(error)))
    line = SyncLine(lambda: dsn, name="prinia doctor", schema=storage.schema, settings=_SETTINGS)
    try:
        return _Collector(storage, line, place).collect()
    finally:
        line.close()


class _Collector:
    """Looks at one thing after the other, and remembers what it may not see."""

    def __init__(self, storage: PostgresStorage, line: SyncLine, place: str) -> None:
        self._storage = storage
        self._line = line
        self._place = place
        self._sql = Sql(storage.schema)
        self._unseen: dict[str, str] = {}

    def collect(self) -> Facts:
        try:
            server = self._server()
        except StorageError as error:
            return Facts(server=Server(place=self._place, error=_why(error)))
        looks: dict[str, Callable[[], Any]] = {
            "settings": self._settings,
            "slots": self._slots,
            "notifications": self._notifications,
            "tables": self._tables,
            "holders": self._holders,
            "schema": self._schema,
        }
        facts = {name: self._look(name, look) for name, look in looks.items()}
        if not server.standby:
            facts["listening"] = self._look("listening", self._listening)
        if facts["schema"] is None or facts["schema"].recorded:
            facts |= self._of_schema()
        return Facts(server=server, unseen=self._unseen, **facts)

    def _of_schema(self) -> dict[str, Any]:
        looks: dict[str, Callable[[], Any]] = {
            "rights": self._rights,
            "identity": self._identity,
            "indexes": lambda: tuple(name for (name,) in self._run("examine_indexes")),
            "leaves": lambda: tuple(name for (name,) in self._run("examine_leaves")),
            "leader": self._leader,
            "workers": lambda: tuple(self._storage.workers()),
            "queues": lambda: tuple(self._storage.queues(limit=_COUNTED)),
            "pauses": lambda: tuple(self._storage.pauses()),
            "waiting": self._waiting,
            "failures": self._failures,
        }
        return {name: self._look(name, look) for name, look in looks.items()}

    def _look(self, name: str, look: Callable[[], Any]) -> Any:
        try:
            return look()
        except StorageError as error:
            self._unseen[name] = _why(error)
            return None

    def _run(self, query: str, params: Mapping[str, Any] | None = None, **parts: str) -> list[tuple[Any, ...]]:
        return self._line.run(self._sql.query(query, **parts), params or {})

    # -- the server ---------------------------------------------------------------------------------------------------

    def _server(self) -> Server:
        version = self._line.connect().info.server_version // 10000
        self._run("examine_server")  # connected and warm: what is measured is one round trip
        asked = time.time()
        [(standby, read_only, now)] = self._run("examine_server")
        here = (asked + time.time()) / 2
        return Server(
            place=self._place,
            version=version,
            standby=standby,
            read_only=read_only,
            now=datetime.fromtimestamp(now, UTC),
            skew=now - here,
        )

    def _settings(self) -> dict[str, str]:
        return dict(self._run("examine_settings"))

    def _slots(self) -> Slots:
        limits = (Slots(used=used, room=room, limit=limit) for used, room, limit in self._run("examine_connections"))
        return min(limits, key=lambda slots: slots.room - slots.used)

    def _notifications(self) -> float:
        [(full,)] = self._run("examine_notifications")
        return float(full)

    def _tables(self) -> tuple[Table, ...]:
        return tuple(
            Table(name=name, dead=dead, limit=limit, vacuumed=vacuumed, enabled=enabled)
            for name, dead, limit, vacuumed, enabled in self._run("examine_tables")
        )

    def _holders(self) -> tuple[Holder, ...]:
        return tuple(
            Holder(kind=kind, name=name, role=role, application=application, state=state, xids=xids, seconds=seconds)
            for kind, name, role, application, state, xids, seconds in self._run("examine_holders")
        )

    def _listening(self) -> Listening:
        """Notify over the one connection and hear it over the other: only that shows that they lead to one place."""
        separate = self._storage.listen_dsn != self._storage.dsn
        channel = f"prinia_doctor_{secrets.token_hex(8)}"
        try:
            with (
                translated(self._storage.schema),
                psycopg.connect(
                    self._storage.listen_dsn, autocommit=True, application_name="prinia doctor",
                    prepare_threshold=None, **KEEPALIVE,
                ) as connection,
            ):  # fmt: skip
                direct = connection.execute("select pg_catalog.pg_backend_pid()").fetchall() == [
                    (connection.info.backend_pid,)
                ]
                connection.execute(f'listen "{channel}"'.encode())
                self._line.run(b"select pg_notify(%(channel)s, '')", {"channel": channel})
                heard = any(connection.notifies(timeout=PROOF_TIMEOUT, stop_after=1))
                return Listening(direct=direct, heard=heard, separate=separate)
        except StorageError as error:
            return Listening(separate=separate, error=_why(error))

    # -- the schema ---------------------------------------------------------------------------------------------------

    def _schema(self) -> Schema:
        with translated(self._storage.schema):
            return Schema(
                name=self._storage.schema, recorded=tuple(history(self._line.connect(), self._storage.schema))
            )

    def _rights(self) -> Rights:
        rows = self._run("examine_rights")
        return Rights(
            role=self._line.connect().info.user,
            schema=self._storage.schema,
            usage=any(kind == "schema" and "usage" in held for kind, _, held, _ in rows),
            owner=all(owned for kind, _, _, owned in rows if kind == "table"),
            things=tuple(
                Thing(kind=kind, name=name, held=frozenset(held)) for kind, name, held, _ in rows if kind != "schema"
            ),
        )

    def _identity(self) -> Identity:
        try:
            [(here,)] = self._line.run(b"select system_identifier from pg_control_system()")
        except StorageError:
            here = None
        [(known, original, name, since, jobs)] = self._run("examine_identity", {"here": here})
        return Identity(
            schema=self._storage.schema,
            known=known,
            original=bool(original),
            name=name or "",
            since=None if since is None else datetime.fromtimestamp(since, UTC),
            jobs=jobs,
        )

    # -- the deployment -----------------------------------------------------------------------------------------------

    def _leader(self) -> Leader:
        [(instance, term)] = self._run("examine_leader")
        return Leader(instance=instance, term=term)

    def _waiting(self) -> tuple[Waiting, ...]:
        rows = self._run("examine_waiting", {"limit": _FIRST}, lanes=self._sql.part("lanes"))
        return tuple(Waiting(queue=queue, task=task, jobs=jobs, more=more) for queue, task, jobs, more in rows)

    def _failures(self) -> Failures:
        rows = self._run("examine_failures", {"limit": _LATEST})
        return Failures(by_task={task: number for task, number, _ in rows}, more=any(more for _, _, more in rows))


def _why(error: StorageError) -> str:
    """What the server said, where it said something."""
    if isinstance(error, MigrationsPending):
        return "the schema is older than this Prinia"
    cause = error.__cause__
    said = cause.diag.message_primary if isinstance(cause, psycopg.Error) else None
    return said or str(error)
