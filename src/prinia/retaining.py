"""An app's word on how long the finished jobs of its queues are kept."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta

from prinia.colour import refuse_in_loop
from prinia.errors import ConfigurationError, InvalidOptions
from prinia.options import text
from prinia.retention import Retention, read_retention
from prinia.storage.protocol import Storage


class Retaining:
    """What `prinia.Prinia` has of it."""

    __slots__ = ()

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """Where the jobs live."""

    def set_retention(
        self,
        queue: str,
        *,
        completed: timedelta | float | None = None,
        failed: timedelta | float | None = None,
        cancelled: timedelta | float | None = None,
    ) -> None:
        """Say how long finished jobs of a queue are kept, by the state they ended in. The database remembers it.

        Each is seconds or a timedelta, of 0 to 600 days, or ``math.inf`` for ever; None, or left out, is the default: a
        day for completed, 30 days for failed, 7 days for cancelled jobs. Jobs are kept at least as long, and go within
        about a day after that; those kept longer than 31 days within about a month. It counts for jobs that end from
        now on. Raises `ConfigurationError` for what makes no sense, `ColourError` inside a running event loop.

        Example::

            app.set_retention("email", completed=3600, failed=timedelta(days=90))
        """
        refuse_in_loop("app.set_retention()", "app.aset_retention(...)")
        self.storage.set_retention(_queue(queue), read_retention(completed, failed, cancelled))

    async def aset_retention(
        self,
        queue: str,
        *,
        completed: timedelta | float | None = None,
        failed: timedelta | float | None = None,
        cancelled: timedelta | float | None = None,
    ) -> None:
        """`set_retention`, awaited."""
        await self.storage.aset_retention(_queue(queue), read_retention(completed, failed, cancelled))

    def retention(self, queue: str) -> Retention:
        """How long finished jobs of a queue are kept. Raises `ColourError` inside a running event loop.

        Example::

            app.retention("email").completed      # 3600.0
        """
        refuse_in_loop("app.retention()", "app.aretention(...)")
        return self.storage.retention(_queue(queue))

    async def aretention(self, queue: str) -> Retention:
        """`retention`, awaited."""
        return await self.storage.aretention(_queue(queue))


def _queue(name: str) -> str:
    try:
        return text("queue", name)
    except InvalidOptions as error:
        raise ConfigurationError(str(error)) from None
