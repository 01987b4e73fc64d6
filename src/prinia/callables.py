"""What a function can be called with: asked where it is registered, not when it is first called in production."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes(function: object, count: int) -> bool:
    """Whether it can be called with so many positional arguments. True where nobody can know: some builtins.

    Example::

        takes(lambda event: None, 1)    # True
    """
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def how_it_runs(function: Callable[..., Any]) -> str:
    """What calling it gives before its body has run: "a coroutine", "a generator", or "" where the body runs.

    Example::

        how_it_runs(asyncio.sleep)      # "a coroutine"
    """
    # Of an object that is called like a function, its __call__ decides.
    for one in (function, type(function).__call__):
        if inspect.iscoroutinefunction(one):
            return "a coroutine"
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            return "a generator"
    return ""
