"""Lists and counts: everything is looked through."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime

from prinia.job import JobRecord, JobState
from prinia.overview import Count, QueueRecord, WorkerRecord
from prinia.selection import Selection
from prinia.storage.memory.rows import Registered, live_record
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Stretch


class Listing:
    """`prinia.storage.protocol.Lists` in memory: a part of the storage, which has the tables."""

    tables: Tables

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        """`prinia.storage.protocol.Lists.browse`."""
        with self.tables.lock:
            found = [record for record in self._all() if selection.matches(record)]
        found.sort(key=lambda record: record.id, reverse=not oldest_first)
        if after is not None:
            found = [record for record in found if (record.id > after if oldest_first else record.id < after)]
        return Stretch(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def abrowse(
        self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False
    ) -> Stretch:
        """`browse`, awaited."""
        return self.browse(selection, after=after, limit=limit, oldest_first=oldest_first)

    def count(self, selection: Selection, /, *, limit: int) -> Count:
        """`prinia.storage.protocol.Lists.count`: always exact."""
        with self.tables.lock:
            return Count(sum(map(selection.matches, self._all())))

    async def acount(self, selection: Selection, /, *, limit: int) -> Count:
        """`count`, awaited."""
        return self.count(selection, limit=limit)

    def queues(self, *, limit: int) -> list[QueueRecord]:
        """`prinia.storage.protocol.Lists.queues`: counts are always exact."""
        tables = self.tables
        with tables.lock:
            now = tables.now()
            counts: defaultdict[str, Counter[JobState]] = defaultdict(Counter)
            ready: dict[str, datetime] = {}
            for record in self._all():
                counts[record.queue][record.state] += 1
                if record.state is JobState.READY and record.scheduled_at is not None:
                    ready[record.queue] = min(record.scheduled_at, ready.get(record.queue, record.scheduled_at))
            serve = [worker.instance for worker in tables.register.values() if not worker.dead]
            names = {*counts, *tables.paused, *(queue for instance in serve for queue in instance.queues)}
            return [
                QueueRecord(
                    name=name,
                    counts={state: Count(counts[name][state]) for state in JobState if counts[name][state]},
                    paused=name in tables.paused,
                    oldest_ready_at=ready.get(name),
                    age=(now - ready[name]).total_seconds() if name in ready else None,
                    workers=tuple(instance.id for instance in serve if name in instance.queues),
                )
                for name in sorted(names)
            ]

    async def aqueues(self, *, limit: int) -> list[QueueRecord]:
        """`queues`, awaited."""
        return self.queues(limit=limit)

    def workers(self) -> list[WorkerRecord]:
        """`prinia.storage.protocol.Lists.workers`."""
        with self.tables.lock:
            now = self.tables.now()
            register = sorted(self.tables.register.values(), key=lambda one: (one.instance.name, one.started_at))
            return [_worker(one, now) for one in register]

    async def aworkers(self) -> list[WorkerRecord]:
        """`workers`, awaited."""
        return self.workers()

    def _all(self) -> Iterator[JobRecord]:
        now = self.tables.now()
        yield from (live_record(job, now) for job in self.tables.live.values())
        yield from (row.record for row in self.tables.finished.values())


def _worker(one: Registered, now: datetime) -> WorkerRecord:
    instance, vitals = one.instance, one.vitals
    return WorkerRecord(
        id=instance.id,
        name=instance.name,
        host=instance.host,
        pid=instance.pid,
        run=instance.run,
        version=instance.version,
        queues=instance.queues,
        tasks=instance.tasks,
        concurrency=instance.concurrency,
        running=tuple(sorted(one.started)),
        started_at=one.started_at,
        beat_at=one.beat_at,
        beat_age=(now - one.beat_at).total_seconds(),
        listener=vitals.listener,
        lag=vitals.lag,
        blocked=vitals.blocked,
        command=None if one.command is None else one.command.value,
        alive=not one.dead,
    )
