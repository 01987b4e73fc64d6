"""``prinia jobs cancel``, ``retry``, ``run``, ``reschedule``, ``reprioritise``, ``move``, ``delete``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial, wraps
from typing import Any, Protocol

import click

from prinia.changes import Operated
from prinia.cli.choosing import Filters, filtered
from prinia.cli.database import choose_app, connected, on_database
from prinia.cli.failing import FAILED, Failure, Misuse
from prinia.cli.output import print_json
from prinia.cli.progress import progress
from prinia.cli.stacking import stack
from prinia.cli.times import checked, read_duration, read_time
from prinia.cli.who import by_somebody
from prinia.course import Progress
from prinia.job import MAX_PRIORITY, MIN_PRIORITY
from prinia.query import JobQuery

_EXIT_CODES = (
    "Exit codes: 0 done, jobs that were skipped for a reason and filters that match nothing included; 1 an id does not "
    "exist, or a job was locked by somebody for too long; the others are done all the same."
)


class _Operation(Protocol):
    """A method of `JobQuery` with its values."""

    def __call__(self, query: JobQuery, /, *, by: str, dry_run: bool, progress: Progress) -> Operated: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command was asked to change, and how. ``place`` says where the jobs are."""

    ids: Sequence[int]
    filters: Filters
    everything: bool
    dry_run: bool
    yes: bool
    by: str
    as_json: bool
    place: dict[str, str | None]

    @property
    def agreed(self) -> bool:
        """Whether nobody has to be asked. Filters beside ids only make it fewer jobs than were named."""
        return bool(self.ids) or self.yes or self.dry_run


def operates(function: Callable[..., None]) -> Callable[..., None]:
    """The command takes ``asked``, and what options of its own it has."""

    @wraps(function)
    def command(
        named: Sequence[int], filters: Filters, everything: bool, dry_run: bool, yes: bool, by: str, as_json: bool,
        app: str | None, database_url: str | None, schema: str | None, **values: Any,
    ) -> None:  # fmt: skip
        place = {"app": app, "database_url": database_url, "schema": schema}
        ids = (*named, *filters.ids)
        asked = Asked(
            ids=ids, filters=filters, everything=everything, dry_run=dry_run, yes=yes, by=by, as_json=as_json,
            place=place,
        )  # fmt: skip
        function(asked, **values)

    return _options(command)


def _epilog(example: str) -> str:
    return f"Example: prinia jobs {example}. {_EXIT_CODES}"


