"""The doctor's checks, from facts alone: each level that each can give.

Seen to fail with: facts that are missing taken for good ones; limits compared the wrong way round; the dead counted
among those that serve.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from prinia import Count, JobState, Pause, QueueRecord, WorkerRecord
from prinia.doctor import CHECKS, Finding, Level, examine
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
from prinia.storage.postgres.migrate import migrations

NOW = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
HERE = metadata.version("prinia")
SERVER = Server(place="shop on db as shop", version=17, now=NOW)
APPLIED = tuple((one.version, one.name, one.checksum, HERE) for one in migrations())
TABLE = Table(name="jobs", dead=10, limit=20_000.0, vacuumed=60.0)


def leaves(first: int, last: int) -> tuple[str, ...]:
    """A leaf for each day from so many days from now to so many."""
    days = [NOW + timedelta(days=day) for day in range(first, last + 1)]
    return tuple(f"archive_{day:%Y%m%d}_{day + timedelta(days=1):%Y%m%d}" for day in days)


def worker(**fields: Any) -> WorkerRecord:
    values: dict[str, Any] = {
        "id": uuid4(), "name": "w1", "host": "web-1", "pid": 41, "run": 0, "version": HERE, "queues": ("email",),
        "tasks": ("send",), "concurrency": 2, "running": (), "started_at": NOW, "beat_at": NOW, "beat_age": 1.0,
        "listener": "listening",
    }  # fmt: skip
    return WorkerRecord(**values | fields)


WORKER = worker()


def thing(kind: str, name: str, *held: str) -> Thing:
    return Thing(kind=kind, name=name, held=frozenset(held))


OWNED = Rights(role="shop", schema="prinia", usage=True, owner=True, things=(thing("table", "jobs"),))
WELL = Facts(
    server=SERVER,
    settings={"autovacuum": "on", "fsync": "on", "synchronous_commit": "on", "statement_timeout": "0"},
    slots=Slots(used=10, room=97, limit="max_connections"),
    notifications=0.0,
    tables=(TABLE,),
    holders=(),
    listening=Listening(direct=True, heard=True),
    schema=Schema(name="prinia", recorded=APPLIED),
    rights=OWNED,
    identity=Identity(schema="prinia", known=True),
    indexes=(),
    leaves=(*leaves(-1, 38), "archive_40270101_40270201"),
    leader=Leader(instance=WORKER.id, term=3),
    workers=(WORKER,),
    queues=(QueueRecord(name="email", counts={JobState.READY: Count(3)}, age=2.0, workers=(WORKER.id,)),),
    pauses=(),
    waiting=(Waiting(queue="email", task="send", jobs=3),),
    failures=Failures(by_task={}),
)


def found(check: str, **facts: Any) -> list[Finding]:
    """What a check finds in facts that are otherwise well."""
    return [finding for finding in examine(replace(WELL, **facts)) if finding.check == check]


def bad(check: str, level: str, words: str, **facts: Any) -> Finding:
    """It must be the only thing that the check finds."""
    [finding] = found(check, **facts)
    assert (finding.level, words in finding.found) == (level, True), finding
    assert finding.advice or finding.level is Level.NOTE
    return finding


def levels(findings: Iterable[Finding]) -> set[str]:
    return {finding.level.value for finding in findings}


def test_all_is_well() -> None:
    findings = examine(WELL)
    assert [finding.check for finding in findings] == list(CHECKS)
    assert levels(findings) == {"ok"}
    assert all(finding.advice is None and finding.found for finding in findings)


def test_a_server_that_cannot_be_reached_is_all_there_is_to_say() -> None:
    [finding] = examine(Facts(server=Server(place="shop on db", error="connection refused")))
    assert (finding.check, finding.level) == ("server", "problem")
    assert finding.found == "shop on db cannot be reached: connection refused"


def test_what_may_not_be_seen_is_said() -> None:
    facts = replace(WELL, workers=None, unseen={"workers": "permission denied for table workers"})
    unseen = {finding.check for finding in examine(facts) if finding.level is Level.NOTE}
    assert unseen == {"workers", "leader", "versions", "tasks"}
    finding = bad(
        "workers", "note", "not looked at: permission denied for table workers", workers=None, unseen=facts.unseen
    )
    assert finding.advice == "Run it as the role that owns Prinia's tables."
    assert found("workers", workers=None) == [], "what there was no point in looking at is not spoken of"


@pytest.mark.parametrize(
    ("server", "level", "words"),
    [
        ({"version": 12}, "problem", "PostgreSQL 12"),
        ({"version": 19}, "note", "PostgreSQL 19 is newer"),
        ({"standby": True}, "problem", "is a standby"),
        ({"read_only": True}, "problem", "read-only"),
    ],
)
def test_server(server: dict[str, Any], level: str, words: str) -> None:
    bad("server", level, words, server=replace(SERVER, **server))


def test_clock() -> None:
    bad("clock", "note", "is 5 s ahead of this machine's", server=replace(SERVER, skew=5.0))
    bad("clock", "warning", "is 3,600 s behind this machine's", server=replace(SERVER, skew=-3600.0))
    assert levels(found("clock", server=replace(SERVER, skew=-1.0))) == {"ok"}


def test_migrations() -> None:
    lacking = bad("migrations", "problem", APPLIED[-1][1], schema=Schema(name="my jobs", recorded=APPLIED[:-1]))
    assert lacking.advice == "Run: prinia migrate --schema 'my jobs'"
    bad("migrations", "problem", "no Prinia tables", schema=Schema(name="prinia", recorded=()))
    newer = (*APPLIED, (9000, "later", "x", "9.0"))
    bad("migrations", "note", "9000_later came with Prinia 9.0", schema=Schema(name="prinia", recorded=newer))
    other = (*APPLIED[:-1], (APPLIED[-1][0], APPLIED[-1][1], "edited", "0.0"))
    bad("migrations", "problem", "checksums differ", schema=Schema(name="prinia", recorded=other))


ENQUEUE, COMPLETE = "enqueue(jobs text, bell boolean)", "complete(job text)"


def rights(*things: Thing, usage: bool = True, role: str = "shop_x") -> Rights:
    every = {one.name: one for one in (
        thing("table", "jobs"), thing("view", "live_jobs"), thing("view", "finished_jobs"), thing("view", "all_jobs"),
        thing("function", ENQUEUE), thing("function", COMPLETE),
    )}  # fmt: skip
    every |= {one.name: one for one in things}
    return Rights(role=role, schema="prinia", usage=usage, owner=False, things=tuple(every.values()))


VIEWS = tuple(thing("view", name, "select") for name in ("live_jobs", "finished_jobs", "all_jobs"))
JOBS = thing("table", "jobs", "select", "insert", "update", "delete")
FUNCTIONS = (thing("function", ENQUEUE, "execute"), thing("function", COMPLETE, "execute"))


def test_rights() -> None:
    [works] = found("rights", rights=rights(JOBS, *VIEWS, *FUNCTIONS))
    assert (works.level, works.found.startswith("shop_x may work, enqueue and read")) == ("ok", True)
    bad("rights", "note", "shop_x may enqueue, which is no worker's role", rights=rights(FUNCTIONS[0]))
    bad("rights", "note", "may enqueue and read", rights=rights(FUNCTIONS[0], *VIEWS))
    bad("rights", "problem", "may do nothing here", rights=rights(*VIEWS, FUNCTIONS[0], usage=False))
    partly = bad("rights", "problem", "lacks delete on jobs, execute on complete(job text)", rights=rights(
        thing("table", "jobs", "select", "insert", "update"), *VIEWS, FUNCTIONS[0]))  # fmt: skip
    assert (partly.advice or "").splitlines()[1:] == [
        'grant select, insert, update, delete on all tables in schema "prinia" to shop_x;',
        'grant execute on all functions in schema "prinia" to shop_x;',
    ]
    odd = bad("rights", "problem", "Shop X", rights=rights(usage=False, role="Shop X"))
    assert 'grant usage on schema "prinia" to "Shop X";' in (odd.advice or "")


def test_identity() -> None:
    copy = Identity(schema="my jobs", known=True, original=False, name="shop", since=NOW, jobs=True)
    finding = bad("identity", "problem", "a copy of database 'shop'", identity=copy)
    assert (finding.advice or "").endswith("prinia migrate --schema 'my jobs' --adopt")
    bad("identity", "note", "without live jobs", identity=replace(copy, jobs=False))
    assert levels(found("identity", identity=replace(copy, known=False))) == {"ok"}


def test_listening() -> None:
    bad("listen", "warning", "leads through a transaction pooler", listening=Listening(heard=True))
    bad("listen", "warning", "did not arrive over this URL", listening=Listening(direct=True))
    bad("listen", "warning", "over listen_dsn: refused", listening=Listening(error="refused", separate=True))


def test_connections() -> None:
    slots = Slots(used=94, room=97, limit="the limit of this role")
    bad("connections", "problem", "94 of 97 connections are in use (the limit of this role)", slots=slots)
    bad("connections", "warning", "85 of 97", slots=replace(slots, used=85))
    assert levels(found("connections", slots=replace(slots, used=50))) == {"ok"}


def test_notifications() -> None:
    bad("notifications", "warning", "30% full", notifications=0.3)
    bad("notifications", "problem", "80% full", notifications=0.8)


def test_vacuum() -> None:
    dead = replace(TABLE, dead=100_001)
    bad("vacuum", "warning", "100,001 dead rows and was vacuumed last: never", tables=[replace(dead, vacuumed=None)])
    bad("vacuum", "warning", "vacuumed last: 20m ago", tables=[replace(dead, vacuumed=1200.0)])
    bad("vacuum", "warning", "off for table jobs", tables=[replace(TABLE, enabled=False)])
    bad("vacuum", "warning", "autovacuum is off", settings={"autovacuum": "off"})
    assert levels(found("vacuum", tables=[dead])) == {"ok"}, "it has just been there"


HOLDER = Holder(kind="session", name="812", role="shop", application="psql", state="idle in transaction", seconds=400.0)


@pytest.mark.parametrize(
    ("holder", "words", "advice"),
    [
        (
            HOLDER,
            'session 812 of shop ("psql") has had a transaction open for 6m40s, idle',
            "pg_terminate_backend(812)",
        ),
        (
            replace(HOLDER, seconds=None, state="", xids=2_000_000),
            "open 2,000,000 transactions ago, state not visible",
            "pg_terminate_backend(812)",
        ),
        (replace(HOLDER, kind="prepared", name="move"), 'prepared transaction "move"', "rollback prepared 'move'"),
        (
            Holder(kind="slot", name="old", state="not in use", xids=5_000_000),
            'replication slot "old" (not in use)',
            "pg_drop_replication_slot('old')",
        ),
    ],
)
def test_horizon(holder: Holder, words: str, advice: str) -> None:
    assert advice in (bad("horizon", "warning", words, holders=[holder]).advice or "")
    assert levels(found("horizon", holders=[replace(holder, seconds=10.0, xids=10)])) == {"ok"}


def test_settings() -> None:
    for name, value in (
        ("statement_timeout", "1000"), ("transaction_timeout", "30000"), ("idle_session_timeout", "20000"),
        ("idle_in_transaction_session_timeout", "1000"), ("lock_timeout", "50"),
    ):  # fmt: skip
        finding = bad("settings", "warning", f"{name} is {int(value):,} ms", settings={name: value})
        assert f"set {name} = " in (finding.advice or "")
    assert levels(found("settings", settings={"statement_timeout": "60000"})) == {"ok"}
    bad("settings", "note", "is serializable", settings={"default_transaction_isolation": "serializable"})


def test_durability() -> None:
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        bad("durability", "warning", f"{name} is off", settings={name: "off"})
    assert levels(found("durability", settings={"synchronous_commit": "local"})) == {"ok"}


def test_archive() -> None:
    bad("archive", "warning", "kept until 2026-12-21 only", leaves=leaves(0, 19))
    gap = tuple(leaf for leaf in leaves(0, 38) if "20261205_" not in leaf)
    bad("archive", "warning", "kept until 2026-12-05 only", leaves=gap)
    bad("archive", "warning", "2 of the archive's leaves should have been dropped, the oldest on 2026-11-27",
        leaves=leaves(-5, 38)[:2] + leaves(0, 38))  # fmt: skip


def test_indexes() -> None:
    bad("indexes", "warning", "jobs_ready_ccnew", indexes=("jobs_ready_ccnew",))


def test_workers() -> None:
    bad("workers", "warning", "no worker is live", workers=())
    bad("workers", "note", "was declared dead", workers=(WORKER, worker(alive=False, beat_age=20.0)))
    bad("workers", "warning", "have not come back", workers=(WORKER, worker(alive=False, beat_age=90.0)))
    bad("workers", "warning", "was last heard of 30s ago", workers=(worker(beat_age=30.0),))
    bad("workers", "warning", "blocked for 9s", workers=(worker(blocked=9.0),))
    bad("workers", "warning", "cannot listen, and polls", workers=(worker(listener="polling"),))
    assert levels(found("workers", workers=(worker(listener="off"),))) == {"ok"}, "it was asked not to"


def test_leader() -> None:
    bad("leader", "note", "nobody leads", workers=(worker(id=WORKER.id, alive=False),))
    bad("leader", "warning", "none of the live workers leads", leader=Leader(instance=None, term=0))
    bad("leader", "warning", "is late", workers=(worker(id=WORKER.id, beat_age=30.0),))


def test_versions() -> None:
    bad("versions", "note", "the workers' are 0.0.1: w2; ", workers=(WORKER, worker(name="w2", version="0.0.1")))
    assert levels(found("versions", workers=(worker(alive=False, version="0.0.1"),))) == {"ok"}


def queue(*workers: WorkerRecord, **fields: Any) -> QueueRecord:
    counts = {JobState.READY: Count(3), JobState.COMPLETED: Count(9)}
    values: dict[str, Any] = {"name": "sms", "counts": counts, "workers": tuple(one.id for one in workers)}
    return QueueRecord(**values | fields)


def test_queues() -> None:
    finding = bad("queues", "problem", 'nobody serves queue "sms": 3 ready', queues=[queue()])
    assert "prinia worker MODULE:APP -q sms" in (finding.advice or "")
    assert levels(found("queues", queues=[queue(counts={JobState.COMPLETED: Count(9)})])) == {"ok"}


def test_tasks() -> None:
    waiting = [Waiting(queue="email", task="newer", jobs=3)]
    finding = bad(
        "tasks", "problem", 'no worker of queue "email" knows task newer (jobs that wait for it: 3)', waiting=waiting
    )
    assert "aliases" in (finding.advice or "")
    bad("tasks", "problem", "wait for it: 1,000 or more)", waiting=[replace(waiting[0], jobs=1000, more=True)])
    other = worker(name="w2", queues=("sms",), tasks=("newer",))
    finding = bad("tasks", "problem", "knows task newer", waiting=waiting, workers=(WORKER, other))
    assert "It is known to w2" in (finding.advice or "")
    # Nobody serves the queue: that is for another check.
    assert levels(found("tasks", waiting=waiting, workers=(other, worker(alive=False)))) == {"ok"}


def test_waiting() -> None:
    bad(
        "waiting",
        "note",
        'a job of queue "sms" has been ready for 2m (ready in all: 3)',
        queues=[queue(WORKER, age=120.0)],
    )
    bad("waiting", "warning", "ready for 1h", queues=[queue(WORKER, age=3600.0)])
    for quiet in (queue(age=3600.0), queue(WORKER, age=3600.0, paused=True), queue(WORKER, age=30.0)):
        assert levels(found("waiting", queues=[quiet])) == {"ok"}


def test_pauses() -> None:
    hour, week = NOW - timedelta(hours=1), NOW - timedelta(days=7)
    finding = bad("pauses", "note", "queue sms has been paused for 1h, by Ada",
                  pauses=[Pause(kind="queue", name="sms", at=hour, by="Ada")])  # fmt: skip
    assert finding.advice == "When it may go on: prinia resume sms"
    bad("pauses", "warning", "everything has been paused for 7d", pauses=[Pause(kind="everything", at=week)])


def test_failures() -> None:
    bad("failures", "note", "12 jobs failed in the last 24 hours: send (9), bill (3)",
        failures=Failures(by_task={"bill": 3, "send": 9}))  # fmt: skip
    bad("failures", "note", "1 or more jobs failed", failures=Failures(by_task={"send": 1}, more=True))


def test_every_check_has_a_test() -> None:
    """By the name that it is called with."""
    named = set(re.findall(r'bad\(\s*"(\w+)"', Path(__file__).read_text(encoding="utf-8")))
    assert named == set(CHECKS)
