"""What the demo works on: the installed standard library, and three damaged copies of it made on the spot."""

from __future__ import annotations

import ast
import os
import sysconfig
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from prinia.errors import ConfigurationError

#: Folders with files that are broken on purpose, are no part of the library, or are installed by others.
_LEFT_OUT = {"test", "tests", "idle_test", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Material:
    """The files to measure: healthy ones in a fixed order, and the damaged ones."""

    healthy: tuple[Path, ...]
    damaged: tuple[Path, ...]


def gather(folder: Path, *, limit: int | None = None) -> Material:
    """All of the standard library, or its first ``limit`` files; the damaged copies are put into ``folder``.

    Raises `ConfigurationError` when this Python has no source files.
    """
    library = Path(sysconfig.get_path("stdlib"))
    healthy = tuple(islice(_sources(library), limit))
    if not healthy:
        raise ConfigurationError(f"this Python has no source files of its standard library in {library}")
    return Material(healthy, _damage(healthy, folder))


def _sources(library: Path) -> list[Path]:
    found = []
    for folder, folders, names in os.walk(library):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    return [path for path in found if os.access(path, os.R_OK)]


def _damage(healthy: tuple[Path, ...], folder: Path) -> tuple[Path, ...]:
    original = sorted(healthy, key=lambda path: path.stat().st_size)[len(healthy) // 2]
    lines = [f"# A copy of {original}\n".encode(), b"# with a damage in its middle.\n", *_lines(original)]
    middle = _start_of_statement(lines)
    before, after = b"".join(lines[:middle]), b"".join(lines[middle:])
    copies = {
        "cut_off.py": before + b'message = "this ends in the mid',
        "indented.py": before + b"first = 1\n  second = 2\n" + after,
        "not_text.py": before + b'drink = "caf\xff"\n' + after,
    }
    for name, data in copies.items():
        (folder / name).write_bytes(data)
    return tuple(folder / name for name in copies)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def _start_of_statement(lines: list[bytes]) -> int:
    """How many lines come before the statement in the middle, so that the damage is no part of a longer text."""
    statements = ast.parse(b"".join(lines)).body
    if not statements:
        return len(lines)
    chosen = statements[len(statements) // 2]
    lines_of: list[ast.expr | ast.stmt] = [*getattr(chosen, "decorator_list", []), chosen]
    return min(one.lineno for one in lines_of) - 1
