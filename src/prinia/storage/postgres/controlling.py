"""Pauses, commands to single workers, and the audit, in both colours."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any
from uuid import UUID

from prinia.changes import (
    AuditEntry,
    Pause,
    PauseKind,
    WorkerCommand,
    command_name,
    no_such_worker,
    pause_target,
    worker_target,
)
from prinia.storage.postgres.pools import Pools, Rows
from prinia.storage.postgres.sql import Sql, Statement
from prinia.storage.text import storable


class Controlling:
    """`prinia.storage.protocol.Pauses`, `Commands` and `Audits` on PostgreSQL: a part of the storage, which has the two
    below."""

    _sql: Sql
    _pools: Pools

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`prinia.storage.protocol.Pauses.pause`."""
        return _first(self._pools.run(self._pausing("pause", kind), _pause_params(kind, name, by)))

    async def apause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`pause`, awaited."""
        return _first(await self._pools.arun(self._pausing("pause", kind), _pause_params(kind, name, by)))

    def resume(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`prinia.storage.protocol.Pauses.resume`."""
        return _first(self._pools.run(self._pausing("resume", kind), _pause_params(kind, name, by)))

    async def aresume(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`resume`, awaited."""
        return _first(await self._pools.arun(self._pausing("resume", kind), _pause_params(kind, name, by)))

    def pauses(self) -> list[Pause]:
        """`prinia.storage.protocol.Pauses.pauses`."""
        return read_pauses(self._pools.run(self._sql.query("pauses"), {}))

    async def apauses(self) -> list[Pause]:
        """`pauses`, awaited."""
        return read_pauses(await self._pools.arun(self._sql.query("pauses"), {}))

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        """`prinia.storage.protocol.Commands.command_worker`."""
        sql, params = self._sql.query("command_worker"), _command_params(instance, command, by)
        return _told(instance, self._pools.run(sql, params))

    async def acommand_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        """`command_worker`, awaited."""
        sql, params = self._sql.query("command_worker"), _command_params(instance, command, by)
        return _told(instance, await self._pools.arun(sql, params))

    def audit(self, *, before: int | None, limit: int, by: str | None, operation: str | None) -> list[AuditEntry]:
        """`prinia.storage.protocol.Audits.audit`."""
        params = {"before": before, "limit": limit, "by": by, "operation": operation}
        return [_entry(row) for row in self._pools.run(self._sql.query("audit"), params)]

    async def aaudit(
        self, *, before: int | None, limit: int, by: str | None, operation: str | None
    ) -> list[AuditEntry]:
        """`audit`, awaited."""
        params = {"before": before, "limit": limit, "by": by, "operation": operation}
        return [_entry(row) for row in await self._pools.arun(self._sql.query("audit"), params)]

    def _pausing(self, verb: str, kind: PauseKind) -> Statement:
        return self._sql.query(verb if kind == "queue" else f"{verb}_tasks")


def _pause_params(kind: PauseKind, name: str, by: str) -> dict[str, Any]:
    return {"kind": kind, "name": name, "by": storable(by), "target": json.dumps(pause_target(kind, name))}


def _command_params(instance: UUID, command: WorkerCommand | None, by: str) -> dict[str, Any]:
    return {
        "instance": str(instance),
        "command": None if command is None else command.value,
        "by": storable(by),
        "operation": command_name(command),
        "target": json.dumps(worker_target(instance)),
    }


def _first(rows: Rows) -> bool:
    return bool(rows[0][0])


def _told(instance: UUID, rows: Rows) -> bool:
    [(told, alive, _)] = rows
    if not alive:
        raise no_such_worker(instance)
    return bool(told)


def read_pauses(rows: Rows) -> list[Pause]:
    """The rows of ``pauses.sql``."""
    return [Pause(kind=kind, name=name, at=at.astimezone(UTC), by=by) for kind, name, at, by in rows]


def _entry(row: tuple[Any, ...]) -> AuditEntry:
    id, at, by, operation, target, values, changed, skipped = row
    return AuditEntry(
        id=id,
        at=at.astimezone(UTC),
        by=by,
        operation=operation,
        target=target,
        values=values,
        changed=changed,
        skipped=skipped,
    )
