"""How commands fail: in one line on standard error and an exit code, never with a traceback."""

from __future__ import annotations

import os
import signal
from typing import IO, Any

import click

from prinia.errors import InvalidArguments, InvalidOptions, InvalidQuery, PayloadTooLarge, PriniaError

FAILED, USAGE = 1, 2
_MISUSES = (InvalidArguments, InvalidOptions, InvalidQuery, PayloadTooLarge)


class Failure(click.ClickException):
    """Ends the command with a line on standard error and exit code 1."""

    exit_code = FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the text to standard error."""
        click.echo(f"prinia: {self.message}", file=file, err=True)


class Misuse(Failure):
    """A `Failure` by what was asked for: exit code 2."""

    exit_code = USAGE


class KindGroup(click.Group):
    """A group whose commands may raise Prinia's errors, and be interrupted."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what the user can mend ends as a `Failure`."""
        try:
            return super().invoke(ctx)
        except PriniaError as error:
            if debugging():
                raise
            kind = Misuse if isinstance(error, _MISUSES) else Failure
            raise kind("; ".join([str(error), *getattr(error, "__notes__", ())])) from error
        except KeyboardInterrupt:
            click.echo("prinia: interrupted", err=True)
            ctx.exit(128 + signal.SIGINT)


def debugging() -> bool:
    """Whether tracebacks are wanted."""
    return os.environ.get("PRINIA_DEBUG", "") not in ("", "0")
