"""Lists and counts: everything is looked through."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime

from prinia.job import SUSPECT_CRASHES, JobRecord, JobState
from prinia.overview import Count, QueueRecord, WorkerRecord
from prinia.selection import Selection
from prinia.situation import Situation
from prinia.storage.memory.controlling import all_pauses
from prinia.storage.memory.rows import LiveJob, Registered, live_record
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Stretch


class Listing:
    """`prinia.storage.protocol.Lists` and `Explains` in memory: a part of the storage, which has the tables."""

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
            return self._workers(self.tables.now())

    async def aworkers(self) -> list[WorkerRecord]:
        """`workers`, awaited."""
        return self.workers()

    def situation(self, id: int, /, *, limit: int) -> Situation:
        """`prinia.storage.protocol.Explains.situation`."""
        tables = self.tables
        with tables.lock:
            now = tables.now()
            job, finished = tables.live.get(id), tables.finished.get(id)
            if job is None:
                return Situation(now=now, job=None if finished is None else finished.record)
            return Situation(
                now=now,
                job=live_record(job, now),
                expires_at=job.expires_at,
                ahead=min(self._ahead(job, now), limit + 1),
                pauses=all_pauses(tables),
                workers=self._workers(now),
            )

    async def asituation(self, id: int, /, *, limit: int) -> Situation:
        """`situation`, awaited."""
        return self.situation(id, limit=limit)

    def _workers(self, now: datetime) -> list[WorkerRecord]:
        register = sorted(self.tables.register.values(), key=lambda one: (one.instance.name, one.started_at))
        return [_worker(one, now) for one in register]

    def _ahead(self, job: LiveJob, now: datetime) -> int:
        if not _claimable(job, now):
            return 0
        return sum(
            other.spec.queue == job.spec.queue
            and other.spec.task not in self.tables.paused_tasks
            and _claimable(other, now)
            and _order(other) < _order(job)
            for other in self.tables.live.values()
        )

    def _all(self) -> Iterator[JobRecord]:
        now = self.tables.now()
        yield from (live_record(job, now) for job in self.tables.live.values())
        yield from (row.record for row in self.tables.finished.values())


def _claimable(job: LiveJob, now: datetime) -> bool:
    return job.claimed_at is None and job.due <= now and job.crashes < SUSPECT_CRASHES


def _order(job: LiveJob) -> tuple[int, datetime, int]:
    """In the order of which claims take jobs of a queue."""
    return (-job.spec.priority, job.due, job.id)


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
        commanded_by=None if one.command is None else one.commanded_by,
    )
