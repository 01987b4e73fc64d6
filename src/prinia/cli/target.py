"""Finding the app that ``MODULE:APP`` names."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from prinia.app import Prinia
from prinia.cli.failing import Misuse, debugging
from prinia.discovery import import_module
from prinia.errors import ConfigurationError


def find_app(target: str) -> Prinia:
    """The app that ``shop.jobs:app`` names, or the only one in ``shop.jobs``.

    The current folder comes first when the module is looked for. Raises `Misuse` with what to write instead.
    """
    name, path = _split(target)
    module = import_kindly(name)
    return _attribute(module, path, target) if path else _only_app(module)


def find_folders(target: str) -> list[Path]:
    """Where the code of ``shop.jobs:app`` is, found without running any of it: this folder, and that of ``shop`` if it
    is neither in here nor installed by others. Raises `Misuse` when there is no ``shop``.
    """
    name, _ = _split(target)
    here = Path.cwd()
    spec = importlib.util.find_spec(name.partition(".")[0])
    if spec is None:
        import_kindly(name)  # says what is missing
        return [here]
    file = [os.path.dirname(spec.origin)] if spec.origin is not None and spec.has_location else []
    places = [Path(place) for place in spec.submodule_search_locations or file]
    return [here, *(place for place in places if here not in (place, *place.parents) and "-packages" not in str(place))]


def _split(target: str) -> tuple[str, str]:
    name, _, path = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if name.endswith(".py") or "/" in name or "\\" in name:
        dotted = name.removesuffix(".py").strip("./\\").replace("/", ".").replace("\\", ".")
        raise Misuse(f"{target!r} is a file; write the module: {dotted}:app")
    if not all(part.isidentifier() for part in name.split(".")):
        raise Misuse(f"{target!r} names no module; write it as in: prinia worker shop.jobs:app")
    return name, path


def import_kindly(name: str) -> ModuleType:
    """The module. Raises `Misuse` when it cannot be imported."""
    try:
        return import_module(name)
    except ConfigurationError as error:
        if debugging():
            raise
        hint = "; PRINIA_DEBUG=1 shows more" if str(error).startswith("importing") else ""
        raise Misuse(f"{error}{hint}") from error


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
