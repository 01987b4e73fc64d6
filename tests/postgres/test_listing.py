"""Lists and counts on PostgreSQL: what they look at is bounded and found by indexes, whatever the statistics say; what
they do not look at is estimated.

PRINIA_TEST_PLAN_ROWS sets how many rows the tables have.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from prinia.job import JobState
from prinia.overview import Count
from prinia.selection import Selection, select
from prinia.storage.postgres import PostgresStorage, listing
from prinia.storage.postgres.migrate import migrate
from prinia.testing.conformance.bench import call, job

from .kit import Lab, Plan, Spy

ROWS = int(os.environ.get("PRINIA_TEST_PLAN_ROWS", "20000"))
#: A hundredth of the finished jobs has failed, and one in a thousand is of a queue of its own.
FINISHED = """
insert into prinia.archive (id, drop_at, scheduled_at, created_at, started_at, finished_at, attempt, max_attempts,
                            priority, crashes, max_crashes, rerun_after_crash, state, queue, task, codec, args, errors)
select nextval('prinia.job_ids'), now() + case when n %% 100 = 1 then interval '30 days' else interval '1 day' end,
       now(), now(), now(), now(), 1, 5, 0, 0, 3, true, case when n %% 100 = 1 then 'failed' else 'completed' end,
       case when n %% 1000 = 7 then 'rare' else 'queue' || n %% 5 end, 'conformance', 'json', '{}',
       case when n %% 100 = 1 then '[{"attempt": 1, "kind": "OSError", "message": "gone", "traceback": null,
                                      "at": "2026-01-02T03:04:05+00:00"}]'::jsonb end
  from generate_series(1, %s) n"""
TABLES = "prinia.jobs, prinia.attempts, prinia.archive, prinia.queues, prinia.workers"


async def fill(lab: Lab) -> None:
    await lab.rows(FINISHED, ROWS)
    await lab.fill(
        ROWS,
        queue="case when n % 1000 = 7 then 'rare' else 'queue' || n % 5 end",
        scheduled_at="now() + case when n % 2 = 0 then interval '1 day' else interval '-1 second' end",
    )


async def fresh(lab: Lab) -> None:
    """Never analyzed."""
    await fill(lab)


async def analyzed_when_empty(lab: Lab) -> None:
    """Statistics say that there is nothing."""
    await lab.rows(f"analyze {TABLES}")
    await fill(lab)


async def analyzed_when_full(lab: Lab) -> None:
    """Statistics that are right."""
    await fill(lab)
    await lab.rows(f"analyze {TABLES}")


SELECTIONS = {
    "all": select(),
    "a queue": select(queue="queue1"),
    "a rare queue": select(queue="rare"),
    "no queue": select(queue="nobody's"),
    "failed": select(state="failed"),
    "failed of a queue": select(queue="queue1", state="failed"),
    "cancelled": select(state="cancelled"),
    "running": select(state="running"),
    "scheduled or completed": select(state=["scheduled", "completed"]),
    "an error": select(error="OSError"),
    "no error": select(error="KeyError"),
    "a tag": select(tag="vip"),
    "ids": select(ids=range(1, ROWS, max(ROWS // 1000, 1))),
    "no ids": select(ids=[2**62]),
}


async def watched(lab: Lab) -> Spy:
    """A spy on the connection that looks from now on."""
    storage = lab.storage
    assert isinstance(storage, PostgresStorage)
    spy = Spy()
    async with storage._pools.aconnection() as connection:
        await spy.watch(connection)
    return spy


def faults(name: str, plan: Plan, *, handled: int) -> list[str]:
    """What is wrong with a plan of a look at jobs, in words."""
    found = [
        f"{name}: {node['Node Type']} on {relation}"
        for node, _ in plan.nodes()
        if (relation := str(node.get("Relation Name", ""))) in ("jobs", "attempts") or relation.startswith("archive")
        if node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")
    ]
    if plan.handled > handled:
        found.append(f"{name}: {plan.handled} rows handled")
    return found


@pytest.mark.parametrize("state", [fresh, analyzed_when_empty, analyzed_when_full], ids=lambda state: state.__name__)
async def test_what_is_looked_at_is_bounded(
    lab: Lab, state: Callable[[Lab], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FIRST_STRETCH", 100)
    monkeypatch.setattr(listing, "LONGEST_STRETCH", 400)
    monkeypatch.setattr(listing, "PAGE_ROWS", 1000)
    await lab.rows("alter table prinia.jobs set (autovacuum_enabled = off)")
    await state(lab)
    spy = await watched(lab)
    found = []
    for name, selection in SELECTIONS.items():
        # Each row of both stretches passes a few nodes: the walk to the edge, the scan, merges and limits.
        handled = 12 * (1000 if selection.ids else 400)
        await lab.storage.abrowse(selection, after=None, limit=20)
        await lab.storage.acount(selection, limit=20)
        plans = [plan for plan in spy.taken() if "edge as" in plan.text]
        assert len(plans) >= 2
        found += [fault for plan in plans for fault in faults(name, plan, handled=handled)]
    await lab.storage.aqueues(limit=100)
    exact, completed, *_, sample = (plan for plan in spy.taken() if "set_config" not in plan.text)
    assert "tablesample" in sample.text
    found += faults("queues", exact, handled=30_000) + faults("completed", completed, handled=1_000)
    assert found == []


async def test_without_the_settings_everything_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the settings are for, and that the check sees it."""
    settings = {name: value for name, value in listing.READ_SETTINGS.items() if not name.startswith("enable_")}
    monkeypatch.setattr(listing, "READ_SETTINGS", settings)
    await analyzed_when_empty(lab)
    spy = await watched(lab)
    await lab.storage.abrowse(select(queue="rare"), after=None, limit=20)
    assert [fault for plan in spy.taken() for fault in faults("rare", plan, handled=12 * 1000)]


