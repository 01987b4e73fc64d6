"""What an app can be asked: which jobs there are, how queues stand, who works."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Unpack

from prinia.colour import refuse_in_loop
from prinia.overview import COUNT_LIMIT, QueueRecord, WorkerRecord
from prinia.query import JobQuery, count_limit
from prinia.selection import Conditions, select
from prinia.storage.protocol import Storage


class Reading:
    """What `prinia.Prinia` has of it."""

    __slots__ = ()

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """Where the jobs live."""

    def jobs(
        self, *, oldest_first: bool = False, everything: bool = False, **conditions: Unpack[Conditions]
    ) -> JobQuery:
        """The jobs that meet every condition given, live and finished: to iterate, to page through, to count, and to
        cancel, retry, move, ... all at once.

        ``ids``, ``queue``, ``task``, ``state``, ``instance`` (of a worker) and ``error`` (its latest, such as
        "ValueError") take one or several, of which one must fit; of ``tag`` all must. ``created_since``,
        ``created_before``, ``finished_since`` and ``finished_before`` are aware datetimes. None is no condition; an
        empty list fits no job. Newest first, unless ``oldest_first``. Nothing is read yet, so this may be called
        anywhere. What changes jobs is refused without any condition, unless ``everything`` is meant. Raises
        `InvalidQuery`.

        Example::

            for job in app.jobs(queue="email", state=["failed", "cancelled"]):
                print(job.id, job.task, job.finished_at)

            page = await app.jobs(task="shop.send_reminder").apage(limit=20)
        """
        return JobQuery(
            lambda: self.storage, select(**conditions), oldest_first=oldest_first, everything=everything is True
        )

    def queues(self, *, limit: int = COUNT_LIMIT) -> Sequence[QueueRecord]:
        """Every queue that has jobs, a setting or a worker, by name: how many jobs in which state, since when one has
        been waiting, whether it is paused, who serves it.

        Counts are exact up to ``limit`` jobs and estimated above; see `Count`. Of a queue of which only completed jobs
        are left nothing may be seen among very many of others. Raises `ColourError` inside a running event loop.

        Example::

            for queue in app.queues():
                if queue.unserved:
                    print(f"nobody serves {queue.name}: {queue.counts}")
        """
        refuse_in_loop("app.queues()", "app.aqueues()")
        return self.storage.queues(limit=count_limit(limit))

    async def aqueues(self, *, limit: int = COUNT_LIMIT) -> Sequence[QueueRecord]:
        """`queues`, awaited."""
        return await self.storage.aqueues(limit=count_limit(limit))

    def workers(self) -> Sequence[WorkerRecord]:
        """Every worker instance on the register, by name: where it runs, what it serves and runs, when it was heard of.

        Raises `ColourError` inside a running event loop.

        Example::

            for worker in app.workers():
                print(worker.name, worker.host, worker.pid, f"{worker.beat_age:.0f} s ago")
        """
        refuse_in_loop("app.workers()", "app.aworkers()")
        return self.storage.workers()

    async def aworkers(self) -> Sequence[WorkerRecord]:
        """`workers`, awaited."""
        return await self.storage.aworkers()
