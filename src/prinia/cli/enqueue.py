"""``prinia enqueue``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from prinia.app import Prinia
from prinia.cli.database import settled_app
from prinia.cli.failing import FAILED, Misuse
from prinia.cli.jobtext import data_text, job_json
from prinia.cli.output import print_json
from prinia.cli.progress import Show, progress
from prinia.cli.settings import Names, find_settings, variable
from prinia.cli.target import find_app, import_kindly
from prinia.cli.times import checked, read_duration, read_time
from prinia.errors import ConfigurationError, DecodeError, InvalidArguments, PayloadTooLarge, ResultError
from prinia.handle import Job
from prinia.job import MAX_PRIORITY, MIN_PRIORITY
from prinia.newjob import NewJob
from prinia.options import MAX_ATTEMPTS
from prinia.task import Task
from prinia.wording import plural

_STDIN = "-"
_SPAN = "A time span is seconds, or has a unit: 90s, 15m, 2h, 3d."
_EPILOG = (
    """Examples: prinia enqueue send '{"to": "ada"}' --queue urgent; prinia enqueue send - < arguments.jsonl. """
    f"{_SPAN} Exit codes: 0 enqueued, and with --wait completed; 1 it could not be, or did not complete in time; 2 "
    "wrong usage: nothing was enqueued."
)


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"{text!r} is no JSON object: {error}") from None


@click.command(epilog=_EPILOG)
@click.argument("task")
@click.argument("arguments", required=False, default="{}", metavar="[ARGUMENTS]")
@click.option("--queue", "-q", metavar="QUEUE", help="Into this queue; else into the task's.")
@click.option("--delay", metavar="SPAN", callback=checked(read_duration), help="Due so long from now.")
@click.option("--at", "scheduled_at", metavar="TIME", callback=checked(read_time),
              help="Due then, such as 2026-12-01T09:30Z.")  # fmt: skip
@click.option("--expires", metavar="SPAN", callback=checked(read_duration), help="Not started later than so long from "
              "now.")  # fmt: skip
@click.option("--priority", type=click.IntRange(MIN_PRIORITY, MAX_PRIORITY), metavar="N",
              help="From -100 to 100, bigger first.")  # fmt: skip
@click.option("--max-attempts", type=click.IntRange(1, MAX_ATTEMPTS), metavar="N", help="How often it may fail.")
@click.option("--timeout", metavar="SPAN", callback=checked(read_duration), help="How long an attempt may take.")
@click.option("--unique", metavar="KEY", help="No second job of the task with this key while one is live.")
@click.option("--unique-for", metavar="SPAN", callback=checked(read_duration), help="With --unique: for so long.")
@click.option("--on-conflict", type=click.Choice(["keep", "raise", "replace"]), help="With --unique: what to do when "
              "the key is taken.")  # fmt: skip
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag; may be repeated.")
@click.option("--meta", metavar="OBJECT", callback=checked(_object), help="A JSON object for your own use.")
@click.option("--wait", metavar="SPAN", callback=checked(read_duration), help="Wait so long for the result.")
@click.option("--app", metavar="MODULE:APP", help="The app; else PRINIA_APP, else app in [tool.prinia] of "
              "pyproject.toml. The job goes to its database.")  # fmt: skip
@click.option("--import", "imports", multiple=True, metavar="MODULE", type=Names(), envvar=variable("imports"),
              help="Import this module too, for its tasks; may be repeated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def enqueue(
    task: str, arguments: str, wait: float | None, app: str | None, imports: Sequence[str], as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Enqueue a job of a task of the app, or many.

    ARGUMENTS is a JSON object of them by name, or an array by position; - reads one such line for each job from
    standard input, and enqueues all of them or none.
    """
    if wait is not None and arguments == _STDIN:
        raise Misuse("--wait is for a single job; leave it out")
    chosen = _choose_app(app, imports)
    told = _find_task(chosen, task).options(
        **{name: value for name, value in options.items() if value not in (None, ())}
    )
    if arguments == _STDIN:
        _enqueue_many(chosen, told, as_json)
        return
    [job] = chosen.enqueue_many([_make(told, os.fsencode(arguments))])
    if wait is not None:
        _wait(chosen, job, wait, as_json)
    elif as_json:
        print_json({"id": job.id, "created": job.created})
    else:
        click.echo(_enqueued(job))


