"""Looking for jobs, and at queues and workers."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.overview import Count
from prinia.selection import select
from prinia.storage.protocol import Vitals
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, failure, job, promise

LIMIT = 1000


class ListPromises(ConformanceBase):
    """What is there is found: by every condition, live or finished, once, in order, and counted."""

    @promise
    async def test_jobs_of_every_state_are_found_by_it(self, bench: Bench) -> None:
        """Each state finds the jobs in it and no others; several find those of all of them; none finds all."""
        ids = await _one_of_each(bench)
        for state, id in ids.items():
            assert await _ids(bench, state=state) == [id], state
        assert await _ids(bench, state=["failed", "ready"]) == [ids[JobState.READY], ids[JobState.FAILED]]
        assert await _ids(bench) == sorted(ids.values(), reverse=True)

    @promise
    async def test_jobs_are_found_by_queue_task_and_tags(self, bench: Bench) -> None:
        """One of several queues or tasks is enough, of tags all are needed; live and finished jobs are found alike."""
        specs = (
            job(queue="email", task="shop.send", tags=("vip", "eu")),
            job(queue="email", task="shop.bill", tags=("eu",)),
            job(queue="sms", task="shop.send"),
        )
        one, two, three = await bench.push(*specs)
        worker = await bench.worker("email", "sms")
        for _ in ("live", "finished"):
            assert await _ids(bench, queue="email") == [two, one]
            assert await _ids(bench, queue=["sms", "fax"]) == [three]
            assert await _ids(bench, task=["shop.send", "shop.none"]) == [three, one]
            assert await _ids(bench, tag="eu") == [two, one]
            assert await _ids(bench, tag=["eu", "vip"]) == [one]
            assert await _ids(bench, queue="email", task="shop.send") == [one]
            assert await _ids(bench, queue="sms", tag="eu") == []
            for claimed in await worker.claimed():
                await bench.finish(claimed, worker)

    @promise
    async def test_jobs_are_found_by_id(self, bench: Bench) -> None:
        """Ids find the jobs that there are of them; other ones are left out, and no ids find nothing."""
        ids = await _one_of_each(bench)
        wanted = [ids[JobState.COMPLETED], ids[JobState.SCHEDULED]]
        assert await _ids(bench, ids=[*wanted, max(ids.values()) + 1000]) == sorted(wanted, reverse=True)
        assert await _ids(bench, ids=wanted, state="scheduled") == [ids[JobState.SCHEDULED]]
        assert await _ids(bench, ids=[]) == []

    @promise
    async def test_jobs_are_found_by_their_latest_error(self, bench: Bench) -> None:
        """The kind of a job's latest error finds it, whether it waits for another attempt or has failed."""
        worker = await bench.worker()
        ids = []
        for kind in (AckKind.RETRY, AckKind.FAIL):
            ids.append(await bench.push_one())
            await worker.recorded(ack(await worker.one(), AckKind.RETRY, error=failure(kind="OSError")))
            last = failure(attempt=2, kind="ValueError")
            await worker.recorded(ack(await worker.one(), kind, error=last, delay=3600))
        retrying, failed = ids
        await bench.push_one()
        assert await _ids(bench, error="ValueError") == [failed, retrying]
        assert await _ids(bench, error=["ValueError", "KeyError"], state="failed") == [failed]
        assert await _ids(bench, error="OSError") == []

    @promise
    async def test_jobs_are_found_by_the_instance_that_ran_them(self, bench: Bench) -> None:
        """An instance finds the jobs that it runs and those that it has ended, not those it gave back."""
        one, two = await bench.worker(), await bench.worker()
        ended, runs, given_back, others = await bench.push(job(), job(), job(), job())
        first, second, third = await one.collect(3)
        assert [first.id, second.id, third.id] == [ended, runs, given_back]
        await bench.finish(first, one)
        await one.recorded(ack(third, AckKind.RETRY, delay=3600))
        assert (await two.one()).id == others
        assert await _ids(bench, instance=one.id) == [runs, ended]
        assert await _ids(bench, instance=[two.id]) == [others]

    @promise
    async def test_jobs_are_found_by_their_times(self, bench: Bench) -> None:
        """``since`` includes its moment and ``before`` does not; jobs that have not ended have not finished ever."""
        worker = await bench.worker()
        ended, waiting = await bench.push_one(), await bench.push_one(queue="other")
        await bench.finish(await worker.one(), worker)
        record = await bench.find(ended)
        assert record.finished_at is not None
        later = timedelta(microseconds=1)
        assert await _ids(bench, created_since=record.created_at) == [waiting, ended]
        assert await _ids(bench, ids=[ended], created_since=record.created_at + later) == []
        assert await _ids(bench, ids=[ended], created_before=record.created_at) == []
        assert await _ids(bench, ids=[ended], created_before=record.created_at + later) == [ended]
        assert await _ids(bench, finished_since=record.finished_at) == [ended]
        assert await _ids(bench, finished_since=record.finished_at + later) == []
        assert await _ids(bench, finished_before=record.finished_at + later) == [ended]
        assert await _ids(bench, finished_before=record.finished_at) == []

    @promise
    async def test_what_is_found_is_told_whole(self, bench: Bench) -> None:
        """A job that is found reads as it does by its id, with its errors, result, tags and meta; times are UTC."""
        await bench.push_one(queue="email", tags=("vip",), meta={"a": [1]}, priority=3)
        worker = await bench.worker("email")
        await worker.recorded(ack(await worker.one(), AckKind.RETRY))
        for _ in range(2):
            stretch = await bench.storage.abrowse(select(), after=None, limit=10)
            assert stretch.records == await bench.storage.afind([record.id for record in stretch.records])
            [record] = stretch.records
            assert (record.tags, record.meta, len(record.errors)) == (("vip",), {"a": [1]}, 1)
            assert record.created_at.tzinfo is UTC
            for claimed in await worker.claimed():
                await bench.finish(claimed, worker)

    @promise
    async def test_newest_or_oldest_first(self, bench: Bench) -> None:
        """Jobs come by descending id, or by ascending id when asked for, and each asks on from where it was."""
        ids = await bench.push(*(job() for _ in range(7)))
        assert await _ids(bench, limit=3) == ids[::-1]
        assert await _ids(bench, limit=3, oldest_first=True) == ids
        stretch = await bench.storage.abrowse(select(), after=ids[3], limit=10, oldest_first=True)
        assert ([record.id for record in stretch.records], stretch.after) == (ids[4:], None)

    @promise
    async def test_pages_hold_still_while_jobs_move(self, bench: Bench) -> None:
        """Jobs that are pushed, claimed and ended between two pages make no job come twice or be left out."""
        ids = await bench.push(*(job() for _ in range(12)))
        worker = await bench.worker()
        seen: list[int] = []
        after: int | None = None
        while True:
            stretch = await bench.storage.abrowse(select(created_before=None), after=after, limit=3)
            seen += [record.id for record in stretch.records]
            if (after := stretch.after) is None:
                break
            first, second = await worker.collect(2)
            await worker.recorded(ack(first, AckKind.COMPLETE), ack(second, AckKind.RETRY, delay=3600))
            await bench.push_one(delay=3600)
        assert seen == ids[::-1]

    @promise
    async def test_a_full_page_at_the_end_is_the_last(self, bench: Bench) -> None:
        """When nothing follows, a page says so, also when it is just full; a page of nothing is the last."""
        await bench.push(job(), job())
        full = await bench.storage.abrowse(select(), after=None, limit=2)
        assert (len(full.records), full.after) == (2, None)
        empty = await bench.storage.abrowse(select(queue="nobody's"), after=None, limit=2)
        assert (list(empty.records), empty.after) == ([], None)

    @promise
    async def test_the_blocking_forms_answer_alike(self, bench: Bench) -> None:
        """What is looked at by a blocking call is what an awaited one sees."""
        ids = await bench.push(job(), job(queue="email"))
        stretch = await call(bench.storage.browse, select(), after=ids[1], limit=5)
        assert stretch == await bench.storage.abrowse(select(), after=ids[1], limit=5)
        assert [record.id for record in stretch.records] == ids[:1]
        assert await call(bench.storage.count, select(), limit=5) == Count(2)
        queues = [(queue.name, queue.counts) for queue in await call(bench.storage.queues, limit=5)]
        assert queues == [(queue.name, queue.counts) for queue in await bench.storage.aqueues(limit=5)]
        await bench.worker()
        [worker] = await call(bench.storage.workers)
        assert [other.id for other in await bench.storage.aworkers()] == [worker.id]

    @promise
    async def test_jobs_are_counted(self, bench: Bench) -> None:
        """A count is of all that meets the selection, exact up to the limit."""
        ids = await _one_of_each(bench)
        assert await bench.storage.acount(select(), limit=LIMIT) == Count(len(ids))
        assert await bench.storage.acount(select(state=["completed", "running"]), limit=2) == Count(2)
        assert await bench.storage.acount(select(queue="nobody's"), limit=1) == Count(0)
        assert await bench.storage.acount(select(ids=[*ids.values(), 10**9]), limit=LIMIT) == Count(len(ids))

    @promise
    async def test_queues_tell_their_jobs_by_state(self, bench: Bench) -> None:
        """Every queue with jobs is there, with the number of its jobs in each state that has any."""
        ids = await _one_of_each(bench)
        await bench.push(job(queue="email"), job(queue="email", priority=5), job(queue="email", delay=60))
        queues = {queue.name: queue for queue in await bench.storage.aqueues(limit=LIMIT)}
        assert queues["default"].counts == dict.fromkeys(ids, Count(1))
        assert queues["email"].counts == {JobState.SCHEDULED: Count(1), JobState.READY: Count(2)}

    @promise
    async def test_queues_tell_who_serves_them(self, bench: Bench) -> None:
        """A queue names the live instances that serve it; one with waiting jobs and none of these is unserved."""
        await bench.push(job(queue="email"), job(queue="sms"))
        worker, dying = await bench.worker("email", "idle"), await bench.worker("sms")
        await worker.declare_dead(dying)
        queues = {queue.name: queue for queue in await bench.storage.aqueues(limit=LIMIT)}
        assert {name: queue.workers for name, queue in queues.items()} == {
            "email": (worker.id,),
            "idle": (worker.id,),
            "sms": (),
        }
        assert [name for name, queue in queues.items() if queue.unserved] == ["sms"]

    @promise
    async def test_queues_tell_how_long_jobs_have_been_ready(self, bench: Bench) -> None:
        """The oldest ready job of a queue counts, whatever its priority; running and scheduled ones do not."""
        worker = await bench.worker()
        running = await bench.push_one()
        assert (await worker.one()).id == running
        oldest = await bench.push_one(priority=-5)
        await bench.push(job(priority=5), job(delay=3600), job(queue="later", delay=3600))
        queues = {queue.name: queue for queue in await bench.storage.aqueues(limit=LIMIT)}
        assert queues["default"].oldest_ready_at == (await bench.find(oldest)).scheduled_at
        age = queues["default"].age
        assert age is not None
        assert age >= 0
        assert (queues["later"].oldest_ready_at, queues["later"].age) == (None, None)

    @promise
    async def test_queues_tell_whether_they_are_paused(self, bench: Bench) -> None:
        """A paused queue says so, also when it has no jobs."""
        await bench.push_one(queue="email")
        await call(bench.storage.pause, "queue", "email", by="Ada")
        await call(bench.storage.pause, "queue", "empty", by="Ada")
        await bench.push_one(queue="sms")
        queues = await bench.storage.aqueues(limit=LIMIT)
        assert [(queue.name, queue.paused) for queue in queues] == [("email", True), ("empty", True), ("sms", False)]

    @promise
    async def test_workers_are_told(self, bench: Bench) -> None:
        """Every instance on the register is there, as it registered and as it was at its last beat; the dead say so."""
        one, two = await bench.worker("email", "sms"), await bench.worker()
        id = await bench.push_one(queue="sms")
        await one.collect(1)
        await call(one.pulse.beat, one.tokens, [id], Vitals("polling", 0.25, 1.5))
        await one.declare_dead(two)
        workers = {worker.id: worker for worker in await bench.storage.aworkers()}
        assert set(workers) == {one.id, two.id}
        seen, instance = workers[one.id], one.instance
        assert (seen.name, seen.host, seen.pid, seen.run) == (instance.name, instance.host, instance.pid, instance.run)
        assert (seen.queues, seen.tasks) == (instance.queues, instance.tasks)
        assert (seen.version, seen.concurrency) == (instance.version, instance.concurrency)
        assert seen.started_at <= seen.beat_at
        assert seen.beat_at.tzinfo is UTC
        assert seen.beat_age >= 0
        assert seen.alive
        assert not workers[two.id].alive
        assert workers[two.id].running == ()
        await one.beat(started=[id])
        assert {worker.id: worker.running for worker in await bench.storage.aworkers()}[one.id] == (id,)

    @promise
    async def test_workers_tell_how_they_are(self, bench: Bench) -> None:
        """What an instance says of itself with a beat is shown, until it says something else."""
        worker = await bench.worker()
        await call(worker.pulse.beat, worker.tokens, [], Vitals("polling", 0.25, 1.5))
        [seen] = await bench.storage.aworkers()
        assert (seen.listener, seen.lag, seen.blocked) == ("polling", 0.25, 1.5)
        before = seen.beat_at
        await worker.beat()
        [seen] = await bench.storage.aworkers()
        assert (seen.listener, seen.lag, seen.blocked) == (None, None, None)
        assert seen.beat_at >= before


