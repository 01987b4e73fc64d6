"""How applications use Prinia, as the type checkers see it; it is checked by test_typing.py and never run.

A line that ends in a bare ignore comment must be an error to mypy and to pyright alike.
"""

# Both checkers must understand the ignores, which no rule code does.
# ruff: noqa: PGH003, F841

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, assert_type

import psycopg
import psycopg_pool
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from prinia import INJECTED, Context, Job, NewJob, Prinia

app = Prinia()


class Client: ...


class Mailer:
    async def send(self, to: str) -> int:
        return len(to)


@app.task
async def a(item: int, ctx: Context = INJECTED) -> str:
    return f"{item} {ctx.attempt}"


@app.task(queue="q", timeout=30)
def s(item: int, *, to: str = "x", client: Client = INJECTED) -> bytes:
    return b""


@app.task
async def anyarg(x: Any) -> int:
    return 1


bound = app.task(Mailer().send)


def sync_code(session: Session, asession: AsyncSession) -> None:
    assert_type(a.enqueue(42), Job[str])
    assert_type(a.enqueue(42).result(timeout=1), str)
    assert_type(s.options(delay=1.5, priority=2).options(unique="k").enqueue(1, to="y").result(), bytes)
    assert_type(a.within(session).enqueue(1), Job[str])
    assert_type(app.enqueue_many(a.job(n) for n in range(9)), Sequence[Job[str]])
    assert_type(app.within(session).enqueue_many([a.job(1)]), Sequence[Job[str]])
    assert_type(s(1), bytes)
    assert_type(a.get_job(7), Job[str])
    bound.enqueue("x")
    anyarg.enqueue({"any": 1})
    s.options(unique="k", unique_for=timedelta(hours=1), on_conflict="replace").enqueue(1)
    app.enqueue_many([a.job(1), s.job(2)])
    a.enqueue("42")  # type: ignore
    a.enqueue()  # type: ignore
    a.enqueue(1, 2)  # type: ignore
    a.enqueue(1, too=2)  # type: ignore
    s.enqueue(1, to=5)  # type: ignore
    s.job("1")  # type: ignore
    s.options(priority="high")  # type: ignore
    s.options(prio=2)  # type: ignore
    s.options(on_conflict="drop")  # type: ignore
    s.options(unique_for="1 h")  # type: ignore
    app.task(que="q")  # type: ignore
    a.within(session).aenqueue(1)  # type: ignore
    a.within(asession).enqueue(1)  # type: ignore
    a.within("postgresql://")  # type: ignore
    app.enqueue_many([1, 2])  # type: ignore
    app.within(asession).enqueue_many([a.job(1)])  # type: ignore
    bound.enqueue(5)  # type: ignore
    x: int = a.enqueue(1).result()  # type: ignore


async def async_code(asession: AsyncSession) -> None:
    job = await a.aenqueue(42)
    assert_type(await job.aresult(), str)
    assert_type(await a(42), str)
    assert_type(await a.within(asession).aenqueue(1), Job[str])

    async def many() -> AsyncIterator[NewJob[str]]:
        yield a.job(1)

    assert_type(await app.aenqueue_many(many()), Sequence[Job[str]])
    assert_type(await app.within(asession).aenqueue_many(many()), Sequence[Job[str]])
    a.aenqueue(1)  # type: ignore
    a.within(asession).aenqueue(1)  # type: ignore
    app.aenqueue_many([a.job(1)])  # type: ignore
    await s(1)  # type: ignore
    await a.enqueue(1)  # type: ignore


class AsyncpgPool:
    """As the stubs of asyncpg have it: asyncpg itself is not typed."""

    async def fetchval(self, query: str, *args: object, column: int = 0, timeout: float | None = None) -> Any: ...


class AsyncpgConnection(AsyncpgPool):
    def is_in_transaction(self) -> bool:
        return True


def blocking_kinds(
    pg: psycopg.Connection[Any],
    core: Connection,
    session: Session,
    scoped: scoped_session[Session],
    untyped: Any,  # of Django, psycopg2 and asyncpg, whose types are not known without stubs
    pool: psycopg_pool.ConnectionPool,
    engine: Engine,
    maker: sessionmaker[Session],
) -> None:
    for connection in (pg, core, session, scoped):
        assert_type(a.within(connection).enqueue(1), Job[str])
        assert_type(app.within(connection).enqueue_many([a.job(1)]), Sequence[Job[str]])
    a.within(untyped).enqueue(1)
    app.within(untyped).enqueue_many([a.job(1)])
    a.within(pg).aenqueue(1)  # type: ignore
    a.within(scoped).aenqueue(1)  # type: ignore
    app.within(core).aenqueue_many([a.job(1)])  # type: ignore
    a.within(pool)  # type: ignore
    a.within(engine)  # type: ignore
    a.within(maker)  # type: ignore
    a.within(pg.cursor())  # type: ignore


async def awaited_kinds(
    pg: psycopg.AsyncConnection[Any],
    plain: AsyncpgConnection,
    core: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    untyped: Any,
    pool: AsyncpgPool,
    engine: AsyncEngine,
) -> None:
    for connection in (pg, core, session, scoped):
        assert_type(await a.within(connection).aenqueue(1), Job[str])
    assert_type(await a.within(plain).aenqueue(1), Job[str])
    assert_type(await app.within(plain).aenqueue_many([a.job(1)]), Sequence[Job[str]])
    await a.within(untyped).aenqueue(1)
    a.within(pg).enqueue(1)  # type: ignore
    a.within(plain).enqueue(1)  # type: ignore
    app.within(core).enqueue_many([a.job(1)])  # type: ignore
    a.within(pool)  # type: ignore
    a.within(engine)  # type: ignore
