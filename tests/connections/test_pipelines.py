"""Pipelines of psycopg: what is under way and not answered yet when a job is enqueued.

Seen to fail with: statements under way taken for a transaction; their errors told as Prinia's.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from prinia import ConnectionUnusable, Prinia

from .conftest import Shop
from .users import BAD


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_a_pipeline_in_autocommit_outside_a_transaction(shop: Shop, awaited: bool, busy: bool) -> None:
    strict = Prinia(shop.dsn, strict=True)
    send = strict.task(name="send")(lambda number: number)

    def blocking() -> None:
        with psycopg.connect(shop.dsn, autocommit=True) as connection, connection.pipeline():
            if busy:
                connection.execute("select 1")
            with pytest.raises(ConnectionUnusable, match="that would commit at once"):
                send.within(connection).enqueue(1)
            with connection.transaction():
                connection.execute("select 1")
                send.within(connection).enqueue(1)

    async def async_() -> None:
        connecting = psycopg.AsyncConnection.connect(shop.dsn, autocommit=True)
        async with await connecting as connection, connection.pipeline():
            if busy:
                await connection.execute("select 1")
            with pytest.raises(ConnectionUnusable, match="that would commit at once"):
                await send.within(connection).aenqueue(1)
            async with connection.transaction():
                await connection.execute("select 1")
                await send.within(connection).aenqueue(1)

    if awaited:
        asyncio.run(async_())
    else:
        blocking()
    assert len(shop.jobs) == 1


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_an_error_of_a_pipelines_earlier_statement_is_the_callers(shop: Shop, awaited: bool, many: bool) -> None:
    app = Prinia(shop.dsn)
    send = app.task(name="send")(lambda number: number)

    def blocking() -> None:
        with psycopg.connect(shop.dsn) as connection, connection.pipeline():
            connection.execute(BAD)
            with pytest.raises(psycopg.errors.DivisionByZero):
                app.within(connection).enqueue_many([send.job(1)]) if many else send.within(connection).enqueue(1)
            connection.rollback()

    async def async_() -> None:
        async with await psycopg.AsyncConnection.connect(shop.dsn) as connection, connection.pipeline():
            await connection.execute(BAD)
            with pytest.raises(psycopg.errors.DivisionByZero):
                await (
                    app.within(connection).aenqueue_many([send.job(1)]) if many else send.within(connection).aenqueue(1)
                )
            await connection.rollback()

    if awaited:
        asyncio.run(async_())
    else:
        blocking()
    assert shop.jobs == []
