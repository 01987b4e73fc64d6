"""What commands print: JSON for programs, aligned columns for people, with rich where that is installed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import click
import msgspec

#: Above it a cell is cut in plain columns, where no terminal says how wide they may be.
_WIDEST = 60
_CONTROL = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f]")


def print_json(value: object) -> None:
    """One JSON document on one line: dataclasses as objects, times in ISO 8601, ids of workers as texts."""
    click.echo(msgspec.json.encode(value).decode())


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str) -> None:
    """Columns under their headers; with no rows the line ``nothing``, which says what there is none of."""
    if not rows:
        click.echo(nothing)
    elif not (sys.stdout.isatty() and _print_rich(headers, rows)):
        _print_plain(headers, rows)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """One fact a line, what it is and its value; a value of several lines stays under itself."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *more = printable(value).splitlines() or [""]
        click.echo(f"{name.ljust(width)}  {first}".rstrip())
        for line in more:
            click.echo(f"{'':{width}}  {line}")


def printable(text: str) -> str:
    """The text for a terminal: what would steer that is written out, as texts of errors and names may hold anything."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text.expandtabs())


def _print_plain(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cut = [[_cut(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    for row in cut:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cut(cell: str) -> str:
    line = " ".join(printable(cell).split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..."


def _print_rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether rich is there."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, header_style="bold" if "NO_COLOR" not in os.environ else "")
    for header in headers:
        table.add_column(header)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)
    return True
