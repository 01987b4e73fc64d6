"""Names on PostgreSQL: renamed tasks, tasks of others, two apps in one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import psycopg
import pytest

from prinia import JobState, Prinia, Tasks


def names(dsn: str, schema: str = "prinia") -> list[tuple[str, str]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"select task, state from {schema}.all_jobs order by id".encode()).fetchall()


async def test_a_job_under_an_old_name_runs_and_its_result_is_read(migrated: str) -> None:
    before, after = Prinia(migrated), Prinia(migrated)

    @before.task(name="shop.mail")
    async def mail(order: int) -> int:
        return order

    @after.task(name="shop.send", aliases=["shop.post", "shop.mail"])
    async def send(order: int) -> float:
        return order + 0.5

    async with before, after:
        old = await mail.aenqueue(1)
        new = [await send.aenqueue(2), await after.aenqueue_by_name("shop.mail", {"order": 3})]
        async with after.worker():
            assert await send.get_job(old.id).aresult(timeout=20) == 1.5
            assert await after.get_job(old.id).aresult(timeout=20) == 1.5
            assert [await job.aresult(timeout=20) for job in new] == [2.5, 3.5]
    assert names(migrated) == [("shop.mail", "completed"), ("shop.send", "completed"), ("shop.send", "completed")]


async def test_a_declared_task_is_left_to_those_who_have_it(migrated: str, caplog: pytest.LogCaptureFixture) -> None:
    here, there = Prinia(migrated), Prinia(migrated)

    @here.declare(name="charge")
    async def charge(cents: int) -> int:
        raise NotImplementedError

    @here.task(name="local")
    async def local() -> None: ...

    @there.task(name="charge")
    async def really(cents: int) -> int:
        return cents

    caplog.set_level(logging.WARNING)
    async with here, there:
        async with here.worker() as worker:
            job = await charge.aenqueue(5)
            await (await local.aenqueue()).aresult(timeout=20)
            while not caplog.records:
                await (await local.aenqueue()).aresult(timeout=20)
            assert worker.instance.tasks == ("local",)
        assert "needs task 'charge', which this worker does not know" in caplog.text
        assert (await job.ainfo()).state is JobState.READY
        async with there.worker():
            assert await job.aresult(timeout=20) == 5
        assert (await job.ainfo()).attempt == 1


async def which(number: int) -> int:
    return number


class TestTwoApps:
    """Two apps in one process, with the same functions, do not meet."""

    async def _run(self, one: Prinia, other: Prinia) -> None:
        tasks = Tasks()

        @tasks.task(name="where")
        async def where(number: int) -> int:
            return number

        one.include(tasks)
        other.include(tasks)
        same = [app.task(name="which")(which) for app in (one, other)]
        async with one, other:
            jobs = [await app.bind(where).aenqueue(number) for number, app in enumerate((one, other))]
            jobs += [await task.aenqueue(number) for number, task in enumerate(same)]
            async with one.worker(), other.worker():
                assert [await job.aresult(timeout=20) for job in jobs] == [0, 1, 0, 1]
            assert [job.id for job in jobs] == [1, 1, 2, 2]

    async def test_in_two_schemas(self, database: str) -> None:
        apps = [Prinia(database, schema=schema) for schema in ("one", "other")]
        for app in apps:
            await asyncio.to_thread(app.migrate)
        await self._run(*apps)
        for schema in ("one", "other"):
            assert names(database, schema) == [("where", "completed"), ("which", "completed")]

    async def test_in_two_databases(self, new_migrated: Callable[[], str]) -> None:
        dsns = [new_migrated(), new_migrated()]
        await self._run(*map(Prinia, dsns))
        for dsn in dsns:
            assert names(dsn) == [("where", "completed"), ("which", "completed")]
