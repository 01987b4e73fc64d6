"""Statements on a connection that the caller brings, whatever its kind: its errors come out as Prinia's."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import msgspec

from prinia.connection import AwaitedCarrier, BlockingCarrier, Carrier, awaited, blocking
from prinia.connection.carrier import Row
from prinia.errors import ConnectionUnusable, PriniaError
from prinia.storage.postgres.connection import sqlstate, translate

_FAILED_TRANSACTION, _READ_ONLY = "25P02", "25006"

#: A caller's statement: text in which the one parameter stands as ``{text}``.
Call = str


class GivenConnection:
    """A blocking connection of the caller's."""

    def __init__(self, connection: Any, *, schema: str) -> None:
        """Raises `ConnectionKindError` and `ConnectionUnusable`."""
        self._carrier: BlockingCarrier = blocking(connection)
        self._schema = schema
        self._carrier.check()

    def run(self, call: Call, text: str) -> list[Row]:
        """The rows that a function answers."""
        self._carrier.settle(savepoint=False)
        with _translated(self._carrier, self._schema):
            return self._carrier.run(call, text)

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """All or nothing within the caller's transaction. An error of the block, which may be the caller's own, comes
        out as it is."""
        self._carrier.settle(savepoint=True)
        with contextlib.ExitStack() as scope:
            with _translated(self._carrier, self._schema):
                scope.enter_context(self._carrier.savepoint())
            yield
            self._carrier.settle(savepoint=True)
            with _translated(self._carrier, self._schema):
                scope.close()


class GivenAsyncConnection:
    """An async connection of the caller's."""

    def __init__(self, connection: Any, *, schema: str) -> None:
        """Raises `ConnectionKindError` and `ConnectionUnusable`."""
        self._carrier: AwaitedCarrier = awaited(connection)
        self._schema = schema
        self._carrier.check()

    async def run(self, call: Call, text: str) -> list[Row]:
        """`GivenConnection.run`, awaited."""
        await self._carrier.settle(savepoint=False)
        with _translated(self._carrier, self._schema):
            return await self._carrier.run(call, text)

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """`GivenConnection.savepoint`, awaited."""
        await self._carrier.settle(savepoint=True)
        async with contextlib.AsyncExitStack() as scope:
            with _translated(self._carrier, self._schema):
                await scope.enter_async_context(self._carrier.savepoint())
            yield
            await self._carrier.settle(savepoint=True)
            with _translated(self._carrier, self._schema):
                await scope.aclose()


@contextlib.contextmanager
def _translated(carrier: Carrier, schema: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        driver = carrier.driver_error(error)
        if driver is None:
            raise
        raise _told(driver, schema) from error


def _told(driver: Exception, schema: str) -> PriniaError:
    if isinstance(driver, PriniaError):
        return driver
    if sqlstate(driver) == _FAILED_TRANSACTION:
        return ConnectionUnusable("the connection's transaction has failed: roll it back first")
    if sqlstate(driver) == _READ_ONLY:
        return ConnectionUnusable(
            "the connection's transaction is read-only, or leads to a server that is: give one that may write"
        )
    return translate(driver, schema=schema)


def encode_completion(instance: UUID, job_id: int, token: int, result: bytes | None) -> str:
    """The parameter of the complete function."""
    result64 = None if result is None else base64.b64encode(result).decode()
    return msgspec.json.encode({"id": job_id, "owner": instance, "token": token, "result64": result64}).decode()
