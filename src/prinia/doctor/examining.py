"""All checks, and how they are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prinia.doctor import database, deployment, schema
from prinia.doctor.facts import Facts
from prinia.doctor.finding import Finding, Remark, note

#: A check takes the facts that it needs as parameters of their names.
Check = Callable[..., Iterable[Remark]]

#: By name; the names stay as they are.
CHECKS: Mapping[str, Check] = {
    "server": database.check_server,
    "migrations": schema.check_migrations,
    "rights": schema.check_rights,
    "identity": schema.check_identity,
    "listen": database.check_listening,
    "workers": deployment.check_workers,
    "leader": deployment.check_leader,
    "queues": deployment.check_queues,
    "tasks": deployment.check_tasks,
    "waiting": deployment.check_waiting,
    "pauses": deployment.check_pauses,
    "failures": deployment.check_failures,
    "versions": deployment.check_versions,
    "archive": schema.check_archive,
    "indexes": schema.check_indexes,
    "vacuum": database.check_vacuum,
    "horizon": database.check_horizon,
    "connections": database.check_connections,
    "notifications": database.check_notifications,
    "settings": database.check_settings,
    "durability": database.check_durability,
    "clock": database.check_clock,
}


def examine(facts: Facts) -> list[Finding]:
    """What all checks find, in their order. A check whose facts could not be looked at says so; one that there is no
    point in making (the server cannot be reached) says nothing.

    Example::

        [finding for finding in examine(collect(dsn, schema="prinia")) if finding.level is Level.PROBLEM]
    """
    return [
        Finding(name, remark.level, remark.found, remark.advice)
        for name, check in CHECKS.items()
        for remark in _remarks(check, facts)
    ]


def _remarks(check: Check, facts: Facts) -> Iterator[Remark]:
    needed: dict[str, Any] = {name: getattr(facts, name) for name in inspect.signature(check).parameters}
    missing = [name for name, fact in needed.items() if fact is None]
    if not missing:
        yield from check(**needed)
    elif unseen := [facts.unseen[name] for name in missing if name in facts.unseen]:
        yield note(f"not looked at: {unseen[0]}", "Run it as the role that owns Prinia's tables.")
