"""What the tests of resources provide and want, and factories that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from prinia import Prinia, Scope

BASE_ERRORS = [ValueError, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit]


class Pool:
    """Something with a name."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class Session(Pool): ...


class Settings(Pool): ...


def provide_pool(app: Prinia, scope: Scope, steps: list[str]) -> None:
    """A pool that writes down when it is opened and closed."""

    @app.provide(scope=scope)
    async def pool() -> AsyncIterator[Pool]:
        steps.append("open")
        yield Pool()
        steps.append("close")


def kind(error: type[BaseException]) -> str:
    """How an error's kind is stored."""
    return {"CancelledError": "asyncio.exceptions.CancelledError"}.get(error.__name__, error.__name__)


def failing(shape: str, error: BaseException) -> Callable[..., Any]:
    """A factory that raises."""
    if shape == "function":

        def broken() -> Pool:
            raise error
    elif shape == "coroutine":

        async def broken() -> Pool:  # type: ignore[misc]
            raise error
    elif shape == "generator":

        def broken() -> Iterator[Pool]:  # type: ignore[misc]
            fail(error)
            yield Pool()
    else:

        async def broken() -> AsyncIterator[Pool]:  # type: ignore[misc]
            fail(error)
            yield Pool()

    return broken


def fail(error: BaseException) -> None:
    raise error
