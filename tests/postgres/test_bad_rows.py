"""A row that was written by hand, by another program or by a later version: that job fails with a reason, and the queue
goes on. Seen to fail with: extras decoded without a guard; retry cast to json in the claim; attempts that overflow."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from prinia import Fixed, JobFailed, Prinia

DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("retry", '{"kind": "of a later version"}'),
        ("retry", '{"kind": "fixed"}'),
        ("retry", "garbage"),
        ("retry", ""),
        ("meta", "[1]"),
        ("meta", DEEP),
        ("tags", "{a,NULL}"),
        ("tags", "{{a},{b}}"),
        ("args", "garbage"),
    ],
)
async def test_a_bad_row_fails_alone(migrated: str, column: str, value: str) -> None:
    app = Prinia(migrated)

    @app.task(name="work", retry=Fixed(0), max_attempts=1)
    async def work(n: int) -> int:
        return n

    async with app, await psycopg.AsyncConnection.connect(migrated, autocommit=True) as connection:
        bad, good = await work.aenqueue(1), await work.aenqueue(2)
        await _unchecked(connection)
        await connection.execute(
            f"update prinia.jobs set {column} = %s::{_TYPES.get(column, 'text')} where id = %s".encode(),
            (value, bad.id),
        )
        async with app.worker():
            assert await good.aresult(timeout=30) == 2
            with pytest.raises(JobFailed):
                await bad.aresult(timeout=30)
        [record] = await app.storage.afind([bad.id])
    assert record.errors[-1].kind == "prinia.errors.DecodeError"


@pytest.mark.parametrize("column", ["attempt", "crashes"])
async def test_counters_at_their_end_stop_nobody(migrated: str, column: str) -> None:
    app = Prinia(migrated)

    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    async with app, await psycopg.AsyncConnection.connect(migrated, autocommit=True) as connection:
        bad, good = await work.options(max_attempts=10_000).aenqueue(1), await work.aenqueue(2)
        most = {"attempt": 2**31 - 1, "crashes": 2**15 - 1}[column]
        await connection.execute(f"update prinia.jobs set {column} = %s where id = %s".encode(), (most, bad.id))
        async with app.worker():
            assert await good.aresult(timeout=30) == 2
            assert await bad.aresult(timeout=30) == 1


@pytest.mark.parametrize(
    "fields",
    ['"retry": [1]', '"meta": [1]', '"meta": "s"', '"tags": ["a", null]', '"timeout": "NaN"', '"timeout": "infinity"'],
)
def test_enqueue_by_sql_refuses_what_no_worker_could_read(migrated: str, fields: str) -> None:
    with psycopg.connect(migrated) as connection, pytest.raises(psycopg.errors.CheckViolation):
        connection.execute("select prinia.enqueue(%s)", ('[{"task": "t", "args": {}, ' + fields + "}]",))


_TYPES = {"meta": "jsonb", "tags": "text[]", "args": "bytea"}


async def _unchecked(connection: psycopg.AsyncConnection[Any]) -> None:
    """By hand nothing is impossible: take the checks away."""
    rows = await connection.execute(
        "select conname from pg_constraint where conrelid = 'prinia.jobs'::regclass and contype = 'c'"
    )
    for (name,) in await rows.fetchall():
        await connection.execute(f'alter table prinia.jobs drop constraint "{name}"'.encode())
