"""A job's situation: all that bears on whether it runs."""

from __future__ import annotations

from datetime import timedelta

from prinia.changes import WorkerCommand
from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.situation import Situation
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise

LIMIT = 100


class ExplainPromises(ConformanceBase):
    """What is around a job is told as it is."""

    @promise
    async def test_a_situation_has_the_job(self, bench: Bench) -> None:
        """The job is told as find tells it, live or ended; an id that no job has, has none. Both forms say the same."""
        live, ended = await bench.push(job(delay=3600, tags=("vip",)), job())
        worker = await bench.worker()
        await bench.finish(await worker.one(), worker)
        for id in (live, ended):
            told = await bench.storage.asituation(id, limit=LIMIT)
            assert told.job == await bench.find(id)
            again: Situation = await call(bench.storage.situation, id, limit=LIMIT)
            assert (again.job, again.ahead, again.pauses) == (told.job, told.ahead, told.pauses)
            assert again.now >= told.now
            assert told.now.utcoffset() == timedelta(0)
        nothing = await bench.storage.asituation(ended + 1000, limit=LIMIT)
        assert (nothing.job, nothing.expires_at, nothing.ahead) == (None, None, 0)

    @promise
    async def test_the_latest_start_is_told(self, bench: Bench) -> None:
        """Of a job that has one; it is an aware time."""
        without, given = await bench.push(job(), job(expires_in=3600))
        told = await bench.storage.asituation(given, limit=LIMIT)
        assert told.expires_at is not None
        assert timedelta(seconds=3000) < told.expires_at - told.now <= timedelta(seconds=3600)
        assert (await bench.storage.asituation(without, limit=LIMIT)).expires_at is None

    @promise
    async def test_jobs_ahead_are_counted(self, bench: Bench) -> None:
        """In the order of claims: a higher priority, then an earlier due time, then a lower id; of its queue alone."""
        specs = (job(), job(), job(priority=5), job(priority=-5), job(queue="email", priority=9), job())
        ids = await bench.push(*specs)
        assert [await _ahead(bench, id) for id in ids] == [1, 2, 0, 4, 0, 3]

    @promise
    async def test_who_could_not_be_claimed_is_not_ahead(self, bench: Bench) -> None:
        """Jobs that run, that are due later, that must be claimed alone and those of paused tasks do not count."""
        worker = await bench.worker()
        running = await bench.push_one(priority=9)
        assert (await worker.one()).id == running
        suspect = await bench.push_one(priority=9)
        for _ in range(2):
            other = await bench.worker()
            assert (await other.one()).id == suspect
            assert await worker.bury(other) == 1
        await bench.push_one(priority=9, delay=3600)
        paused = await bench.push_one(priority=9, task="paused")
        id = await bench.push_one()
        assert await _ahead(bench, id) == 1
        await bench.storage.apause("task", "paused", by="Ada")
        assert await _ahead(bench, id) == 0
        assert await _ahead(bench, paused) == 0

    @promise
    async def test_who_is_not_ready_has_nobody_ahead(self, bench: Bench) -> None:
        """A job that runs, or is due later, does not wait for others."""
        worker = await bench.worker()
        running = await bench.push_one()
        await worker.one()
        await bench.push(*(job(priority=9) for _ in range(3)))
        later = await bench.push_one(delay=3600)
        assert await _ahead(bench, running) == 0
        assert await _ahead(bench, later) == 0

    @promise
    async def test_many_ahead_are_counted_up_to_a_limit(self, bench: Bench) -> None:
        """Above the limit the answer is one more than it, whatever priorities they have."""
        await bench.push(*(job(priority=number % 3) for number in range(12)))
        id = await bench.push_one()
        assert (await bench.storage.asituation(id, limit=12)).ahead == 12
        assert (await bench.storage.asituation(id, limit=11)).ahead == 12
        assert (await bench.storage.asituation(id, limit=5)).ahead == 6

    @promise
    async def test_pauses_and_workers_are_told_of_live_jobs(self, bench: Bench) -> None:
        """All there are, as they are listed, the dead among them; with a job that has ended there are none."""
        one, two = await bench.worker(), await bench.worker("email")
        await bench.storage.apause("task", "other", by="Ada")
        await bench.storage.apause("queue", "email", by="Bob")
        ended = await bench.push_one()
        await bench.finish(await one.one(), one)
        live = await bench.push_one()
        await one.declare_dead(two)
        told = await bench.storage.asituation(live, limit=LIMIT)
        assert list(told.pauses) == list(await bench.storage.apauses())
        assert {worker.id: worker.alive for worker in told.workers} == {one.id: True, two.id: False}
        told = await bench.storage.asituation(ended, limit=LIMIT)
        assert (list(told.pauses), list(told.workers)) == ([], [])

    @promise
    async def test_workers_tell_who_told_them(self, bench: Bench) -> None:
        """What an instance was told, and by whom, until it may go on."""
        worker = await bench.worker()
        await bench.storage.acommand_worker(worker.id, WorkerCommand.QUIET, by="Ada")
        [seen] = await bench.storage.aworkers()
        assert (seen.command, seen.commanded_by) == ("quiet", "Ada")
        await bench.storage.acommand_worker(worker.id, None, by="Bob")
        [seen] = await bench.storage.aworkers()
        assert (seen.command, seen.commanded_by) == (None, None)

    @promise
    async def test_a_running_job_tells_who_wants_it_cancelled(self, bench: Bench) -> None:
        """Its reason names them; when its result arrives first, nothing of it stays."""
        id = await bench.push_one()
        worker = await bench.worker()
        claimed = await worker.one()
        assert (await bench.in_state(id, JobState.RUNNING)).reason is None
        assert await bench.storage.acancel([id], by="Ada") == 1
        assert (await bench.in_state(id, JobState.RUNNING)).reason == "cancel requested by Ada"
        await worker.recorded(ack(claimed, AckKind.COMPLETE))
        assert (await bench.in_state(id, JobState.COMPLETED)).reason is None


async def _ahead(bench: Bench, id: int) -> int:
    return (await bench.storage.asituation(id, limit=LIMIT)).ahead
