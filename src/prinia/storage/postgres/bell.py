"""One worker's bell: how it sleeps on a `Listener`. The scheme is described there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from prinia.errors import StorageError
from prinia.storage.postgres.listener import Listener

#: A sleeper without its bell tries for it about this often, in seconds.
RETRY_EVERY = 2.5
#: So long a bell may be out of reach before it is made loud, in seconds.
LOUD_AFTER = 1.0
#: Where nobody can be rung, sleep no longer than this, in seconds.
POLL_WHEN_DEAF = 1.0
#: Work is passed on at most this often, in seconds.
PASS_ON_EVERY = 0.05


class SilentBell:
    """`prinia.storage.protocol.Bell` of a worker that does not listen: it needs no connection and is never rung."""

    #: It is never rung.
    listening = False

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def arm(self) -> bool:
        """Nothing is promised that could be broken: who does not listen sleeps only as long as it dares."""
        return True

    async def disarm(self) -> None:
        """Nothing is held."""

    async def wait(self, seconds: float, /) -> bool:
        """Sleep until the time is over."""
        await asyncio.sleep(seconds)
        return False

    async def pass_on(self) -> None:
        """Nothing to pass on: this worker took no ring from anybody."""

    async def summons(self) -> None:
        """Never: nothing is heard."""
        await asyncio.Event().wait()


class PostgresBell:
    """`prinia.storage.protocol.Bell` over the queues of one instance."""

    def __init__(self, find_listener: Callable[[], Listener], queues: Sequence[str]) -> None:
        self._find_listener = find_listener
        self._joined: Listener | None = None
        self._queues = queues
        self._numbers: frozenset[int] = frozenset()
        self._session = -1
        self._taken: set[int] = set()
        self._missing: set[int] = set()
        self._waiting: set[int] = set()
        self._loud: set[int] = set()
        self._out_of_reach_since: float | None = None
        self._rung = asyncio.Event()
        self._summoned = asyncio.Event()
        self._passed_on_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Join the listener of the running event loop."""
        listener = self._find_listener()
        await listener.acquire()
        listener.join(self)
        self._joined = listener

    @property
    def listening(self) -> bool:
        """Whether its listener hears notifications."""
        return self._joined is not None and self._joined.listening

    @property
    def _listener(self) -> Listener:
        if self._joined is None:
            raise StorageError("this worker instance is not open: call open() first")
        return self._joined

    async def close(self) -> None:
        """Let go of everything and leave the listener."""
        if self._joined is None:
            return
        await self.disarm()
        for task in self._tasks:
            task.cancel()
        listener, self._joined = self._joined, None
        listener.leave(self)
        await listener.release()

    async def arm(self) -> bool:
        """Hold the bells, or know that another sleeper does, or have them made loud."""
        self._rung.clear()
        if not self._listener.listening:
            return True  # deaf: `wait` polls
        try:
            return await self._arm()
        except StorageError:
            return False

    async def _arm(self) -> bool:
        await self._check_session()
        await self._take(self._numbers - self._taken)
        if not self._missing:
            self._out_of_reach_since = None
            return True
        slept_on = await self._listener.sleepers_elsewhere(self._missing)
        self._loud -= slept_on  # whoever got it has made it quiet
        out_of_reach = self._missing - slept_on
        if out_of_reach and not await self._made_loud(out_of_reach):
            return False
        if slept_on - self._waiting:
            await self._listener.take_waiting(slept_on - self._waiting)
            self._waiting |= slept_on
        return True

    async def _check_session(self) -> None:
        if self._session != self._listener.session:
            self._session = self._listener.session
            for numbers in (self._taken, self._missing, self._waiting, self._loud):
                numbers.clear()
            self._numbers = await self._listener.numbers(self._queues)

    async def _take(self, numbers: frozenset[int] | set[int]) -> bool:
        """Try for these bells; whether any was got."""
        missed = await self._listener.take(sorted(numbers))
        got = numbers - missed
        self._taken |= got
        self._missing = self._missing - got | missed
        self._loud -= got
        return bool(got)

    async def _made_loud(self, numbers: set[int]) -> bool:
        now = time.monotonic()
        if self._out_of_reach_since is None:
            self._out_of_reach_since = now
        if now - self._out_of_reach_since < LOUD_AFTER and not numbers <= self._loud:
            return False
        # Again each time: another worker may have got the bell meanwhile, and made it quiet.
        await self._listener.make_loud(numbers)
        self._loud |= numbers
        return True

    async def disarm(self) -> None:
        """Let go of the bells: pushes need not notify this worker."""
        taken, waiting = self._taken, self._waiting
        self._taken, self._missing, self._waiting = set(), set(), set()
        self._out_of_reach_since = None
        if self._session != self._listener.session or not self._listener.listening:
            return
        try:
            if taken:
                await self._listener.give(taken)
            if waiting:
                await self._listener.give_waiting(waiting)
        except StorageError:
            self._session = -1  # the locks went with the session

    async def wait(self, seconds: float, /) -> bool:
        """Sleep until rung; without all bells, try for them now and then."""
        until = time.monotonic() + seconds
        while not self._rung.is_set():
            left = until - time.monotonic()
            if left <= 0:
                return False
            if not self._listener.listening:
                left = min(left, POLL_WHEN_DEAF)
                return await self._rung_within(left)
            if not self._missing:
                return await self._rung_within(left)
            if await self._rung_within(min(left, RETRY_EVERY * random.uniform(0.8, 1.2))):
                return True
            try:
                if await self._take(self._missing):
                    return True  # the holder is gone: look once more
                if self._missing & self._loud:
                    return True  # what was in flight when the bell became loud rings nobody
            except StorageError:
                return True
        return True

    async def _rung_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        except TimeoutError:
            return False
        return True

    async def pass_on(self) -> None:
        """Wake another sleeper, if there is one that could take over."""
        now = time.monotonic()
        if not self._listener.listening or now - self._passed_on_at < PASS_ON_EVERY or not self._numbers:
            return
        self._passed_on_at = now
        self._listener.wake_one_beside(self)
        await self.disarm()  # whoever takes over needs the bell
        try:
            await self._listener.pass_on(self._numbers)
        except StorageError:
            return  # whoever sleeps is woken by the reconnect

    def heard(self, number: int, *, passed_on: bool) -> None:
        """A bell was rung. Where another sleeper holds it that one acts; when passed on, who gets the bell does."""
        if number in self._taken or number in self._loud:
            self._rung.set()
        elif passed_on and number in self._missing:
            task = asyncio.get_running_loop().create_task(self._take_over(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take_over(self, number: int) -> None:
        await asyncio.sleep(random.uniform(0, 0.01))
        try:
            if number in self._missing and await self._take({number}):
                self._rung.set()
            elif number in self._missing and not await self._listener.sleepers_elsewhere({number}):
                self._rung.set()  # no sleeper took over: pushes in flight keep the bell from all of them
        except StorageError:
            return

    def ring(self) -> None:
        """The listener came or went: look for work."""
        self._rung.set()
        self._summoned.set()

    def summon(self) -> None:
        """Somebody told a worker something."""
        self._summoned.set()

    async def summons(self) -> None:
        """Return when there may be orders."""
        await self._summoned.wait()
        self._summoned.clear()

    @property
    def sleeping(self) -> bool:
        """Whether it is armed."""
        return bool(self._taken or self._waiting)
