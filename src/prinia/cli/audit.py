"""``prinia audit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from itertools import islice
from typing import Any

import click
import msgspec

from prinia.app import Prinia
from prinia.changes import AuditEntry, ChangeKind, WorkerCommand, command_name
from prinia.cli.database import choose_app, on_database
from prinia.cli.output import print_json, print_table
from prinia.controlling import MAX_ENTRIES

_COUNTED = frozenset(ChangeKind)
_OPERATIONS = [*(kind.value for kind in ChangeKind), "pause", "resume", *map(command_name, (*WorkerCommand, None))]
_HEADERS = ("id", "at (UTC)", "by", "operation", "on", "values", "changed", "skipped")


@click.command(epilog="Example: prinia audit --by ada --operation cancel")
@click.option("--by", metavar="WHO", help="What they have done alone, by which command ever.")
@click.option("--operation", type=click.Choice(_OPERATIONS), help="This alone.")
@click.option("--limit", type=click.IntRange(1, MAX_ENTRIES), default=50, show_default=True, metavar="N",
              help="So many at most.")  # fmt: skip
@click.option("--before", type=click.IntRange(1), metavar="ID", help="Older than this entry: the next page.")
@on_database
def audit(by: str | None, operation: str | None, limit: int, before: int | None, as_json: bool, **place: Any) -> None:
    """Say who did what to jobs, queues and workers, the latest first."""
    entries = list(islice(_read(choose_app(**place), by, operation, before), limit))
    following = entries[-1].id if len(entries) == limit else None
    if as_json:
        print_json({"entries": entries, "next": following})
        return
    print_table(_HEADERS, list(map(_row, entries)), nothing="Nothing was done that fits.")
    if following is not None:
        click.echo(f"More with: --before {following}")


def _read(app: Prinia, by: str | None, operation: str | None, before: int | None) -> Iterator[AuditEntry]:
    """All that there are; "ada" has done what "ada (prinia jobs)" did."""
    while page := app.audit(before=before, limit=MAX_ENTRIES, operation=operation):
        yield from (entry for entry in page if by is None or entry.by == by or entry.by.startswith(f"{by} (prinia "))
        before = page[-1].id


def _row(entry: AuditEntry) -> tuple[str, ...]:
    at = f"{entry.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    counts = (str(entry.changed), str(entry.skipped)) if entry.operation in _COUNTED else ("", "")
    return (str(entry.id), at, entry.by, entry.operation, _words(entry.target), _words(entry.values), *counts)


def _words(values: Mapping[str, Any]) -> str:
    """ "queue email, state failed"."""
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(map(str, value))
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
