"""Hearing for blocking calls: one thread with an event loop of its own hears for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from prinia.errors import PriniaError
from prinia.storage.protocol import Announces, Heard, Hearing

#: The thread hears on for so many seconds when nobody waits any more, for the next one who does.
LINGER = 5.0

log = logging.getLogger("prinia")


class Ears:
    """Hears of jobs that have ended while somebody listens. After a fork it begins anew."""

    def __init__(self, storage: Callable[[], Announces]) -> None:
        self._storage = storage
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._listeners: dict[object, Heard] = {}
        self._thread: threading.Thread | None = None
        self._hearing: Hearing | None = None

    @property
    def listening(self) -> bool:
        """Whether anything can be heard just now."""
        return self._hearing is not None and self._hearing.listening and self._pid == os.getpid()

    @contextlib.contextmanager
    def lent(self, heard: Heard, /) -> Iterator[None]:
        """While in it, ``heard`` is called for what is announced, from another thread."""
        if self._pid != os.getpid():
            self._begin()
        key = object()
        with self._lock:
            self._listeners[key] = heard
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prinia: hearing", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._listeners.pop(key, None)

    def _run(self) -> None:
        try:
            # Not every loop tells when a socket can be read.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._hear())
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    async def _hear(self) -> None:
        try:
            async with self._storage().hear_ends(self._tell) as hearing:
                self._hearing = hearing
                try:
                    await self._linger()
                finally:
                    if self._hearing is hearing:
                        self._hearing = None
        except PriniaError as error:
            log.debug("nothing is heard of jobs that end, who waits for them looks: %s", error)
            await self._linger()

    async def _linger(self) -> None:
        """Return when nobody has listened for a while; then the next one starts another thread."""
        while True:
            await asyncio.sleep(LINGER)
            with self._lock:
                if not self._listeners:
                    self._thread = None
                    return

    def _tell(self, ids: Sequence[int] | None, /) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
        for heard in listeners:
            heard(ids)
