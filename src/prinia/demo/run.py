"""The demo from its start to its closing figures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg

from prinia.app import Prinia
from prinia.demo.crew import Crew, CrewError
from prinia.demo.figures import Figures, count_states, read_figures
from prinia.demo.material import gather
from prinia.demo.measure import Measured
from prinia.demo.place import Place, own_schema, own_server
from prinia.demo.tasks import QUEUE, SCHEMA_VARIABLE, register
from prinia.handle import Job
from prinia.job import JobState
from prinia.task import SyncTask

#: Before the many, so that the delayed job starts when it is due and not when its turn comes.
DELAYED_PRIORITY, URGENT_PRIORITY = 1, 50
#: Seconds between two looks at how far the jobs are, and after which standing still is taken for a fault.
LOOK, STANDSTILL = 0.2, 60.0

ShowCounts = Callable[[Mapping[str, int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do: ``limit`` files or all, in so many worker processes; ``delay`` (seconds) is for the delayed job."""

    limit: int | None = None
    workers: int = 2
    concurrency: int = 2
    delay: float = 3.0
    keep: bool = False
    database_url: str | None = None


class Display(Protocol):
    """Shows how it goes."""

    def say(self, text: str, /) -> None:
        """A line of text."""
        ...

    def progress(self, total: int, /) -> AbstractContextManager[ShowCounts]:
        """Something to hand the counts of jobs by state to, again and again."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures, and with ``keep`` lines of text on how to look around in what was kept."""

    figures: Figures
    kept: tuple[str, ...] = ()


def run_demo(plan: Plan, display: Display) -> Outcome:
    """Run the demo. It cleans up after itself, also when it is interrupted.

    Raises `PriniaError` when something is missing or a worker ended by itself.
    """
    with _place(plan) as place:
        app = Prinia(place.dsn, schema=place.schema)
        app.migrate()
        display.say(f"Tables made in schema {place.schema}.")
        figures = _Show(plan, display, place, app).run()
        return Outcome(figures, place.how_to_look_around() if plan.keep else ())


def _place(plan: Plan) -> AbstractContextManager[Place]:
    if plan.database_url is None:
        return own_server(keep=plan.keep)
    return own_schema(Prinia(plan.database_url).dsn, keep=plan.keep)


class _Show:
    """One run on a database that stands."""

    def __init__(self, plan: Plan, display: Display, place: Place, app: Prinia) -> None:
        self._plan = plan
        self._display = display
        self._place = place
        self._app = app
        self._measure: SyncTask[[str], Measured] = register(app)

    def run(self) -> Figures:
        with self._app, psycopg.connect(self._place.dsn, autocommit=True) as connection:
            material = gather(self._place.folder, limit=self._plan.limit)
            *many, later, soon = (*material.damaged, *material.healthy)
            started = time.monotonic()
            self._app.enqueue_many(self._measure.job(str(path)) for path in many)
            delayed = self._measure.options(delay=self._plan.delay, priority=DELAYED_PRIORITY).enqueue(str(later))
            self._display.say(
                f"{len(many) + 1} jobs enqueued in {time.monotonic() - started:.2f} s: one per source file of the "
                f"standard library, {len(material.damaged)} of them damaged copies, one due in {self._plan.delay:g} s."
            )
            urgent = self._work(connection, len(many) + 2, soon)
            self._say_result(urgent, soon)
            return read_figures(
                connection, schema=self._place.schema, queue=QUEUE, delayed=delayed.id, urgent=urgent.id,
                delay=self._plan.delay,
            )  # fmt: skip

    def _work(self, connection: psycopg.Connection[Any], total: int, soon: Path) -> Job[Measured]:
        """Have workers do it all; one more job is enqueued once they are at it."""
        plan = self._plan
        crew = Crew(
            plan.workers, concurrency=plan.concurrency, folder=self._place.folder, environment=self._environment()
        )
        self._display.say(f"{plan.workers} processes start: prinia worker prinia.demo.tasks:app -c {plan.concurrency}")
        urgent: Job[Measured] | None = None
        with crew, self._display.progress(total) as show:
            watch = _Watch(connection, self._place.schema, crew)
            while True:
                counts = watch.look()
                show(counts)
                if urgent is None and ended(counts) > 0:
                    urgent = self._measure.options(priority=URGENT_PRIORITY).enqueue(str(soon))
                elif urgent is not None and ended(counts) == total:
                    return urgent
                time.sleep(LOOK)

    def _environment(self) -> dict[str, str]:
        return os.environ | {"PRINIA_DATABASE_URL": self._place.dsn, SCHEMA_VARIABLE: self._place.schema}

    def _say_result(self, urgent: Job[Measured], path: Path) -> None:
        measured = urgent.result(timeout=0)
        self._display.say(
            f"job.result() of job {urgent.id} is a {type(measured).__name__}: {path.name} has {measured.lines} lines "
            f"and {measured.functions} functions."
        )


class _Watch:
    """Looks at how far the jobs are, and notices when they do not get further."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str, crew: Crew) -> None:
        self._connection = connection
        self._schema = schema
        self._crew = crew
        self._counts: dict[str, int] = {}
        self._changed = time.monotonic()

    def look(self) -> dict[str, int]:
        """The number of jobs by state. Raises `CrewError` when a worker ended, or when nothing goes on."""
        self._crew.check()
        counts = count_states(self._connection, self._schema, QUEUE)
        if counts != self._counts:
            self._counts, self._changed = counts, time.monotonic()
        elif time.monotonic() - self._changed > STANDSTILL:
            raise CrewError(f"no job has moved for {STANDSTILL:g} s; they are: {counts}")
        return counts


def ended(counts: Mapping[str, int]) -> int:
    """How many jobs are in a final state."""
    return sum(number for state, number in counts.items() if JobState(state).final)
