"""The facts that the doctor collects, from real databases in which something is wrong.

Seen to fail with: one fact that cannot be seen hindering the others; a notification sent and heard over the same URL;
rights of leaves or of the wrong role; an identity that is written by looking at it; times taken from this machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from prinia import Fail, Fixed, Prinia
from prinia.doctor import CHECKS, Finding, Level, collect, collecting, database, examine
from prinia.storage.postgres import PostgresStorage
from prinia.testing.conformance import job

from .kit import Lab, terminate, until
from .pooler import pooler


def examined(dsn: str, *, schema: str = "prinia", listen_dsn: str | None = None) -> dict[str, list[Finding]]:
    """What the doctor finds, by check."""
    storage = PostgresStorage(dsn, schema=schema, listen_dsn=listen_dsn)
    by_check: dict[str, list[Finding]] = {}
    for finding in examine(collect(storage, place="here")):
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


def bad(findings: dict[str, list[Finding]], check: str) -> tuple[str, str, str]:
    """Level, words and advice of the only thing that a check finds."""
    [finding] = findings[check]
    return finding.level.value, finding.found, finding.advice or ""


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def name_of(dsn: str) -> str:
    return str(conninfo.conninfo_to_dict(dsn)["dbname"])


def test_a_fresh_database_has_no_problem(migrated: str) -> None:
    findings = examined(migrated)
    assert set(findings) == set(CHECKS), "every check is made"
    worst = {check: finding for check, found in findings.items() for finding in found if finding.level is not Level.OK}
    assert set(worst) <= {"workers", "leader", "durability"}, worst


def test_looking_changes_nothing(migrated: str) -> None:
    counts = ("count(*) from prinia.identity", "term from prinia.leader", "count(*) from prinia.audit")
    seen = f"select {', '.join(f'(select {one})' for one in counts)}"
    with psycopg.connect(migrated, autocommit=True) as connection:
        before = connection.execute(seen.encode()).fetchall()
        examined(migrated)
        assert connection.execute(seen.encode()).fetchall() == before == [(0, 0, 0)]


@pytest.mark.parametrize("schema", ["prinia", 'my "jobs" 100%'])
def test_a_database_that_was_not_migrated(database: str, schema: str) -> None:
    findings = examined(database, schema=schema)
    assert bad(findings, "migrations")[0] == "problem"
    assert "rights" not in findings
    assert "workers" not in findings
    assert bad(findings, "server")[0] == "ok"


def test_a_schema_of_any_name(database: str) -> None:
    app = Prinia(database, schema='my "jobs" 100%')
    app.migrate()
    findings = examined(database, schema='my "jobs" 100%')
    assert set(findings) == set(CHECKS)
    assert bad(findings, "rights")[0] == "ok"


def test_an_older_schema(migrated: str) -> None:
    execute(migrated, "alter table prinia.workers drop column run", "delete from prinia.migrations where version >= 8")
    findings = examined(migrated)
    assert bad(findings, "migrations")[0] == "problem"
    assert bad(findings, "workers")[:2] == ("note", "not looked at: the schema is older than this Prinia")
    assert bad(findings, "pauses")[0] == "ok"


def test_nobody_answers() -> None:
    findings = examined("host=127.0.0.1 port=1 dbname=x user=y password=geheim")
    assert list(findings) == ["server"]
    level, found, _ = bad(findings, "server")
    assert (level, "geheim" in found, "cannot be reached" in found) == ("problem", False, True)


def test_settings_of_the_database(migrated: str) -> None:
    name = name_of(migrated)
    execute(
        migrated,
        f'alter database "{name}" set statement_timeout = 1500',
        f'alter database "{name}" set synchronous_commit = off',
        f'alter database "{name}" set default_transaction_read_only = on',
    )
    findings = examined(migrated)
    assert bad(findings, "settings")[1].startswith("statement_timeout is 1,500 ms for this role")
    assert "synchronous_commit is off" in " ".join(finding.found for finding in findings["durability"])
    assert bad(findings, "server")[:2] == (
        "problem", "transactions of this role are read-only (default_transaction_read_only)",
    )  # fmt: skip


# -- listening --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="prinia-") as path:
        yield Path(path)


def test_behind_a_transaction_pooler(migrated: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "PROOF_TIMEOUT", 0.1)
    with pooler(migrated, folder) as pooled:
        level, found, advice = bad(examined(pooled), "listen")
        assert (level, "transaction pooler" in found, "listen_dsn" in advice) == ("warning", True, True)
        findings = examined(pooled, listen_dsn=migrated)
        assert bad(findings, "listen") == ("ok", "notifications arrive over listen_dsn", "")
        assert set(findings) == set(CHECKS), "all else is seen through it"


def test_a_listen_dsn_that_leads_elsewhere(migrated: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "PROOF_TIMEOUT", 0.1)
    assert bad(examined(migrated, listen_dsn=database), "listen")[:2] == (
        "warning", "a notification did not arrive over listen_dsn",
    )  # fmt: skip
    level, found, _ = bad(examined(migrated, listen_dsn="host=127.0.0.1 port=1 dbname=x"), "listen")
    assert (level, "could not be had over listen_dsn" in found) == ("warning", True)


# -- the schema -------------------------------------------------------------------------------------------------------


@pytest.fixture
def role(migrated: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"doctor_{name_of(migrated)}"
    execute(migrated, f"create role {name} login")
    yield name
    execute(migrated, f"drop owned by {name}", f"drop role {name}")


async def test_a_role_without_rights_and_what_gives_them(migrated: str, role: str) -> None:
    """What the doctor says to grant is all that a worker needs, in everything that it does."""
    dsn = conninfo.make_conninfo(migrated, user=role)
    findings = examined(dsn)
    level, found, advice = bad(findings, "rights")
    assert (level, f"{role} may do nothing here" in found) == ("problem", True)
    assert bad(findings, "migrations")[1] == "not looked at: permission denied for schema prinia"
    assert bad(findings, "server")[0] == bad(findings, "listen")[0] == "ok"

    _, *grants = advice.splitlines()
    execute(migrated, *grants, "select prinia.make_leaf(now() + interval '90 days')")
    findings = examined(dsn)
    assert set(findings) == set(CHECKS)
    assert bad(findings, "rights")[0] == "ok"
    assert not [finding for found in findings.values() for finding in found if finding.found.startswith("not looked")]

    app = Prinia(dsn)

    @app.task(name="work", retry=Fixed(0))
    async def work(how: str) -> str:
        if how == "fail":
            raise Fail("no")
        if how == "retry":
            raise ValueError(how)
        return how

    async with app, app.worker(heartbeat=0.1, dead_after=5.0):
        jobs = [await work.options(max_attempts=2).aenqueue(how) for how in ("well", "retry", "fail")]
        jobs += await app.aenqueue_many(work.job("well") for _ in range(3))
        await app.apause(task="other", by="Ada")
        for enqueued in jobs:
            await until(partial(_ended, enqueued), "it ends")
        assert (await jobs[0].ainfo()).state == "completed"
        leads = "select instance is not null from prinia.leader"
        await until(lambda: _value(migrated, leads), "it leads")
    assert bad(examined(dsn), "failures")[1].startswith("2 jobs failed")


async def _ended(job: Any) -> bool:
    return bool((await job.ainfo()).state.final)


def _value(dsn: str, statement: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        [(value,)] = connection.execute(statement.encode()).fetchall()
    return value


def test_roles_of_other_duties(migrated: str, role: str) -> None:
    dsn = conninfo.make_conninfo(migrated, user=role)
    execute(
        migrated, f"grant usage on schema prinia to {role}", f"grant execute on function prinia.enqueue to {role}",
        f"grant select on prinia.live_jobs, prinia.finished_jobs, prinia.all_jobs to {role}",
    )  # fmt: skip
    findings = examined(dsn)
    assert bad(findings, "rights")[:2] == ("note", f"{role} may enqueue and read, which is no worker's role")
    assert bad(findings, "workers")[1] == "not looked at: permission denied for table workers"
    execute(
        migrated,
        f"grant select, insert, update, delete on all tables in schema prinia to {role}",
        f"grant execute on all functions in schema prinia to {role}",
        f"revoke delete on prinia.attempts from {role}",
        f"revoke execute on function prinia.complete from {role}",
    )
    level, found, _ = bad(examined(dsn), "rights")
    assert level == "problem"
    assert found == f"{role} may write, but to run workers it lacks execute on complete(job text), delete on attempts"


@pytest.fixture
def copied(server: str, migrated: str) -> Iterator[str]:
    """A copy of a database in which a worker served and a job waits."""
    name = f"{name_of(migrated)}_copy"
    with psycopg.connect(server, autocommit=True) as connection:
        execute(migrated, "select prinia.adopt()", """select prinia.enqueue('[{"task": "send", "args": {}}]')""")
        terminate(migrated, "true")
        connection.execute(f'create database "{name}" template "{name_of(migrated)}"'.encode())
        yield conninfo.make_conninfo(migrated, dbname=name)
        connection.execute(f'drop database "{name}" with (force)'.encode())


def test_a_copied_database(copied: str, migrated: str) -> None:
    assert bad(examined(migrated), "identity")[0] == "ok"
    level, found, advice = bad(examined(copied), "identity")
    assert (level, name_of(migrated) in found) == ("problem", True)
    assert advice.endswith("prinia migrate --adopt")
    execute(copied, "delete from prinia.jobs")
    assert bad(examined(copied), "identity")[0] == "note"
    execute(copied, "select prinia.adopt()")
    assert bad(examined(copied), "identity")[0] == "ok"


def test_an_index_that_was_left_half_made(migrated: str) -> None:
    job = """select prinia.enqueue('[{"task": "send", "args": {}}, {"task": "send", "args": {}}]')"""
    execute(migrated, job)
    with pytest.raises(psycopg.errors.UniqueViolation):
        execute(migrated, "create unique index concurrently one_task on prinia.jobs (task)")
    assert bad(examined(migrated), "indexes")[:2] == (
        "warning", "indexes that are not valid, of a reindex that was cut off: one_task",
    )  # fmt: skip


def test_leaves_that_nobody_makes_or_drops(migrated: str) -> None:
    execute(
        migrated,
        "do $$ declare leaf text; begin for leaf in select l.leaf from prinia.leaves() l where l.low > now() + "
        "interval '10 days' loop execute format('drop table prinia.%I', leaf); end loop; end $$",
        "select prinia.make_leaf(now() - interval '5 days')",
    )
    found = examined(migrated)["archive"]
    assert [finding.level.value for finding in found] == ["warning", "warning"]
    assert "1 of the archive's leaves should have been dropped" in found[1].found


def test_autovacuum_that_is_off_for_a_table(migrated: str) -> None:
    execute(migrated, "alter table prinia.jobs set (autovacuum_enabled = false)")
    assert bad(examined(migrated), "vacuum")[:2] == ("warning", "autovacuum is off for table jobs")


# -- the deployment ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen_by", ["owner", "other"])
async def test_a_transaction_that_stays_open(
    lab: Lab, role: str, monkeypatch: pytest.MonkeyPatch, seen_by: str
) -> None:
    """It is named, with how long it has been open; to a role that may not see that, by how many came after it."""
    monkeypatch.setattr(database, "LONG", 0.0001)
    monkeypatch.setattr(database, "MANY_XIDS", 3)
    connection = await lab.connect(autocommit=False)
    await connection.execute("set application_name = 'night report'")
    await connection.execute("select pg_current_xact_id()")
    for _ in range(5):
        await lab.push_one()
    dsn = lab.dsn if seen_by == "owner" else conninfo.make_conninfo(lab.dsn, user=role)
    mine = [
        finding for finding in examined(dsn)["horizon"] if f"session {connection.info.backend_pid} " in finding.found
    ]
    [finding] = mine
    assert finding.level is Level.WARNING
    assert '("night report")' in finding.found
    assert (" transactions ago" in finding.found) == (seen_by == "other")
    assert f"pg_terminate_backend({connection.info.backend_pid})" in (finding.advice or "")
    await connection.rollback()
    assert not [one for one in examined(dsn)["horizon"] if f"session {connection.info.backend_pid} " in one.found]


@pytest.fixture
async def shop(lab: Lab) -> AsyncIterator[Prinia]:
    """An app whose workers serve queue "email"."""
    app = Prinia(lab.dsn)

    @app.task(name="send", queue="email")
    async def send() -> None: ...

    async with app:
        yield app


async def test_queues_and_tasks_without_a_worker(lab: Lab, shop: Prinia) -> None:
    async with shop.worker(name="w1", heartbeat=0.1, dead_after=5.0) as worker:
        await lab.push(job(queue="sms", task="text"), job(queue="email", task="newer"), job(queue="email", task="send"))
        leads = f"select instance = '{worker.instance.id}' from prinia.leader"
        await until(lambda: _value(lab.dsn, leads), "it leads")
        waits = "select count(*) = 1 from prinia.jobs where queue = 'email' and claimed_at is null and task = 'newer'"
        await until(lambda: _value(lab.dsn, waits + " and (select count(*) = 2 from prinia.jobs)"), "it is handed back")
        findings = examined(lab.dsn)
        assert bad(findings, "queues")[:2] == ("problem", 'nobody serves queue "sms": 1 ready')
        assert bad(findings, "tasks")[1] == 'no worker of queue "email" knows task newer (jobs that wait for it: 1)'
        assert bad(findings, "workers")[:2] == ("ok", "1 live worker: w1")
        assert bad(findings, "leader")[0] == "ok"
        assert bad(findings, "identity")[1] == "these are the tables that workers have served before"


async def test_workers_that_ail(lab: Lab) -> None:
    one, two = await lab.worker(), await lab.worker()
    await one.declare_dead(two)
    await lab.rows("update prinia.workers set beat_at = now() - interval '5 min', version = '0.0.1'")
    findings = examined(lab.dsn)
    words = {finding.found.partition(") ")[2]: finding.level for finding in findings["workers"]}
    assert words == {
        "was last heard of 5m ago": "warning",
        "was declared dead, last heard of 5m ago, and its jobs have not come back": "warning",
    }
    assert bad(findings, "versions")[0] == "note"
    assert bad(findings, "leader")[0] == "warning"


async def test_jobs_that_have_waited_and_pauses_that_were_forgotten(lab: Lab) -> None:
    await lab.worker("email")
    await lab.push_one(queue="email")
    await lab.rows("update prinia.jobs set scheduled_at = now() - interval '1 hour'")
    await lab.storage.apause("task", "send", by="Ada")
    await lab.rows("update prinia.pauses set at = now() - interval '2 days'")
    findings = examined(lab.dsn)
    assert bad(findings, "waiting")[:2] == (
        "warning", 'a job of queue "email" has been ready for 1h (ready in all: 1)',
    )  # fmt: skip
    assert bad(findings, "pauses")[:2] == ("warning", "task send has been paused for 2d, by Ada")


def test_the_limit_of_a_role(migrated: str, role: str) -> None:
    execute(migrated, f"alter role {role} connection limit 3")
    dsn = conninfo.make_conninfo(migrated, user=role)
    assert bad(examined(dsn), "connections")[:2] == (
        "problem", "1 of 3 connections are in use (the limit of this role)",
    )  # fmt: skip
