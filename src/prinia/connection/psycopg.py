"""psycopg 3.

Prinia makes cursors of its own: the caller's may give dicts, bind on the client, or read other placeholders.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar

from prinia.connection.carrier import Row, percent
from prinia.errors import ConnectionUnusable

_IDLE, _ACTIVE, _IN_ERROR = 0, 1, 3  # of psycopg.pq.TransactionStatus


class _Psycopg:
    """Both colours."""

    __slots__ = ("_connection",)
    begin: ClassVar[str]

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        """See `prinia.connection.carrier.Carrier`."""
        if self._connection.closed:
            raise ConnectionUnusable("the connection is closed")
        if self._connection.info.transaction_status == _IN_ERROR:
            raise ConnectionUnusable("the connection's transaction has failed: roll it back first")

    def commits_at_once(self) -> bool:
        """See `prinia.connection.carrier.Carrier`."""
        return bool(self._connection.autocommit and (self._idle() or self._in_pipeline_only()))

    def driver_error(self, error: Exception, /) -> Exception | None:
        """See `prinia.connection.carrier.Carrier`."""
        return error if isinstance(error, sys.modules["psycopg"].Error) else None

    def _idle(self) -> bool:
        return bool(self._connection.info.transaction_status == _IDLE)

    def _in_pipeline(self) -> bool:
        return bool(self._connection.info.pipeline_status)

    def _in_pipeline_only(self) -> bool:
        """Whether statements of a pipeline are under way outside ``connection.transaction()``. If one of them begins a
        transaction, that is not known before the server's answer."""
        under_way = self._in_pipeline() and self._connection.info.transaction_status == _ACTIVE
        return bool(under_way and not getattr(self._connection, "_num_transactions", 1))

    @contextlib.contextmanager
    def _loss(self) -> Iterator[None]:
        """That the connection was lost is no error of a statement."""
        try:
            yield
        except sys.modules["psycopg"].Error as error:
            if self._connection.closed:
                raise ConnectionUnusable(f"the connection was lost: {str(error).splitlines()[0]}") from error
            raise

    def _begins_by_itself(self) -> bool:
        """Whether the next statement begins the caller's transaction. ``connection.transaction()`` would begin one of
        its own there, and commit it."""
        return not self._connection.autocommit and self._idle()


class Blocking(_Psycopg):
    """A ``psycopg.Connection``."""

    __slots__ = ()
    begin = "with conn.transaction(): ..."

    def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.BlockingCarrier`: the statements of a pipeline."""
        if self._in_pipeline():
            with self._loss(), self._connection.pipeline():  # one within another begins by waiting for the answers
                pass

    def run(self, call: str, text: str, /) -> list[Row]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        rows: list[Row] = self._cursor().execute(percent(call).encode(), (text,)).fetchall()
        return rows

    def savepoint(self) -> AbstractContextManager[Any]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        if self._begins_by_itself():
            self._cursor().execute("select 1")
        scope: AbstractContextManager[Any] = self._connection.transaction()
        return scope

    def _cursor(self) -> Any:
        driver = sys.modules["psycopg"]
        return driver.Cursor(self._connection, row_factory=driver.rows.tuple_row)


class Awaited(_Psycopg):
    """A ``psycopg.AsyncConnection``."""

    __slots__ = ()
    begin = "async with conn.transaction(): ..."

    async def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.AwaitedCarrier`: the statements of a pipeline."""
        if self._in_pipeline():
            with self._loss():
                async with self._connection.pipeline():
                    pass

    async def run(self, call: str, text: str, /) -> list[Row]:
        """See `prinia.connection.carrier.AwaitedCarrier`."""
        rows: list[Row] = await (await self._cursor().execute(percent(call).encode(), (text,))).fetchall()
        return rows

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See `prinia.connection.carrier.AwaitedCarrier`."""
        return self._savepoint()

    @contextlib.asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        if self._begins_by_itself():
            await self._cursor().execute("select 1")
        async with self._connection.transaction():
            yield

    def _cursor(self) -> Any:
        driver = sys.modules["psycopg"]
        return driver.AsyncCursor(self._connection, row_factory=driver.rows.tuple_row)
