"""Waiting in a blocking call, for one job or many."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import Generic, Protocol

from prinia.errors import JobNotCommitted, JobNotFound, PriniaError, StorageUnavailable
from prinia.job import JobRecord
from prinia.storage.protocol import Announces, Heard, Reads
from prinia.waiting.agenda import MOST_IDS, Agenda
from prinia.waiting.awaited import AnyAwaited, Awaited, too_late

#: So many jobs are awaited at once; of more, the next is awaited when one has ended.
WINDOW = 10_000


class ReadsAndAnnounces(Reads, Announces, Protocol):
    """What waiting needs of a storage."""


class Hears(Protocol):
    """What a blocking call needs of `prinia.waiting.ears.Ears`."""

    @property
    def listening(self) -> bool:
        """Whether anything can be heard just now."""
        ...

    def lent(self, heard: Heard, /) -> contextlib.AbstractContextManager[None]:
        """While in it, ``heard`` is called, from another thread."""
        ...


class Watch(Generic[AnyAwaited]):
    """Looks for the jobs of one call until they have ended."""

    def __init__(
        self,
        storage: ReadsAndAnnounces,
        ears: Hears,
        find: Callable[[Awaited], JobRecord],
        *,
        monotonic: Callable[[], float],
        sleep: Callable[[threading.Event, float], object],
    ) -> None:
        """``find`` tells for certain how a job is, or why it is not to be seen."""
        self._storage = storage
        self._ears = ears
        self._find = find
        self._monotonic = monotonic
        self._sleep = sleep
        self._agenda = Agenda()
        #: Those that are awaited now, by id: a job may be awaited more than once.
        self._open: dict[int, list[AnyAwaited]] = {}
        self._stirred = threading.Event()
        self._news: deque[Sequence[int] | None] = deque()
        self._hearing = False

    def each(
        self, awaited: Iterable[AnyAwaited], timeout: float | None
    ) -> Iterator[tuple[AnyAwaited, JobRecord | JobNotFound]]:
        """Each job as it ends, or the error for one that is not there. Raises `JobNotCommitted` or `ResultTimeout`."""
        end = inf if timeout is None else self._monotonic() + timeout
        rest = iter(awaited)
        with contextlib.ExitStack() as hearing:
            self._take(rest, WINDOW)
            while self._open:
                now = self._monotonic()
                # In the end a last look at all.
                ids = self._agenda.due(now) if now < end else list(self._open)
                ended = list(self._look(ids))
                yield from ended
                if self._take(rest, len(ended)) or not self._open:
                    continue
                if now >= end and timeout is not None:
                    raise too_late([one for open in self._open.values() for one in open], timeout)
                self._expect(ids, hearing)
                self._pause(end)

    def _take(self, rest: Iterator[AnyAwaited], number: int) -> bool:
        now, before = self._monotonic(), len(self._agenda)
        for one in islice(rest, number):
            if one.id not in self._open:
                self._agenda.add(one.id, now)
            self._open.setdefault(one.id, []).append(one)
        return len(self._agenda) > before

    def _look(self, ids: Sequence[int]) -> Iterator[tuple[AnyAwaited, JobRecord | JobNotFound]]:
        for start in range(0, len(ids), MOST_IDS):
            chunk = ids[start : start + MOST_IDS]
            try:
                found = {record.id: record for record in self._storage.find(chunk)}
            except StorageUnavailable as error:
                for one in (one for id in chunk for one in self._open[id]):
                    one.seen = error
            else:
                yield from (pair for id in chunk for pair in self._settle(id, found.get(id)))
        self._agenda.put_off(ids, self._monotonic(), listening=self._ears.listening)

    def _settle(self, id: int, found: JobRecord | None) -> Iterator[tuple[AnyAwaited, JobRecord | JobNotFound]]:
        for one in list(self._open[id]):
            one.seen = found
            if (ended := self._settled(one, found)) is not None:
                self._open[id].remove(one)
                yield one, ended
        if not self._open[id]:
            del self._open[id]
            self._agenda.drop(id)

    def _settled(self, one: Awaited, found: JobRecord | None) -> JobRecord | JobNotFound | None:
        """How it ended, or None: it is awaited on."""
        if found is not None and not one.hidden(found):
            return found if found.state.final else None
        try:
            record = self._find(one)
        except JobNotCommitted:  # it would be waited for until the caller commits
            raise
        except JobNotFound as error:
            return error
        except StorageUnavailable as error:
            one.seen = error
            return None
        one.created = True  # it stands
        return record if record.state.final else None

    def _expect(self, ids: Sequence[int], hearing: contextlib.ExitStack) -> None:
        wanted = self._agenda.to_expect(ids, self._monotonic())
        if not wanted:
            return
        if not self._hearing:
            self._hearing = True
            hearing.enter_context(self._ears.lent(self._heard))
        if self._ears.listening:
            with contextlib.suppress(PriniaError):  # looking goes on without
                self._storage.expect(wanted)
                self._agenda.expecting(wanted, self._monotonic())

    def _heard(self, ids: Sequence[int] | None) -> None:
        self._news.append(ids)
        self._stirred.set()

    def _pause(self, end: float) -> None:
        at = self._agenda.next()
        until = end if at is None else min(at, end)
        heard = False
        while not heard and (left := until - self._monotonic()) > 0:
            self._sleep(self._stirred, left)
            self._stirred.clear()
            while self._news:
                heard |= self._agenda.heard(self._news.popleft(), self._monotonic())