async def _ids(bench: Bench, *, limit: int = 100, oldest_first: bool = False, **conditions: Any) -> list[int]:
    """The ids that a selection finds, page by page."""
    selection = select(**conditions)
    found: list[int] = []
    after: int | None = None
    while True:
        stretch = await bench.storage.abrowse(selection, after=after, limit=limit, oldest_first=oldest_first)
        assert len(stretch.records) <= limit
        found += [record.id for record in stretch.records]
        if (after := stretch.after) is None:
            return found


async def _one_of_each(bench: Bench) -> dict[JobState, int]:
    """A job of queue "default" in each state that a job can be brought to."""
    worker = await bench.worker()
    kinds = {JobState.COMPLETED: AckKind.COMPLETE, JobState.FAILED: AckKind.FAIL, JobState.CANCELLED: AckKind.CANCEL}
    ids: dict[JobState, int] = {}
    for state, kind in kinds.items():
        ids[state] = await bench.push_one()
        await bench.finish(await worker.one(), worker, kind)
    ids[JobState.RETRYING] = await bench.push_one()
    await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=3600))
    ids[JobState.RUNNING] = await bench.push_one()
    await worker.one()
    ids[JobState.SCHEDULED] = await bench.push_one(delay=3600)
    ids[JobState.READY] = await bench.push_one()
    await worker.beat()
    return ids
