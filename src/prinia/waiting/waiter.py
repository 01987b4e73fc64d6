"""What handles on jobs know of the storage: look, cancel, and wait in both colours."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from prinia.errors import JobNotFound
from prinia.job import JobRecord
from prinia.storage.protocol import Cancels
from prinia.waiting.awaited import AnyAwaited, Awaited, check_timeout, refuse_open, there
from prinia.waiting.watch import Hears, ReadsAndAnnounces, Watch

if TYPE_CHECKING:
    import asyncio

    from prinia.waiting.lookout import Lookout


class WaitsAndCancels(ReadsAndAnnounces, Cancels, Protocol):
    """What handles need of a storage."""


class Waiter:
    """Waits for jobs, together with whoever else waits in this event loop or, blocking, in this process.

    While the database is away it waits on.
    """

    def __init__(
        self,
        storage: Callable[[], WaitsAndCancels],
        *,
        ears: Hears | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """All but the first are for tests of blocking waits: who hears, and time itself."""
        self._storage = storage
        self._ears = ears
        self._lock = threading.Lock()
        self._monotonic = monotonic
        self._sleep = sleep
        #: By event loop; one is here for as long as somebody waits in that loop.
        self._lookouts: dict[asyncio.AbstractEventLoop, Lookout] = {}

    # -- now --------------------------------------------------------------------------------------------------------

    def find(self, awaited: Awaited, /) -> JobRecord:
        """The job as it is now. Raises `JobNotFound`, or `JobNotCommitted` while its transaction is open."""
        storage, id = self._storage(), awaited.id
        found = storage.find([id])
        if awaited.xid is not None and awaited.hidden(found[0] if found else None):
            refuse_open(id, storage.in_progress(awaited.xid, id))
            found = storage.find([id])  # it may have been committed between the two
        return there(id, found)

    async def afind(self, awaited: Awaited, /) -> JobRecord:
        """`find`, awaited."""
        storage, id = self._storage(), awaited.id
        found = await storage.afind([id])
        if awaited.xid is not None and awaited.hidden(found[0] if found else None):
            refuse_open(id, await storage.ain_progress(awaited.xid, id))
            found = await storage.afind([id])
        return there(id, found)

    def cancel(self, id: int, by: str, /) -> bool:
        """Cancel the job, or mark it; False when there was nothing to cancel."""
        return self._storage().cancel([id], by=by) > 0

    async def acancel(self, id: int, by: str, /) -> bool:
        """`cancel`, awaited."""
        return await self._storage().acancel([id], by=by) > 0

    # -- blocking ---------------------------------------------------------------------------------------------------

    def wait(self, awaited: Awaited, timeout: float | None, /) -> JobRecord:
        """The job once it has ended. Raises `JobNotFound`, `JobNotCommitted` or `ResultTimeout`."""
        _, ended = next(self.wait_each([awaited], timeout))
        if isinstance(ended, JobNotFound):
            raise ended
        return ended

    def wait_each(
        self, awaited: Iterable[AnyAwaited], timeout: float | None, /
    ) -> Iterator[tuple[AnyAwaited, JobRecord | JobNotFound]]:
        """Each job as it ends. Raises `JobNotCommitted` or `ResultTimeout`."""
        check_timeout(timeout)
        ears = self._find_ears()
        watch: Watch[AnyAwaited] = Watch(self._storage(), ears, self.find, monotonic=self._monotonic, sleep=self._sleep)
        return watch.each(awaited, timeout)

    def _find_ears(self) -> Hears:
        with self._lock:
            if self._ears is None:
                from prinia.waiting.ears import Ears  # it needs asyncio, see `prinia.colour`

                self._ears = Ears(self._storage)
            return self._ears

    # -- awaited ----------------------------------------------------------------------------------------------------

    async def await_(self, awaited: Awaited, timeout: float | None, /) -> JobRecord:
        """`wait`, awaited. A timeout ends with a last look, which is given a tenth of a second."""
        async with contextlib.aclosing(self.await_each([awaited], timeout)) as each:
            _, ended = await anext(each)
        if isinstance(ended, JobNotFound):
            raise ended
        return ended

    async def await_each(
        self, awaited: Iterable[AnyAwaited], timeout: float | None, /
    ) -> AsyncGenerator[tuple[AnyAwaited, JobRecord | JobNotFound], None]:
        """`wait_each`, awaited."""
        import asyncio  # see `prinia.colour`

        from prinia.waiting.asyncwatch import AsyncWatch
        from prinia.waiting.lookout import Lookout

        check_timeout(timeout)
        loop = asyncio.get_running_loop()
        lookout = self._lookouts.get(loop)
        if lookout is None:
            lookout = self._lookouts[loop] = Lookout(self._storage)
        try:
            watch: AsyncWatch[AnyAwaited] = AsyncWatch(lookout, self.afind)
            async with contextlib.aclosing(watch.each(awaited, timeout)) as each:
                async for one, ended in each:
                    yield one, ended
        finally:
            if lookout.idle and self._lookouts.get(loop) is lookout:
                del self._lookouts[loop]
