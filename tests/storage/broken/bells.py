"""Bugs of the bell."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from prinia.job import Instance
from prinia.storage.memory.bell import MemoryBell
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Claim

from .base import Broken


class BellMute(Broken):
    """Nobody rings."""

    class tables_class(Tables):
        def ring(self, queues: Iterable[str]) -> None:
            pass


class BellForgetful(Broken):
    """A ring between arming and sleeping is lost."""

    class consumer_class(MemoryConsumer):
        def __init__(self, tables: Tables, instance: Instance, *, listen: bool = True) -> None:
            super().__init__(tables, instance, listen=listen)
            self._bell = _ForgetfulBell(tables, instance.queues)


class _ForgetfulBell(MemoryBell):
    async def wait(self, seconds: float, /) -> bool:
        self._rung = False
        return await super().wait(seconds)


class BellForPushesOnly(Broken):
    """What comes back rings for nobody."""

    class tables_class(Tables):
        def release(self, job: LiveJob, now: datetime, *, delay: float = 0.0) -> None:
            bells, self.bells = self.bells, set()
            super().release(job, now, delay=delay)
            self.bells = bells


class BellNotPassedOn(Broken):
    """A sleeper woken for more than it can run keeps it to itself."""

    class consumer_class(MemoryConsumer):
        def __init__(self, tables: Tables, instance: Instance, *, listen: bool = True) -> None:
            super().__init__(tables, instance, listen=listen)
            self._bell = _SelfishBell(tables, instance.queues)


class _SelfishBell(MemoryBell):
    async def pass_on(self) -> None:
        pass


class BellAlwaysRings(Broken):
    """Every sleep ends as if somebody had rung."""

    class consumer_class(MemoryConsumer):
        def __init__(self, tables: Tables, instance: Instance, *, listen: bool = True) -> None:
            super().__init__(tables, instance, listen=listen)
            self._bell = _RestlessBell(tables, instance.queues)


class _RestlessBell(MemoryBell):
    async def wait(self, seconds: float, /) -> bool:
        return True


class BellBlinds(Broken):
    """A claim after arming finds nothing: the worker believes that it sleeps."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
            if self._bell in self._tables.bells:
                return Claim(())
            return await super().claim(limit, token=token, alone=alone, thorough=thorough)


class BellForEverybody(Broken):
    """A worker that does not listen is rung all the same."""

    def consumer(self, instance: Instance, /, *, listen: bool = True) -> MemoryConsumer:
        return super().consumer(instance)
