"""The bell: a worker that ran dry sleeps, and is woken when there is work."""

from __future__ import annotations

import asyncio

from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, ack, call, job, promise


class BellPromises(ConformanceBase):
    """Whoever makes a job claimable rings; an armed bell misses nothing."""

    @promise
    async def test_a_push_wakes_a_sleeper(self, bench: Bench) -> None:
        """A worker that sleeps on its bell is woken by a push to its queue, and then gets the job."""
        worker = await bench.worker()
        await arm(bench, worker)
        sleep = asyncio.create_task(worker.consumer.bell.wait(bench.patience))
        await asyncio.sleep(0)
        id = await bench.push_one()
        assert await sleep, "slept through a push"
        assert (await worker.one()).id == id

    @promise
    async def test_a_push_from_another_thread_wakes_a_sleeper(self, bench: Bench) -> None:
        """The same for a blocking push in another thread."""
        worker = await bench.worker()
        await arm(bench, worker)
        sleep = asyncio.create_task(worker.consumer.bell.wait(bench.patience))
        await asyncio.sleep(0)
        await call(bench.storage.push, [job()])
        assert await sleep, "slept through a push"

    @promise
    async def test_a_ring_before_the_sleep_counts(self, bench: Bench) -> None:
        """A push between arming and sleeping is not missed: the sleep ends at once."""
        worker = await bench.worker()
        await arm(bench, worker)
        await bench.push_one()
        assert await worker.consumer.bell.wait(bench.patience), "a ring between arm and wait was lost"

    @promise
    async def test_a_push_before_the_arming_is_claimed(self, bench: Bench) -> None:
        """A push before arming need not ring: the claim that follows the arming finds its job."""
        worker = await bench.worker()
        id = await bench.push_one()
        await arm(bench, worker)
        assert (await worker.one()).id == id

    @promise
    async def test_a_sleep_ends(self, bench: Bench) -> None:
        """Without a ring a sleep ends by itself and says so; other queues do not wake a worker forever."""
        worker = await bench.worker()
        await arm(bench, worker)
        await worker.consumer.bell.wait(0.05)
        assert not await worker.consumer.bell.wait(0.05)

    @promise
    async def test_a_bell_can_be_armed_again(self, bench: Bench) -> None:
        """Disarmed, twice even, and armed again a bell rings as before."""
        worker = await bench.worker()
        bell = worker.consumer.bell
        for _ in range(2):
            await arm(bench, worker)
            await bell.disarm()
            await bell.disarm()
            await bench.push_one()
            await worker.one()
            await arm(bench, worker)
            await bench.push_one()
            assert await bell.wait(bench.patience), "no ring after arming again"
            await worker.one()

    @promise
    async def test_every_sleeper_may_be_woken(self, bench: Bench) -> None:
        """Whoever of two sleepers is woken passes it on, and then the other is awake too."""
        one, two = await bench.worker(), await bench.worker()
        await arm(bench, one)
        await bench.push(job(), job())
        assert await one.consumer.bell.wait(bench.patience)
        await one.consumer.bell.disarm()
        await arm(bench, two)
        sleep = asyncio.create_task(two.consumer.bell.wait(bench.patience))
        await asyncio.sleep(0)
        await one.consumer.bell.pass_on()
        assert await sleep, "a ring was not passed on"

    @promise
    async def test_a_retry_due_now_wakes_a_sleeper(self, bench: Bench) -> None:
        """A job that another worker retries or hands back at once rings."""
        busy, sleeper = await bench.worker(), await bench.worker()
        for kind in (AckKind.RETRY, AckKind.SNOOZE):
            await bench.push_one()
            claimed = await busy.one()
            await arm(bench, sleeper)
            await busy.recorded(ack(claimed, kind))
            assert await sleeper.consumer.bell.wait(bench.patience), f"slept through a {kind}"
            await bench.finish(await sleeper.one(), sleeper)

    @promise
    async def test_a_job_due_later_wakes_a_sleeper(self, bench: Bench) -> None:
        """A worker that sleeps does not sleep past the due time of a job pushed meanwhile."""
        worker = await bench.worker()
        await arm(bench, worker)
        id = await bench.push_one(delay=0.05)
        assert await worker.consumer.bell.wait(bench.patience), "slept past a due time"
        assert (await worker.one()).id == id

    @promise
    async def test_a_rescue_wakes_a_sleeper(self, bench: Bench) -> None:
        """Jobs that come back from a dead worker ring."""
        dead, sleeper = await bench.worker(), await bench.worker()
        await bench.push_one()
        await dead.one()
        await arm(bench, sleeper)
        assert await sleeper.bury(dead) == 1
        assert await sleeper.consumer.bell.wait(bench.patience), "slept through a rescue"

    @promise
    async def test_strays_wake_a_sleeper(self, bench: Bench) -> None:
        """Jobs whose claim's reply was lost ring when they come back: by recovery, and by the scan for strays."""
        owner, sleeper = await bench.worker(), await bench.worker()
        await bench.push_one()
        await owner.one()
        await arm(bench, sleeper)
        await owner.consumer.recover(owner.tokens, [])
        assert await sleeper.consumer.bell.wait(bench.patience), "slept through a recovery"
        await owner.one()
        await arm(bench, sleeper)
        for _ in range(2):
            await owner.beat(tokens=[])
        assert await call(sleeper.pulse.free_strays) == 1
        assert await sleeper.consumer.bell.wait(bench.patience), "slept through the freeing of strays"

    @promise
    async def test_a_resumed_queue_wakes_a_sleeper(self, bench: Bench) -> None:
        """Jobs that waited in a paused queue ring when it is resumed."""
        await bench.push_one()
        await call(bench.storage.pause, "queue", "default", by="Ada")
        worker = await bench.worker()
        await arm(bench, worker)
        await call(bench.storage.resume, "queue", "default", by="Ada")
        assert await worker.consumer.bell.wait(bench.patience), "slept through a resume"
        await worker.one()

    @promise
    async def test_who_does_not_listen_is_not_rung(self, bench: Bench) -> None:
        """A worker that does not listen sleeps its time, claims as any other, and takes no ring from a sleeper."""
        deaf, sleeper = await bench.worker(listen=False), await bench.worker()
        await arm(bench, sleeper)
        await arm(bench, deaf)
        id = await bench.push_one()
        assert not await deaf.consumer.bell.wait(0.05), "rung without listening"
        assert await sleeper.consumer.bell.wait(bench.patience), "slept through a push"
        assert (await deaf.one()).id == id
        await deaf.consumer.bell.pass_on()
        await deaf.consumer.bell.disarm()


async def arm(bench: Bench, worker: StandIn) -> None:
    """Arm until it is promised: a push that is just ending may delay it."""
    async with asyncio.timeout(bench.patience):
        while not await worker.consumer.bell.arm():
            await asyncio.sleep(0.005)
