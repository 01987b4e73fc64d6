"""Claim: who gets what, and that nobody else gets it."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from prinia.errors import PriniaError
from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise

CLAIMERS = 8


class ClaimPromises(ConformanceBase):
    """A claimed job has one owner, who was allowed to have it."""

    @promise
    async def test_a_claim_owns_its_jobs(self, bench: Bench) -> None:
        """A claim raises the attempt by one and marks the job as running, of this instance; nobody gets it again."""
        id = await bench.push_one()
        worker, other = await bench.worker(), await bench.worker()
        claimed = await worker.one()
        assert (claimed.id, claimed.attempt) == (id, 1)
        record = await bench.in_state(id, JobState.RUNNING)
        assert (record.owner, record.attempt) == (worker.id, 1)
        assert record.started_at is not None
        assert record.started_at >= record.created_at
        assert await worker.claimed() == []
        assert await other.claimed() == []

    @promise
    async def test_a_claim_takes_no_more_than_asked_for(self, bench: Bench) -> None:
        """A claim answers with at most as many jobs as were asked for; the rest stays ready."""
        ids = await bench.push(*(job() for _ in range(5)))
        worker = await bench.worker()
        assert await worker.claimed_ids(2) == ids[:2]
        assert await worker.claimed_ids(10) == ids[2:]

    @promise
    async def test_eight_claimers_share_without_overlap(self, bench: Bench) -> None:
        """Eight workers that claim at the same time get all jobs between them, and no job twice."""
        ids = await bench.push(*(job(priority=number % 3) for number in range(600)))
        workers = [await bench.worker(opened=False) for _ in range(CLAIMERS)]
        start = Barrier(CLAIMERS)

        async def drain(index: int) -> list[int]:
            worker = workers[index]
            await worker.consumer.open()
            start.wait(self.patience)
            taken: list[int] = []
            # Rows that somebody else is just taking may be passed over: one empty claim is not the end.
            empty = 0
            while empty < 3:
                claimed = await worker.claimed_ids(7)
                empty = 0 if claimed else empty + 1
                taken += claimed
            await worker.close()
            return taken

        def drain_all() -> list[list[int]]:
            with ThreadPoolExecutor(CLAIMERS) as pool:
                return list(pool.map(lambda index: asyncio.run(drain(index)), range(CLAIMERS)))

        owners = Counter(id for taken in await call(drain_all) for id in taken)
        assert [id for id, number in owners.items() if number > 1] == []
        assert sorted(owners) == ids

    @promise
    async def test_a_worker_claims_from_its_queues_only(self, bench: Bench) -> None:
        """Jobs of queues that an instance does not serve are left alone."""
        email, export, _ = await bench.push(job(queue="email"), job(queue="export"), job(queue="report"))
        worker = await bench.worker("email", "export")
        assert sorted(await worker.claimed_ids()) == [email, export]

    @promise
    async def test_an_instance_that_is_not_open_claims_nothing(self, bench: Bench) -> None:
        """Before it has opened an instance gets no jobs, and after it has closed neither."""
        id = await bench.push_one()
        early, late = await bench.worker(opened=False), await bench.worker()
        await late.close()
        for worker in (early, late):
            try:
                jobs = await worker.claimed()
            except PriniaError:  # to refuse is as good: such a worker has no connection
                jobs = []
            assert jobs == []
        await bench.in_state(id, JobState.READY)

    @promise
    async def test_a_paused_queue_is_left_alone(self, bench: Bench) -> None:
        """Nothing is claimed from a paused queue, also when paused twice; other queues and running jobs go on."""
        running = await bench.push_one(queue="email")
        worker = await bench.worker("email", "export")
        claimed = await worker.one()
        waiting, other = await bench.push(job(queue="email"), job(queue="export"))
        await call(bench.storage.pause, "queue", "email", by="Ada")
        await call(bench.storage.pause, "queue", "email", by="Ada")
        assert await worker.claimed_ids() == [other]
        later = await bench.push_one(queue="email")
        assert await worker.claimed() == []
        await bench.finish(claimed, worker)
        await bench.in_state(running, JobState.COMPLETED)
        await call(bench.storage.resume, "queue", "email", by="Ada")
        assert [claimed.id for claimed in await worker.collect(2)] == [waiting, later]

    @promise
    async def test_an_unknown_queue_can_be_paused(self, bench: Bench) -> None:
        """A queue may be paused before its first job, and resumed without having been paused."""
        await call(bench.storage.resume, "queue", "default", by="Ada")
        await call(bench.storage.pause, "queue", "default", by="Ada")
        id = await bench.push_one()
        worker = await bench.worker()
        assert await worker.claimed() == []
        await call(bench.storage.resume, "queue", "default", by="Ada")
        assert (await worker.one()).id == id

    @promise
    async def test_an_excluded_task_is_left_alone(self, bench: Bench) -> None:
        """A worker claims no job of the tasks it excluded, whatever their priority; other workers do."""
        unknown = await bench.push(*(job(task="unknown", priority=50) for _ in range(3)))
        known = await bench.push(*(job(task="known") for _ in range(3)))
        worker, other = await bench.worker(), await bench.worker()
        worker.consumer.exclude("unknown")
        assert await worker.claimed_ids(2) == known[:2]
        claim = await worker.claim()
        assert [claimed.id for claimed in claim.jobs] == known[2:]
        assert claim.next_due is None, "jobs of an excluded task keep the worker awake"
        assert await other.claimed_ids() == unknown

    @promise
    async def test_a_handed_back_job_can_be_claimed_by_others(self, bench: Bench) -> None:
        """A job of an unknown task is claimed once, handed back uncounted, and goes to a worker that knows it."""
        id = await bench.push_one(task="unknown")
        worker, other = await bench.worker(), await bench.worker()
        await worker.recorded(ack(await worker.one(), AckKind.SNOOZE))
        worker.consumer.exclude("unknown")
        assert await worker.claimed() == []
        claimed = await other.one()
        assert (claimed.id, claimed.attempt) == (id, 1)
