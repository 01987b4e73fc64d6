"""The names that an application imports."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from types import ModuleType
from typing import get_origin

import pytest

import prinia
from prinia import errors


def test_all_is_what_is_exported_sorted() -> None:
    exported = {
        name
        for name, value in vars(prinia).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert set(prinia.__all__) == exported
    assert len(prinia.__all__) == len(set(prinia.__all__))
    constants = sorted(name for name in prinia.__all__ if name.isupper())
    assert prinia.__all__ == [*constants, *sorted(name for name in prinia.__all__ if not name.isupper())]


def test_the_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prinia.__version__ == metadata.version("prinia")

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert prinia.__version__ == "0+unknown"
    assert not hasattr(prinia, "__nothing__")


def test_every_error_is_exported() -> None:
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert names <= set(prinia.__all__)


def test_every_exported_name_has_a_docstring() -> None:
    named = {name: getattr(prinia, name) for name in prinia.__all__ if name != "INJECTED"}
    # A type alias cannot have one of its own.
    assert [name for name, it in named.items() if get_origin(it) is None and not it.__doc__] == []


def test_importing_prinia_imports_nothing_heavy() -> None:
    heavy = {"psycopg", "psycopg_pool", "click", "rich", "uvloop", "cronsim", "sqlalchemy", "asyncio"}
    code = "import sys, prinia; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in answer.stdout.split()}
    assert "prinia" in loaded
    assert loaded & heavy == set()
