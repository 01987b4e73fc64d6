"""`MemoryStorage`: the pieces put together, and the calls that need none of their own."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any, NoReturn
from uuid import UUID

from prinia.errors import ConnectionKindError
from prinia.job import Instance, JobRecord, JobSpec, Pushed
from prinia.retention import DEFAULT, Retention
from prinia.storage.memory.announcing import Announcing
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.controlling import Controlling
from prinia.storage.memory.listing import Listing
from prinia.storage.memory.operating import Operating
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.push import push
from prinia.storage.memory.rows import live_record
from prinia.storage.memory.tables import SystemWallClock, Tables, WallClock


class MemoryStorage(Announcing, Listing, Operating, Controlling):
    """`prinia.storage.protocol.Storage` in the memory of this process; any number of threads and loops share it.

    ``clock`` gives its time (``now()``, aware): the machine's by default. After moving a clock of your own call
    `wake`, because sleepers count real seconds.

    Example::

        storage = MemoryStorage()
        [pushed] = storage.push([JobSpec(task="shop.greet", args=b'{"name": "Ada"}')])
        storage.find([pushed.id])[0].state   # JobState.READY
    """

    def __init__(self, *, clock: WallClock | None = None) -> None:
        self.tables = Tables(clock or SystemWallClock())

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """Push these jobs, all or none."""
        return push(self.tables, list(jobs))

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        """`push`, awaited."""
        specs = [spec async for spec in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        return push(self.tables, specs)

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """Raises `ConnectionKindError`: nothing here takes part in a transaction."""
        _refuse(connection)

    async def apush_within(
        self, connection: Any, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /
    ) -> Sequence[Pushed]:
        """Raises `ConnectionKindError`: nothing here takes part in a transaction."""
        _refuse(connection)

    def complete_within(self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None) -> bool:
        """Raises `ConnectionKindError`: nothing here takes part in a transaction."""
        _refuse(connection)

    async def acomplete_within(
        self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None
    ) -> bool:
        """Raises `ConnectionKindError`: nothing here takes part in a transaction."""
        _refuse(connection)

    def find(self, ids: Sequence[int], /) -> list[JobRecord]:
        """The jobs of these ids that exist, in the order of ``ids``."""
        with self.tables.lock:
            found = (self._record(id) for id in ids)
            return [record for record in found if record is not None]

    async def afind(self, ids: Sequence[int], /) -> list[JobRecord]:
        """`find`, awaited."""
        return self.find(ids)

    def in_progress(self, xid: int, id: int, /) -> bool:
        """Never: jobs in memory are in no transaction."""
        return False

    async def ain_progress(self, xid: int, id: int, /) -> bool:
        """Never: jobs in memory are in no transaction."""
        return False

    def cancel(self, ids: Sequence[int], /, *, by: str) -> int:
        """Cancel waiting jobs, mark running ones; how many."""
        tables = self.tables
        with tables.lock:
            now = tables.now()
            live = [tables.live[id] for id in dict.fromkeys(ids) if id in tables.live]
            jobs = [job for job in live if job.cancel_by is None]
            for job in jobs:
                tables.cancel(job, now, by=by)
            return len(jobs)

    async def acancel(self, ids: Sequence[int], /, *, by: str) -> int:
        """`cancel`, awaited."""
        return self.cancel(ids, by=by)

    def set_retention(self, queue: str, retention: Retention, /) -> None:
        """How long jobs of the queue that end from now on are kept."""
        with self.tables.lock:
            self.tables.retention[queue] = retention

    async def aset_retention(self, queue: str, retention: Retention, /) -> None:
        """`set_retention`, awaited."""
        self.set_retention(queue, retention)

    def retention(self, queue: str, /) -> Retention:
        """What was set for the queue, or the default."""
        with self.tables.lock:
            return self.tables.retention.get(queue, DEFAULT)

    async def aretention(self, queue: str, /) -> Retention:
        """`retention`, awaited."""
        return self.retention(queue)

    def consumer(self, instance: Instance, /, *, listen: bool = True) -> MemoryConsumer:
        """The worker's side for this instance."""
        return MemoryConsumer(self.tables, instance, listen=listen)

    def pulse(self, instance: Instance, /) -> MemoryPulse:
        """The heartbeat's side for this instance."""
        return MemoryPulse(self.tables, instance)

    def wake(self) -> None:
        """Wake every sleeping worker, so that it looks again: after the clock was moved."""
        with self.tables.lock:
            for bell in self.tables.bells:
                bell.wake()

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing to close: the jobs stay."""

    async def aopen(self) -> None:
        """Nothing to open."""

    async def aclose(self) -> None:
        """Nothing to close: the jobs stay."""

    def _record(self, id: int) -> JobRecord | None:
        if (job := self.tables.live.get(id)) is not None:
            return live_record(job, self.tables.now())
        finished = self.tables.finished.get(id)
        return None if finished is None else finished.record


def _refuse(connection: Any) -> NoReturn:
    raise ConnectionKindError(
        f"a {type(connection).__qualname__} cannot carry a job here: jobs in memory are in no transaction. "
        "Enqueue without a connection, or use a PostgreSQL storage."
    )
