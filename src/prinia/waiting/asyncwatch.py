"""Waiting in a coroutine, for one job or many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Generic

from prinia.errors import JobNotCommitted, JobNotFound, StorageUnavailable
from prinia.job import JobRecord
from prinia.waiting.awaited import AnyAwaited, Awaited, too_late
from prinia.waiting.lookout import Answer, Lookout
from prinia.waiting.watch import WINDOW

#: For so many seconds the look after a timeout may take.
LAST_LOOK = 0.1


class AsyncWatch(Generic[AnyAwaited]):
    """Asks a lookout for the jobs of one call until they have ended."""

    def __init__(self, lookout: Lookout, find: Callable[[Awaited], Awaitable[JobRecord]]) -> None:
        """``find`` tells for certain how a job is, or why it is not to be seen."""
        self._lookout = lookout
        self._find = find
        self._open: dict[Answer, AnyAwaited] = {}
        self._answered: asyncio.Queue[Answer] = asyncio.Queue()

    async def each(
        self, awaited: Iterable[AnyAwaited], timeout: float | None
    ) -> AsyncGenerator[tuple[AnyAwaited, JobRecord | JobNotFound], None]:
        """`prinia.waiting.watch.Watch.each`, awaited."""
        end = None if timeout is None else asyncio.get_running_loop().time() + timeout
        rest = iter(awaited)
        try:
            self._ask(islice(rest, WINDOW))
            while self._open and (answer := await self._next(end)) is not None:
                one = self._open.pop(answer)
                self._lookout.drop(one, answer)
                if (ended := await self._settled(one, answer.result())) is None:
                    self._ask([one])
                    continue
                yield one, ended
                self._ask(islice(rest, 1))
            if not self._open or timeout is None:
                return
            late = []
            for one in await self._last_look(LAST_LOOK if timeout > 0 else None):
                seen = one.seen
                if isinstance(seen, StorageUnavailable) or (ended := await self._settled(one, seen)) is None:
                    late.append(one)
                else:
                    yield one, ended
            if late:
                raise too_late(late, timeout)
        finally:
            for answer, one in self._open.items():
                self._lookout.drop(one, answer)
            await self._lookout.rest()

    def _ask(self, awaited: Iterable[AnyAwaited], *, now: bool = False) -> None:
        for one in awaited:
            answer = self._lookout.ask(one, now=now)
            self._open[answer] = one
            answer.add_done_callback(self._answered.put_nowait)

    async def _next(self, end: float | None) -> Answer | None:
        """The next one that is answered; None when the time is over."""
        while True:
            try:
                async with asyncio.timeout_at(end):
                    answer = await self._answered.get()
            except TimeoutError:
                return None
            if answer in self._open:
                return answer

    async def _last_look(self, seconds: float | None) -> Sequence[AnyAwaited]:
        """All that are open, looked at once more. What is not seen in time is as it was seen before."""
        awaited = list(self._open.values())
        for answer, one in self._open.items():
            self._lookout.drop(one, answer)
        self._open.clear()
        self._ask(awaited, now=True)
        await asyncio.wait(self._open, timeout=seconds)
        for answer in self._open:
            if answer.done() and not isinstance(answer.exception(), StorageUnavailable):
                answer.result()  # raises what is not waited out
        return awaited

    async def _settled(self, one: Awaited, found: JobRecord | None) -> JobRecord | JobNotFound | None:
        """How it ended, or None: it is awaited on."""
        if found is not None and not one.hidden(found):
            return found if found.state.final else None
        try:
            record = await self._find(one)
        except JobNotCommitted:  # it would be waited for until the caller commits
            raise
        except JobNotFound as error:
            return error
        except StorageUnavailable as error:
            one.seen = error
            return None
        one.created = True  # it stands
        return record if record.state.final else None
