"""``prinia jobs``: list and show. What changes jobs is in `prinia.cli.operations`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from prinia.app import Prinia
from prinia.cli.choosing import Filters, filtered, refuse_age_with_cursor
from prinia.cli.database import choose_app, on_database
from prinia.cli.failing import Misuse
from prinia.cli.groups import ListingGroup
from prinia.cli.jobtext import job_facts, job_json, listed_json
from prinia.cli.output import print_facts, print_json, print_table
from prinia.cli.times import distance
from prinia.job import JobRecord, JobState
from prinia.query import MAX_PAGE, JobQuery
from prinia.selection import LIVE_STATES
from prinia.wording import span

_WAITING = LIVE_STATES - {JobState.RUNNING}
_HEADERS = ("id", "state", "task", "queue", "attempt", "enqueued", "time", "note")


class _Jobs(ListingGroup):
    """``prinia jobs 42`` is ``prinia jobs show 42``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["show", *args] if args and args[0].isdigit() else args)


@click.group(cls=_Jobs)
def jobs() -> None:
    """Look at jobs, and change them.

    Without a command it lists; `prinia jobs 42` shows job 42.
    """


@jobs.command("list", epilog="Example: prinia jobs list --queue email --state failed --finished-since 2h")
@filtered
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="So many at most.")
@click.option("--after", metavar="CURSOR", help="Go on where an earlier page with the same filters has ended.")
@click.option("--oldest-first", is_flag=True, help="By ascending id; else the newest are first.")
@click.option("--count", "counting", is_flag=True, help="Only say how many there are; ~ marks an estimate.")
@on_database
def list_jobs(
    filters: Filters, limit: int, after: str | None, oldest_first: bool, counting: bool, as_json: bool, **place: Any
) -> None:
    """List jobs, the newest first."""
    if counting and after is not None:
        raise Misuse("--count counts all jobs that meet the filters; leave --after out")
    refuse_age_with_cursor(filters, after)
    query = filters.query(choose_app(**place), oldest_first=oldest_first)
    if counting:
        count = query.count()
        if as_json:
            print_json({"count": count.number, "exact": count.exact})
        else:
            click.echo(str(count))
        return
    found, following = _read(query, after, limit)
    if as_json:
        conditions = query.selection.as_json()
        print_json({"jobs": list(map(listed_json, found)), "next": following, "conditions": conditions})
        return
    nothing = "There is no job." if query.selection.unconditional and after is None else "No job meets the filters."
    print_table(_HEADERS, [_row(job) for job in found], nothing=nothing)
    if following is not None:
        click.echo(f"More with: {' '.join([*filters.ages, '--after', following])}")


@jobs.command(epilog="Example: prinia jobs show 42")
@click.argument("id", type=int)
@on_database
def show(id: int, as_json: bool, **place: Any) -> None:
    """Show all that is known of a job: its times, errors with tracebacks, arguments and result."""
    app = choose_app(**place)
    job = app.get_job(id).info()
    owner = _owner(app, job)
    if as_json:
        print_json(job_json(job))
        return
    print_facts(job_facts(job, owner))
    if job.state in _WAITING:
        click.echo(f"\nWhy it waits: prinia explain {id}")


def _owner(app: Prinia, job: JobRecord) -> str | None:
    """The worker that runs it or has ended it, in words where that is still there."""
    if job.owner is None:
        return None
    for worker in app.workers():
        if worker.id == job.owner:
            return f"{worker.name} on {worker.host}, process {worker.pid} ({worker.id})"
    return str(job.owner)


def _read(query: JobQuery, after: str | None, limit: int) -> tuple[list[JobRecord], str | None]:
    """So many jobs, and the cursor of what follows. A page may end early where those that fit are rare."""
    found: list[JobRecord] = []
    while True:
        page = query.page(after=after, limit=min(limit - len(found), MAX_PAGE))
        found += page.jobs
        after = page.next
        if after is None or len(found) == limit:
            return found, after


def _row(job: JobRecord) -> tuple[str, ...]:
    attempts = f"{job.attempt}/{job.max_attempts}"
    return (
        str(job.id), job.state, job.task, job.queue, attempts, distance(job.created_at), _time(job), _note(job),
    )  # fmt: skip


def _time(job: JobRecord) -> str:
    """What a job's state makes worth knowing."""
    if job.finished_at is not None:
        return f"ended {distance(job.finished_at)}"
    if job.state is JobState.RUNNING and job.started_at is not None:
        return f"runs {_for(job.started_at)}"
    if job.scheduled_at is None:
        return ""
    return f"waits {_for(job.scheduled_at)}" if job.state is JobState.READY else f"due {distance(job.scheduled_at)}"


def _for(since: datetime) -> str:
    return span((datetime.now(UTC) - since).total_seconds())


def _note(job: JobRecord) -> str:
    """Why it ended so, or what went wrong last."""
    error = f"{job.errors[-1].kind}: {job.errors[-1].message}" if job.errors else ""
    if job.state in (JobState.FAILED, JobState.RETRYING) and error:
        return error
    return job.reason or ("" if job.state is JobState.COMPLETED else error)
