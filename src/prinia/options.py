"""What tasks and jobs can be told: checked where it is written, turned into the fields of a `JobSpec`."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, TypedDict

import msgspec

from prinia.codec import JsonCodec, naive_time_in
from prinia.errors import InvalidOptions, NotStorable
from prinia.job import MAX_NAME_LENGTH, MAX_PRIORITY, MIN_PRIORITY, OnConflict, UniqueKey
from prinia.retry import LONGEST_DELAY, RetryPolicy
from prinia.storable import find_culprit, text_fault

MAX_UNIQUE_LENGTH = 1000
MAX_ATTEMPTS = 10_000
MAX_CRASHES = 1_000
MAX_TAGS = 64
MAX_META_BYTES = 8 * 1024


class JobOptions(TypedDict, total=False):
    """What ``task.options(...)`` takes. A later call changes what it names and keeps the rest.

    ``queue``: 1 to 200 characters. ``priority``: -100 to 100, bigger first.
    ``delay`` (seconds or timedelta) and ``scheduled_at`` (an aware datetime): due later; one of them.
    ``expires``: the latest start of any attempt, in seconds from the enqueue, as timedelta or as aware datetime.
    ``max_attempts``, ``retry``, ``timeout`` (seconds or timedelta): as for the task.
    ``unique``: while a job of the same task with this key is live, no second one is stored; ``on_conflict`` says
    whether the enqueue then gives the live one ("keep") or raises `DuplicateJob` ("raise").
    ``tags``: up to 64 texts. ``meta``: a JSON object of up to 8 KiB, for your own use.
    """

    queue: str
    priority: int
    delay: timedelta | float
    scheduled_at: datetime
    expires: timedelta | float | datetime
    max_attempts: int
    retry: RetryPolicy
    timeout: timedelta | float
    unique: str
    on_conflict: OnConflict
    tags: Sequence[str]
    meta: Mapping[str, Any]


class TaskOptions(TypedDict, total=False):
    """What ``app.task(...)`` takes: the defaults of the task's jobs.

    ``name`` and ``aliases``: under which jobs are stored, and were stored before a rename.
    ``queue``, ``priority``, ``max_attempts``, ``retry``, ``timeout``, ``tags``: as for a job.
    ``expires``: seconds from the enqueue, or timedelta, to the latest start.
    ``rerun_after_crash``: whether a job that a worker had claimed when it died may run again (True).
    ``max_crashes``: how many such crashes a job survives (3).
    """

    name: str
    aliases: Sequence[str]
    queue: str
    priority: int
    max_attempts: int
    retry: RetryPolicy
    timeout: timedelta | float
    expires: timedelta | float
    rerun_after_crash: bool
    max_crashes: int
    tags: Sequence[str]


def task_fields(given: Mapping[str, object]) -> dict[str, Any]:
    """The `JobSpec` fields of a task's options; ``name`` and ``aliases`` are left out, but checked.

    Raises `InvalidOptions` naming the option, the value and what is allowed.
    """
    _refuse_unknown("task", given, TaskOptions.__annotations__)
    if isinstance(given.get("expires"), datetime):
        raise InvalidOptions("expires of a task must be seconds or a timedelta: a moment would pass for all its jobs")
    check_names(given)
    return _fields({name: value for name, value in given.items() if name not in ("name", "aliases")})


def check_names(given: Mapping[str, object]) -> tuple[str | None, tuple[str, ...]]:
    """The ``name`` and the ``aliases`` given for a task. Raises `InvalidOptions`."""
    name = given.get("name")
    checked = None if name is None and "name" not in given else text("name", name)
    return checked, texts("aliases", given.get("aliases", ()))


def job_fields(task: str, base: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """``base``, the fields that a task has already, changed by a job's options. Raises `InvalidOptions`."""
    _refuse_unknown("job", given, JobOptions.__annotations__)
    if "delay" in given and "scheduled_at" in given:
        raise InvalidOptions("delay and scheduled_at both say when the job is due; give one of them")
    fields = {**base, **_fields({k: v for k, v in given.items() if k not in ("unique", "on_conflict")})}
    if unique := _unique(task, base.get("unique"), given):
        fields["unique"] = unique
    _refuse_expired_at_birth(fields)
    return fields


def _refuse_unknown(kind: str, given: Mapping[str, object], known: Collection[str]) -> None:
    for name in given:
        if name in known:
            continue
        if name == "limit_key":
            raise InvalidOptions("limit_key: limits by key are not part of this version; they come with a later one")
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(sorted(known))}"
        raise InvalidOptions(f"{name} is not an option of a {kind}; {hint}")


