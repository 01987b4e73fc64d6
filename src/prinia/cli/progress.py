"""How far a long command is, on standard error: a bar of rich where somebody watches, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from prinia.wording import plural

#: Seconds: what is done before that shows nothing, and lines are that far apart.
FIRST, BETWEEN = 1.0, 5.0

#: Is told how many are done.
Show = Callable[[int], None]


@contextmanager
def progress(what: str, *, total: int | None = None) -> Iterator[Show]:
    """Shows how far it is, such as "cancel: 12,000 of 40,000 jobs"."""
    if sys.stderr.isatty() and _has_rich():
        with _bar(what, total) as show:
            yield show
    else:
        yield _lines(what, total)


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(what: str, total: int | None) -> Show:
    due = time.monotonic() + FIRST

    def show(done: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + BETWEEN
            click.echo(f"{what}: {plural(done, 'job') if total is None else f'{done:,} of {total:,} jobs'}", err=True)

    return show
