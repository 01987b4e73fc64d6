"""How the demo shows itself: in plain lines, or with rich where that is installed and somebody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from prinia.cli.report import Section
from prinia.demo import run as demo

if TYPE_CHECKING:
    from rich.console import Console

#: Seconds between two plain lines of progress.
_LINE = 1.0
_ORDER = ("completed", "failed", "running", "ready", "retrying", "scheduled")


class Display(demo.Display, Protocol):
    """What the demo needs, and a way to show its report."""

    def report(self, sections: Sequence[Section], /) -> None:
        """The closing figures."""
        ...


def choose_display(*, progress_to_stderr: bool) -> Display:
    """A rich display in a terminal, if rich is there; else a plain one."""
    stream = sys.stderr if progress_to_stderr else sys.stdout
    if stream.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass
        else:
            return RichDisplay(Console(stderr=progress_to_stderr))
    return PlainDisplay(to_stderr=progress_to_stderr)


class PlainDisplay:
    """Lines of text, one a second while jobs run."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._to_stderr = to_stderr

    def say(self, text: str, /) -> None:
        """Print a line."""
        click.echo(text, err=self._to_stderr)

    @contextmanager
    def progress(self, total: int, /) -> Iterator[demo.ShowCounts]:
        """Print a line of counts once a second, and one for the end."""
        started = time.monotonic()
        shown = 0.0

        def show(counts: Mapping[str, int]) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= _LINE or demo.ended(counts) == total:
                shown = now
                self.say(f"  {now - started:4.1f} s  {demo.ended(counts):4}/{total}  {_in_words(counts)}")

        yield show

    def report(self, sections: Sequence[Section], /) -> None:
        """Print aligned columns."""
        for section in sections:
            self.say(f"\n{section.title}")
            widths = [max(map(len, column)) for column in zip(*section.rows, strict=True)]
            for row in section.rows:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                self.say(f"  {'  '.join(cells)}".rstrip())


class RichDisplay:
    """A bar while jobs run, and tables."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str, /) -> None:
        """Print a line; it may be copied, so it is not wrapped."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, total: int, /) -> Iterator[demo.ShowCounts]:
        """A bar that fills up."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task("", total=total)
            yield lambda counts: bar.update(task, completed=demo.ended(counts), description=_in_words(counts))

    def report(self, sections: Sequence[Section], /) -> None:
        """Print a table per section."""
        from rich.table import Table
        from rich.text import Text

        for section in sections:
            table = Table(title=section.title, title_justify="left", show_header=False)
            for row in section.rows:
                table.add_row(*map(Text, row))
            self._console.print(table)


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in _ORDER if counts.get(state))
