"""Settings of commands, from wherever they are given.

Each option ``--claim-batch`` may also be given as PRINIA_CLAIM_BATCH in the environment, and as ``claim_batch`` in the
table ``[tool.prinia]`` of pyproject.toml, in the current folder or the nearest one above it that has such a file. The
command line goes before the environment, that before the file, and the file before the default. Where an option may be
repeated, the environment has its values separated by commas, and the file has a list. ::

    [tool.prinia]
    app = "shop.jobs:app"
    queues = ["email", "reports"]
    concurrency = 50
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.types import StringParamType

from prinia.cli.failing import Misuse

PREFIX = "PRINIA_"
TABLE = "[tool.prinia]"
#: Where the arguments of a command are found in ``context.meta``, as they were given.
GIVEN = "prinia.cli.given"


class SettingsCommand(click.Command):
    """A command with options and arguments that may also be set in the environment and in pyproject.toml."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            parameter.envvar = variable(str(parameter.name))
            if isinstance(parameter, click.Option):
                parameter.show_envvar = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Raises `Misuse` for settings in the file that are unknown, or of a wrong kind."""
        path, settings = find_settings(Path.cwd())
        given = list(args)
        if path is not None:
            _check(path, settings, self._known(parent))
        context = super().make_context(info_name, args, parent, default_map=settings, **extra)
        context.meta[GIVEN] = given
        return context

    def _known(self, parent: click.Context | None) -> Sequence[click.Parameter]:
        """What the file may set: what this command and the others of its kind take."""
        group = None if parent is None else parent.command
        commands = group.commands.values() if isinstance(group, click.Group) else ()
        others = [command for command in commands if isinstance(command, SettingsCommand) and command is not self]
        return [parameter for command in (*others, self) for parameter in command.params]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raises `Misuse` for a value that makes no sense, with the place where it stands."""
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            name = str(error.param.name) if error.param is not None else ""
            match ctx.get_parameter_source(name) if name else None:
                case ParameterSource.DEFAULT_MAP:
                    value = (ctx.default_map or {}).get(name)
                    raise Misuse(f"pyproject.toml: {TABLE} {name} = {value!r}: {error.message}") from error
                case ParameterSource.ENVIRONMENT:
                    value = os.environ.get(variable(name))
                    raise Misuse(f"{variable(name)}={value!r}: {error.message}") from error
            raise


class Names(StringParamType):
    """Texts; in the environment they are separated by commas."""

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Without the spaces around them."""
        return [name.strip() for name in rv.split(",") if name.strip()]


def variable(name: str) -> str:
    """The environment's name of a setting: ``claim_batch`` is PRINIA_CLAIM_BATCH."""
    return PREFIX + name.upper()


def find_settings(folder: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest pyproject.toml, in this folder or above, and what its ``[tool.prinia]`` has. Raises `Misuse`."""
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        if path.is_file():
            return path, _read(path)
    return None, {}


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file).get("tool", {}).get("prinia", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} cannot be read: {error}") from error
    except OSError as error:
        raise Misuse(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(table, dict):
        raise Misuse(f"{path}: {TABLE} must be a table")
    return table


def _check(path: Path, settings: Mapping[str, Any], parameters: Sequence[click.Parameter]) -> None:
    known = {str(parameter.name): parameter for parameter in parameters}
    for name, value in settings.items():
        if (parameter := known.get(name)) is None:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known))}"
            raise Misuse(f"{path}: {TABLE} has no setting {name!r}; {hint}")
        if not _fits(parameter, value):
            kind = "a list" if parameter.multiple else "true or false" if _is_flag(parameter) else "a text or a number"
            raise Misuse(f"{path}: {TABLE} {name} = {value!r} must be {kind}")


def _fits(parameter: click.Parameter, value: object) -> bool:
    if parameter.multiple:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if _is_flag(parameter):
        return isinstance(value, bool)
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_flag(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.is_flag
