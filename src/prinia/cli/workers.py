"""``prinia workers``: who works, and a word to single ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from prinia.app import Prinia
from prinia.cli.database import choose_app, on_database
from prinia.cli.groups import ListingGroup
from prinia.cli.instances import find_worker, short_ids
from prinia.cli.output import print_json, print_table
from prinia.cli.stacking import stack
from prinia.cli.who import by_somebody
from prinia.overview import WorkerRecord
from prinia.wording import span

_HEADERS = (
    "instance", "name", "host", "pid", "run", "queues", "running", "heard", "listener", "lag", "blocked", "note",
)  # fmt: skip
_INSTANCES = "INSTANCE is its id, the beginning of that, or its name where no other worker has it."


@click.group(cls=ListingGroup)
def workers() -> None:
    """Look at workers; let single ones be quiet, pause, go on, stop.

    Without a command it lists.
    """


@workers.command("list", epilog="Example: prinia workers")
@on_database
def list_workers(as_json: bool, **place: Any) -> None:
    """List workers: where they run, what they serve and run, when they were heard of, what they were told."""
    found = choose_app(**place).workers()
    if as_json:
        print_json({"workers": found})
        return
    ids = short_ids(found)
    rows = [_row(worker, ids[worker.id]) for worker in found]
    print_table(_HEADERS, rows, nothing="No worker is on the register. Start one: prinia worker MODULE:APP")


def _row(worker: WorkerRecord, id: str) -> tuple[str, ...]:
    note = f"told to {worker.command}" if worker.command is not None else ""
    return (
        id, worker.name, worker.host, str(worker.pid), str(worker.run), ", ".join(worker.queues),
        f"{len(worker.running)}/{worker.concurrency}", f"{span(worker.beat_age)} ago", worker.listener or "",
        _milliseconds(worker.lag), _milliseconds(worker.blocked),
        note if worker.alive else "declared dead, its jobs come back",
    )  # fmt: skip


def _milliseconds(seconds: float | None) -> str:
    """Below a second the thousandths count."""
    if seconds is None:
        return ""
    return f"{seconds * 1000:.0f}ms" if seconds < 1 else span(seconds)


#: What all of them take.
_telling = stack(click.argument("instances", nargs=-1, required=True, metavar="INSTANCE..."), by_somebody, on_database)


@workers.command(epilog=_INSTANCES)
@_telling
def quiet(instances: Sequence[str], by: str, as_json: bool, **place: Any) -> None:
    """Let a worker claim nothing more, and run to the end what it has claimed."""
    _say(Prinia.quiet_worker, "quiet", instances, by, as_json, place)


@workers.command(epilog=_INSTANCES)
@_telling
def pause(instances: Sequence[str], by: str, as_json: bool, **place: Any) -> None:
    """Let a worker claim nothing more, and hand back what it has not started."""
    _say(Prinia.pause_worker, "pause", instances, by, as_json, place)


@workers.command(epilog=_INSTANCES)
@_telling
def resume(instances: Sequence[str], by: str, as_json: bool, **place: Any) -> None:
    """Let a worker go on that was told to be quiet or to pause."""
    _say(Prinia.resume_worker, "resume", instances, by, as_json, place)


@workers.command(epilog=_INSTANCES)
@_telling
def stop(instances: Sequence[str], by: str, as_json: bool, **place: Any) -> None:
    """Stop a worker in order, as SIGTERM would. It cannot be taken back."""
    _say(Prinia.stop_worker, "stop", instances, by, as_json, place)


def _say(
    tell: Callable[..., bool], command: str, instances: Sequence[str], by: str, as_json: bool, place: dict[str, Any]
) -> None:
    app = choose_app(**place)
    found = app.workers()
    # All are found before the first is told.
    meant = {worker.id: worker for worker in [find_worker(found, one) for one in instances]}
    told = {id: tell(app, id, by=by) for id in meant}
    if as_json:
        done = [{"instance": id, "name": meant[id].name, "new": new} for id, new in told.items()]
        print_json({"command": command, "workers": done})
        return
    for id, new in told.items():
        words = f"told to {command}" if new else _known(meant[id], command)
        click.echo(f"{meant[id].name} on {meant[id].host}, process {meant[id].pid} ({id}): {words}")


def _known(worker: WorkerRecord, command: str) -> str:
    return "was not told anything" if command == "resume" else f"was told to {worker.command or command} already"
