"""Replacing: a push takes the place of the job that waits under its unique key."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import monotonic
from typing import Any

from prinia.job import ClaimedJob, JobSpec, JobState, Pushed
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, promise
from prinia.testing.conformance.unique import keyed

RACERS = 16


def replacing(number: int = 2, **fields: Any) -> JobSpec:
    """A job that replaces; its number is in its arguments and in an option."""
    return keyed(on_conflict="replace", args=b"%d" % number, tags=(str(number),), **fields)


class ReplacePromises(ConformanceBase):
    """A waiting holder is replaced whole, a running one is kept."""

    @promise
    async def test_a_waiting_holder_is_replaced(self, bench: Bench) -> None:
        """A scheduled or ready holder gets the new job's arguments, options, queue and due time under its old id."""
        first = keyed(args=b"1", delay=600, priority=-3, max_attempts=9, timeout=5, expires_in=900, meta={"a": 1})
        [id] = await bench.push(first)
        new: dict[str, Any] = {"priority": 7, "max_attempts": 2, "timeout": 8.0, "meta": {"b": 2}, "queue": "other"}
        for _ in range(2):
            [answer] = await bench.storage.apush([replacing(**new)])
            assert (answer.id, answer.created) == (id, False)
        record = await bench.in_state(id, JobState.READY)
        assert (record.args, record.tags, record.priority, record.queue) == (b"2", ("2",), 7, "other")
        assert (record.max_attempts, record.meta) == (2, {"b": 2})
        old, other = await bench.worker(), await bench.worker("other")
        assert await old.claimed() == []
        claimed = await other.one()
        assert (claimed.id, claimed.args, claimed.attempt, claimed.max_attempts) == (id, b"2", 1, 2)
        assert claimed.extras is not None
        assert (claimed.extras.timeout, claimed.extras.expired) == (8.0, False)
        assert await other.claimed() == []

    @promise
    async def test_a_replaced_job_is_due_when_the_new_one_is(self, bench: Bench) -> None:
        """A ready holder replaced by a job that is due later waits for that time."""
        [id] = await bench.push(keyed())
        await bench.push(replacing(delay=600))
        await bench.in_state(id, JobState.SCHEDULED)
        worker = await bench.worker()
        assert await worker.claimed() == []

    @promise
    async def test_a_retrying_holder_starts_anew(self, bench: Bench) -> None:
        """Attempts, crashes and errors of a replaced job are gone, and it was created when the new one was."""
        [id] = await bench.push(keyed())
        worker, victim = await bench.worker(), await bench.worker()
        crashed = await victim.one()
        await victim.beat(started=[crashed.id])
        await worker.bury(victim)
        await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=600))
        before = await bench.in_state(id, JobState.RETRYING)
        assert (before.attempt, before.crashes, len(before.errors)) == (1, 1, 2)
        await bench.push(replacing())
        record = await bench.in_state(id, JobState.READY)
        assert (record.attempt, record.crashes, record.errors) == (0, 0, ())
        assert record.created_at > before.created_at
        claimed = await worker.one()
        assert (claimed.attempt, claimed.crashes, claimed.args) == (1, 0, b"2")
        await bench.finish(claimed, worker)
        assert (await bench.find(id)).errors == ()

    @promise
    async def test_a_running_holder_is_kept(self, bench: Bench) -> None:
        """A job that runs stays as it is, and the new one is not stored."""
        [id] = await bench.push(keyed(args=b"1"))
        worker = await bench.worker("default", "other")
        claimed = await worker.one()
        before = await bench.find(id)
        [answer] = await bench.storage.apush([replacing(queue="other")])
        assert (answer.id, answer.created) == (id, False)
        assert await bench.find(id) == before
        await bench.finish(claimed, worker)
        assert await worker.claimed() == []
        [answer] = await bench.storage.apush([replacing()])
        assert answer.created, "the key is free after the end"

    @promise
    async def test_an_ended_holder_is_kept_within_its_window(self, bench: Bench) -> None:
        """Within a window a waiting holder is replaced, one that has ended is kept."""
        [id] = await bench.push(keyed(window=600))
        await bench.push(replacing(window=600))
        worker = await bench.worker()
        claimed = await worker.one()
        assert (claimed.id, claimed.args) == (id, b"2")
        await bench.finish(claimed, worker)
        [answer] = await bench.storage.apush([replacing(3, window=600)])
        assert (answer.id, answer.created) == (id, False)
        assert await worker.claimed() == []
        assert (await bench.find(id)).args == b"2"

    @promise
    async def test_replacing_moves_no_window(self, bench: Bench) -> None:
        """A replaced job holds its key no longer than the one before it did."""
        [id] = await bench.push(keyed(window=1, delay=600))
        assert await bench.push(replacing(window=600, delay=600)) == [id]
        deadline = monotonic() + 1 + bench.patience
        while await bench.push(keyed(window=600)) == [id]:
            assert monotonic() < deadline, "the key is held for the window of the job that replaced"
            await asyncio.sleep(0.01)

    @promise
    async def test_replacing_within_one_push(self, bench: Bench) -> None:
        """Of two jobs with one key in one push the second takes the place of the first."""
        first, second = await bench.storage.apush([keyed(args=b"1"), replacing()])
        assert (first.created, second.created, second.id) == (True, False, first.id)
        worker = await bench.worker()
        assert [claimed.args for claimed in await worker.claimed()] == [b"2"]

    @promise
    async def test_a_replaced_job_wakes_a_sleeper(self, bench: Bench) -> None:
        """A worker of the new queue is woken by the push that moves a job there."""
        await bench.push(keyed(delay=600))
        worker = await bench.worker("other")
        deadline = monotonic() + bench.patience
        while not await worker.consumer.bell.arm():
            assert monotonic() < deadline, "the bell could not be armed"
            await asyncio.sleep(0.005)
        await bench.push(replacing(queue="other"))
        assert await worker.consumer.bell.wait(bench.patience), "slept through a job that was moved to its queue"

    @promise
    async def test_an_ack_sent_again_after_replacing(self, bench: Bench) -> None:
        """The ack of the last attempt is recognised when it is sent again, and does nothing to the new job."""
        [id] = await bench.push(keyed())
        worker = await bench.worker()
        sent = ack(await worker.one(), AckKind.RETRY, delay=600)
        await worker.recorded(sent)
        await bench.push(replacing())
        before = await bench.find(id)
        await worker.recorded(sent)
        assert await bench.find(id) == before

    @promise
    async def test_sixteen_replace_at_the_moment_of_the_ack(self, bench: Bench) -> None:
        """At most one of sixteen pushes creates a job when the holder ends; nothing is stored twice, nothing mixed."""
        worker = await bench.worker()
        holder: ClaimedJob | None = None  # of the first round there is none
        for _ in range(6):
            start = Barrier(RACERS + 1)
            racing = asyncio.create_task(call(_race, bench, start))
            await call(start.wait, bench.patience)
            if holder is not None:
                await bench.finish(holder, worker)
            answers = await racing
            created = [answer.id for answer in answers if answer.created]
            assert len(created) <= 1, "a key was taken twice"
            known = {*created, *([holder.id] if holder is not None else [])}
            assert {answer.id for answer in answers} <= known
            if not created:  # all came before the ack
                await bench.push(replacing(99))
            holder = await worker.one()
            assert holder.extras is not None
            assert holder.extras.tags == (holder.args.decode(),), "arguments of one job, options of another"
            assert await worker.claimed() == []


def _race(bench: Bench, start: Barrier) -> list[Pushed]:
    def push(number: int) -> Pushed:
        start.wait(bench.patience)
        return bench.storage.push([replacing(number)])[0]

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(push, range(RACERS)))
