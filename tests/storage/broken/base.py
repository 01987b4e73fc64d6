"""What the broken storages are made of."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from threading import Barrier, BrokenBarrierError
from typing import Any, ClassVar

from prinia.job import Instance
from prinia.storage.memory import MemoryStorage, SystemWallClock
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.tables import Tables


class Broken(MemoryStorage):
    """A memory storage made of replaceable parts."""

    tables_class: ClassVar[type[Tables]] = Tables
    consumer_class: ClassVar[type[MemoryConsumer]] = MemoryConsumer
    pulse_class: ClassVar[type[MemoryPulse]] = MemoryPulse

    def __init__(self) -> None:
        super().__init__()
        self.tables = self.tables_class(SystemWallClock())

    def consumer(self, instance: Instance, /, *, listen: bool = True) -> MemoryConsumer:
        return self.consumer_class(self.tables, instance, listen=listen)

    def pulse(self, instance: Instance, /) -> MemoryPulse:
        return self.pulse_class(self.tables, instance)

    def transaction(self) -> AbstractContextManager[Any] | None:
        """What the suite's hook of that name answers for it."""
        return None


class Race:
    """A place where whoever comes first waits for a second, so that both are inside at the same time."""

    def __init__(self) -> None:
        self._barrier = Barrier(2)

    def meet(self) -> None:
        # Once nobody came in time the barrier stays broken: the race has been run.
        with suppress(BrokenBarrierError):
            self._barrier.wait(1)
