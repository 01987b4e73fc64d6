"""Which jobs a query or an operation is about: conditions on jobs, as data, checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from typing import Any, TypedDict
from uuid import UUID

import msgspec

from prinia.errors import InvalidQuery
from prinia.job import JobRecord, JobState

#: So many ids may be given at once.
MAX_IDS = 10_000
#: And so many queues, tasks, tags, instances or kinds of errors.
MAX_CHOICES = 1_000
_LARGEST_ID = 2**63 - 1

FINAL_STATES = frozenset(state for state in JobState if state.final)
LIVE_STATES = frozenset(JobState) - FINAL_STATES


class Conditions(TypedDict, total=False):
    """What ``app.jobs`` takes: a job has to meet every condition given.

    Where several are given of ``ids``, ``queue``, ``task``, ``state``, ``instance`` or ``error`` one of them must fit;
    of ``tag``, all. None is no condition, an empty list is one that nothing meets. ``instance`` is the worker instance
    that runs the job or that ended it, ``error`` the kind of its latest error, such as "ValueError". Times are aware;
    ``since`` includes the moment, ``before`` does not.
    """

    ids: Iterable[int] | None
    queue: str | Iterable[str] | None
    task: str | Iterable[str] | None
    state: JobState | str | Iterable[JobState | str] | None
    tag: str | Iterable[str] | None
    instance: UUID | str | Iterable[UUID | str] | None
    error: str | Iterable[str] | None
    created_since: datetime | None
    created_before: datetime | None
    finished_since: datetime | None
    finished_before: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Conditions that a job must meet, all of them; None is no condition. Made by `select`, which checks them.

    Example::

        failed = select(queue="email", state="failed", finished_since=datetime.now(UTC) - timedelta(hours=1))
        failed.matches(record)
    """

    ids: tuple[int, ...] | None = None
    queue: tuple[str, ...] | None = None
    task: tuple[str, ...] | None = None
    state: tuple[JobState, ...] | None = None
    tag: tuple[str, ...] | None = None
    instance: tuple[UUID, ...] | None = None
    error: tuple[str, ...] | None = None
    created_since: datetime | None = None
    created_before: datetime | None = None
    finished_since: datetime | None = None
    finished_before: datetime | None = None

    @property
    def unconditional(self) -> bool:
        """Whether every job meets it."""
        return not any(getattr(self, field.name) is not None for field in fields(self))

    @property
    def may_match_live(self) -> bool:
        """Whether a job that has not ended can meet it."""
        ended = self.finished_since is not None or self.finished_before is not None
        return self._satisfiable and not ended and self._allows(LIVE_STATES)

    @property
    def may_match_finished(self) -> bool:
        """Whether a job that has ended can meet it."""
        return self._satisfiable and self._allows(FINAL_STATES)

    @property
    def _satisfiable(self) -> bool:
        return () not in (self.ids, self.queue, self.task, self.state, self.tag, self.instance, self.error)

    def _allows(self, states: Collection[JobState]) -> bool:
        return self.state is None or any(state in states for state in self.state)

    def matches(self, record: JobRecord) -> bool:
        """Whether this job meets it, as it was when it was read."""
        return (
            self._satisfiable
            and _within(self.ids, record.id)
            and _within(self.queue, record.queue)
            and _within(self.task, record.task)
            and _within(self.state, record.state)
            and (self.tag is None or set(self.tag) <= set(record.tags))
            and _within(self.instance, record.owner)
            and _within(self.error, record.errors[-1].kind if record.errors else None)
            and _between(self.created_since, record.created_at, self.created_before)
            and _between(self.finished_since, record.finished_at, self.finished_before)
        )

    def as_json(self) -> dict[str, Any]:
        """The conditions given, as values that JSON has: for the audit, and to tell one query from another."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: _plain(value) for name, value in given if value is not None}

    @property
    def fingerprint(self) -> str:
        """A short text that is the same for equal selections only."""
        return sha256(msgspec.json.encode(self.as_json())).hexdigest()[:12]


def select(**conditions: Any) -> Selection:
    """A selection of these `Conditions`. Raises `InvalidQuery`, which names the condition, the value and the rule."""
    unknown = [name for name in conditions if name not in _READERS]
    for name in unknown:
        close = difflib.get_close_matches(name, _READERS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(_READERS)}"
        raise InvalidQuery(f"{name} is no condition on jobs; {hint}")
    given = {name: value for name, value in conditions.items() if value is not None}
    selection = Selection(**{name: _READERS[name](name, value) for name, value in given.items()})
    for what in ("created", "finished"):
        since, before = getattr(selection, f"{what}_since"), getattr(selection, f"{what}_before")
        if since is not None and before is not None and since >= before:
            raise InvalidQuery(
                f"{what}_since={since.isoformat()} is not before {what}_before={before.isoformat()}: no job can be both"
            )
    return selection


def _within(wanted: Sequence[Any] | None, value: object) -> bool:
    return wanted is None or value in wanted


def _between(since: datetime | None, moment: datetime | None, before: datetime | None) -> bool:
    if moment is None:
        return since is None and before is None
    return (since is None or since <= moment) and (before is None or moment < before)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, int) else str(value)


def _refusal(name: str, value: object, rule: str) -> InvalidQuery:
    shown = ascii(value)
    return InvalidQuery(f"{name}={shown if len(shown) <= 80 else shown[:77] + '...'} {rule}")


def _several(name: str, value: Any, single: type | tuple[type, ...], rule: str, most: int) -> tuple[Any, ...]:
    """The values of a condition that takes one or several."""
    if isinstance(value, single):
        return (value,)
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise _refusal(name, value, rule)
    values = tuple(islice(value, most + 1))
    if len(values) > most:
        raise InvalidQuery(f"{name} has more than {most:,} values, which is the limit; make several queries of it")
    return values


def _ids(name: str, value: Any) -> tuple[int, ...]:
    rule = "must be ids of jobs (whole numbers, 1 or more), such as ids=[17, 18]"
    if isinstance(value, str):
        raise _refusal(name, value, rule)
    values = _several(name, value, (), rule, MAX_IDS)
    for one in values:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 < one <= _LARGEST_ID:
            raise _refusal(name, one, rule)
    return tuple(sorted(set(values)))


def _texts(name: str, value: Any) -> tuple[str, ...]:
    rule = f'must be a str or several, such as {name}="one" or {name}=["one", "another"]'
    values = _several(name, value, str, rule, MAX_CHOICES)
    for one in values:
        # No job has a text that cannot be stored, and no server would take it.
        if not isinstance(one, str) or not one or re.search("[\0\ud800-\udfff]", one):
            raise _refusal(name, one, rule)
    return tuple(sorted(set(values)))


def _states(name: str, value: Any) -> tuple[JobState, ...]:
    rule = f"is no state of a job; there are: {', '.join(JobState)}"
    values = _several(name, value, str, rule, MAX_CHOICES)
    for one in values:
        if not isinstance(one, str) or one not in set(JobState):
            close = difflib.get_close_matches(one, JobState, 1) if isinstance(one, str) else ()
            raise _refusal(name, one, f"is no state of a job; did you mean {close[0]}?" if close else rule)
    return tuple(state for state in JobState if state in values)


def _instances(name: str, value: Any) -> tuple[UUID, ...]:
    rule = "must be the id of a worker instance (a UUID, as app.workers() shows it), or several"
    values = _several(name, value, (str, UUID), rule, MAX_CHOICES)
    try:
        return tuple(sorted({one if isinstance(one, UUID) else UUID(one) for one in values}))
    except (ValueError, AttributeError, TypeError):
        raise _refusal(name, value, rule) from None


def _moment(name: str, value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise _refusal(name, value, "must be a datetime with a time zone")
    if value.utcoffset() is None:
        raise _refusal(name, value, "has no time zone; write for example datetime.now(timezone.utc) - ...")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise _refusal(name, value, "is outside the years 1 to 9999 in UTC") from None


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "ids": _ids,
    "queue": _texts,
    "task": _texts,
    "state": _states,
    "tag": _texts,
    "instance": _instances,
    "error": _texts,
    "created_since": _moment,
    "created_before": _moment,
    "finished_since": _moment,
    "finished_before": _moment,
}
