"""A database that was restored or copied is told from the one that workers have served, and its jobs do not run.

Seen to fail with: no check at a worker's start; none after a new connection; database, tables or system left out of
what is compared; a pg_upgrade taken for a restore; a copy without jobs that is refused.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from prinia.embedded import find_binaries
from prinia.errors import DatabaseCopied
from prinia.job import JobState
from prinia.storage.postgres.identity import adopt
from tests.conftest import Databases

from .kit import Lab, inside, terminate

IDENTITY = "select system, database, name, jobs, written_by = xmin::text::bigint from prinia.identity"


def dump(dsn: str) -> str:
    """The database as pg_dump writes it."""
    done = subprocess.run(
        [find_binaries().bin / "pg_dump", "-d", dsn], check=True, capture_output=True, encoding="utf-8"
    )
    return done.stdout


def restore(dump: str, dsn: str) -> None:
    """Run a dump in another database, or in the same one again."""
    subprocess.run(
        [find_binaries().bin / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn],
        input=dump, check=True, stdout=subprocess.DEVNULL, encoding="utf-8",
    )  # fmt: skip


async def serve_once(lab: Lab) -> None:
    """A worker has been here."""
    await (await lab.worker()).close()


async def refused(lab: Lab) -> str:
    """What a worker is told that may not start; it leaves nothing behind."""
    worker = await lab.worker(opened=False)
    with pytest.raises(DatabaseCopied) as raised:
        await worker.consumer.open()
    assert await lab.value("select count(*) from prinia.workers") == 0
    return str(raised.value)


@pytest.fixture
def template_copy(server: str, lab: Lab) -> Iterator[Callable[[], str]]:
    """Copies the database with its files, as a template."""
    original = conninfo_to_dict(lab.dsn)["dbname"]
    name = f"{original}_copy"
    with psycopg.connect(server, autocommit=True) as connection:

        def copy() -> str:
            terminate(lab.dsn, "true")
            connection.execute(f'create database "{name}" template "{original}"'.encode())
            return psycopg.conninfo.make_conninfo(lab.dsn, dbname=name)

        yield copy
        connection.execute(f'drop database if exists "{name}" with (force)'.encode())


async def test_a_dump_that_was_restored_does_not_run(lab: Lab, database: str) -> None:
    await serve_once(lab)
    id = await lab.push_one()
    restore(dump(lab.dsn), database)
    async with Lab(database) as other:
        told = await refused(other)
        assert f"from another database, '{conninfo_to_dict(lab.dsn)['dbname']}'" in told
        assert "Its 1 live jobs would run here too" in told
        assert told.endswith("prinia migrate --adopt")
        await other.push_one()  # enqueueing goes on
        await other.in_state(id, JobState.READY)
        await refused(other)

        assert adopt(database, "prinia") == 2
        worker = await other.worker()
        assert id in {claimed.id for claimed in await worker.collect(2)}
    worker = await lab.worker()
    assert (await worker.one()).id == id, "the original goes on, whatever becomes of its copy"


async def test_a_dump_that_was_restored_in_place_does_not_run(lab: Lab) -> None:
    """In the same database of the same server: what ran since the dump would run again."""
    await serve_once(lab)
    await lab.push_one()
    dumped = dump(lab.dsn)
    await lab.rows("drop schema prinia cascade")
    restore(dumped, lab.dsn)
    assert "would run here too" in await refused(lab)


async def test_a_database_made_from_a_template_does_not_run(lab: Lab, template_copy: Callable[[], str]) -> None:
    await serve_once(lab)
    await lab.push_one()
    async with Lab(template_copy()) as other:
        await refused(other)


async def test_a_copy_without_jobs_is_adopted(lab: Lab, database: str) -> None:
    await serve_once(lab)
    restore(dump(lab.dsn), database)
    async with Lab(database) as other:
        await other.worker()
        await other.push_one()
        await other.worker()


async def test_a_template_that_no_worker_has_served(lab: Lab, databases: Databases) -> None:
    """As test suites have it: migrated, copied, filled."""
    assert await lab.value("select count(*) from prinia.identity") == 0
    await lab.push_one()
    await serve_once(lab)
    assert await lab.value("select count(*) from prinia.identity") == 1


async def test_what_stays_the_same(lab: Lab) -> None:
    """Restarts, a new name, maintenance of the tables."""
    await lab.push_one()
    await serve_once(lab)
    before = await lab.rows(IDENTITY)
    for table in ("identity", "jobs"):
        await lab.rows(f"vacuum full freeze prinia.{table}")
        await lab.rows(f"vacuum freeze prinia.{table}")
    await lab.rows("alter table prinia.jobs add column mine int")
    await serve_once(lab)
    assert await lab.rows(IDENTITY) == before
    assert before[0][4], "the row is as it was written"


async def test_an_upgrade_is_no_restore(lab: Lab) -> None:
    """pg_upgrade makes a new system, before PostgreSQL 15 a new database too; the rows are those that were."""
    await lab.push_one()
    await serve_once(lab)
    await lab.rows("update prinia.identity set system = system + 1, database = 1")
    await refused(lab)
    await lab.rows("do $$ begin update prinia.identity set written_by = pg_current_xact_id()::text::bigint; end $$")
    await serve_once(lab)
    assert await lab.rows("select system = prinia.system_identifier(), name from prinia.identity") == [
        (True, conninfo_to_dict(lab.dsn)["dbname"])
    ]


async def test_another_system_with_tables_of_the_same_number(lab: Lab) -> None:
    """A dump restored in a fresh server may get all numbers anew as they were, and its row is written again."""
    await lab.push_one()
    await serve_once(lab)
    await lab.rows("update prinia.identity set system = system + 1")
    await refused(lab)


async def test_a_server_that_does_not_tell(lab: Lab, template_copy: Callable[[], str]) -> None:
    """Where pg_control_system() is not permitted, a copy shows by its database and tables."""
    await lab.rows(
        "create or replace function prinia.system_identifier() returns bigint language sql as 'select null::bigint'"
    )
    await lab.push_one()
    for _ in range(2):
        await serve_once(lab)
    assert await lab.value("select system from prinia.identity") is None
    async with Lab(template_copy()) as other:
        await refused(other)


async def test_a_right_that_is_missing_is_no_error(lab: Lab) -> None:
    """pg_control_system() is asked as the tables' owner, who may not be allowed to."""
    await lab.rows("revoke execute on function pg_control_system() from public")
    role = await lab.value("select 'owner' || oid from pg_database where datname = current_database()")
    await lab.rows(f"create role {role}")
    try:
        await lab.rows(f"alter function prinia.system_identifier() owner to {role}")
        await lab.rows(
            "create or replace function prinia.ask() returns bigint language sql security definer"
            " as 'select prinia.system_identifier()'"
        )
        await lab.rows(f"grant usage on schema prinia to {role}")
        await lab.rows(f"alter function prinia.ask() owner to {role}")
        assert await lab.value("select prinia.ask()") is None
    finally:
        await lab.rows(f"drop owned by {role}")
        await lab.rows(f"drop role {role}")


async def test_a_worker_whose_connection_leads_to_a_copy(lab: Lab) -> None:
    """A new connection may lead elsewhere; there it claims nothing."""
    worker = await lab.worker()
    id = await lab.push_one()
    await lab.rows("update prinia.identity set database = 1")
    await inside(worker)._claims.close()
    for _ in range(2):
        with pytest.raises(DatabaseCopied):
            await worker.claim()
    await lab.in_state(id, JobState.READY)
    adopt(lab.dsn, "prinia")
    assert (await worker.one()).id == id
