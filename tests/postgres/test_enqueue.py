"""The enqueue function: for every driver and every role, and keys that hold whatever races.

Seen to fail with: `security definer` or the pinned search_path left out, in `enqueue` and in `ring`; EXECUTE left to
PUBLIC; args read as jsonb; surrogates sent as json; an infinite due time let in; keys pushed in the order given
(deadlock); a single try for a key.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from prinia import embedded
from prinia.errors import DuplicateJob, StorageUnavailable, UniqueBusy
from prinia.job import JobSpec, UniqueKey
from prinia.outcome import AckKind
from prinia.storage.postgres.migrate import migrate
from prinia.testing.conformance.bench import job

from .kit import Connection, Lab, somebody_waits, until, within

PUSH = "select id, created, xid from prinia.enqueue(%s)"


def spec(**fields: Any) -> str:
    return json.dumps([{"task": "t", "args": {}} | fields])


async def push(connection: Connection, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    text = json.dumps([{"task": "t", "args": {}} | row for row in rows])
    return await (await connection.execute(PUSH, (text,))).fetchall()


def keyed(text: str, on_conflict: Any = "keep") -> JobSpec:
    return job(unique=UniqueKey(hash=b"0" * 16, text=text, on_conflict=on_conflict))


# -- what is stored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    ['{"b": 1,  "a": 2, "a": 3}', '{"x": 1.0000000000000000000001e400}', '{"s":"\\u00e9\\/"}', "[ ]", "7"],
)
async def test_json_args_are_kept_to_the_letter(lab: Lab, args: str) -> None:
    [(id, _, _)] = await lab.rows(PUSH, f'[{{"task": "t", "args": {args}}}]')
    assert (await lab.find(id)).args == args.encode()


@pytest.mark.parametrize("args", [b'{"s":"\\u0000"}', b'{"s":"\\\\u0000"}', b'{"s":"\\ud800"}', b'{"s":"\\uDFFF"}'])
async def test_escapes_that_postgresql_dislikes(lab: Lab, args: bytes) -> None:
    id = await lab.push_one(args=args)
    assert (await lab.find(id)).args == args


async def test_args_of_other_codecs_come_as_base64(lab: Lab) -> None:
    [(id, _, _)] = await lab.rows(PUSH, '[{"task": "t", "args64": "AP8=", "codec": "raw"}]')
    record = await lab.find(id)
    assert (record.args, record.codec) == (b"\x00\xff", "raw")


@pytest.mark.parametrize(
    "text",
    [
        spec(limit_key="k"),
        spec(scheduled_at="infinity"),
        spec(scheduled_at="infinity", unique_key="k"),
        spec(priority=101),
        spec(priority=-101),
        spec(queue=""),
        spec(task="x" * 201),
        spec(max_attempts=0),
        spec(unique_key="k", on_conflict="drop"),
        spec(unique_key="k", on_conflict="drop", unique_for=60),
        spec(unique_key="k", unique_for=0),
        spec(unique_key="k", unique_for=-1),
        spec(unique_key="k", unique_for="NaN"),
        spec(unique_key="k", unique_for="infinity"),
        spec(timeout=0),
        '[{"task": "t"}]',
        '[{"args": {}}]',
        "[1]",
        "{",
    ],
)
async def test_what_makes_no_sense_is_refused(lab: Lab, text: str) -> None:
    with pytest.raises(psycopg.Error):
        await lab.rows(PUSH, text)
    assert await lab.value("select count(*) from prinia.jobs") == 0


async def test_fields_it_does_not_know_are_ignored(lab: Lab) -> None:
    """A newer Prinia may push to a schema that is older by a column."""
    assert len(await lab.rows(PUSH, spec(colour="red"))) == 1


async def test_the_xid_is_the_transactions(lab: Lab) -> None:
    connection = await lab.connect(autocommit=False)
    [(_, _, plain)], [(_, _, unique)] = await push(connection, {}), await push(connection, {"unique_key": "k"})
    [xid] = await (await connection.execute("select pg_current_xact_id()::text::bigint")).fetchone() or ()
    assert plain == unique == xid


# -- who may -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def role(lab: Lab) -> Any:
    """A role that may log in and nothing more."""
    name = await lab.value("select 'r' || oid from pg_database where datname = current_database()")
    await lab.rows(f"create role {name} login")
    yield name
    await lab.rows(f"drop owned by {name}")
    await lab.rows(f"drop role {name}")


async def as_role(lab: Lab, role: str) -> Connection:
    connection = await lab.connect()
    await connection.execute(f"set session authorization {role}".encode())
    return connection


async def test_execute_is_enough(lab: Lab, role: str) -> None:
    await lab.rows(f"grant usage on schema prinia to {role}")
    connection = await as_role(lab, role)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await push(connection, {})
    await lab.rows(f"grant execute on function prinia.enqueue to {role}")
    await push(connection, {}, {})
    await push(connection, {"unique_key": "k"})
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await connection.execute("select from prinia.jobs")
    assert await lab.value("select count(*) from prinia.jobs") == 3


async def test_public_may_call_nothing(lab: Lab) -> None:
    open_to_all = await lab.rows(
        "select p.proname from pg_proc p where p.pronamespace = 'prinia'::regnamespace"
        " and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))"
    )
    assert open_to_all == []


HOSTILE = """
create schema evil;
create table evil.jobs (like prinia.jobs);
create function evil.now() returns timestamptz language sql as 'select null::timestamptz';
create function evil.clock_timestamp() returns timestamptz language sql as 'select null::timestamptz';
create function evil.pg_notify(text, text) returns void language plpgsql as 'begin raise exception ''evil''; end';
create function evil.pg_try_advisory_xact_lock_shared(integer, integer) returns boolean
    language plpgsql as 'begin raise exception ''evil''; end';
