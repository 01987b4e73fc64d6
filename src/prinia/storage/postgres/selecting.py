"""A `Selection` as conditions in SQL, over a row of ``jobs`` and over one of ``archive``.

Values go as parameters, all named ``sel_...``; both tables use the same, so one set serves a statement over both.
"""

from __future__ import annotations

from typing import Any

from prinia.job import JobState
from prinia.selection import FINAL_STATES, Selection
from prinia.storage.postgres.connection import array, text_array

#: The time by which live jobs are told scheduled from ready: read once per statement, after its snapshot.
NOW = "(select clock_timestamp())"

_WAITING = "{j}.claimed_at is null and {j}.scheduled_at"
_LIVE_STATES = {
    JobState.RUNNING: "{j}.claimed_at is not null",
    JobState.READY: f"({_WAITING} <= {{now}})",
    JobState.SCHEDULED: f"({_WAITING} > {{now}} and {{j}}.scheduled_at < 'infinity' and {{j}}.attempt = 0)",
    JobState.RETRYING: f"({_WAITING} > {{now}} and {{j}}.scheduled_at < 'infinity' and {{j}}.attempt > 0)",
    JobState.BLOCKED: f"({_WAITING} = 'infinity')",
}
_SHARED = {
    # Through a subselect: planning with thousands of known ids takes a second for all the leaves of the archive.
    "ids": "{j}.id = any (array(select unnest(%(sel_ids)s::bigint[])))",
    "queue": "{j}.queue = any (%(sel_queue)s::text[])",
    "task": "{j}.task = any (%(sel_task)s::text[])",
    "tag": "{j}.tags @> %(sel_tag)s::text[]",
    "created_since": "{j}.created_at >= %(sel_created_since)s::timestamptz",
    "created_before": "{j}.created_at < %(sel_created_before)s::timestamptz",
}
_LIVE = {
    "instance": "({j}.claimed_at is not null and {j}.owner = any (%(sel_instance)s::uuid[]))",
    "error": "(select t.kind from {schema}.attempts t where t.job_id = {j}.id order by t.id desc limit 1)"
    " = any (%(sel_error)s::text[])",
}
_ARCHIVE = {
    "state": "{j}.state = any (%(sel_state)s::text[])",
    "instance": "{j}.owner = any (%(sel_instance)s::uuid[])",
    "error": "{j}.errors -> -1 ->> 'kind' = any (%(sel_error)s::text[])",
    "finished_since": "{j}.finished_at >= %(sel_finished_since)s::timestamptz",
    "finished_before": "{j}.finished_at < %(sel_finished_before)s::timestamptz",
}


def live_condition(selection: Selection, *, alias: str = "j", now: str = NOW) -> str:
    """What a row of ``jobs`` has to meet, as SQL text for `Sql.query`: "true" for any, "false" where none can.

    Example::

        sql.query("cancel_selected", live=live_condition(selection)), selection_params(selection)
    """
    if not selection.may_match_live:
        return "false"
    parts = [text for name, text in {**_SHARED, **_LIVE}.items() if getattr(selection, name) is not None]
    if selection.state is not None:
        states = [_LIVE_STATES[state] for state in selection.state if state in _LIVE_STATES]
        parts.append("(" + " or ".join(states) + ")")
    return _joined(parts, alias).replace("{now}", now)


def archive_condition(selection: Selection, *, alias: str = "f") -> str:
    """What a row of ``archive`` has to meet: see `live_condition`."""
    if not selection.may_match_finished:
        return "false"
    parts = [text for name, text in {**_SHARED, **_ARCHIVE}.items() if getattr(selection, name) is not None]
    return _joined([*parts, *_unsuccessful(selection)], alias)


def live_walk(selection: Selection, *, alias: str = "j") -> str:
    """The part of `live_condition` that says which rows an index gives at all: the others need not be walked over."""
    return _joined(_ids(selection), alias) if selection.may_match_live else "false"


def archive_walk(selection: Selection, *, alias: str = "f") -> str:
    """The part of `archive_condition` of that kind."""
    if not selection.may_match_finished:
        return "false"
    return _joined([*_ids(selection), *_unsuccessful(selection)], alias)


def _ids(selection: Selection) -> list[str]:
    return [] if selection.ids is None else [_SHARED["ids"]]


def _unsuccessful(selection: Selection) -> list[str]:
    """Said in so many words, so that the partial indexes serve."""
    states = selection.state
    return [] if states is None or JobState.COMPLETED in states else ["{j}.state <> 'completed'"]


def _joined(parts: list[str], alias: str) -> str:
    return " and ".join(parts).replace("{j}", alias) or "true"


def selection_params(selection: Selection) -> dict[str, Any]:
    """The parameters of both conditions."""
    params: dict[str, Any] = {}
    for name in ("ids", "instance"):
        params[f"sel_{name}"] = _optional(getattr(selection, name), array)
    for name in ("queue", "task", "tag", "error"):
        params[f"sel_{name}"] = _optional(getattr(selection, name), text_array)
    final = None if selection.state is None else [state for state in selection.state if state in FINAL_STATES]
    params["sel_state"] = _optional(final, text_array)
    for name in ("created_since", "created_before", "finished_since", "finished_before"):
        params[f"sel_{name}"] = getattr(selection, name)
    return params


def _optional(values: Any, encode: Any) -> str | None:
    return None if values is None else encode(values)