_options = stack(
    click.argument("named", type=int, nargs=-1, metavar="[ID]..."),
    filtered,
    click.option("--all", "everything", is_flag=True, help="All jobs there are, instead of filters."),
    click.option("--dry-run", is_flag=True, help="Only say what it would change."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask; needed for filters where no terminal is."),
    by_somebody,
    on_database,
)


@click.command(epilog=_epilog("cancel --queue email --created-before 1d"))
@operates
def cancel(asked: Asked) -> None:
    """Cancel jobs.

    Those that wait end as cancelled, running ones are told.
    """
    _carry_out(asked, "cancel", JobQuery.cancel)


@click.command(epilog=_epilog("retry --state failed --error SMTPError --finished-since 2h"))
@operates
def retry(asked: Asked) -> None:
    """Run failed jobs again, and those at once that wait for their next attempt.

    Cancelled and completed jobs only where --state says so, ids or not.
    """
    _carry_out(asked, "retry", JobQuery.retry)


@click.command(epilog=_epilog("run 42"))
@operates
def run(asked: Asked) -> None:
    """Let jobs that are scheduled or retrying be due now."""
    _carry_out(asked, "run", JobQuery.run_now)


@click.command(epilog=_epilog("reschedule --queue reports --state ready --delay 2h"))
@click.option("--at", metavar="TIME", callback=checked(read_time), help="Due then, such as 2026-12-01T09:30Z.")
@click.option("--delay", metavar="SPAN", callback=checked(read_duration), help="Due so long from now, such as 90s, 2h.")
@operates
def reschedule(asked: Asked, at: datetime | None, delay: float | None) -> None:
    """Let jobs that wait be due at another time."""
    if (at is None) == (delay is None):
        raise Misuse("say when: --at TIME or --delay SPAN, one of the two")
    _carry_out(asked, "reschedule", partial(JobQuery.reschedule, at=at, delay=delay))


@click.command(epilog=_epilog("reprioritise 42 --priority 50"))
@click.option("--priority", type=click.IntRange(MIN_PRIORITY, MAX_PRIORITY), required=True, metavar="N",
              help="From -100 to 100, bigger first.")  # fmt: skip
@operates
def reprioritise(asked: Asked, priority: int) -> None:
    """Give jobs that wait another priority."""
    _carry_out(asked, "reprioritise", partial(JobQuery.reprioritise, priority=priority))


@click.command(epilog=_epilog("move --queue email --task newsletter --to bulk"))
@click.option("--to", required=True, metavar="QUEUE", help="The queue they are put in, behind those that wait there.")
@operates
def move(asked: Asked, to: str) -> None:
    """Put jobs that wait in another queue."""
    _carry_out(asked, "move", partial(JobQuery.move, queue=to))


@click.command(epilog=_epilog("delete --state completed --tag trial"))
@operates
def delete(asked: Asked) -> None:
    """Delete jobs that wait or have ended, with all that is known of them. Nothing brings them back."""
    _carry_out(asked, "delete", JobQuery.delete)


#: All of them, for the group.
OPERATIONS = (cancel, retry, run, reschedule, reprioritise, move, delete)


def _carry_out(asked: Asked, name: str, operation: _Operation) -> None:
    """Do it, after asking where somebody has to be asked, and say what was done."""
    _check(asked, name)
    with connected(choose_app(**asked.place)) as app:
        query = asked.filters.query(app, ids=asked.ids, everything=asked.everything)
        if asked.agreed:
            done = _do(asked, name, operation, query, dry_run=asked.dry_run)
        else:
            done = _do(asked, name, operation, query, dry_run=True)
            if done.changed:
                click.echo(f"{name}: {done}", err=True)
                if not click.confirm("Go on?", err=True):
                    raise Failure("nothing was changed")
                done = _do(asked, name, operation, query, dry_run=False, total=done.matched)
    _tell(asked, name, done)


def _check(asked: Asked, name: str) -> None:
    named = asked.filters.given or asked.ids
    if asked.everything and named:
        raise Misuse("--all is for all jobs there are; leave it out, or the ids and filters")
    if not asked.everything and not named:
        raise Misuse("say which jobs: their ids, filters such as --queue or --state, or --all")
    if not asked.agreed and not sys.stdin.isatty():
        raise Misuse(
            f"{name} by filters asks first, and here is no terminal: write --yes to do it, or --dry-run to see what it "
            "would change; nothing was changed"
        )


def _do(
    asked: Asked, name: str, operation: _Operation, query: JobQuery, *, dry_run: bool, total: int | None = None
) -> Operated:
    seen = Operated()
    with progress(f"{name} (dry run)" if dry_run else name, total=total) as show:

        def hear(so_far: Operated) -> None:
            nonlocal seen
            seen = so_far
            show(so_far.matched)

        try:
            return operation(query, by=asked.by, dry_run=dry_run, progress=hear)
        except KeyboardInterrupt:
            if seen.changed and not dry_run:
                click.echo(f"prinia: {seen}; that stays, and the same command does the rest", err=True)
            raise


def _tell(asked: Asked, name: str, done: Operated) -> None:
    if asked.as_json:
        print_json({"operation": name, **asdict(done)})
    else:
        click.echo(str(done))
    if done.missing or "locked" in done.skipped:
        click.get_current_context().exit(FAILED)