create function evil.greatest(timestamptz, timestamptz) returns timestamptz language sql as 'select null::timestamptz';
create function evil.array_length(anyarray, integer) returns integer language sql as 'select 0';
"""


@pytest.mark.parametrize("path", ["''", "evil, pg_catalog", "evil, prinia, pg_catalog", "pg_temp, pg_catalog"])
async def test_any_search_path_will_do(lab: Lab, path: str) -> None:
    await lab.rows(HOSTILE)
    connection = await lab.connect()
    await connection.execute("create temp table jobs (id bigint)")
    await connection.execute(f"set search_path = {path}".encode())
    await push(connection, {})
    await push(connection, {"unique_key": "k"})
    assert await (await connection.execute("select count(*) from prinia.jobs")).fetchone() == (2,)
    await connection.execute("select prinia.make_leaves(), prinia.make_leaf('2090-01-01'), prinia.ring('{default}')")


async def test_a_worker_works_with_a_hostile_search_path(lab: Lab) -> None:
    """Whose role has it set."""
    await lab.rows(HOSTILE)
    await lab.rows(
        "do $$ begin execute format('alter database %I set search_path = evil, pg_catalog', current_database()); end $$"
    )
    other = lab.another()
    worker = await other.worker()
    id = await other.push_one()
    await other.finish(await worker.one(), worker, AckKind.SNOOZE)
    await other.finish(await worker.one(), worker)
    assert (await other.find(id)).state.final


# -- unique keys -------------------------------------------------------------------------------------------------


async def test_sixteen_race_for_a_key(lab: Lab) -> None:
    connections = [await lab.connect() for _ in range(16)]
    for key in range(10):
        answers = await asyncio.gather(*(push(connection, {"unique_key": f"k{key}"}) for connection in connections))
        assert sum(created for [(_, created, _)] in answers) == 1
        assert len({id for [(id, _, _)] in answers}) == 1


async def test_shared_keys_in_opposite_order(lab: Lab) -> None:
    """Each push takes its keys in the same order, whatever order they come in."""
    one, two = await lab.connect(), await lab.connect()
    for round in range(20):
        keys = [{"unique_key": f"{round}.{nr}"} for nr in range(50)]
        await within(30, asyncio.gather(push(one, *keys), push(two, *keys[::-1])))
    assert await lab.value("select count(*) from prinia.jobs") == 1000


@pytest.mark.parametrize("commits", [False, True])
async def test_a_holder_that_is_not_committed_is_waited_for(lab: Lab, commits: bool) -> None:
    holder, other = await lab.connect(autocommit=False), await lab.connect()
    [(held, _, _)] = await push(holder, {"unique_key": "k"})
    waiting = asyncio.create_task(push(other, {"unique_key": "k"}))
    await somebody_waits(lab)
    assert not waiting.done()
    await (holder.commit() if commits else holder.rollback())
    [(id, created, _)] = await within(10, waiting)
    assert created is not commits
    assert (id == held) is commits


async def test_waiting_has_a_limit(lab: Lab) -> None:
    holder, other = await lab.connect(autocommit=False), await lab.connect()
    await lab.storage.apush_within(holder, [keyed("k")])
    await other.execute("set lock_timeout = '50ms'")
    with pytest.raises(UniqueBusy, match="still open"):
        await lab.storage.apush_within(other, [keyed("k")])


async def test_at_repeatable_read_a_duplicate_may_be_a_serialization_failure(lab: Lab) -> None:
    connection = await lab.connect(autocommit=False)
    await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await connection.execute("select 1 from prinia.jobs")
    await lab.push(keyed("k"))
    with pytest.raises(StorageUnavailable) as raised:
        await lab.storage.apush_within(connection, [keyed("k")])
    assert isinstance(raised.value.__cause__, psycopg.errors.SerializationFailure)


async def test_keys_are_free_when_their_jobs_are_in_the_archive(lab: Lab) -> None:
    worker = await lab.worker()
    [first] = await lab.push(keyed("k"))
    assert await lab.push(keyed("k")) == [first]
    await lab.finish(await worker.one(), worker)
    [second] = await lab.push(keyed("k"))
    assert second != first
    with pytest.raises(DuplicateJob):
        await lab.push(keyed("k", "raise"))


# -- two-phase commit --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_phase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on which transactions can be prepared."""
    memory = Path("/dev/shm")
    home = memory if memory.is_dir() and os.access(memory, os.W_OK) else tmp_path_factory.getbasetemp()
    folder = home / f"prinia-two-phase-{uuid.uuid4().hex}"
    attached = embedded.attach(folder, options={"fsync": "off", "max_prepared_transactions": "5"})
    migrate(attached.dsn)
    yield attached.dsn
    if attached.detach(wait=10):
        shutil.rmtree(folder, ignore_errors=True)


async def test_two_phase_commit(two_phase: str) -> None:
    """With a sleeper about a push that rings cannot be prepared, and one without a bell can."""
    async with Lab(two_phase) as lab:
        worker = await lab.worker()
        bell = worker.consumer.bell
        await until(bell.arm, "it is armed")
        connection = await lab.connect()
        for ringing, works in ((True, False), (False, True)):
            await connection.execute("begin")
            await connection.execute("select * from prinia.enqueue(%s, %s)", (spec(), ringing))
            try:
                await connection.execute("prepare transaction 'p'")
            except psycopg.Error:
                assert not works
            else:
                assert works
        assert await worker.claimed_ids() == []
        await connection.execute("commit prepared 'p'")
        assert len(await worker.claimed_ids()) == 1
