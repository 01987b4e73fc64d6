"""A worker's heartbeat and the leader's work, as blocking calls on a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from prinia.errors import StorageError
from prinia.job import MAX_KEPT_ERRORS, Instance
from prinia.storage.postgres.connection import BASE_SETTINGS, HOT_SETTINGS, SyncLine, array, lacks_leaf
from prinia.storage.postgres.sql import Sql, Statement
from prinia.storage.postgres.sweeper import Sweeper
from prinia.storage.protocol import NO_VITALS, Beat, Vitals


class PostgresPulse:
    """`prinia.storage.protocol.Pulse` on PostgreSQL."""

    def __init__(self, dsn: Callable[[], str], sql: Sql, instance: Instance) -> None:
        self._line = SyncLine(dsn, name=f"prinia pulse {instance.name}", schema=sql.schema, settings=BASE_SETTINGS)
        self._sql = sql
        self._sweeper = Sweeper(dsn, sql, self._line)
        self._id = str(instance.id)
        kept = str(MAX_KEPT_ERRORS)
        self._beat = sql.query("beat")
        self._rescue = sql.query("rescue", found=sql.part("found_of_instance"), kept_errors=kept)
        self._free_strays = sql.query("rescue", found=sql.part("found_strays"), kept_errors=kept)
        self._sweep_expired = sql.query("sweep_expired", end_waiting=sql.part("end_waiting"))

    def beat(self, tokens: Sequence[int], started: Sequence[int], vitals: Vitals = NO_VITALS, /) -> Beat:
        """`prinia.storage.protocol.Pulse.beat`."""
        [(alive, ids, counters, dead, leader, term)] = self._line.run(
            self._beat,
            {
                "instance": self._id,
                "tokens": array(tokens),
                "started": array(started),
                "listener": vitals.listener,
                "lag": vitals.lag,
                "blocked": vitals.blocked,
            },
        )
        seen: dict[UUID, int] = dict(zip(ids or (), counters or (), strict=True))
        return Beat(alive=alive, counters=seen, dead=frozenset(dead or ()), leader=leader, term=term)

    def lead(self, leader: UUID | None, term: int, /) -> bool:
        """`prinia.storage.protocol.Pulse.lead`."""
        params = {"instance": self._id, "leader": leader and str(leader), "term": term}
        return self._changed("lead", params)

    def declare_dead(self, instance: UUID, counter: int, /) -> bool:
        """`prinia.storage.protocol.Pulse.declare_dead`."""
        return self._changed("declare_dead", {"instance": str(instance), "counter": counter})

    def rescue(self, instance: UUID, /) -> int:
        """`prinia.storage.protocol.Pulse.rescue`."""
        params = {"instance": str(instance)}
        rescued = self._count(self._rescue, params)
        if not rescued:
            self._changed("bury", params)
        return rescued

    def free_strays(self) -> int:
        """`prinia.storage.protocol.Pulse.free_strays`."""
        return self._count(self._free_strays, {})

    def sweep_expired(self) -> int:
        """`prinia.storage.protocol.Pulse.sweep_expired`."""
        return self._count(self._sweep_expired, {"reason": "expired"}, settings=HOT_SETTINGS)

    def sweep_keys(self) -> int:
        """`prinia.storage.protocol.Pulse.sweep_keys`."""
        return self._count(self._sql.query("sweep_keys"), {}, settings=HOT_SETTINGS)

    def prepare_archive(self) -> int:
        """`prinia.storage.protocol.Pulse.prepare_archive`."""
        return self._count(self._sql.query("make_leaves"), {})

    def sweep_archive(self, now: datetime | None = None, /) -> int:
        """`prinia.storage.protocol.Pulse.sweep_archive`."""
        return self._sweeper.sweep(now)

    def close(self) -> None:
        """Disconnect."""
        self._line.close()

    def _count(self, sql: Statement, params: Mapping[str, object], *, settings: Mapping[str, str] | None = None) -> int:
        try:
            [(count, *_)] = self._line.run(sql, params, settings=settings)
        except StorageError as error:
            if not lacks_leaf(error):
                raise
            self.prepare_archive()
            [(count, *_)] = self._line.run(sql, params, settings=settings)
        return int(count)

    def _changed(self, query: str, params: Mapping[str, object]) -> bool:
        return bool(self._line.run(self._sql.query(query), params))
