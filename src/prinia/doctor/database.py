"""Checks of the server and of how it is reached. All are pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prinia.doctor.facts import Holder, Listening, Server, Slots, Table
from prinia.doctor.finding import Remark, note, ok, problem, warning
from prinia.wording import plural, span

OLDEST, NEWEST = 13, 18
#: From so many seconds on a difference of the clocks is told.
SKEW, LARGE_SKEW = 2.0, 60.0
#: Who has held back the horizon for so many seconds, or transactions, is told of.
LONG, MANY_XIDS = 300.0, 1_000_000
#: A table with so many times the dead rows that let autovacuum come is overdue, unless it came so lately, in seconds.
OVERDUE, LATELY = 5, 600.0
#: Settings that say how long something may take, in milliseconds, and below how much they hurt.
_SHORT = {
    "statement_timeout": (5_000, "long enqueues and operations on many jobs are cut off"),
    "transaction_timeout": (60_000, "sessions of workers are ended in the middle of their work"),
    "idle_session_timeout": (60_000, "idle workers lose the connection that wakes them, again and again"),
    "idle_in_transaction_session_timeout": (
        5_000,
        "handlers that complete their job in a transaction of their own lose it",
    ),
    "lock_timeout": (100, "an enqueue with a unique key fails where it would have waited for the holder"),
}
_DURABLE = {
    "fsync": "after a crash of the machine the database may be beyond repair",
    "full_page_writes": "after a crash of the machine the database may be damaged",
    "synchronous_commit": "after a crash jobs that were enqueued last may be gone, and finished ones run again",
}


def check_server(server: Server) -> Iterator[Remark]:
    """It is reached, of a version that Prinia knows, and takes writes."""
    if server.error is not None:
        yield problem(
            f"{server.place} cannot be reached: {server.error}",
            "Look whether it runs, and whether host, port, name and password of the URL are right.",
        )
    elif server.version < OLDEST:
        yield problem(f"it is PostgreSQL {server.version}", f"Prinia needs {OLDEST} or newer: upgrade it.")
    elif server.standby:
        yield problem(
            f"{server.place} is a standby, which only reads",
            "Use the primary's URL, or several hosts with target_session_attrs=read-write.",
        )
    elif server.read_only:
        yield problem(
            "transactions of this role are read-only (default_transaction_read_only)",
            "Set it to off for this role or database.",
        )
    elif server.version > NEWEST:
        yield note(f"PostgreSQL {server.version} is newer than what Prinia was tested with, up to {NEWEST}")
    else:
        yield ok(f"PostgreSQL {server.version}, {server.place}")


def check_clock(server: Server) -> Iterator[Remark]:
    """The server's clock and this machine's are about the same. Prinia goes by the server's alone."""
    if server.error is not None:
        return
    if abs(server.skew) < SKEW:
        yield ok("the server's clock and this machine's agree")
        return
    which = "ahead of" if server.skew > 0 else "behind"
    found = f"the server's clock is {abs(server.skew):,.0f} s {which} this machine's"
    advice = "Due times go by the server's clock, so jobs are not late; but compare with care, and look at NTP."
    yield (warning if abs(server.skew) >= LARGE_SKEW else note)(found, advice)


def check_listening(listening: Listening) -> Iterator[Remark]:
    """Notifications arrive, so idle workers are woken at once."""
    url = "listen_dsn" if listening.separate else "this URL"
    if listening.error is not None:
        yield warning(
            f"a connection to listen on could not be had over {url}: {listening.error}",
            "Workers poll every second meanwhile. Let listen_dsn lead to the server itself.",
        )
    elif not listening.direct:
        yield warning(
            f"{url} leads through a transaction pooler, where nothing can be listened for",
            "Workers poll every second. Prinia(..., listen_dsn=...) with the server's own URL has them woken at once.",
        )
    elif not listening.heard:
        yield warning(
            f"a notification did not arrive over {url}",
            "Workers poll every second. Let listen_dsn lead to the same server and database, without a pooler.",
        )
    else:
        yield ok(f"notifications arrive over {url}")


def check_connections(slots: Slots) -> Iterator[Remark]:
    """There is room for more connections: a worker needs 4, an app up to 10 for each process."""
    found = f"{slots.used} of {slots.room} connections are in use ({slots.limit})"
    advice = "Close what is not needed, raise the limit, or put a pooler before what is no worker."
    if slots.used >= slots.room - 3:
        yield problem(found, advice)
    elif slots.used >= 0.85 * slots.room:
        yield warning(found, advice)
    else:
        yield ok(found)


