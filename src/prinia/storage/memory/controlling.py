"""Pauses, commands to single workers, and the audit."""

from __future__ import annotations

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
from prinia.storage.memory.tables import Tables


class Controlling:
    """`prinia.storage.protocol.Pauses`, `Commands` and `Audits` in memory: a part of the storage, which has tables."""

    tables: Tables

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`prinia.storage.protocol.Pauses.pause`."""
        tables = self.tables
        with tables.lock:
            now = tables.now()
            pause = Pause(kind=kind, name=name, at=now, by=by)
            if kind == "everything":
                new, tables.paused_all = tables.paused_all is None, tables.paused_all or pause
            else:
                new = (tables.paused if kind == "queue" else tables.paused_tasks).setdefault(name, pause) is pause
            if new:
                tables.note_audit(by, "pause", pause_target(kind, name), now)
            return new

    async def apause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`pause`, awaited."""
        return self.pause(kind, name, by=by)

    def resume(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`prinia.storage.protocol.Pauses.resume`."""
        tables = self.tables
        with tables.lock:
            if kind == "everything":
                was, tables.paused_all = tables.paused_all is not None, None
            else:
                was = (tables.paused if kind == "queue" else tables.paused_tasks).pop(name, None) is not None
            if was:
                tables.note_audit(by, "resume", pause_target(kind, name), tables.now())
                tables.ring((name,) if kind == "queue" else tables.lines)
            return was

    async def aresume(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        """`resume`, awaited."""
        return self.resume(kind, name, by=by)

    def pauses(self) -> list[Pause]:
        """`prinia.storage.protocol.Pauses.pauses`."""
        with self.tables.lock:
            return all_pauses(self.tables)

    async def apauses(self) -> list[Pause]:
        """`pauses`, awaited."""
        return self.pauses()

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        """`prinia.storage.protocol.Commands.command_worker`."""
        tables = self.tables
        with tables.lock:
            worker = tables.register.get(instance)
            if worker is None or worker.dead:
                raise no_such_worker(instance)
            if worker.command in (command, WorkerCommand.STOP):
                return False
            worker.command, worker.commanded_by = command, by
            tables.note_audit(by, command_name(command), worker_target(instance), tables.now())
            for listener in tables.listeners:
                listener.summon()
            return True

    async def acommand_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        """`command_worker`, awaited."""
        return self.command_worker(instance, command, by=by)

    def audit(self, *, before: int | None, limit: int, by: str | None, operation: str | None) -> list[AuditEntry]:
        """`prinia.storage.protocol.Audits.audit`."""
        with self.tables.lock:
            entries = [
                entry
                for id, entry in reversed(self.tables.audit.items())
                if (before is None or id < before) and by in (None, entry.by) and operation in (None, entry.operation)
            ]
            return entries[:limit]

    async def aaudit(
        self, *, before: int | None, limit: int, by: str | None, operation: str | None
    ) -> list[AuditEntry]:
        """`audit`, awaited."""
        return self.audit(before=before, limit=limit, by=by, operation=operation)


def all_pauses(tables: Tables) -> list[Pause]:
    """What is paused: everything first, then queues, then tasks, by name."""
    everything = [] if tables.paused_all is None else [tables.paused_all]
    named = (sorted(pauses.items()) for pauses in (tables.paused, tables.paused_tasks))
    return everything + [pause for pauses in named for _, pause in pauses]