def _fields(given: Mapping[str, object]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in given.items():
        fields.update(_READERS[name](name, value))
    return fields


def text(option: str, value: object, longest: int = MAX_NAME_LENGTH) -> str:
    """A text of 1 to ``longest`` characters without control characters. Raises `InvalidOptions`."""
    if not isinstance(value, str):
        raise _refusal(option, value, "must be a str")
    if not 0 < len(value) <= longest:
        raise _refusal(option, value, f"must have 1 to {longest:,} characters, not {len(value):,}")
    if any(unicodedata.category(character) == "Cc" for character in value):
        raise _refusal(option, value, "must have no control characters")
    if fault := text_fault(value):
        raise _refusal(option, value, fault)
    return str(value)


def texts(option: str, value: object) -> tuple[str, ...]:
    """Several such texts. Raises `InvalidOptions`."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise _refusal(option, value, f"must be a list of str, such as {option}=[{value!a}]")
    if len(value) > MAX_TAGS:
        raise InvalidOptions(f"{option} must be at most {MAX_TAGS}, not {len(value)}")
    return tuple(text(option, part) for part in value)


def _refusal(option: str, value: object, rule: str) -> InvalidOptions:
    shown = ascii(value)
    return InvalidOptions(f"{option}={shown if len(shown) <= 80 else shown[:77] + '...'} {rule}")


def _text(option: str, value: object) -> dict[str, Any]:
    return {option: text(option, value)}


def _texts(option: str, value: object) -> dict[str, Any]:
    return {option: texts(option, value)}


def _whole(lowest: int, highest: int) -> Callable[[str, object], dict[str, Any]]:
    def read(option: str, value: object) -> dict[str, Any]:
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise _refusal(option, value, f"must be a whole number from {lowest} to {highest:,}")
        return {option: int(value)}

    return read


def _flag(option: str, value: object) -> dict[str, Any]:
    if not isinstance(value, bool):
        raise _refusal(option, value, "must be True or False")
    return {option: value}


def _seconds(option: str, value: object, *, zero: bool) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _refusal(option, value, "must be seconds (int or float) or a timedelta")
    # Comparisons with NaN are false, so it is refused here too.
    if not (0 <= number <= LONGEST_DELAY and (zero or number > 0)):
        lowest = "0" if zero else "above 0"
        highest = f"{LONGEST_DELAY:,.0f} seconds ({LONGEST_DELAY / 86400:.0f} days)"
        raise _refusal(option, value, f"must be {lowest} to {highest}")
    return float(number)


def _moment(option: str, value: object) -> datetime:
    if not isinstance(value, datetime):
        raise _refusal(option, value, "must be a datetime with a time zone")
    if value.utcoffset() is None:
        raise _refusal(option, value, "has no time zone; write for example datetime.now(timezone.utc) + ...")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise _refusal(option, value, "is outside the years 1 to 9999 in UTC") from None


def _delay(option: str, value: object) -> dict[str, Any]:
    return {"delay": _seconds(option, value, zero=True), "scheduled_at": None}


def _scheduled_at(option: str, value: object) -> dict[str, Any]:
    return {"delay": None, "scheduled_at": _moment(option, value)}


def _expires(option: str, value: object) -> dict[str, Any]:
    if isinstance(value, datetime):
        return {"expires_in": None, "expires_at": _moment(option, value)}
    return {"expires_in": _seconds(option, value, zero=False), "expires_at": None}


def _timeout(option: str, value: object) -> dict[str, Any]:
    return {option: _seconds(option, value, zero=False)}


def _retry(option: str, value: object) -> dict[str, Any]:
    if not isinstance(value, RetryPolicy):
        raise _refusal(option, value, "must be a policy: Exponential(...), Fixed(seconds) or Delays((1, 10, 300))")
    return {option: value}


def _meta(option: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _refusal(option, value, "must be a dict")
    try:
        data = _META_CODEC.encode(value)
    except NotStorable as error:
        raise InvalidOptions(f"{option}: {error}") from error
    if len(data) > MAX_META_BYTES:
        raise InvalidOptions(f"{option} is {len(data):,} bytes as JSON, the limit is {MAX_META_BYTES:,}")
    if naive_time_in(data) and (culprit := find_culprit(value, naive=True)):
        raise InvalidOptions(f"{option}: {culprit}")
    # What is read back is what JSON makes of it, and a dict changed after the call changes no job.
    return {option: msgspec.json.decode(data)}


def _unique(task: str, standing: UniqueKey | None, given: Mapping[str, object]) -> UniqueKey | None:
    on_conflict: OnConflict = standing.on_conflict if standing else "keep"
    if "on_conflict" in given:
        on_conflict = _on_conflict(given["on_conflict"])
    if "unique" in given:
        return unique_key(task, text("unique", given["unique"], MAX_UNIQUE_LENGTH), on_conflict)
    if standing is None:
        if "on_conflict" in given:
            raise InvalidOptions("on_conflict says what to do when the unique key is taken; give unique=... too")
        return None
    return replace(standing, on_conflict=on_conflict)


def _on_conflict(value: object) -> OnConflict:
    if value == "keep":
        return "keep"
    if value == "raise":
        return "raise"
    raise _refusal("on_conflict", value, 'must be "keep" or "raise"')


def unique_key(task: str, key: str, on_conflict: OnConflict = "keep") -> UniqueKey:
    """The stored form of a task's unique key. Texts that look the same are the same key (Unicode NFC)."""
    key = unicodedata.normalize("NFC", key)
    # The same as in the SQL function enqueue, so that other languages share keys. No name or key holds a \x1f.
    digest = sha256(f"{task}\x1flive\x1f{key}".encode()).digest()
    return UniqueKey(digest[:16], key, on_conflict)


def _refuse_expired_at_birth(fields: Mapping[str, Any]) -> None:
    for due, end in (("delay", "expires_in"), ("scheduled_at", "expires_at")):
        starts, ends = fields.get(due), fields.get(end)
        if starts is not None and ends is not None and ends <= starts:
            raise InvalidOptions(f"expires ({ends}) is not after {due} ({starts}): the job would never start")


_META_CODEC = JsonCodec(nul=False)
_READERS: Mapping[str, Callable[[str, object], dict[str, Any]]] = {
    "queue": _text,
    "priority": _whole(MIN_PRIORITY, MAX_PRIORITY),
    "delay": _delay,
    "scheduled_at": _scheduled_at,
    "expires": _expires,
    "max_attempts": _whole(1, MAX_ATTEMPTS),
    "max_crashes": _whole(0, MAX_CRASHES),
    "rerun_after_crash": _flag,
    "retry": _retry,
    "timeout": _timeout,
    "tags": _texts,
    "meta": _meta,
}
