"""CANCEL from outside: while this worker has jobs, it looks for those that somebody asked to cancel.

Looking costs one query of an index that is nearly always empty. To be notified instead would need this as its net: not
every worker can listen, and a notification takes a database-wide lock.
"""

from __future__ import annotations

from prinia.clock import Clock
from prinia.errors import StorageError
from prinia.storage.protocol import Consumer
from prinia.worker.outage import Outage
from prinia.worker.run import Runner

#: Seconds from one look to the next: a running job must hear of its cancellation within one second.
LOOK_EVERY = 0.5

_PART = "look for cancelled jobs"


class Cancels:
    """Looks until it is cancelled."""

    def __init__(self, consumer: Consumer, runner: Runner, outage: Outage, *, clock: Clock) -> None:
        self._consumer = consumer
        self._runner = runner
        self._outage = outage
        self._clock = clock

    async def run(self) -> None:
        """Look regularly; survives every error of the storage."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            await self.look()

    async def look(self) -> None:
        """Look once, if there is anything to cancel."""
        if not self._runner.running and not self._runner.waiting:
            self._outage.ended(_PART)
            return
        try:
            requests = await self._consumer.cancel_requests()
        except StorageError as error:
            self._outage.began(_PART, error)
            return
        self._outage.ended(_PART)
        if requests:
            self._runner.cancel_requested(requests)
