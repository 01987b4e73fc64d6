"""What Prinia needs of a connection that a caller brings, whatever its library calls it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, ClassVar, Protocol

Row = tuple[Any, ...]


class Carrier(Protocol):
    """A caller's connection, in either colour."""

    #: How a transaction is begun on such a connection, for a warning's text.
    begin: ClassVar[str]

    def check(self) -> None:
        """Raise `prinia.errors.ConnectionUnusable` for a connection that is closed or whose transaction has failed, as
        far as that can be told without asking the server; and `prinia.errors.ConnectionKindError` for one that does not
        lead to PostgreSQL."""
        ...

    def commits_at_once(self) -> bool:
        """Whether a statement would be committed as soon as it is run: no transaction is open, and none begins."""
        ...

    def driver_error(self, error: Exception, /) -> Exception | None:
        """What the driver raised, for an error that `run` raised; None for an error that is not the library's.

        One of `prinia.errors` when the library itself refused, without asking the server.
        """
        ...


class BlockingCarrier(Carrier, Protocol):
    """A blocking connection."""

    def settle(self, *, savepoint: bool) -> None:
        """Do what the caller has left for later and would else be done along with a statement of Prinia's, or with the
        begin or end of a savepoint: its errors are the caller's own."""
        ...

    def run(self, call: str, text: str, /) -> list[Row]:
        """Run a ``select`` of a function whose one parameter stands as ``{text}`` in it; percent signs and colons in
        the statement are meant as they are."""
        ...

    def savepoint(self) -> AbstractContextManager[Any]:
        """All or nothing within the caller's transaction; without one, a transaction of its own."""
        ...


class AwaitedCarrier(Carrier, Protocol):
    """An async connection."""

    async def settle(self, *, savepoint: bool) -> None:
        """`BlockingCarrier.settle`, awaited."""
        ...

    async def run(self, call: str, text: str, /) -> list[Row]:
        """`BlockingCarrier.run`, awaited."""
        ...

    def savepoint(self) -> AbstractAsyncContextManager[Any]:
        """`BlockingCarrier.savepoint`, awaited."""
        ...


#: By hand, where a library has no savepoints: how each begins, is kept and is undone.
Steps = tuple[str, tuple[str, ...], tuple[str, ...]]
SAVEPOINT: Steps = (
    "savepoint prinia",
    ("release savepoint prinia",),
    ("rollback to savepoint prinia", "release savepoint prinia"),
)
TRANSACTION: Steps = ("begin", ("commit",), ("rollback",))


@contextlib.contextmanager
def by_hand(execute: Callable[[str], object], steps: Steps) -> Iterator[None]:
    """A savepoint or a transaction made of statements."""
    begin, keep, undo = steps
    execute(begin)
    try:
        yield
    except BaseException:
        # The error on its way says more than that of a connection that was lost with it.
        with contextlib.suppress(Exception):
            for statement in undo:
                execute(statement)
        raise
    for statement in keep:
        execute(statement)


@contextlib.asynccontextmanager
async def aby_hand(execute: Callable[[str], Awaitable[object]], steps: Steps) -> AsyncIterator[None]:
    """`by_hand`, awaited."""
    begin, keep, undo = steps
    await execute(begin)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            for statement in undo:
                await execute(statement)
        raise
    for statement in keep:
        await execute(statement)


def percent(call: str) -> str:
    """The statement for a driver that writes parameters as ``%s``."""
    return call.replace("%", "%%").replace("{text}", "%s")
