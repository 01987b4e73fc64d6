"""``prinia demo``."""

from __future__ import annotations

import json
import logging
import signal
from dataclasses import asdict
from types import FrameType

import click

#: So few files are enough for the special jobs.
_FEWEST = 3


@click.command()
@click.option("--keep", is_flag=True, help="Leave the database, and say how to look around in it.")
@click.option("--files", "limit", type=click.IntRange(_FEWEST), metavar="N", help="Measure N files only.")
@click.option("--workers", type=click.IntRange(1, 16), default=2, show_default=True, metavar="N",
              help="How many worker processes to start.")  # fmt: skip
@click.option("--database-url", help="Use this database, in a scratch schema that is dropped at the end, instead of "
              "a server of its own.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the closing figures as JSON.")
def demo(keep: bool, limit: int | None, workers: int, database_url: str | None, as_json: bool) -> None:
    """See it work: measure every source file of Python's standard library, one job each.

    It starts a PostgreSQL server in a scratch folder and worker processes, and removes all of it at the end. Three
    damaged files fail on purpose, one job is due later, one overtakes the others.
    """
    from prinia.cli.display import choose_display
    from prinia.cli.report import sections
    from prinia.demo import Plan, run_demo

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    display = choose_display(progress_to_stderr=as_json)
    plan = Plan(limit=limit, workers=workers, keep=keep, database_url=database_url)
    try:
        outcome = run_demo(plan, display)
    except _Interrupted as interrupted:
        click.echo("prinia: interrupted; everything is cleaned up", err=True)
        click.get_current_context().exit(128 + interrupted.number)
    if as_json:
        click.echo(json.dumps(asdict(outcome.figures)))
    else:
        display.report(sections(outcome.figures))
    for line in ("", *outcome.kept) if outcome.kept else ():
        display.say(line)


class _Interrupted(BaseException):
    """A signal came. Not an `Exception`, so that nobody on the way takes it for an error of theirs."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Leave, cleaning up on the way; what comes after the first signal does not disturb that."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    # The driver may be cut off in the middle of a statement, and says so.
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)
    raise _Interrupted(number)
