"""Measuring one Python source file by parsing it."""

from __future__ import annotations

import ast
import io
import threading
import time
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KEPT_FUNCTIONS = 5
#: Python 3.11 counts how deep it is in a tree for all threads together, and raises SystemError when two get mixed up.
_PARSING = threading.Lock()


class UnreadableSource(ValueError):
    """The file's bytes are no text; the message has file and line."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method: its dotted name within the file, and how many lines it has."""

    name: str
    lines: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What is in a file, ``longest`` first of its functions, and how many ``seconds`` it took to find out."""

    file: str
    lines: int
    classes: int
    functions: int
    longest: tuple[Function, ...]
    seconds: float


def measure_file(path: Path) -> Measured:
    """Parse a file and count what is in it.

    Raises `SyntaxError`, which names file and line, `UnreadableSource`, or `OSError`.

    Example::

        measure_file(Path("setup.py")).functions
    """
    started = time.perf_counter()
    text = _read(path)
    with _PARSING:
        tree = ast.parse(text, filename=str(path))
    functions = list(_functions(tree, ""))
    return Measured(
        file=path.name,
        lines=text.count("\n") + (not text.endswith("\n") and text != ""),
        classes=sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree)),
        functions=len(functions),
        longest=tuple(sorted(functions, key=lambda one: (-one.lines, one.name))[:KEPT_FUNCTIONS]),
        seconds=time.perf_counter() - started,
    )


def _read(path: Path) -> str:
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UnreadableSource(
            f"byte 0x{data[error.start]:02x} is not {encoding} ({path.name}, line {line})"
        ) from error


def _functions(node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}" if prefix else child.name
            if not isinstance(child, ast.ClassDef):
                yield Function(name, (child.end_lineno or child.lineno) - child.lineno + 1)
        yield from _functions(child, name)
