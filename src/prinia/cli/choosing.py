"""Which jobs a command is about: the options that say it, and the query that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any
from uuid import UUID

import click

from prinia.app import Prinia
from prinia.cli.failing import Misuse
from prinia.cli.instances import find_worker, read_id
from prinia.cli.stacking import stack
from prinia.cli.times import Moment, checked, read_moment
from prinia.query import JobQuery

_WHEN = {
    "created_since": "Enqueued then or later: a time, or an age such as 2h or 3d.",
    "created_before": "Enqueued before.",
    "finished_since": "Ended then or later.",
    "finished_before": "Ended before.",
}
_options = stack(
    click.option("--id", "ids", type=int, multiple=True, metavar="ID", help="The job of this id; may be repeated, as "
                 "the next ones may: one of those given must fit."),
    click.option("--queue", "-q", "queue", multiple=True, metavar="QUEUE", help="In this queue."),
    click.option("--task", "task", multiple=True, metavar="TASK", help="Of this task."),
    click.option("--state", "state", multiple=True, metavar="STATE", help="In this state: scheduled, ready, running, "
                 "retrying, blocked, completed, failed or cancelled."),
    click.option("--worker", "worker", multiple=True, metavar="INSTANCE", help="That this worker runs, or has ended: "
                 "an instance's id, or of a live one the beginning or its name."),
    click.option("--error", "error", multiple=True, metavar="KIND", help="Whose latest error is of this kind, such as "
                 "ValueError."),
    click.option("--tag", "tag", multiple=True, metavar="TAG", help="With this tag; repeated, with all of them."),
    *(click.option(f"--{name.replace('_', '-')}", name, metavar="TIME", callback=checked(read_moment), help=text)
      for name, text in _WHEN.items()),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What the options said."""

    ids: Sequence[int] = ()
    queue: Sequence[str] = ()
    task: Sequence[str] = ()
    state: Sequence[str] = ()
    worker: Sequence[str] = ()
    error: Sequence[str] = ()
    tag: Sequence[str] = ()
    created_since: Moment | None = None
    created_before: Moment | None = None
    finished_since: Moment | None = None
    finished_before: Moment | None = None

    @property
    def given(self) -> bool:
        """Whether there is any, ids apart."""
        lists = (self.queue, self.task, self.state, self.worker, self.error, self.tag)
        return any(lists) or any(getattr(self, name) is not None for name in _WHEN)

    @property
    def ages(self) -> list[str]:
        """The options for times that were given as ages, as they would be given for the same jobs later."""
        moments = {name: getattr(self, name) for name in _WHEN}
        return [
            f"--{name.replace('_', '-')} {moment.at.isoformat()}"
            for name, moment in moments.items()
            if moment is not None and moment.age
        ]

    def query(
        self, app: Prinia, *, ids: Sequence[int] = (), oldest_first: bool = False, everything: bool = False
    ) -> JobQuery:
        """The jobs that meet them all; ``ids`` go before those of the filters.

        Raises `InvalidQuery`, and `Misuse` or `Failure` for a worker that is not one.
        """
        return app.jobs(
            oldest_first=oldest_first,
            everything=everything,
            ids=ids or self.ids or None,
            queue=self.queue or None,
            task=self.task or None,
            state=self.state or None,
            instance=self._instances(app) or None,
            error=self.error or None,
            tag=self.tag or None,
            created_since=_at(self.created_since),
            created_before=_at(self.created_before),
            finished_since=_at(self.finished_since),
            finished_before=_at(self.finished_before),
        )

    def _instances(self, app: Prinia) -> list[UUID]:
        """Those that have ended are known by their ids alone."""
        ids = {one: read_id(one) for one in self.worker}
        workers = [] if all(ids.values()) else app.workers()
        return [id or find_worker(workers, one).id for one, id in ids.items()]


def filtered(function: Callable[..., None]) -> Callable[..., None]:
    """The command takes ``filters``."""

    @wraps(function)
    def command(*args: Any, **given: Any) -> None:
        filters = Filters(**{name: given.pop(name) for name in Filters.__dataclass_fields__})
        function(*args, filters=filters, **given)

    return _options(command)


def refuse_age_with_cursor(filters: Filters, after: str | None) -> None:
    """A page goes on among the same jobs; an age would make others of them. Raises `Misuse`."""
    if after is not None and (ages := filters.ages):
        option = ages[0].split()[0]
        raise Misuse(
            f"{option}: an age is another moment now than it was for the page before; give the time that was shown "
            "with --after there"
        )


def _at(moment: Moment | None) -> datetime | None:
    return None if moment is None else moment.at
