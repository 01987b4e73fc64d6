"""SQLAlchemy: connections and sessions of both colours, over any driver.

It begins a transaction lazily, with the first statement that goes through it; so every statement does.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar

from prinia.connection.carrier import SAVEPOINT, TRANSACTION, Row, Steps, aby_hand, by_hand
from prinia.errors import ConnectionKindError, ConnectionUnusable

_NO_TRANSACTION = "25P01"


class _SQLAlchemy:
    """All of them."""

    __slots__ = ("_given",)
    begin: ClassVar[str] = "an isolation level other than AUTOCOMMIT"

    def __init__(self, given: Any) -> None:
        """``given`` is the caller's connection or session."""
        self._given = given

    def check(self) -> None:
        """See `prinia.connection.carrier.Carrier`."""
        try:
            bind = self._bind()
            closed, name = getattr(bind, "closed", False), bind.dialect.name  # an engine is never closed
        except sys.modules["sqlalchemy.exc"].SQLAlchemyError as error:
            raise _unusable(error) from error
        if closed:
            raise ConnectionUnusable("the connection is closed")
        if name != "postgresql":
            raise ConnectionKindError(f"this connection of SQLAlchemy leads to {name}, and jobs live in PostgreSQL")

    def commits_at_once(self) -> bool:
        """See `prinia.connection.carrier.Carrier`."""
        bind = self._held() or self._bind()
        # The engine's own level, from create_engine(isolation_level=), shows nowhere else.
        level = bind.get_execution_options().get("isolation_level") or getattr(
            bind.dialect, "_on_connect_isolation_level", None
        )
        return bool(level == "AUTOCOMMIT" or _driver_commits(bind))

    def driver_error(self, error: Exception, /) -> Exception | None:
        """See `prinia.connection.carrier.Carrier`."""
        known: Any = sys.modules["sqlalchemy.exc"]
        if isinstance(error, known.DBAPIError):
            return getattr(error, "orig", None)
        return _unusable(error) if isinstance(error, known.SQLAlchemyError) else None

    def _bind(self) -> Any:
        """The connection, or what the session will take one from."""
        raise NotImplementedError

    def _held(self) -> Any:
        """The connection that the session has taken already, which may be in another mode than its engine's."""
        return None


class OnConnection(_SQLAlchemy):
    """A ``Connection``."""

    __slots__ = ()

    def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.BlockingCarrier`."""

    def run(self, call: str, text: str, /) -> list[Row]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        return [tuple(row) for row in self._connection().execute(_statement(call), {"text": text})]

    def savepoint(self) -> AbstractContextManager[Any]:
        """See `prinia.connection.carrier.BlockingCarrier`."""
        return self._savepoint_by_hand() if self.commits_at_once() else self._given.begin_nested()

    @contextlib.contextmanager
    def _savepoint_by_hand(self) -> Iterator[None]:
        """In AUTOCOMMIT: a transaction, or a savepoint where a statement of the caller's has begun one."""
        with contextlib.ExitStack() as scope:
            try:
                scope.enter_context(by_hand(self._execute, SAVEPOINT))
            except sys.modules["sqlalchemy.exc"].DBAPIError as error:
                scope.enter_context(by_hand(self._execute, _else_transaction(error)))
            yield

    def _execute(self, statement: str) -> None:
        self._connection().execute(_statement(statement))

    def _connection(self) -> Any:
        return self._given

    def _bind(self) -> Any:
        return self._given


class OnSession(OnConnection):
    """A ``Session``. Its savepoint is the session's own, which flushes: what a caller's generator does with the session
    within a push is then undone in the session too. Nothing else here flushes."""

    __slots__ = ()

    def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.BlockingCarrier`: a savepoint of the session's flushes."""
        if savepoint and self._given.is_active:  # one that has failed says so when it is used
            self._given.flush()

    def _connection(self) -> Any:
        return self._given.connection()

    def _bind(self) -> Any:
        return self._given.get_bind()

    def _held(self) -> Any:
        return _held(self._given)


class OnAsyncConnection(_SQLAlchemy):
    """An ``AsyncConnection``."""

    __slots__ = ()

    async def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.AwaitedCarrier`."""

    async def run(self, call: str, text: str, /) -> list[Row]:
        """See `prinia.connection.carrier.AwaitedCarrier`."""
        return [tuple(row) for row in await (await self._connection()).execute(_statement(call), {"text": text})]

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """See `prinia.connection.carrier.AwaitedCarrier`."""
        return self._savepoint_by_hand() if self.commits_at_once() else self._given.begin_nested()

    @contextlib.asynccontextmanager
    async def _savepoint_by_hand(self) -> AsyncIterator[None]:
        """`OnConnection._savepoint_by_hand`, awaited."""
        async with contextlib.AsyncExitStack() as scope:
            try:
                await scope.enter_async_context(aby_hand(self._execute, SAVEPOINT))
            except sys.modules["sqlalchemy.exc"].DBAPIError as error:
                await scope.enter_async_context(aby_hand(self._execute, _else_transaction(error)))
            yield

    async def _execute(self, statement: str) -> None:
        await (await self._connection()).execute(_statement(statement))

    async def _connection(self) -> Any:
        return self._given

    def _bind(self) -> Any:
        return self._given.sync_connection or self._given  # which says, when asked, that it has not been started


class OnAsyncSession(OnAsyncConnection):
    """An ``AsyncSession``: see `OnSession`."""

    __slots__ = ()

    async def settle(self, *, savepoint: bool) -> None:
        """See `prinia.connection.carrier.AwaitedCarrier`: a savepoint of the session's flushes."""
        if savepoint and self._given.is_active:  # one that has failed says so when it is used
            await self._given.flush()

    async def _connection(self) -> Any:
        return await self._given.connection()

    def _bind(self) -> Any:
        return self._given.get_bind()

    def _held(self) -> Any:
        return _held(self._given.sync_session)


def on_scoped(scoped: Any) -> OnSession:
    """A ``scoped_session``: the session of this scope."""
    return OnSession(scoped())


def on_async_scoped(scoped: Any) -> OnAsyncSession:
    """An ``async_scoped_session``: the session of this scope."""
    return OnAsyncSession(scoped())


def _held(session: Any) -> Any:
    # What is public of a session takes a connection when there is none, which an async one cannot do in a plain call.
    taken: dict[Any, Any] = getattr(session.get_transaction(), "_connections", {})
    return taken[bind][0] if (bind := session.get_bind()) in taken else None


def _driver_commits(bind: Any) -> bool:
    """Whether the driver's connection was made in autocommit, unknown to SQLAlchemy. An engine has none yet."""
    if not hasattr(bind, "invalidated") or bind.closed or bind.invalidated:
        return False
    return bool(getattr(bind.connection.dbapi_connection, "autocommit", False))


def _statement(text: str) -> Any:
    # A colon begins a parameter unless it is escaped.
    return sys.modules["sqlalchemy"].text(text.replace(":", r"\:").replace("{text}", ":text"))


def _else_transaction(error: Any) -> Steps:
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    if state != _NO_TRANSACTION:
        raise error
    return TRANSACTION


def _unusable(error: Exception) -> ConnectionUnusable:
    return ConnectionUnusable(f"the connection or session cannot be used: {str(error).splitlines()[0]}")