def _choose_app(app: str | None, imports: Sequence[str]) -> Prinia:
    path, settings = find_settings(Path.cwd())
    modules = imports or settings.get("imports", ())
    if not isinstance(modules, list | tuple):
        raise Misuse(f"{path}: [tool.prinia] imports = {modules!r} must be a list")
    target = app or settled_app()
    if target is None:
        raise Misuse("which app has the task? Write --app MODULE:APP, or set PRINIA_APP, or app in [tool.prinia]")
    chosen = find_app(target)
    for module in modules:
        import_kindly(str(module))
    chosen.import_tasks()
    return chosen


def _find_task(app: Prinia, name: str) -> Task[..., Any]:
    try:
        return app.get_task(name)
    except ConfigurationError as error:
        raise Misuse(str(error)) from error


def _make(task: Task[..., Any], text: bytes) -> NewJob[Any]:
    """The job of these arguments. Raises `Misuse`, which says what the task takes."""
    shown = f"{task.name}{task.definition.signature.shown}"
    try:
        data = _by_name(task, text)
        job: NewJob[Any] = task.job_encoded(data, codec="json")
        # What encodes the task's jobs may also keep them secret.
        return job if task.definition.arguments.coder.name == "json" else task.job(**task.decode("json", data))
    except (InvalidArguments, PayloadTooLarge) as error:
        raise Misuse(f"{error}. The task is {shown}") from error


def _by_name(task: Task[..., Any], text: bytes) -> bytes:
    """Arguments by name, to the letter. Raises `InvalidArguments`."""
    try:
        given = msgspec.json.decode(text, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        shown = ascii(text[:80].decode(errors="replace"))
        raise InvalidArguments(f"{shown} is no JSON object and no array of arguments: {error}") from None
    if isinstance(given, dict):
        return text
    names = list(task.definition.signature.positional)
    if len(given) > len(names):
        raise InvalidArguments(f"{len(given)} arguments are given by position, and {len(names)} at most can be")
    return msgspec.json.encode(dict(zip(names, given, strict=False)))


def _enqueued(job: Job[Any]) -> str:
    return f"job {job.id} enqueued" if job.created else f"job {job.id} has the unique key already"


def _enqueue_many(app: Prinia, task: Task[..., Any], as_json: bool) -> None:
    with progress("enqueue") as show:
        jobs = app.enqueue_many(_read(task, sys.stdin.buffer, show))
    there = sum(not job.created for job in jobs)
    if as_json:
        print_json({"enqueued": len(jobs) - there, "jobs": [{"id": job.id, "created": job.created} for job in jobs]})
    else:
        ids = f": {jobs[0].id} to {jobs[-1].id}" if jobs and not there else ""
        kept = f"; {plural(there, 'unique key')} taken already" if there else ""
        click.echo(f"{plural(len(jobs) - there, 'job')} enqueued{ids}{kept}")


def _read(task: Task[..., Any], lines: Iterable[bytes], show: Show) -> Iterator[NewJob[Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _make(task, line.strip())
            except Misuse as error:
                raise Misuse(f"line {number}: {error.message}; nothing was enqueued") from error
        show(number)


def _wait(app: Prinia, job: Job[Any], seconds: float, as_json: bool) -> None:
    failure: ResultError | DecodeError | None = None
    try:
        job.result(timeout=seconds)
    except (ResultError, DecodeError) as error:
        failure = error
    record = job.info()
    if as_json:
        print_json({"created": job.created, **job_json(record)})
    elif failure is None:
        click.echo(f"job {job.id} completed: {data_text(record.result, record.codec, none='null')}")
    else:
        click.echo(_enqueued(job))
    if failure is not None:
        click.echo(f"prinia: {failure}", err=True)
        click.get_current_context().exit(FAILED)
