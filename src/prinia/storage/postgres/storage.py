"""Jobs on PostgreSQL: the storage that puts its parts together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from prinia.job import Instance
from prinia.storage.postgres.callers import Callers
from prinia.storage.postgres.consumer import PostgresConsumer
from prinia.storage.postgres.controlling import Controlling
from prinia.storage.postgres.listener import Listener
from prinia.storage.postgres.listing import Listing
from prinia.storage.postgres.operating import Operating
from prinia.storage.postgres.pools import Pools
from prinia.storage.postgres.pulse import PostgresPulse
from prinia.storage.postgres.sql import Sql
from prinia.storage.protocol import Heard


class PostgresStorage(Callers, Listing, Operating, Controlling):
    """`prinia.storage.protocol.Storage` on PostgreSQL 13 or newer.

    ``dsn`` is a libpq URL or connection string, or a function that gives it when it is first needed. ``listen_dsn``
    leads to the server itself where ``dsn`` leads to a transaction pooler.

    Example::

        storage = PostgresStorage("postgresql://localhost/shop", schema="prinia")
    """

    def __init__(self, dsn: str | Callable[[], str], *, schema: str = "prinia", listen_dsn: str | None = None) -> None:
        self._dsn: Callable[[], str] = dsn if callable(dsn) else lambda: dsn
        self._listen_dsn: Callable[[], str] = (lambda: listen_dsn) if listen_dsn else self._dsn
        self._sql = Sql(schema)
        self._listeners: WeakKeyDictionary[asyncio.AbstractEventLoop, Listener] = WeakKeyDictionary()
        #: Those that go on listening while the storage is open, whether or not somebody waits just now.
        self._kept: WeakKeyDictionary[asyncio.AbstractEventLoop, Listener] = WeakKeyDictionary()
        super().__init__(self._sql, Pools(self._dsn, schema=schema))

    @property
    def schema(self) -> str:
        """The name of the schema that holds everything."""
        return self._sql.schema

    @property
    def dsn(self) -> str:
        """The libpq connection string."""
        return self._dsn()

    @property
    def listen_dsn(self) -> str:
        """The one for LISTEN connections, which may be the same."""
        return self._listen_dsn()

    def consumer(self, instance: Instance, /, *, listen: bool = True) -> PostgresConsumer:
        """The worker's side, for one event loop; all that listen in a loop share one LISTEN connection."""
        return PostgresConsumer(self._dsn, self._sql, instance, self._find_listener if listen else None)

    def _find_listener(self) -> Listener:
        loop = asyncio.get_running_loop()
        listener = self._listeners.get(loop)
        if listener is None:
            listener = self._listeners[loop] = Listener(self._listen_dsn, self._sql)
        return listener

    @asynccontextmanager
    async def hear_ends(self, heard: Heard, /) -> AsyncGenerator[Listener]:
        """`prinia.storage.protocol.Announces.hear_ends`, over the loop's one LISTEN connection."""
        listener, loop = self._find_listener(), asyncio.get_running_loop()
        await listener.acquire()
        listener.hear(heard)
        try:
            yield listener
        finally:
            listener.unhear(heard)
            if self._pools.aopened and loop not in self._kept:
                self._kept[loop] = listener
            else:
                await listener.release()

    def pulse(self, instance: Instance, /) -> PostgresPulse:
        """The heartbeat's side."""
        return PostgresPulse(self._dsn, self._sql, instance)

    def open(self) -> None:
        """Open the pool for blocking calls; opens nest."""
        self._pools.open()

    def close(self) -> None:
        """Undo one `open`."""
        self._pools.close()

    async def aopen(self) -> None:
        """Open the pool of the running loop; opens nest."""
        await self._pools.aopen()

    async def aclose(self) -> None:
        """Undo one `aopen`."""
        await self._pools.aclose()
        if not self._pools.aopened and (kept := self._kept.pop(asyncio.get_running_loop(), None)) is not None:
            await kept.release()
