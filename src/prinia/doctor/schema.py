"""Checks of Prinia's schema. All are pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from prinia.doctor.facts import Identity, Rights, Schema, Server, Thing
from prinia.doctor.finding import Remark, note, ok, problem, warning
from prinia.errors import MigrationError
from prinia.storage.postgres.migrate import judge, migrations
from prinia.storage.postgres.sql import Sql, migrate_command
from prinia.wording import listed

#: The leader makes room for what ends within a week and is kept for up to 31 days, hourly: with less it is late.
AHEAD = timedelta(days=33)
#: A leaf that was to go so long ago stays for a reason.
PAST = timedelta(days=2)
_WRITES = frozenset({"insert", "update", "delete"})
_TABLE_RIGHTS = _WRITES | {"select"}
_READER = ("live_jobs", "finished_jobs", "all_jobs")
_ENQUEUE = "enqueue"
_LEAF = re.compile(r"archive_(\d{8})_(\d{8})")
#: Leaves of what is kept longer are filed from this year on: see keep() in the schema.
_FAR_YEAR = 4000


def check_migrations(schema: Schema) -> Iterator[Remark]:
    """The schema is there and fits this Prinia."""
    command = migrate_command(schema.name)
    if not schema.recorded:
        yield problem(f"there are no Prinia tables in schema {schema.name!r}", f"Run: {command}")
        return
    try:
        lacking = judge(schema.recorded)
    except MigrationError as error:
        yield problem(str(error), "Install the Prinia that wrote it, or start with a fresh schema.")
        return
    newest = max(one.version for one in migrations())
    newer = [row for row in schema.recorded if row[0] > newest]
    if lacking:
        yield problem(f"it lacks {', '.join(one.label for one in lacking)}", f"Run: {command}")
    elif newer:
        yield note(
            f"it is newer than this Prinia: {newer[-1][0]:04}_{newer[-1][1]} came with Prinia {newer[-1][3]}",
            "Workers of this Prinia go on working. Upgrade it when the deploy is done.",
        )
    else:
        yield ok(f"schema {schema.name!r} is up to date")


# -- rights -----------------------------------------------------------------------------------------------------------


def check_rights(rights: Rights) -> Iterator[Remark]:
    """This role may do all that one of the duties needs: owner, worker, producer, reader."""
    lacking = _lacks(rights)
    advice = "\n".join(["To let it run workers, as the owner of the tables:", *_grants(rights, lacking)])
    if rights.owner:
        yield ok(f"{rights.role} owns the tables: it may migrate, work, enqueue and read")
    elif not lacking:
        yield ok(f"{rights.role} may work, enqueue and read; leaves of the archive it empties before it drops them")
    elif any(_WRITES & thing.held for thing in rights.things):
        yield problem(f"{rights.role} may write, but to run workers it lacks {listed(lacking)}", advice)
    elif can := _duties(rights):
        yield note(f"{rights.role} may {' and '.join(can)}, which is no worker's role", advice)
    else:
        yield problem(f"{rights.role} may do nothing here: it lacks {listed(lacking)}", advice)


def _lacks(rights: Rights) -> list[str]:
    """What a worker's role lacks, as in a grant."""
    missing = ((thing.name, sorted(_needed(thing) - thing.held)) for thing in rights.things)
    return [
        *([] if rights.usage else [f"usage on schema {rights.schema}"]),
        *(f"{', '.join(privileges)} on {name}" for name, privileges in missing if privileges),
    ]


def _needed(thing: Thing) -> frozenset[str]:
    return {"table": _TABLE_RIGHTS, "view": frozenset({"select"}), "function": frozenset({"execute"})}[thing.kind]


def _grants(rights: Rights, lacking: Sequence[str]) -> list[str]:
    schema, role = Sql(rights.schema).quoted, Sql(rights.role).quoted if _odd(rights.role) else rights.role
    kinds = {thing.kind for thing in rights.things if _needed(thing) - thing.held}
    grants = []
    if not rights.usage:
        grants.append(f"grant usage on schema {schema} to {role};")
    if kinds & {"table", "view"}:
        grants.append(f"grant select, insert, update, delete on all tables in schema {schema} to {role};")
    if "function" in kinds:
        grants.append(f"grant execute on all functions in schema {schema} to {role};")
    return grants


def _odd(name: str) -> bool:
    return re.fullmatch(r"[a-z_][a-z0-9_]*", name) is None


def _duties(rights: Rights) -> list[str]:
    held = {thing.name.partition("(")[0]: thing.held for thing in rights.things}
    can = []
    if rights.usage and "execute" in held.get(_ENQUEUE, ()):
        can.append("enqueue")
    if rights.usage and all("select" in held.get(view, ()) for view in _READER):
        can.append("read")
    return can


# -- identity, archive, indexes ---------------------------------------------------------------------------------------


def check_identity(identity: Identity) -> Iterator[Remark]:
    """This is the database in which workers have served the jobs, and no copy of it."""
    if not identity.known:
        yield ok("no worker has served these tables yet")
    elif identity.original:
        yield ok("these are the tables that workers have served before")
    elif not identity.jobs:
        yield note(f"this is a copy of database {identity.name!r}, without live jobs: workers take it as it is")
    else:
        yield problem(
            f"this is a copy of database {identity.name!r}, or a restored dump of it: no worker starts here, because"
            " its live jobs may run, or have run, there",
            "Cancel or delete those that must not run (prinia jobs cancel, prinia jobs delete), then:"
            f" {migrate_command(identity.schema)} --adopt",
        )


def check_archive(leaves: Sequence[str], server: Server) -> Iterator[Remark]:
    """Leaves for finished jobs are made ahead, and dropped when they are past."""
    if server.now is None:
        return
    spans = sorted(map(_days, filter(_LEAF.fullmatch, leaves)))
    until = server.now
    for low, high in spans:
        if low <= until < high:
            until = high
    past = [high for _, high in spans if high.year < _FAR_YEAR and high + PAST < server.now]
    if until < server.now + AHEAD:
        yield warning(
            f"the archive has room for jobs that are kept until {until:%Y-%m-%d} only",
            "A live worker makes more, every hour: start one. Without, acks make it themselves, and wait for that.",
        )
    if past:
        yield warning(
            f"{len(past)} of the archive's leaves should have been dropped, the oldest on {min(past):%Y-%m-%d}",
            "A live worker drops them, when nobody reads them: look at horizon for who does, and at the workers' logs.",
        )
    if not past and until >= server.now + AHEAD:
        yield ok("the archive has leaves ahead, and none that should be gone")


def _days(leaf: str) -> tuple[datetime, datetime]:
    _, low, high = leaf.split("_")
    return _day(low), _day(high)


def _day(text: str) -> datetime:
    return datetime.strptime(text, "%Y%m%d").replace(tzinfo=UTC)


def check_indexes(indexes: Sequence[str]) -> Iterator[Remark]:
    """No index was left half made."""
    if indexes:
        yield warning(
            f"indexes that are not valid, of a reindex that was cut off: {listed(indexes)}",
            "drop index concurrently those with _ccnew or _ccold in their names; reindex index concurrently others.",
        )
    else:
        yield ok("every index is valid")
