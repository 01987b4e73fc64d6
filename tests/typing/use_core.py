"""How applications use Prinia, as the type checkers see it; it is checked by test_typing.py and never run.

A line that ends in a bare ignore comment must be an error to mypy and to pyright alike.
"""

# Both checkers must understand the ignores, which no rule code does.
# ruff: noqa: PGH003, F841

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar, assert_type

import psycopg
import psycopg_pool
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from prinia import (
    INJECTED,
    AttemptError,
    CallNext,
    Context,
    Count,
    Event,
    EventKind,
    Exponential,
    Fixed,
    Job,
    JobQuery,
    JobRecord,
    JobState,
    JsonCodec,
    MessagePackCodec,
    Middleware,
    NewJob,
    Prinia,
    QueueRecord,
    RetryMapping,
    RetryPolicy,
    Tasks,
    WorkerContext,
    WorkerRecord,
)

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

tasks = Tasks()


@tasks.task
async def ta(item: int, ctx: Context = INJECTED) -> str:
    return ""


@tasks.task(queue="q", codec=MessagePackCodec())
def ts(item: int) -> bytes:
    return b""


@app.declare(name="billing.charge", queue="billing", retry=Fixed(1))
async def charge(customer: int, cents: int = 100) -> str:
    raise NotImplementedError


@tasks.declare(name="billing.refund")
def refund(customer: int) -> bytes:
    raise NotImplementedError


class Reversed:
    name = "reversed"

    def encode(self, value: object) -> bytes:
        return JsonCodec().encode(value)[::-1]

    def decode(self, data: bytes) -> object:
        return JsonCodec().decode(data[::-1])


class Wordy:
    name = "wordy"

    def encode(self, value: object) -> str:
        return ""

    def decode(self, data: bytes) -> object:
        return None


coded = Prinia(codec=Reversed(), codecs=[JsonCodec(), MessagePackCodec()], imports=["shop.jobs"])


def registries(session: Session, asession: AsyncSession) -> None:
    assert_type(app.include(tasks), None)
    assert_type(app.bind(ta).enqueue(1), Job[str])
    assert_type(app.bind(ts.options(priority=1))(1), bytes)
    assert_type(app.bind(charge).enqueue(1, 2), Job[str])
    assert_type(ts(1), bytes)
    assert_type(ts.enqueue(1), Job[bytes])
    assert_type(charge.enqueue(1, cents=2), Job[str])
    assert_type(refund.enqueue(1), Job[bytes])
    assert_type(charge.within(session).enqueue(1), Job[str])
    assert_type(app.enqueue_by_name("x", {"a": 1}, delay=3), Job[Any])
    assert_type(app.job_by_name("x", b"{}", codec="json"), NewJob[Any])
    assert_type(app.within(session).enqueue_by_name("x", {}), Job[Any])
    assert_type(a.job_encoded(b"{}"), NewJob[str])
    app.enqueue_many([charge.job(1), app.job_by_name("x", {}), s.job_encoded(b"{}", codec="json")])
    app.import_tasks("shop.jobs")
    app.include(app.tasks)  # type: ignore
    app.include(ta)  # type: ignore
    app.bind(len)  # type: ignore
    ta.enqueue("1")  # type: ignore
    app.bind(ta).enqueue("1")  # type: ignore
    charge.enqueue("1")  # type: ignore
    charge.enqueue(1, dollars=2)  # type: ignore
    charge(1)  # type: ignore
    app.declare(queue="q")  # type: ignore
    app.declare(name="x", aliases=["y"])  # type: ignore
    app.declare(charge)  # type: ignore
    app.task(codec="msgpack")  # type: ignore
    app.task(codec=Wordy())  # type: ignore
    a.options(codec=JsonCodec())  # type: ignore
    Prinia(codec=Wordy())  # type: ignore
    Prinia(codec="json")  # type: ignore
    app.enqueue_by_name("x")  # type: ignore
    app.enqueue_by_name("x", [1])  # type: ignore
    app.enqueue_by_name("x", {1: 2})  # type: ignore
    app.enqueue_by_name("x", {}, prio=1)  # type: ignore
    app.within(session).aenqueue_by_name("x", {})  # type: ignore
    app.within(asession).enqueue_by_name("x", {})  # type: ignore
    a.job_encoded("{}")  # type: ignore
    a.job_encoded(b"{}", codec=JsonCodec())  # type: ignore


async def registries_async(asession: AsyncSession) -> None:
    assert_type(await ta(1), str)
    assert_type(await (await ta.aenqueue(1)).aresult(), str)
    assert_type(await (await charge.aenqueue(1)).aresult(), str)
    assert_type(await app.aenqueue_by_name("x", b"{}"), Job[Any])
    assert_type(await app.within(asession).aenqueue_by_name("x", {}), Job[Any])
    app.aenqueue_by_name("x", {})  # type: ignore
    await charge(1)  # type: ignore
    await app.enqueue_by_name("x", {})  # type: ignore


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


R = TypeVar("R")


class Tenant(Middleware):
    def prepare(self, job: NewJob[R]) -> NewJob[R]:
        return job.options(meta={**job.meta, "tenant": "acme"})

    async def run(self, ctx: Context, call_next: CallNext) -> Any:
        return await call_next()


