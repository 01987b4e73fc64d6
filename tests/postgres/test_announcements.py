"""Awaited jobs: announced at their ends, those alone, over one connection, and never needed.

Seen to fail with: `announce` notifying for whatever ends, or not called by `complete`; rows that nobody renews kept; a
listener of its own for each waiter; nothing looked at when the listening came back; the listening of an open app ended
with each wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from prinia import Finished, Job, JobCancelled, Prinia
from prinia.storage.postgres import PostgresStorage
from prinia.testing.conformance.bench import call, job
from prinia.waiting import agenda

from .kit import Lab, until
from .test_bells import Ear, ear
from .test_listener import KILL

__all__ = ["ear"]

LISTENERS = (
    "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'prinia listener'"
)
EXPECTED = "select count(*) from prinia.awaited"
HOUR = 3600.0


@pytest.fixture
def deaf_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is expected is looked at once an hour: whoever gets an answer in time has heard."""
    monkeypatch.setattr(agenda, "LONGEST_HEARD", HOUR)
    put_off = agenda.Agenda.put_off

    def hourly(self: agenda.Agenda, ids: Sequence[int], now: float, *, listening: bool) -> None:
        put_off(self, ids, now, listening=listening)
        for id in ids:
            if id in self._expected and id in self._looks:
                self._set(agenda._Look(now + HOUR, id, HOUR))

    monkeypatch.setattr(agenda.Agenda, "put_off", hourly)


async def all_expected(lab: Lab, number: int) -> None:
    await until(lambda: _count(lab, number), f"{number} jobs are expected")
    # The look after that: from then on only what is heard counts.
    await asyncio.sleep(0)


async def _count(lab: Lab, number: int) -> bool:
    return bool(await lab.value(EXPECTED) == number)


def handles(app: Prinia, ids: Sequence[int]) -> list[Job[Any]]:
    return [app.get_job(id) for id in ids]


async def collect(app: Prinia, jobs: Sequence[Job[Any]]) -> list[Finished[Any]]:
    return [done async for done in app.wait(jobs)]


async def test_nobody_is_notified_of_what_nobody_awaits(lab: Lab, ear: Ear) -> None:
    worker = await lab.worker()
    silent, awaited = await lab.push(job(), job())
    await lab.storage.aexpect([awaited])
    for claimed in await worker.collect(2):
        await lab.finish(claimed, worker)
    assert await ear.heard() == [f"ended {awaited}"]
    assert silent != awaited


async def test_thousands_are_told_in_few_notifications(lab: Lab, ear: Ear) -> None:
    ids = await lab.push(*[job()] * 1000)
    await lab.storage.aexpect(ids)
    await lab.storage.acancel(ids, by="Ada")
    heard = await ear.heard()
    assert len(heard) == 4
    assert max(map(len, heard)) < 8000
    assert sorted(int(id) for one in heard for id in one.removeprefix("ended ").split(",")) == ids


async def test_what_nobody_renews_is_forgotten(lab: Lab, ear: Ear) -> None:
    old, renewed, new = await lab.push(job(), job(), job())
    await lab.storage.aexpect([old, renewed])
    await lab.rows("update prinia.awaited set until = clock_timestamp() - interval '1 second'")
    await lab.storage.aexpect([renewed, new])
    assert await lab.rows("select job_id from prinia.awaited order by 1") == [(renewed,), (new,)]


async def test_thousands_of_waiters_cost_one_listener(lab: Lab, deaf_otherwise: None) -> None:
    async with Prinia(lab.dsn) as app:
        jobs = handles(app, await lab.push(*[job()] * 3000))
        waiters = [asyncio.create_task(one.aresult()) for one in jobs]
        await all_expected(lab, 3000)
        assert await lab.value(LISTENERS) == 1
        await lab.storage.acancel([one.id for one in jobs], by="Ada")
        answers = await asyncio.gather(*waiters, return_exceptions=True)
        assert {type(answer) for answer in answers} == {JobCancelled}


async def test_blocking_waits_share_one_listener(lab: Lab, deaf_otherwise: None) -> None:
    app = Prinia(lab.dsn)
    jobs = handles(app, await lab.push(*[job()] * 20))
    await asyncio.to_thread(app.open)
    waiters = [asyncio.create_task(call(list, app.wait(jobs[n::5]))) for n in range(5)]
    await all_expected(lab, 20)
    assert await lab.value(LISTENERS) == 1
    await lab.storage.acancel([one.id for one in jobs], by="Ada")
    assert sorted(done.job.id for part in await asyncio.gather(*waiters) for done in part) == [one.id for one in jobs]
    await asyncio.to_thread(app.close)


async def test_an_open_app_listens_on_and_ends_with_it(lab: Lab, deaf_otherwise: None) -> None:
    async with Prinia(lab.dsn) as app:
        for number in (1, 2):
            [one] = handles(app, await lab.push(job()))
            waiter = asyncio.create_task(collect(app, [one]))
            await all_expected(lab, number)
            [(pid,)] = await lab.rows(LISTENERS.replace("count(*)", "pid"))
            await lab.storage.acancel([one.id], by="Ada")
            await waiter
            assert await lab.rows(LISTENERS.replace("count(*)", "pid")) == [(pid,)]
    await until(lambda: _gone(lab), "nobody listens")


async def _gone(lab: Lab) -> bool:
    return bool(await lab.value(LISTENERS) == 0)


async def test_what_ended_unheard_is_seen_when_it_listens_again(lab: Lab, deaf_otherwise: None) -> None:
    async with Prinia(lab.dsn) as app:
        jobs = handles(app, await lab.push(job(), job()))
        waiter = asyncio.create_task(collect(app, jobs))
        await all_expected(lab, 2)
        await lab.rows("delete from prinia.awaited")  # so that nothing is announced
        await lab.storage.acancel([one.id for one in jobs], by="Ada")
        await lab.rows(KILL)
        assert len(await waiter) == 2


async def test_without_the_right_to_expect_it_looks(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    await lab.rows("alter table prinia.awaited rename to elsewhere")
    try:
        async with Prinia(lab.dsn) as app:
            [one] = handles(app, await lab.push(job()))
            waiter = asyncio.create_task(collect(app, [one]))
            storage = app.storage
            assert isinstance(storage, PostgresStorage)
            await until(lambda: [a for a in storage._listeners.values() if a.listening], "it listens")
    finally:
        await lab.rows("alter table prinia.elsewhere rename to awaited")
    await lab.storage.acancel([one.id], by="Ada")
    assert len(await waiter) == 1
