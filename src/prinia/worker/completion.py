"""What stands behind ``ctx.complete(connection)``: a job that its handler completes in a transaction of its own.

Whether that transaction commits is the handler's affair. So the worker sends an ack all the same once the handler has
ended, and that ack says what is to be recorded if the job is still the worker's: that it is not completed. While the
transaction is open the row is locked and the ack busy; when it has committed, the storage answers that the job had
ended as completed, and that stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from prinia.connection import AnyAsync, SyncConn, refuse_loose
from prinia.context import Context
from prinia.errors import CompletedTwice, JobLost
from prinia.job import ClaimedJob
from prinia.outcome import Completed
from prinia.storage.protocol import CompletesWithin


class Completion:
    """`prinia.context.Completes` for one run. May be used from the handler's thread."""

    __slots__ = ("_context", "_done", "_encode", "_instance", "_job", "_storage", "_strict", "tried")

    def __init__(
        self,
        job: ClaimedJob,
        context: Context,
        encode: Callable[[object, str], bytes | None],
        storage: CompletesWithin,
        instance: UUID,
        *,
        strict: bool,
    ) -> None:
        self._job = job
        self._context = context
        self._encode = encode
        self._storage = storage
        self._instance = instance
        self._strict = strict
        self._done = False
        #: What the job may be completed with: set before the attempt, because an error leaves open what came of it.
        self.tried: Completed | None = None

    def refuse_loose(self, connection: Any, /) -> None:
        """See `prinia.context.Completes`."""
        if not self._done:
            refuse_loose(connection, f"{self._name}: complete()", strict=self._strict, above=3)

    def complete(self, connection: SyncConn, result: Any, /) -> None:
        """On a blocking connection."""
        job, encoded = self._job, self._begin(result)
        self._check(self._storage.complete_within(connection, self._instance, job.id, job.token, encoded))

    async def acomplete(self, connection: AnyAsync, result: Any, /) -> None:
        """On an async connection."""
        job, encoded = self._job, self._begin(result)
        self._check(await self._storage.acomplete_within(connection, self._instance, job.id, job.token, encoded))

    def _begin(self, result: Any) -> bytes | None:
        if self._done:
            raise CompletedTwice(
                f"{self._name}: complete() was called again in one attempt. Call it once, as the last thing in the "
                f"transaction; when that was rolled back, let the handler raise: the job runs again"
            )
        encoded = self._encode(result, self._job.codec)
        self.tried = Completed(encoded)
        return encoded

    def _check(self, ours: bool) -> None:
        if ours:
            self._done = True
            return
        self._context.lost = self._context.stopping = True
        raise JobLost(
            f"{self._name} is not this worker's any more: it was thought dead, and others run the job again; let your "
            f"transaction roll back"
        )

    @property
    def _name(self) -> str:
        return f"job {self._job.id} ({self._job.task})"
