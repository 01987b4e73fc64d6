"""asyncpg."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

from prinia.connection.carrier import SAVEPOINT, Row, aby_hand
from prinia.errors import ConnectionUnusable


class Awaited:
    """A connection of asyncpg, or what its pool lends."""

    __slots__ = ("_connection",)
    begin = "async with conn.transaction(): ..."

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        """See `prinia.connection.carrier.Carrier`."""
        try:
            closed = self._connection.is_closed()
        except sys.modules["asyncpg"].InterfaceError as error:
            raise ConnectionUnusable("the connection was given back to its pool") from error
        if closed:
            raise ConnectionUnusable("the connection is closed")

    def commits_at_once(self) -> bool:
        """See `prinia.connection.carrier.Carrier`."""
        return not self._connection.is_in_transaction()

    def driver_error(self, error: Exception, /) -> Exception | None:
        """See `prinia.connection.carrier.Carrier`."""
        driver = sys.modules["asyncpg"]
        if isinstance(error, driver.InterfaceError):  # it is busy, or was closed meanwhile
            return ConnectionUnusable(f"the connection cannot be used: {error}")
        return error if isinstance(error, driver.PostgresError | OSError) else None

    async def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.AwaitedCarrier`: nothing is left for later."""

    async def run(self, call: str, text: str, /) -> list[Row]:
        """See `prinia.connection.carrier.AwaitedCarrier`."""
        return [tuple(row) for row in await self._connection.fetch(call.replace("{text}", "$1"), text)]

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See `prinia.connection.carrier.AwaitedCarrier`."""
        if self._connection.is_in_transaction():
            # Not its own savepoint, which it refuses in a transaction that was begun by a statement.
            return aby_hand(self._connection.execute, SAVEPOINT)
        transaction: AbstractAsyncContextManager[Any] = self._connection.transaction()
        return transaction
