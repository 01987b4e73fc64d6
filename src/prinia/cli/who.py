"""Who it is that does something, for the audit."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from prinia.errors import InvalidOptions
from prinia.options import text

F = TypeVar("F", bound=Callable[..., Any])


def by_somebody(function: F) -> F:
    """The command takes ``by``: who does it, by default the user at the machine, and the command's name."""
    return click.option("--by", metavar="WHO", callback=_who, help="Who does it, for the audit; else your login name.")(
        function
    )


def _who(context: click.Context, parameter: click.Parameter, given: str | None) -> str:
    if given is None:
        return f"{_login()} ({' '.join(context.command_path.split()[:2])})"
    try:
        return text("by", given)
    except InvalidOptions as error:
        raise click.BadParameter(str(error)) from None


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as containers have them
        return f"user {os.getuid()}"