async def test_unsuccessful_jobs_are_found_at_once(lab: Lab) -> None:
    """Failed jobs among very many completed ones take one statement, for they have an index."""
    await fill(lab)
    spy = await watched(lab)
    stretch = await lab.storage.abrowse(select(state="failed"), after=None, limit=20)
    assert len(stretch.records) == 20
    [plan] = [plan for plan in spy.taken() if "edge as" in plan.text]
    indexes = {str(node.get("Index Name")) for node, _ in plan.nodes() if node["Actual Loops"] and node["Actual Rows"]}
    assert [name for name in indexes if name.startswith("archive") and "id" in name] != []
    assert plan.handled < 2000


async def test_very_many_failed_jobs_are_not_all_read_for_a_queue(lab: Lab) -> None:
    await lab.rows(FINISHED, 5000)
    await lab.rows("update prinia.archive set state = 'failed'")
    spy = await watched(lab)
    await lab.storage.aqueues(limit=100)
    [plan] = [plan for plan in spy.taken() if "lanes (queue" in plan.text]
    assert plan.handled < 5000


# -- stretches ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def mixed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Some 250 jobs, finished and live in turns of different lengths, and stretches that are short."""
    monkeypatch.setattr(listing, "FIRST_STRETCH", 3)
    monkeypatch.setattr(listing, "LONGEST_STRETCH", 20)
    monkeypatch.setattr(listing, "PAGE_ROWS", 60)
    for number in range(10):
        await lab.rows(FINISHED, 1 + number * 7 % 27)
        await lab.fill(1 + number * 5 % 23, queue="'queue' || n % 5")
    return lab


async def found(lab: Lab, selection: Selection, *, limit: int, oldest_first: bool = False) -> tuple[list[int], int]:
    """The ids that a selection finds, and in how many pages."""
    ids: list[int] = []
    after: int | None = None
    pages = 0
    while True:
        stretch = await lab.storage.abrowse(selection, after=after, limit=limit, oldest_first=oldest_first)
        pages += 1
        ids += [record.id for record in stretch.records]
        assert stretch.after is None or stretch.after != after
        if (after := stretch.after) is None:
            return ids, pages


#: Conditions, and the same in SQL.
CONDITIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "true"),
    ({"queue": "queue2"}, "queue = 'queue2'"),
    ({"state": "ready"}, "state = 'ready'"),
    ({"state": "failed"}, "state = 'failed'"),
    (
        {"state": ["completed", "ready"], "queue": ["queue1", "rare"]},
        "queue in ('queue1', 'rare') and state <> 'failed'",
    ),
    ({"ids": range(20, 90)}, "id between 20 and 89"),
    ({"queue": "nobody's"}, "false"),
]


async def test_stretches_leave_nothing_out(mixed: Lab) -> None:
    for conditions, where in CONDITIONS:
        selection = select(**conditions)
        expected = [id for (id,) in await mixed.rows(f"select id from prinia.all_jobs where {where} order by id")]
        for limit in (13, 1000):
            newest, _ = await found(mixed, selection, limit=limit)
            oldest, _ = await found(mixed, selection, limit=limit, oldest_first=True)
            assert (newest, oldest) == (expected[::-1], expected), (conditions, limit)
        assert await mixed.storage.acount(selection, limit=1000) == Count(len(expected)), conditions


async def test_a_page_ends_after_a_while_of_looking(mixed: Lab) -> None:
    """A page that finds nothing within its rows says where to go on."""
    stretch = await mixed.storage.abrowse(select(queue="nobody's"), after=None, limit=5)
    assert list(stretch.records) == []
    assert stretch.after is not None
    ids, pages = await found(mixed, select(queue="nobody's"), limit=5)
    assert (ids, pages > 2) == ([], True)