def check_notifications(notifications: float) -> Iterator[Remark]:
    """The server's queue of notifications is drained. A full one makes every push fail."""
    found = f"the server's queue of notifications is {notifications:.0%} full"
    if notifications >= 0.25:
        yield (problem if notifications >= 0.75 else warning)(
            found,
            "Some session listens and stays in a transaction: horizon names those that are old. End it with"
            " pg_terminate_backend(pid).",
        )
    else:
        yield ok(found)


def check_vacuum(tables: Iterable[Table], settings: Mapping[str, str]) -> Iterator[Remark]:
    """Autovacuum is on, and comes to the hot tables. Without it claims slow down."""
    fine = True
    for name in ("autovacuum", "track_counts"):
        if settings.get(name) == "off":
            fine = False
            yield warning(
                f"{name} is off", f"Set {name} = on in postgresql.conf: without it claims slow down for ever."
            )
    for table in tables:
        if not table.enabled:
            fine = False
            yield warning(
                f"autovacuum is off for table {table.name}",
                f"alter table ... {table.name} reset (autovacuum_enabled), or vacuum it yourself every few minutes.",
            )
        elif table.dead > OVERDUE * table.limit and (table.vacuumed is None or table.vacuumed > LATELY):
            fine = False
            ago = "never" if table.vacuumed is None else f"{span(table.vacuumed)} ago"
            yield warning(
                f"table {table.name} has {table.dead:,} dead rows and was vacuumed last: {ago}",
                "Look at horizon: what is named there keeps them. Else autovacuum has too few workers, or waits for a "
                "lock (pg_stat_activity).",
            )
    if fine:
        yield ok("autovacuum keeps up")


def check_horizon(holders: Iterable[Holder]) -> Iterator[Remark]:
    """Nobody keeps dead rows from being removed for long."""
    fine = True
    for holder in holders:
        if (holder.seconds or 0.0) < LONG and holder.xids < MANY_XIDS:
            continue
        fine = False
        since = f"{plural(holder.xids, 'transaction')} ago"
        if holder.seconds is not None:
            since = f"for {span(holder.seconds)}"
        yield warning(*_held(holder, since))
    if fine:
        yield ok("nothing holds back the removal of dead rows for long")


def _held(holder: Holder, since: str) -> tuple[str, str]:
    if holder.kind == "prepared":
        return (
            f'prepared transaction "{holder.name}" of {holder.role} is open {since}',
            f"Who prepared it should end it: rollback prepared '{holder.name}', or commit prepared. It holds back"
            " vacuum, and its locks stay.",
        )
    if holder.kind == "slot":
        return (
            f'replication slot "{holder.name}" ({holder.state}) holds back dead rows since {since}',
            f"If nobody reads it any more: select pg_drop_replication_slot('{holder.name}').",
        )
    who = " ".join(filter(None, (f"of {holder.role}" if holder.role else "", f'("{holder.application}")')))
    return (
        f"session {holder.name} {who} has had a transaction open {since}, {holder.state or 'state not visible'}",
        f"It keeps dead rows from being removed, and workers busy. End it: select pg_terminate_backend({holder.name}).",
    )


def check_settings(settings: Mapping[str, str]) -> Iterator[Remark]:
    """Settings of this role and database do not get in the way. (Workers set their own where they can.)"""
    fine = True
    for name, (least, harm) in _SHORT.items():
        value = int(settings.get(name, "0"))
        if 0 < value < least:
            fine = False
            yield warning(
                f"{name} is {value:,} ms for this role: {harm}",
                f"alter role ... set {name} = {least}, or more, or 0 for none.",
            )
    isolation = settings.get("default_transaction_isolation", "read committed")
    if isolation != "read committed":
        fine = False
        yield note(
            f"default_transaction_isolation is {isolation} for this role",
            "An enqueue in a transaction of yours may then fail with a serialization error, and is to be tried again.",
        )
    if fine:
        yield ok("no setting of this role gets in the way")


def check_durability(settings: Mapping[str, str]) -> Iterator[Remark]:
    """What was committed stays, whatever happens."""
    fine = True
    for name, harm in _DURABLE.items():
        if settings.get(name) == "off":
            fine = False
            yield warning(f"{name} is off: {harm}", f"Set {name} = on, unless this database may be lost.")
    if fine:
        yield ok("what was committed stays")
