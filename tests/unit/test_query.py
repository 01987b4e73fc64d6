"""Queries of an app: iteration, pages and counts in both colours, and what is refused before anything is read."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

import prinia
from prinia import ColourError, Count, InvalidQuery, JobQuery, JobRecord, JobState, Page, Prinia, QueueRecord
from prinia.storage.memory import MemoryStorage


@pytest.fixture
def app() -> Prinia:
    return Prinia(storage=MemoryStorage())


@pytest.fixture
def ids(app: Prinia) -> list[int]:
    """Of 1,201 jobs, which are more than two chunks of iteration."""
    return [job.id for job in app.enqueue_many(app.job_by_name("shop.send", {"n": n}) for n in range(1201))]


def test_iteration_gives_all_newest_first(app: Prinia, ids: list[int]) -> None:
    assert [record.id for record in app.jobs()] == ids[::-1]
    assert [record.id for record in app.jobs(oldest_first=True)] == ids
    assert [record.id for record in app.jobs(ids=ids[3:5])] == [ids[4], ids[3]]
    assert list(app.jobs(queue="nobody's")) == []


async def test_iteration_awaited(app: Prinia) -> None:
    await app.aenqueue_many(app.job_by_name("shop.send", {"n": n}) for n in range(501))
    query = app.jobs(task="shop.send")
    assert [record.id async for record in query] == list(range(501, 0, -1))
    assert len([record async for record in query]) == 501


def test_pages_follow_their_cursors(app: Prinia, ids: list[int]) -> None:
    query = app.jobs(state="ready")
    seen: list[JobRecord] = []
    page = query.page(limit=600)
    assert len(page.jobs) == 600
    while page.next is not None:
        seen += page.jobs
        page = app.jobs(state=JobState.READY).page(after=page.next, limit=600)
    seen += page.jobs
    assert [record.id for record in seen] == ids[::-1]


async def test_pages_and_counts_awaited(app: Prinia) -> None:
    await app.aenqueue_many(app.job_by_name("shop.send", {"n": n}) for n in range(3))
    query = app.jobs(oldest_first=True)
    first = await query.apage(limit=2)
    rest = await query.apage(after=first.next)
    assert [record.id for record in (*first.jobs, *rest.jobs)] == [1, 2, 3]
    assert rest.next is None
    assert await query.acount() == Count(3)
    assert (await app.aqueues())[0].counts == {JobState.READY: Count(3)}
    assert await app.aworkers() == []


def test_an_exact_page_has_no_next(app: Prinia, ids: list[int]) -> None:
    assert app.jobs(ids=ids[:2]).page(limit=2).next is None
    assert app.jobs(ids=[]).page() == Page([], None)


def test_counts(app: Prinia, ids: list[int]) -> None:
    assert app.jobs().count() == Count(1201)
    assert app.jobs(ids=[]).count(limit=1) == Count(0)
    assert (str(Count(1201)), str(Count(12_000, exact=False))) == ("1,201", "~12,000")


def test_nothing_is_read_before_it_is_asked_for() -> None:
    app = Prinia("postgresql://nowhere.invalid/none")
    assert repr(app.jobs(queue="email", state="failed")) == "<JobQuery queue=['email'], state=['failed']>"
    assert repr(app.jobs(oldest_first=True)) == "<JobQuery of all jobs, oldest first>"


@pytest.mark.parametrize(
    ("cursor", "text"),
    [
        ("", "after='' is no cursor; give what an earlier page has as its next"),
        ("17", "after='17' is no cursor"),
        (17, "after=17 is no cursor"),
        ("0-000000000000n", "is no cursor"),
        ("-1-000000000000n", "is no cursor"),
        ("17-000000000000n", "is a cursor of another query: conditions and order must be those of the page"),
    ],
)
def test_a_cursor_that_is_none_or_of_another_query(app: Prinia, cursor: Any, text: str) -> None:
    with pytest.raises(InvalidQuery, match=text):
        app.jobs().page(after=cursor)


def test_a_cursor_belongs_to_conditions_and_order(app: Prinia, ids: list[int]) -> None:
    cursor = app.jobs(queue="default").page(limit=1).next
    app.jobs(queue=["default"]).page(after=cursor)
    others: list[JobQuery] = [app.jobs(), app.jobs(queue="email"), app.jobs(queue="default", oldest_first=True)]
    for other in others:
        with pytest.raises(InvalidQuery, match="another query"):
            other.page(after=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1001, True, 2.5, "7", None])
def test_limits_that_make_no_sense(app: Prinia, limit: Any) -> None:
    with pytest.raises(InvalidQuery, match=r"limit=.* must be a whole number of jobs, 1 to 1,000"):
        app.jobs().page(limit=limit)
    if limit != 1001:
        with pytest.raises(InvalidQuery, match=r"limit=.* must be a whole number of jobs, 1 or more"):
            app.jobs().count(limit=limit)
        with pytest.raises(InvalidQuery, match="must be a whole number of jobs, 1 or more"):
            app.queues(limit=limit)


def test_blocking_forms_are_refused_in_a_loop(app: Prinia) -> None:
    async def in_a_loop() -> None:
        query = app.jobs()
        with pytest.raises(ColourError, match=r"Write: await query.apage\(...\)"):
            query.page()
        with pytest.raises(ColourError, match=r"await query.acount\(...\)"):
            query.count()
        with pytest.raises(ColourError, match="async for job in query"):
            list(query)
        with pytest.raises(ColourError, match=r"await app.aqueues\(\)"):
            app.queues()
        with pytest.raises(ColourError, match=r"await app.aworkers\(\)"):
            app.workers()

    asyncio.run(in_a_loop())


def test_unserved_queues() -> None:
    worker = (UUID(int=1),)
    waits = {JobState.SCHEDULED: Count(1)}
    assert QueueRecord(name="a", counts=waits).unserved
    assert not QueueRecord(name="a", counts=waits, workers=worker).unserved
    assert not QueueRecord(name="a", counts={JobState.FAILED: Count(1)}).unserved
    assert not QueueRecord(name="a").unserved


def test_names_are_public() -> None:
    assert {"Count", "InvalidQuery", "JobQuery", "Page", "QueueRecord", "WorkerRecord"} <= set(prinia.__all__)
