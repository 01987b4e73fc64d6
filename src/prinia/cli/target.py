"""Finding the app that ``MODULE:APP`` names."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from prinia.app import Prinia
from prinia.cli.failing import Misuse, debugging

_PRINIA = os.path.join(os.path.dirname(sys.modules["prinia"].__file__ or ""), "")


def find_app(target: str) -> Prinia:
    """The app that ``shop.jobs:app`` names, or the only one in ``shop.jobs``.

    The current folder comes first when the module is looked for. Raises `Misuse` with what to write instead.
    """
    module_name, _, path = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _import(module_name, target)
    return _attribute(module, path, target) if path else _only_app(module)


def _import(name: str, target: str) -> ModuleType:
    if name.endswith(".py") or "/" in name or "\\" in name:
        dotted = name.removesuffix(".py").strip("./\\").replace("/", ".").replace("\\", ".")
        raise Misuse(f"{target!r} is a file; write the module: {dotted}:app")
    if not all(part.isidentifier() for part in name.split(".")):
        raise Misuse(f"{target!r} names no module; write it as in: prinia worker shop.jobs:app")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise Misuse(
                f"there is no module {error.name!r}, looked for in {os.getcwd()} and where Python's modules are"
            ) from error
        raise _broken(name, error) from error
    except SystemExit as error:
        raise Misuse(
            f"importing {name} ended the program: it calls sys.exit({error.code!r}){_place(error)}; keep that under: "
            f"if __name__ == '__main__'"
        ) from error
    except Exception as error:  # the app's own code runs here, and may raise anything
        if debugging():
            raise
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> Misuse:
    """The module is there and does not import: say where, in the module's own words."""
    where = "" if isinstance(error, SyntaxError) else _place(error)  # its own text says it
    return Misuse(f"importing {name} failed: {type(error).__name__}: {error}{where}; PRINIA_DEBUG=1 shows more")


def _place(error: BaseException) -> str:
    """The last line of the user's, or of a package of theirs, that the error came through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith(_PRINIA)
    ]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _attribute(module: ModuleType, path: str, target: str) -> Prinia:
    found: Any = module
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise Misuse(f"module {module.__name__} has no {path!r}.{_hint(module)}") from None
    if not isinstance(found, Prinia):
        raise Misuse(f"{target} is of type {type(found).__name__}, not a Prinia app.{_hint(module)}")
    return found


def _only_app(module: ModuleType) -> Prinia:
    apps = _apps(module)
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if apps:
        raise Misuse(f"module {module.__name__} has several apps; say which one:{_hint(module)}")
    raise Misuse(f"module {module.__name__} has no app; it needs: app = Prinia()")


def _apps(module: ModuleType) -> dict[str, Prinia]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Prinia)}


def _hint(module: ModuleType) -> str:
    apps = [f"{module.__name__}:{name}" for name in _apps(module)]
    return f" It has {', '.join(apps)}" if apps else " It has no app; it needs: app = Prinia()"
