"""The closing figures, read from the archive by SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

_COUNTS = "select state, count(*) from {schema}.all_jobs where queue = %(queue)s group by state"

# A job is claimed a little before a thread takes it up, so the archive's times alone would count that as running: how
# long it ran is in its result.
_RATES = """
with done as (
    select owner, started_at, finished_at, id = %(delayed)s as delayed,
           (convert_from(result, 'UTF8')::json ->> 'seconds')::float8 as ran,
           extract(epoch from finished_at - scheduled_at)::float8 as due_to_done
      from {schema}.archive
     where queue = %(queue)s and state = 'completed'
)
select count(distinct owner) as workers,
       (count(*) / extract(epoch from max(finished_at) - min(started_at)))::float8 as jobs_per_second,
       percentile_cont(array[0.5, 0.95]) within group (order by ran) as run,
       percentile_cont(array[0.5, 0.95]) within group (order by due_to_done - ran) as wait
  from done
 where not delayed
"""

_RESULTS = """
with results as (
    select convert_from(result, 'UTF8')::json as r from {schema}.archive
     where queue = %(queue)s and state = 'completed'
)
select count(*) as files, sum((r ->> 'lines')::integer) as lines, sum((r ->> 'classes')::integer) as classes,
       sum((r ->> 'functions')::integer) as functions,
       (select json_agg(l) from (
            select r ->> 'file' as file, f ->> 'name' as name, (f ->> 'lines')::integer as lines
              from results, json_array_elements(r -> 'longest') f
             order by 3 desc, 1, 2 limit 5) l) as longest
  from results
"""

_FAILED = """
select convert_from(args, 'UTF8')::json ->> 'path' as path, attempt as attempts,
       errors -> -1 ->> 'kind' as kind, errors -> -1 ->> 'message' as message
  from {schema}.archive
 where queue = %(queue)s and state = 'failed'
 order by id
"""

_SPECIAL = """
select extract(epoch from delayed.started_at - delayed.created_at)::float8 as delayed_started_after,
       extract(epoch from urgent.started_at - urgent.created_at)::float8 as urgent_started_after,
       (select count(*) from {schema}.archive a
         where a.queue = %(queue)s and a.state = 'completed' and a.id < urgent.id and a.id <> delayed.id
           and a.started_at > urgent.started_at) as urgent_overtook
  from {schema}.archive delayed, {schema}.archive urgent
 where delayed.id = %(delayed)s and urgent.id = %(urgent)s
"""


@dataclass(frozen=True, slots=True)
class LongFunction:
    """One of the longest functions of the library."""

    file: str
    name: str
    lines: int


@dataclass(frozen=True, slots=True)
class FailedFile:
    """A file that could not be measured, and the error of its last attempt."""

    file: str
    attempts: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the demo did. Times are seconds; ``run`` and ``wait`` are the median and the 95th percentile."""

    states: Mapping[str, int]
    workers: int
    jobs_per_second: float
    run: tuple[float, float]
    wait: tuple[float, float]
    files: int
    lines: int
    classes: int
    functions: int
    longest: tuple[LongFunction, ...]
    failed: tuple[FailedFile, ...]
    delay: float
    delayed_started_after: float
    urgent_started_after: float
    urgent_overtook: int


def count_states(connection: psycopg.Connection[Any], schema: str, queue: str) -> dict[str, int]:
    """How many jobs of the queue, live and finished, are in each state."""
    return dict(connection.execute(_query(_COUNTS, schema), {"queue": queue}).fetchall())


def read_figures(
    connection: psycopg.Connection[Any], *, schema: str, queue: str, delayed: int, urgent: int, delay: float
) -> Figures:
    """The figures of a queue whose jobs have ended; ``delayed`` and ``urgent`` are the ids of the special jobs."""
    cursor = connection.cursor(row_factory=dict_row)
    values = {"queue": queue, "delayed": delayed, "urgent": urgent}
    rates, results, special = (
        cursor.execute(_query(text, schema), values).fetchall()[0] for text in (_RATES, _RESULTS, _SPECIAL)
    )
    failed = cursor.execute(_query(_FAILED, schema), values).fetchall()
    return Figures(
        states=count_states(connection, schema, queue),
        longest=tuple(LongFunction(**one) for one in results.pop("longest") or ()),
        failed=tuple(
            FailedFile(Path(one["path"]).name, one["attempts"], f"{one['kind']}: {one['message']}") for one in failed
        ),
        run=tuple(rates.pop("run")),
        wait=tuple(rates.pop("wait")),
        delay=delay,
        **rates,
        **results,
        **special,
    )


def _query(text: str, schema: str) -> sql.Composed:
    # Any: to type checkers only a literal is SQL, and these are literals handed through.
    literal: Any = text
    return sql.SQL(literal).format(schema=sql.Identifier(schema))
