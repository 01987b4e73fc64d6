"""Options that several commands have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def stack(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator of several, which come in the order in which they would stand above the command.

    Example::

        taking_all = stack(click.option("--one"), click.option("--two"))
    """

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
