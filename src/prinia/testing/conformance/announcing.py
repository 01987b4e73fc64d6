"""The ends of jobs that somebody awaits are announced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from prinia.changes import Change, ChangeKind, Step
from prinia.job import JobState
from prinia.outcome import AckKind
from prinia.selection import select
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise


class _Ear:
    """Hears, and lets a test wait for what is to be heard."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self._news = asyncio.Event()

    def __call__(self, ids: Sequence[int] | None, /) -> None:
        self.heard += ids or ()
        self._news.set()

    async def hears(self, *ids: int) -> None:
        """Return when each of these was announced."""
        while not set(ids) <= set(self.heard):
            self._news.clear()
            await self._news.wait()


class AnnouncementPromises(ConformanceBase):
    """Who awaits a job and hears need not look for it to end."""

    @promise
    async def test_every_way_to_end_is_announced(self, bench: Bench) -> None:
        """Completed, failed, cancelled by its handler, by a request while it ran or while it waited; expired; lost too
        often; deleted."""
        worker, ear = await bench.worker(), _Ear()
        async with bench.storage.hear_ends(ear):
            for end in _ENDS:
                id = await bench.push_one(max_crashes=0, expires_in=0.001 if end is _expire else None)
                await bench.storage.aexpect([id])
                await end(bench, id)
                await ear.hears(id)
        assert await worker.claimed() == []

    @promise
    async def test_nobody_hears_of_what_nobody_expects(self, bench: Bench) -> None:
        """Jobs that nobody expects end in silence."""
        worker, ear = await bench.worker(), _Ear()
        silent, awaited = await bench.push(job(), job())
        async with bench.storage.hear_ends(ear):
            await bench.storage.aexpect([awaited])
            for claimed in await worker.collect(2):
                await bench.finish(claimed, worker)
            await ear.hears(awaited)
        assert ear.heard == [awaited]
        await bench.in_state(silent, JobState.COMPLETED)

    @promise
    async def test_everybody_hears(self, bench: Bench) -> None:
        """What one expects is announced to all who hear, as often as it is expected; blocking calls may expect too."""
        worker, ears = await bench.worker(), (_Ear(), _Ear())
        id = await bench.push_one()
        async with bench.storage.hear_ends(ears[0]), bench.storage.hear_ends(ears[1]):
            await bench.storage.aexpect([id])
            await call(bench.storage.expect, [id])
            await bench.finish(await worker.one(), worker)
            for ear in ears:
                await ear.hears(id)

    @promise
    async def test_thousands_are_announced(self, bench: Bench) -> None:
        """However many end at once, each is announced."""
        ids, ear = await bench.push(*[job()] * 2000), _Ear()
        async with bench.storage.hear_ends(ear):
            await bench.storage.aexpect(ids)
            assert await bench.storage.acancel(ids, by="Ada") == 2000
            await ear.hears(*ids)

    @promise
    async def test_who_has_gone_hears_nothing(self, bench: Bench) -> None:
        """After the end of its listening nothing is called any more."""
        gone, ear = _Ear(), _Ear()
        id = await bench.push_one()
        async with bench.storage.hear_ends(ear):
            async with bench.storage.hear_ends(gone):
                await bench.storage.aexpect([id])
            await bench.storage.acancel([id], by="Ada")
            await ear.hears(id)
        assert gone.heard == []


async def _ack(bench: Bench, kind: AckKind, *, asked: bool = False) -> None:
    worker = await bench.worker()
    claimed = await worker.one()
    if asked:
        await bench.storage.acancel([claimed.id], by="Ada")
    await worker.recorded(ack(claimed, kind))


async def _complete(bench: Bench, id: int) -> None:
    await _ack(bench, AckKind.COMPLETE)


async def _fail(bench: Bench, id: int) -> None:
    await _ack(bench, AckKind.FAIL)


async def _give_up(bench: Bench, id: int) -> None:
    await _ack(bench, AckKind.CANCEL)


async def _cancel_running(bench: Bench, id: int) -> None:
    await _ack(bench, AckKind.RETRY, asked=True)


async def _cancel_waiting(bench: Bench, id: int) -> None:
    await bench.storage.acancel([id], by="Ada")


async def _cancel_many(bench: Bench, id: int) -> None:
    await bench.storage.aoperate(Step(change=Change(kind=ChangeKind.CANCEL), selection=select(ids=[id]), by="Ada"))


async def _delete(bench: Bench, id: int) -> None:
    await bench.storage.aoperate(Step(change=Change(kind=ChangeKind.DELETE), selection=select(ids=[id]), by="Ada"))


async def _expire(bench: Bench, id: int) -> None:
    worker = await bench.worker()
    while not await call(worker.pulse.sweep_expired):
        await asyncio.sleep(0)


async def _lose(bench: Bench, id: int) -> None:
    dead, worker = await bench.worker(), await bench.worker()
    await dead.one()
    await worker.bury(dead)


_ENDS: tuple[Callable[[Bench, int], Awaitable[None]], ...] = (
    _complete,
    _fail,
    _give_up,
    _cancel_running,
    _cancel_waiting,
    _cancel_many,
    _delete,
    _expire,
    _lose,
)
