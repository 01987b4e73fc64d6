"""Waking: when an idle worker looks for work without being rung."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from prinia.errors import ConfigurationError
from prinia.polling import Poll, PollBackoff
from prinia.retry import seconds_of

log = logging.getLogger("prinia.worker")

#: Seconds between two looks where no timer is given: a net below the bell, and without one the way to find jobs.
POLL = 30.0
POLL_UNHEARD = 1.0
#: So long an async iterator may take to close, in seconds: a stop is bounded.
GRACE = 1.0


@dataclass(frozen=True, slots=True)
class Sources:
    """What ``poll=`` says: at least one timer, and async iterables of which each item means "look now"."""

    timers: tuple[PollBackoff, ...]
    iterables: tuple[AsyncIterable[object], ...] = ()


def poll_sources(poll: Poll | None, *, listen: bool) -> Sources:
    """Sort what was given. Raises `ConfigurationError` for what is no source."""
    given = _each(poll)
    timers = tuple(source for source in given if isinstance(source, PollBackoff))
    iterables = tuple(source for source in given if not isinstance(source, PollBackoff))
    return Sources(timers or (_every(POLL if listen else POLL_UNHEARD),), iterables)


def _each(poll: Poll | None) -> list[PollBackoff | AsyncIterable[object]]:
    if poll is None:
        return []
    if isinstance(poll, str | bytes) or not isinstance(poll, Sequence):
        return [_source(poll)]
    if not poll:
        raise ConfigurationError("worker: poll=[] has no source; leave it out, or give seconds")
    return [_source(source) for source in poll]


def _source(source: object) -> PollBackoff | AsyncIterable[object]:
    if isinstance(source, PollBackoff | AsyncIterable):
        return source
    seconds = seconds_of(source)
    if seconds is not None and math.isfinite(seconds) and seconds > 0:
        return _every(seconds)
    hint = f"; call it: poll={source.__name__}()" if inspect.isasyncgenfunction(source) else ""
    raise ConfigurationError(
        f"worker: poll={source!r} must be seconds (more than 0), a timedelta, PollBackoff(...), an async iterator, "
        f"or a list of these{hint}"
    )


def _every(seconds: float) -> PollBackoff:
    """An interval is a back-off that does not grow."""
    return PollBackoff(start=seconds, factor=1, cap=seconds, jitter=0)


class Waking:
    """Timers and async iterators of one run of a worker: they are followed within ``async with``.

    Example::

        async with Waking(sources, random.random) as waking:
            await first(waking.item(), seconds=waking.seconds())
            waking.taken()      # True: an iterator had an item
    """

    def __init__(self, sources: Sources, random: Callable[[], float]) -> None:
        self._sources = sources
        self._random = random
        self._empty = 0
        self._item = asyncio.Event()
        self._acted = asyncio.Event()
        self._followers: list[asyncio.Task[None]] = []
        self._ending = False

    def seconds(self) -> float:
        """How long to wait now for the first of the timers."""
        return min(timer.wait(self._empty, self._random()) for timer in self._sources.timers)

    def ran_out(self) -> None:
        """That time passed, and nothing else happened."""
        self._empty += 1

    def found(self) -> None:
        """There was work: back-offs start over."""
        self._empty = 0

    async def item(self) -> None:
        """Return when an iterator has had an item since the last `taken`."""
        await self._item.wait()

    def taken(self) -> bool:
        """Whether an iterator has had an item; the worker looks now, and the next one is asked for."""
        if not self._item.is_set():
            return False
        self._item.clear()
        acted, self._acted = self._acted, asyncio.Event()
        acted.set()
        return True

    async def __aenter__(self) -> Self:
        self._followers = [asyncio.create_task(self._follow(iterable)) for iterable in self._sources.iterables]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the iterators."""
        self._ending = True
        for follower in self._followers:
            follower.cancel()
        if self._followers:
            _, left = await asyncio.wait(self._followers, timeout=GRACE)
            if left:
                log.warning("%d async iterators given as poll= do not end; they are left behind", len(left))

    async def _follow(self, iterable: AsyncIterable[object]) -> None:
        """Ask for one item after the other, in one task: a generator may hold what belongs to a task, such as a time
        limit or a task group."""
        try:
            await self._iterate(iterable)
        except asyncio.CancelledError:
            if not self._ending:  # it was raised, by something the iterator waited for
                log.error("the async iterator %r, given as poll=, was cancelled; it wakes no more", iterable)
        except BaseException:  # a SystemExit would end the event loop, and with it every job
            log.exception("the async iterator %r, given as poll=, failed; it wakes no more", iterable)
        else:
            log.info("the async iterator %r, given as poll=, has ended", iterable)

    async def _iterate(self, iterable: AsyncIterable[object]) -> None:
        iterator = aiter(iterable)
        try:
            async for _ in iterator:
                self._item.set()
                await self._acted.wait()
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None:
                await close()