class Wrong(Middleware):
    def prepare(self, job: int) -> int:  # type: ignore
        return job


@app.provide
def client(worker: WorkerContext = INJECTED) -> Iterator[Client]:
    yield Client()


@app.provide(scope="job")
async def mailer(client: Client = INJECTED) -> Mailer:
    return Mailer()


@app.on_start
async def warm_up(worker: WorkerContext, client: Client = INJECTED) -> None: ...


def surroundings() -> None:
    assert_type(client(), Iterator[Client])
    assert_type(a.job(1).options(priority=2), NewJob[str])
    app.provide(value=Client())
    app.provide(client, scope="app", type=Client)
    app.add_middleware(Tenant())
    Prinia(middleware=[Tenant()])
    a.job(1).options(priority="high")  # type: ignore
    app.provide(scope="request")  # type: ignore
    app.provide(Client(), scope="job")  # type: ignore
    app.provide(client, value=Client())  # type: ignore
    app.add_middleware(Tenant)  # type: ignore
    app.on_start(Client())  # type: ignore


def by_attempt(error: Exception, attempt: int) -> float | None:
    return 10.0 * attempt if isinstance(error, OSError) else None


def giving_up(error: Exception, attempt: int) -> timedelta | Exponential | Literal[False]:
    return False


async def succeeded(ctx: Context, result: str) -> None: ...


def failed(ctx: Context, error: AttemptError) -> None: ...


@app.task(retry={ConnectionError: Fixed(1), ValueError: False}, on_success=succeeded, on_failure=failed)
async def reacting(item: int) -> str:
    return ""


# In variables, mostly of types that a checker finds by itself.
OF_ONE_TYPE = {ConnectionError: Fixed(1)}
OF_TWO_TYPES = {ConnectionError: Fixed(1), TimeoutError: Fixed(2)}
NEVER = {ConnectionError: False}
SAID: dict[type[Exception], RetryPolicy | Literal[False]] = {ConnectionError: Fixed(1), ValueError: False}
MIXED: RetryMapping = {ConnectionError: Fixed(1), TimeoutError: Exponential(), ValueError: False}
NO_TYPES = {"ValueError": Fixed(1)}
NO_POLICIES = {ValueError: 10}


@app.on_event
def hear(event: Event) -> None:
    event.worker.stop()


@app.on_event(EventKind.FAILED, EventKind.ERROR)
async def hear_some(event: Event) -> int:
    return 1


async def reactions(connection: psycopg.Connection, pg: psycopg.AsyncConnection, ctx: Context) -> None:
    assert_type(await reacting.aenqueue(1), Job[str])
    hear(Event(kind=EventKind.STOPPED, worker=ctx.worker))
    assert_type(await hear_some(Event(kind=EventKind.STOPPED, worker=ctx.worker)), int)
    app.worker(on_event=hear_some)
    app.task(retry=by_attempt)
    app.task(retry=giving_up)
    app.task(retry=Fixed(1), on_failure=lambda ctx, error: print(error.message))
    assert_type(await (await a.aenqueue(1)).acancel(by="Ada"), bool)
    ctx.complete(connection, result=1)
    await ctx.acomplete(pg)
    app.task(retry=OF_ONE_TYPE)
    app.task(retry=OF_TWO_TYPES)
    app.task(retry=NEVER)
    app.task(retry=SAID)
    app.task(retry=MIXED)
    app.task(retry=NO_TYPES)  # type: ignore
    app.task(retry=NO_POLICIES)  # type: ignore
    app.task(retry=7)  # type: ignore
    app.task(retry={"ValueError": Fixed(1)})  # type: ignore
    app.task(retry={ValueError: 10})  # type: ignore
    app.task(on_success=by_attempt)  # type: ignore
    app.task(on_failure=by_attempt)  # type: ignore
    a.options(retry=by_attempt)  # type: ignore
    app.on_event("failed")  # type: ignore
    app.worker(on_event=7)  # type: ignore
    ctx.complete(pg)  # type: ignore
    await ctx.acomplete(connection)  # type: ignore
    ctx.acomplete(pg)  # type: ignore
    a.get_job(1).cancel(by=7)  # type: ignore


async def reading() -> None:
    query = app.jobs(queue="email", state=["failed", JobState.CANCELLED], ids=range(3), created_since=None)
    assert_type(query, JobQuery)
    assert_type([job.id for job in query], list[int])
    assert_type([job async for job in query], list[JobRecord])
    assert_type((await query.apage(after=query.page().next)).jobs, Sequence[JobRecord])
    assert_type(await query.acount(), Count)
    assert_type(await app.aqueues(), Sequence[QueueRecord])
    assert_type(app.workers(), Sequence[WorkerRecord])
    app.jobs(stat="failed")  # type: ignore
    app.jobs("failed")  # type: ignore
    app.jobs(queue=7)  # type: ignore
    app.jobs(created_since="2026-01-01")  # type: ignore
    query.page(after=7)  # type: ignore
    await query.page()  # type: ignore
