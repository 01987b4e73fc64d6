"""Bugs of the register, of leadership and of the declaring of deaths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.rows import Registered
from prinia.storage.protocol import Claim, Vitals

from .base import Broken


class ZombieClaims(Broken):
    """A worker that was declared dead goes on claiming."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
            before = self._tables.register.get(self._instance.id)
            now = self._tables.now()
            self._tables.register[self._instance.id] = Registered(self._instance, now, now)
            try:
                return await super().claim(limit, token=token, alone=alone, thorough=thorough)
            finally:
                if before is None:
                    del self._tables.register[self._instance.id]
                else:
                    self._tables.register[self._instance.id] = before


class DeclaresTheBeatingDead(Broken):
    """A death is declared whatever the counter says by now."""

    class pulse_class(MemoryPulse):
        def declare_dead(self, instance: UUID, counter: int, /) -> bool:
            other = self._tables.register.get(instance)
            return other is not None and super().declare_dead(instance, other.counter)


class TwoLeaders(Broken):
    """Whoever wants to lead does."""

    class pulse_class(MemoryPulse):
        def lead(self, leader: UUID | None, term: int, /) -> bool:
            return super().lead(self._tables.leader, self._tables.term)


class TermIgnored(Broken):
    """Who leads is compared, in which term is not."""

    class pulse_class(MemoryPulse):
        def lead(self, leader: UUID | None, term: int, /) -> bool:
            return super().lead(leader, self._tables.term)


class CloseForgotten(Broken):
    """A worker that closes stays on the register."""

    class consumer_class(MemoryConsumer):
        async def close(self) -> None:
            pass


class BeatRegisters(Broken):
    """Whoever beats is alive."""

    class pulse_class(MemoryPulse):
        def beat(self, tokens: Sequence[int], started: Sequence[int], *vitals: Vitals) -> Any:
            return replace(super().beat(tokens, started, *vitals), alive=True)


class CounterStands(Broken):
    """A beat counts nothing."""

    class pulse_class(MemoryPulse):
        def beat(self, tokens: Sequence[int], started: Sequence[int], *vitals: Vitals) -> Any:
            if (me := self._tables.register.get(self._me)) is not None:
                me.counter -= 1
            return super().beat(tokens, started, *vitals)


class DeadLead(Broken):
    """Who was declared dead can still become the leader."""

    class pulse_class(MemoryPulse):
        def lead(self, leader: UUID | None, term: int, /) -> bool:
            self._tables.leader, self._tables.term = self._me, term + 1
            return True


class DeadUnseen(Broken):
    """Nobody is told who is dead and not yet rescued."""

    class pulse_class(MemoryPulse):
        def beat(self, tokens: Sequence[int], started: Sequence[int], *vitals: Vitals) -> Any:
            return replace(super().beat(tokens, started, *vitals), dead=frozenset())
