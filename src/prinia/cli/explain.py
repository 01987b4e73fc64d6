"""``prinia explain``."""

from __future__ import annotations

from typing import Any

import click

from prinia.cli.database import choose_app, on_database
from prinia.cli.jobtext import listed_json
from prinia.cli.output import print_json
from prinia.explanation import Explanation
from prinia.job import JobRecord


@click.command(epilog="Example: prinia explain 42. Exit codes: 0 whatever the reasons, 1 the database cannot be asked.")
@click.argument("id", type=int)
@on_database
def explain(id: int, as_json: bool, **place: Any) -> None:
    """Say why a job does not run, and what to do.

    What somebody has to mend comes first.
    """
    explanation = choose_app(**place).explain(id)
    if as_json:
        print_json(_document(explanation))
        return
    if explanation.job is not None:
        click.echo(_heading(explanation.job))
    for reason in explanation.reasons:
        click.echo(reason.code)
        click.echo(f"    {reason.text}")
        click.echo(f"    -> {reason.advice}")


def _document(explanation: Explanation) -> dict[str, Any]:
    """Without the job's arguments and result, which are its owner's data."""
    job = None if explanation.job is None else listed_json(explanation.job)
    return {"id": explanation.id, "at": explanation.at, "job": job, "reasons": explanation.reasons}


def _heading(job: JobRecord) -> str:
    return f'job {job.id}: {job.task} in queue "{job.queue}", {job.state}'
