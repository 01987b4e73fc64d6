"""Django's connection: ``django.db.connection`` or ``connections[alias]``, over psycopg 3 or psycopg2."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from typing import Any

from prinia.colour import refuse_in_loop
from prinia.connection.carrier import Row, percent
from prinia.errors import ConnectionKindError, ConnectionUnusable


class Blocking:
    """A connection of Django."""

    __slots__ = ("_connection",)
    begin = "with transaction.atomic(): ..."

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def check(self) -> None:
        """See `prinia.connection.carrier.Carrier`. Raises `ColourError` where Django would not work."""
        if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
            refuse_in_loop(
                "Django's connection",
                "sync_to_async(function)(...), where the function does task.within(connection).enqueue(...)",
            )
        if self._connection.vendor != "postgresql":
            raise ConnectionKindError(
                f"Django's connection {self._connection.alias!r} leads to {self._connection.vendor}, and jobs live in "
                "PostgreSQL: give connections[...] with the alias of that database"
            )
        try:
            self._connection.validate_thread_sharing()
        except sys.modules["django.db.utils"].Error as error:
            raise ConnectionUnusable(
                f"Django's connection {self._connection.alias!r} is another thread's: take django.db.connection, or "
                "connections[...], in the thread that uses it"
            ) from error
        if not self._connection.in_atomic_block:
            return  # what these say there is of a block that has ended, until Django connects anew
        if self._connection.closed_in_transaction:
            raise ConnectionUnusable("the connection was closed within its atomic block")
        if self._connection.needs_rollback:
            raise ConnectionUnusable("the connection's transaction has failed: leave its atomic block first")

    def commits_at_once(self) -> bool:
        """See `prinia.connection.carrier.Carrier`."""
        connection = self._connection
        connected = connection.connection is not None  # before, it does not know; an atomic block connects
        return bool(connection.autocommit if connected else connection.settings_dict["AUTOCOMMIT"])

    def driver_error(self, error: Exception, /) -> Exception | None:
        """See `prinia.connection.carrier.Carrier`."""
        if not isinstance(error, sys.modules["django.db.utils"].Error):
            return None
        cause = error.__cause__
        return cause if isinstance(cause, Exception) else error

    def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.BlockingCarrier`: nothing is left for later."""

    def run(self, call: str, text: str, /) -> list[Row]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        with self._connection.cursor() as cursor:
            cursor.execute(percent(call), (text,))
            rows: list[Row] = cursor.fetchall()
            return rows

    def savepoint(self) -> AbstractContextManager[Any]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        atomic: AbstractContextManager[Any] = sys.modules["django.db.transaction"].atomic(using=self._connection.alias)
        return atomic
