"""Middleware around enqueues, and changing a job that is not stored yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

import psycopg
import pytest

from prinia import (
    InvalidArguments,
    InvalidOptions,
    Middleware,
    NewJob,
    Prinia,
)
from prinia.storage.memory import MemoryStorage
from tests.engine.kit import Shop
from tests.engine.layers import TENANT, Layer, OnlyEnqueue

R = TypeVar("R")


class Swallow(Middleware):
    """Swallows what it may not."""

    @contextmanager
    def _around(self) -> Iterator[None]:
        with suppress(ValueError):
            yield

    def enqueue(self) -> AbstractContextManager[None]:
        return self._around()


class Refuse(Middleware):
    """Refuses every job."""

    def prepare(self, job: NewJob[R]) -> NewJob[R]:
        raise ValueError("refused")


def test_who_swallows_an_error_does_not_hide_it_from_those_further_out() -> None:
    steps: list[str] = []
    app = Prinia(storage=MemoryStorage(), middleware=[Layer("outer", steps), Swallow(), Refuse()])

    @app.task(name="work")
    def work() -> None: ...

    with pytest.raises(ValueError, match="refused"):
        work.enqueue()
    assert steps == ["outer begins to enqueue", "outer prepares work", "outer sees ValueError"]


class TestEnqueue:
    async def test_changes_every_job_that_is_stored(self, shop: Shop) -> None:
        shop.app.add_middleware(OnlyEnqueue())

        @shop.app.task(name="work", queue="q")
        async def work(number: int = 0) -> None: ...

        async def stream() -> AsyncIterator[NewJob[None]]:
            yield work.job(5)
            yield work.job(6)

        TENANT.set("acme")
        ids = [(await work.aenqueue()).id, (await work.options(meta={"a": 1}).aenqueue()).id]
        ids += [job.id for job in await shop.app.aenqueue_many([work.job(3), work.job(4)])]
        ids += [job.id for job in await shop.app.aenqueue_many(stream())]
        ids.append((await shop.app.aenqueue_by_name("work", {"number": 7})).id)

        def blocking() -> None:
            TENANT.set("ajax")
            ids.append(work.enqueue(8).id)
            ids.extend(job.id for job in shop.app.enqueue_many([work.job(9)]))

        await asyncio.to_thread(blocking)
        records = [shop.record(id) for id in ids]
        assert [record.queue for record in records] == ["q-eu"] * 9
        assert [record.meta.get("tenant") for record in records] == ["acme"] * 7 + ["ajax"] * 2
        assert records[1].meta == {"a": 1, "tenant": "acme"}

    async def test_surrounds_each_call_that_stores_once(self, shop: Shop) -> None:
        steps: list[str] = []
        shop.app.add_middleware(Layer("it", steps))

        @shop.app.task(name="work")
        async def work() -> None: ...

        await shop.app.aenqueue_many(work.job() for _ in range(2))
        await asyncio.to_thread(shop.app.enqueue_many, [work.job()])
        many = ["it begins to enqueue", "it prepares work", "it prepares work", "it has enqueued"]
        assert steps == [*many, *many[:2], many[3]]

    async def test_on_a_connection_of_yours_too(self, migrated: str) -> None:
        steps: list[str] = []
        app = Prinia(migrated, middleware=[OnlyEnqueue(), Layer("it", steps)])

        @app.task(name="work")
        async def work() -> None: ...

        TENANT.set("acme")
        with psycopg.connect(migrated) as blocking:
            work.within(blocking).enqueue()
            app.within(blocking).enqueue_many([work.job()])
            app.within(blocking).enqueue_by_name("work", {})
        async with await psycopg.AsyncConnection.connect(migrated) as connection:
            await work.within(connection).aenqueue()
            await app.within(connection).aenqueue_many([work.job()])
            await app.within(connection).aenqueue_by_name("work", {})
            rows = await (await connection.execute("select queue, meta from prinia.jobs")).fetchall()
        assert rows == [("default-eu", {"tenant": "acme"})] * 6
        assert steps == ["it begins to enqueue", "it prepares work", "it has enqueued"] * 6

    async def test_sees_the_error_of_the_call_and_cannot_swallow_it(self, shop: Shop) -> None:
        steps: list[str] = []

        class Swallows(Middleware):
            def enqueue(self) -> AbstractContextManager[None]:
                return swallow()

        @contextmanager
        def swallow() -> Iterator[None]:
            try:
                yield
            except ValueError:
                steps.append("swallowed")

        shop.app.add_middleware(Swallows())
        shop.app.add_middleware(Layer("inner", steps))

        @shop.app.task(name="work")
        async def work() -> None: ...

        def jobs() -> Iterator[NewJob[None]]:
            yield work.job()
            raise ValueError("no more")

        with pytest.raises(ValueError, match="no more"):
            await shop.app.aenqueue_many(jobs())
        assert steps[-2:] == ["inner sees ValueError", "swallowed"]
        assert not shop.storage.tables.live

    async def test_what_it_raises_the_enqueue_raises_and_leaves_what_was_entered(self, shop: Shop) -> None:
        steps: list[str] = []

        class Refuses(Middleware):
            def enqueue(self) -> AbstractContextManager[None]:
                raise PermissionError("read only")

        shop.app.add_middleware(Layer("outer", steps))
        shop.app.add_middleware(Refuses())

        @shop.app.task(name="work")
        async def work() -> None: ...

        with pytest.raises(PermissionError, match="read only"):
            await work.aenqueue()
        assert steps == ["outer begins to enqueue", "outer sees PermissionError"]
        assert not shop.storage.tables.live

    async def test_a_prepare_that_forgets_to_return_is_told(self, shop: Shop) -> None:
        class Forgets(Middleware):
            def prepare(self, job: NewJob[R]) -> NewJob[R]:
                return None  # type: ignore[return-value]

        shop.app.add_middleware(Forgets())

        @shop.app.task(name="work")
        async def work() -> None: ...

        with pytest.raises(InvalidArguments, match=r"Forgets.prepare returned None: it must return the job"):
            await work.aenqueue()


class TestJobOptions:
    def test_are_checked_and_leave_the_job_as_it_was(self) -> None:
        app = Prinia(storage=MemoryStorage())

        @app.task(name="work", queue="q", max_attempts=3, tags=["a"])
        async def work(number: int) -> None: ...

        job = work.options(unique="n:1", delay=5).job(1)
        other = job.options(priority=7, meta={"a": 1}, on_conflict="raise")
        assert (job.task, job.queue, job.meta, job.spec.priority) == ("work", "q", {}, 0)
        assert (other.task, other.queue, other.meta, other.spec.priority) == ("work", "q", {"a": 1}, 7)
        assert (other.spec.args, other.spec.max_attempts, other.spec.tags) == (job.spec.args, 3, ("a",))
        assert (other.spec.delay, other.spec.unique and other.spec.unique.on_conflict) == (5, "raise")
        assert other.read == job.read
        with pytest.raises(InvalidOptions, match="priority=1000"):
            job.options(priority=1000)
        with pytest.raises(InvalidOptions, match="did you mean priority"):
            job.options(priorty=1)  # type: ignore[call-arg]
