"""Heartbeat, leadership and what the leader does: rescue, strays, expiry, retention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from uuid import UUID

from prinia.job import AttemptError, Instance, JobState
from prinia.storage.memory.rows import LiveJob, Registered
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import NO_VITALS, Beat, Vitals

BATCH = 1000
WORKER_LOST = "worker lost"


class MemoryPulse:
    """`prinia.storage.protocol.Pulse` in memory."""

    def __init__(self, tables: Tables, instance: Instance) -> None:
        self._tables = tables
        self._me = instance.id

    def beat(self, tokens: Sequence[int], started: Sequence[int], vitals: Vitals = NO_VITALS, /) -> Beat:
        """Count one up and see everybody."""
        tables = self._tables
        with tables.lock:
            me = self._alive()
            if me is not None:
                me.counter += 1
                me.beat_at = tables.now()
                me.tokens, me.started, me.vitals = frozenset(tokens), frozenset(started), vitals
            return Beat(
                alive=me is not None,
                counters={id: other.counter for id, other in tables.register.items() if not other.dead},
                dead=frozenset(id for id, other in tables.register.items() if other.dead),
                leader=tables.leader,
                term=tables.term,
            )

    def lead(self, leader: UUID | None, term: int, /) -> bool:
        """Become the leader if ``leader`` still leads in ``term`` and this instance is alive."""
        tables = self._tables
        with tables.lock:
            if self._alive() is None or (tables.leader, tables.term) != (leader, term):
                return False
            tables.leader, tables.term = self._me, term + 1
            return True

    def declare_dead(self, instance: UUID, counter: int, /) -> bool:
        """Mark an instance as dead if its counter still stands at ``counter``."""
        with self._tables.lock:
            other = self._tables.register.get(instance)
            if other is None or other.counter != counter:
                return False
            other.dead = True
            return True

    def rescue(self, instance: UUID, /) -> int:
        """Bring back up to 1,000 jobs of a dead instance; take it off the register when none is left."""
        tables = self._tables
        with tables.lock:
            dead = tables.register.get(instance)
            if dead is None or not dead.dead:
                return 0
            now = tables.now()
            jobs = _batch(job for job in tables.live.values() if job.owner == instance and job.claimed_at is not None)
            for job in jobs:
                crash(tables, job, now, started=job.id in dead.started)
            if not jobs:
                del tables.register[instance]
            return len(jobs)

    def free_strays(self) -> int:
        """Bring back jobs of unknown owners, and of live owners that no longer report their token."""
        tables = self._tables
        with tables.lock:
            now = tables.now()
            strays = [job for job in tables.live.values() if self._stray(job)]
            for job in strays:
                tables.unown(job)
                tables.hand_back(job)
                tables.release(job, now)
            return len(strays)

    def sweep_expired(self) -> int:
        """End up to 1,000 waiting jobs whose latest start has passed."""
        tables = self._tables
        with tables.lock:
            now = tables.now()
            jobs = _batch(job for job in tables.live.values() if job.claimed_at is None and job.expired(now))
            for job in jobs:
                tables.finish(job, JobState.CANCELLED, now, reason="expired")
            return len(jobs)

    def sweep_keys(self) -> int:
        """Forget up to 1,000 unique keys whose window is over."""
        tables = self._tables
        with tables.lock:
            now = tables.now()
            over = list(islice((hash for hash, (_, end) in tables.windows.items() if end <= now), BATCH))
            for hash in over:
                del tables.windows[hash]
            return len(over)

    def prepare_archive(self) -> int:
        """There are no leaves to make."""
        return 0

    def sweep_archive(self, now: datetime | None = None, /) -> int:
        """Forget up to 1,000 finished jobs that were kept long enough."""
        tables = self._tables
        with tables.lock:
            now = now or tables.now()
            past = (id for id, row in tables.finished.items() if row.drop_at is not None and row.drop_at <= now)
            ids = list(islice(past, BATCH))
            for id in ids:
                del tables.finished[id]
            return len(ids)

    def close(self) -> None:
        """Nothing to disconnect."""

    def _alive(self) -> Registered | None:
        me = self._tables.register.get(self._me)
        return None if me is None or me.dead else me

    def _stray(self, job: LiveJob) -> bool:
        if job.claimed_at is None or job.owner is None:
            return False
        owner = self._tables.register.get(job.owner)
        if owner is None:
            return True
        return not owner.dead and owner.counter >= job.claimed_beat + 2 and job.token not in owner.tokens


def crash(tables: Tables, job: LiveJob, now: datetime, *, started: bool) -> None:
    """A job's worker died: the job comes back uncounted, or ends if it was in too many crashes or may not rerun."""
    job.crashes += 1
    gives_up = job.cancel_by is None and (job.crashes > job.spec.max_crashes or not job.spec.rerun_after_crash)
    if started or gives_up:
        tables.note(job, AttemptError(attempt=job.attempt, kind="WorkerLost", message=WORKER_LOST), now)
    tables.unown(job)
    tables.hand_back(job)
    if gives_up:
        tables.finish(job, JobState.FAILED, now, reason=WORKER_LOST)
    else:
        tables.release(job, now)


def _batch(jobs: Iterable[LiveJob]) -> list[LiveJob]:
    return list(islice(jobs, BATCH))
