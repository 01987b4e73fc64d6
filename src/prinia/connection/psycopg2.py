"""psycopg2, used directly."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from prinia.connection.carrier import SAVEPOINT, TRANSACTION, Row, by_hand, percent
from prinia.errors import ConnectionUnusable

_IDLE, _IN_ERROR = 0, 3  # TRANSACTION_STATUS_... of psycopg2.extensions


class Blocking:
    """A connection of psycopg2."""

    __slots__ = ("_connection",)
    begin = "conn.autocommit = False"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        """See `prinia.connection.carrier.Carrier`."""
        if self._connection.closed:
            raise ConnectionUnusable("the connection is closed")
        if self._connection.get_transaction_status() == _IN_ERROR:
            raise ConnectionUnusable("the connection's transaction has failed: roll it back first")

    def commits_at_once(self) -> bool:
        """See `prinia.connection.carrier.Carrier`."""
        return bool(self._connection.autocommit and self._connection.get_transaction_status() == _IDLE)

    def driver_error(self, error: Exception, /) -> Exception | None:
        """See `prinia.connection.carrier.Carrier`."""
        return error if isinstance(error, sys.modules["psycopg2"].Error) else None

    def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.BlockingCarrier`: nothing is left for later."""

    def run(self, call: str, text: str, /) -> list[Row]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        with self._cursor() as cursor:
            cursor.execute(percent(call), (text,))
            rows: list[Row] = cursor.fetchall()
            return rows

    def savepoint(self) -> AbstractContextManager[Any]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        return by_hand(self._execute, TRANSACTION if self.commits_at_once() else SAVEPOINT)

    def _execute(self, statement: str) -> None:
        with self._cursor() as cursor:
            cursor.execute(statement)

    def _cursor(self) -> Any:
        # Of the plain class: the caller's factory may make cursors that give dicts.
        return self._connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor)