# -- estimates ----------------------------------------------------------------------------------------------------


async def test_counts_above_the_limit_are_estimated(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SAMPLE_PAGES", 100)
    await lab.rows(FINISHED, 20_000)
    await lab.fill(10_000)
    for selection, number in ((select(), 30_000), (select(state="completed"), 19_800), (select(state="ready"), 10_000)):
        count = await lab.storage.acount(selection, limit=100)
        assert not count.exact
        assert number / 2 < count.number < number * 2
    assert await lab.storage.acount(select(state="failed"), limit=200) == Count(200)
    # What was counted before the limit stands, whatever the sample says.
    monkeypatch.setattr(listing, "SAMPLE_PAGES", 0.01)
    monkeypatch.setattr(listing, "LONGEST_STRETCH", 160)
    count = await lab.storage.acount(select(state="failed"), limit=150)
    assert (count.number > 150, count.exact) == (True, False)


async def test_a_count_of_what_is_rare_ends(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that looked at many rows for little gives up, and says that it estimates."""
    monkeypatch.setattr(listing, "LONGEST_STRETCH", 100)
    await lab.rows(FINISHED, 5000)
    assert await lab.storage.acount(select(queue="nobody's"), limit=1000) == Count(0)
    assert await lab.storage.acount(select(queue="nobody's"), limit=10) == Count(0, exact=False)


async def test_queues_above_the_limit_are_estimated(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "SAMPLE_PAGES", 100)
    await lab.rows(FINISHED, 20_000)
    await lab.fill(10_000, queue="'big'")
    # Those that are next to run are all that is counted.
    await lab.fill(5_000, queue="'big'", scheduled_at="now() + interval '1 day'")
    await lab.fill(30, queue="'small'")
    queues = {queue.name: queue.counts for queue in await lab.storage.aqueues(limit=1000)}
    ready = queues["big"][JobState.READY]
    assert not ready.exact
    assert 5_000 < ready.number < 20_000
    scheduled = queues["big"][JobState.SCHEDULED]
    assert not scheduled.exact
    assert 2_500 < scheduled.number < 10_000
    assert queues["small"] == {JobState.READY: Count(30)}
    completed = queues["queue2"][JobState.COMPLETED]
    assert not completed.exact
    assert 2_000 < completed.number < 8_000
    # Every hundredth job has failed, all of one queue.
    assert queues["queue1"][JobState.FAILED] == Count(200)
    assert (await lab.storage.aqueues(limit=199))[2].counts[JobState.FAILED].exact is False
    exact = {queue.name: queue.counts for queue in await lab.storage.aqueues(limit=100_000)}
    assert exact["big"] == {JobState.READY: Count(10_000), JobState.SCHEDULED: Count(5_000)}
    assert exact["queue2"] == {JobState.COMPLETED: Count(3_980)}
    assert exact["rare"] == {JobState.COMPLETED: Count(20)}


@pytest.mark.parametrize("schema", ['my "jobs"', "o'neil 100%s", "%(a)s"])
async def test_whatever_the_schemas_name(database: str, schema: str) -> None:
    await asyncio.to_thread(migrate, database, schema=schema)
    storage = PostgresStorage(database, schema=schema)
    everything: Selection = select()
    assert (await storage.abrowse(everything, after=None, limit=5)).after is None
    assert await storage.acount(everything, limit=1) == Count(0)
    assert await storage.aqueues(limit=1) == []
    assert await storage.aworkers() == []
    waits, ended = await storage.apush([job(), job()])
    assert await storage.acancel([ended.id], by="test") == 1
    stretch = await storage.abrowse(everything, after=None, limit=5)
    assert [record.id for record in stretch.records] == [ended.id, waits.id]
    sizes = await storage._pools.arun(storage._sql.query("sizes"), {})
    assert sizes == [(1, 1)]


async def test_a_look_is_of_one_moment(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes between two statements of one look is not seen by it: else a sum would be of no time at all."""
    monkeypatch.setattr(listing, "LONGEST_STRETCH", 2)
    ids = await lab.push(*(job() for _ in range(5)))
    count = listing.Listing._count

    def interrupted(self: Any, *args: Any) -> Any:
        script = count(self, *args)
        rows = yield next(script)
        lab.storage.cancel([ids[0]], by="test")
        while True:
            try:
                rows = yield script.send(rows)
            except StopIteration as end:
                return end.value

    monkeypatch.setattr(listing.Listing, "_count", interrupted)
    assert await call(lab.storage.count, select(state="ready"), limit=100) == Count(5)
    assert await call(lab.storage.count, select(state="ready"), limit=100) == Count(4)
