"""Importing the modules that tasks are in, with errors that say what is wrong, and where."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Sequence
from types import ModuleType

from prinia.errors import ConfigurationError

_PRINIA = os.path.join(os.path.dirname(__file__), "")


def check_modules(option: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names, if they can be names of modules. Raises `ConfigurationError`."""
    given: object = names  # which they should be, but may not
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise ConfigurationError(f"{option}={given!r} must be a list of modules, such as {option}=['shop.jobs']")
    for name in given:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigurationError(f"{option}: {name!r} is no name of a module; write it as in: shop.jobs")
    return tuple(names)


def import_module(name: str) -> ModuleType:
    """The module. Raises `ConfigurationError` when it is missing, when it fails, when it ends the program."""
    (name,) = check_modules("import", [name])
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"there is no module {error.name!r}{_wanted(name, error.name)}, looked for in {os.getcwd()} and where "
                f"Python's modules are"
            ) from error
        raise _broken(name, error) from error
    except SystemExit as error:
        raise ConfigurationError(
            f"importing {name} ended the program: it calls sys.exit({error.code!r}){_place(error)}; keep that under: "
            f"if __name__ == '__main__'"
        ) from error
    except Exception as error:  # the module's own code runs here, and may raise anything
        raise _broken(name, error) from error


def _wanted(name: str, missing: str) -> str:
    return "" if name == missing else f", which {name} is in"


def _broken(name: str, error: Exception) -> ConfigurationError:
    """The module is there and does not import: say where, in the module's own words."""
    where = "" if isinstance(error, SyntaxError) else _place(error)  # its own text says it
    return ConfigurationError(f"importing {name} failed: {type(error).__name__}: {error}{where}")


def _place(error: BaseException) -> str:
    """The last line of the user's, or of a package of theirs, that the error came through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(_PRINIA)
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
