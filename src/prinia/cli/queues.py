"""``prinia queues``, ``prinia pause``, ``prinia resume``."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import click

from prinia.app import Prinia
from prinia.changes import Pause
from prinia.cli.database import choose_app, on_database
from prinia.cli.failing import Misuse
from prinia.cli.groups import ListingGroup
from prinia.cli.output import print_json, print_table
from prinia.cli.stacking import stack
from prinia.cli.times import shown
from prinia.cli.who import by_somebody
from prinia.job import JobState
from prinia.overview import QueueRecord
from prinia.wording import span

#: These have a column always, the others where a queue has jobs in them.
_ALWAYS = frozenset((JobState.READY, JobState.RUNNING))


@click.group(cls=ListingGroup)
def queues() -> None:
    """Look at queues, pause and resume them.

    Without a command it lists.
    """


@queues.command("list", epilog="Example: prinia queues")
@on_database
def list_queues(as_json: bool, **place: Any) -> None:
    """List queues: how many jobs in which state (~ marks an estimate), who serves them, what is paused."""
    app = choose_app(**place)
    found, pauses = app.queues(), app.pauses()
    if as_json:
        print_json({"queues": list(map(_queue_json, found)), "pauses": pauses})
        return
    states = [state for state in JobState if state in _ALWAYS or any(state in queue.counts for queue in found)]
    headers = ("queue", *states, "oldest ready", "workers", "note")
    print_table(headers, [_row(queue, states) for queue in found], nothing="There is no queue.")
    for pause in pauses:
        if pause.kind != "queue":
            click.echo(f"Paused: {_words(pause.kind, pause.name)}, {_since(pause)}")


def _queue_json(queue: QueueRecord) -> dict[str, Any]:
    return {**asdict(queue), "unserved": queue.unserved}


def _row(queue: QueueRecord, states: Sequence[JobState]) -> tuple[str, ...]:
    counts = (str(queue.counts[state]) if state in queue.counts else "0" for state in states)
    age = "" if queue.age is None else span(queue.age)
    notes = ["paused"] if queue.paused else []
    if queue.unserved:
        notes.append("nobody serves it")
    return (queue.name, *counts, age, str(len(queue.workers)), ", ".join(notes))


def _since(pause: Pause) -> str:
    return f"since {shown(pause.at)}{'' if pause.by is None else f' by {pause.by}'}"


#: What pause and resume take.
_pausing = stack(
    click.argument("queues", nargs=-1, metavar="[QUEUE]..."),
    click.option("--queue", "-q", "more_queues", multiple=True, metavar="QUEUE", help="The same as QUEUE."),
    click.option("--task", "tasks", multiple=True, metavar="TASK", help="The jobs of this task; may be repeated."),
    click.option("--all", "everything", is_flag=True, help="Everything: all queues, all tasks."),
    by_somebody,
    on_database,
)


@click.command(epilog="Examples: prinia pause email; prinia pause --task send; prinia pause --all")
@_pausing
def pause(
    queues: Sequence[str], more_queues: Sequence[str], tasks: Sequence[str], everything: bool, by: str, as_json: bool,
    **place: Any,
) -> None:  # fmt: skip
    """Let no job of a queue, of a task, or at all start any more.

    Running ones go on, and jobs can be enqueued. Each pause is by itself: a job starts when neither its queue, nor its
    task, nor everything is paused.
    """
    targets = _targets((*queues, *more_queues), tasks, everything)
    app = choose_app(**place)
    done = [{**target, "new": app.pause(**target, by=by)} for target in targets]
    for target in targets:
        _warn_of_unknown(app, target)
    _tell(done, "paused", "was paused already", as_json)


@click.command(epilog="Examples: prinia resume email; prinia resume --task send; prinia resume --all")
@_pausing
def resume(
    queues: Sequence[str], more_queues: Sequence[str], tasks: Sequence[str], everything: bool, by: str, as_json: bool,
    **place: Any,
) -> None:  # fmt: skip
    """Undo a pause of the same queue, of the same task, or of everything.

    --all undoes a pause of everything; queues and tasks that were paused by themselves stay paused.
    """
    targets = _targets((*queues, *more_queues), tasks, everything)
    app = choose_app(**place)
    done = [{**target, "new": app.resume(**target, by=by)} for target in targets]
    _tell(done, "goes on", "was not paused", as_json)
    if not as_json and (pauses := app.pauses()):
        click.echo(f"Still paused: {', '.join(_words(one.kind, one.name) for one in pauses)}")


queues.add_command(pause)
queues.add_command(resume)


def _targets(queues: Sequence[str], tasks: Sequence[str], everything: bool) -> list[dict[str, Any]]:
    """What is meant, as the app wants it."""
    if everything and (queues or tasks):
        raise Misuse("--all is for everything; leave it out, or the queues and tasks")
    targets: list[dict[str, Any]] = [{"everything": True}] if everything else []
    targets += [{"queue": name} for name in dict.fromkeys(queues)]
    targets += [{"task": name} for name in dict.fromkeys(tasks)]
    if not targets:
        raise Misuse("say what: QUEUE, --task TASK, or --all")
    return targets


def _tell(done: Sequence[dict[str, Any]], new: str, old: str, as_json: bool) -> None:
    if as_json:
        print_json({"done": done})
        return
    for target in done:
        kind, name = next((kind, str(name)) for kind, name in target.items() if kind != "new")
        click.echo(f"{_words(kind, '' if kind == 'everything' else name)} {new if target['new'] else old}")


def _words(kind: str, name: str) -> str:
    return f"{kind} {name}" if name else kind


def _warn_of_unknown(app: Prinia, target: dict[str, Any]) -> None:
    """A name that nobody has heard of may be a slip; it may be paused all the same, before its first job."""
    if name := target.get("queue"):
        kind, known = "queue", {queue.name for queue in app.queues(limit=1) if queue.counts or queue.workers}
        known.update(task.queue for task in app.tasks.values())
        heard = name in known
    elif name := target.get("task"):
        kind, known = "task", {*app.tasks, *(task for worker in app.workers() for task in worker.tasks)}
        heard = name in known or bool(app.jobs(task=name).page(limit=1).jobs)
    else:
        return
    if not heard:
        click.echo(f"prinia: no job and no worker has {kind} {name!r}{_meant(name, known)}", err=True)


def _meant(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
