"""What tasks and jobs can be told: checked where it is written, turned into the fields of a `JobSpec`."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, TypedDict, cast, get_args

import msgspec

from prinia.errors import ConfigurationError, InvalidOptions, NotStorable
from prinia.isolation import read_isolation
from prinia.job import MAX_NAME_LENGTH, MAX_PRIORITY, MIN_PRIORITY, OnConflict, UniqueKey
from prinia.payload.codec import Codec, JsonCodec, naive_time_in
from prinia.payload.coding import Coder, as_coder
from prinia.payload.storable import find_culprit, text_fault
from prinia.reactions import OnFailure, OnSuccess, read_reactions
from prinia.retry import LONGEST_DELAY, RetryFunction, RetryMapping, RetryPolicy, seconds_of

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
    ``unique``: while a job of the same task with this key is live, it holds the key, and no second one is stored. With
    ``unique_for`` (seconds or timedelta) it holds the key for that long from its enqueue instead, whether or not it has
    ended; keys with and without a window are apart, and the length of the window is the holder's.
    ``on_conflict`` says what an enqueue does while the key is held: "keep" gives the holder; "raise" raises
    `DuplicateJob`; "replace" puts the new job in the place of a holder that waits (scheduled, retrying or ready): the
    id stays, and the end of a window; arguments, options and due time are the new job's, attempts and errors start
    anew. A holder that runs, or has ended within its window, is kept. ``job.created`` is False whenever there was one.
    ``tags``: up to 64 texts. ``meta``: a JSON object of up to 8 KiB, for your own use.

    Example::

        send_reminder.options(delay=timedelta(hours=1), unique="order:9", on_conflict="replace").enqueue(9)
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
    unique_for: timedelta | float
    on_conflict: OnConflict
    tags: Sequence[str]
    meta: Mapping[str, Any]


class StoredOptions(TypedDict, total=False):
    """What ``app.task(...)`` and ``app.declare(...)`` both take: defaults that are stored with each job.

    ``queue``, ``priority``, ``max_attempts``, ``timeout``, ``tags``: as for a job.
    ``expires``: seconds from the enqueue, or timedelta, to the latest start.
    ``rerun_after_crash``: whether a job that a worker had claimed when it died may run again (True).
    ``max_crashes``: how many such crashes a job survives (3).
    ``codec``: how the arguments of new jobs and their results are encoded, by default as the app does.
    """

    queue: str
    priority: int
    max_attempts: int
    timeout: timedelta | float
    expires: timedelta | float
    rerun_after_crash: bool
    max_crashes: int
    tags: Sequence[str]
    codec: Codec


class DeclareOptions(StoredOptions, total=False):
    """What ``app.declare(...)`` takes beside the name: `StoredOptions` and ``retry``, a policy.

    Example::

        @app.declare(name="billing.charge", queue="billing", retry=Delays((1, 10, 60)))
        def charge(customer: int, cents: int) -> str: ...
    """

    retry: RetryPolicy


class TaskOptions(StoredOptions, total=False):
    """What ``app.task(...)`` takes: the defaults of the task's jobs, see `StoredOptions` too.

    ``name`` and ``aliases``: under which jobs are stored, and were stored before a rename.
    ``retry``: a policy, as for a job; or a mapping ``{ConnectionError: Fixed(1), ValueError: False}`` of which the most
    specific type counts, False for no further attempt, the default policy for what is not in it (see `RetryMapping`);
    or a function of the error and the number of the attempt, which gives seconds, a timedelta, a policy, None (the
    default policy) or False.
    Mapping and function are not stored: the worker asks them at the failure, in its event loop. A policy among a job's
    own options goes first.
    ``on_success(ctx, result)`` and ``on_failure(ctx, error)``: functions or coroutine functions, called once the job
    has ended as completed or as failed for good and this is recorded; the result is as it is read back, the error an
    `AttemptError`. Best effort: a crash just then loses the call, and what it raises is only logged. Where it must not
    be lost, enqueue the next job in the transaction of ``ctx.complete``.
    ``process``: run the function, a plain one at the top level of a module, in a process of the worker's pool, where
    a time limit, a cancellation and a stop end it for good, and where what kills it costs this job one attempt and
    nobody else anything. Its context is a copy: ``stopping`` stays False, ``complete`` is refused. ``memory_limit``
    (MB, on Linux) lets allocations fail that go so far beyond what the process has when the function starts.

    Example::

        @app.task(queue="email", timeout=30, retry={ConnectionError: Fixed(1), ValueError: False}, on_failure=tell)
        async def send_reminder(order: int) -> str: ...
    """

    name: str
    aliases: Sequence[str]
    retry: RetryPolicy | RetryFunction | RetryMapping
    on_success: OnSuccess
    on_failure: OnFailure
    process: bool
    memory_limit: int


def task_fields(given: Mapping[str, object]) -> dict[str, Any]:
    """The `JobSpec` fields of a task's options; what is not stored with its jobs is left out, but checked.

    Raises `InvalidOptions` naming the option, the value and what is allowed.
    """
    _refuse_unknown("task", given, TaskOptions.__annotations__)
    if isinstance(given.get("expires"), datetime):
        raise InvalidOptions("expires of a task must be seconds or a timedelta: a moment would pass for all its jobs")
    check_names(given)
    check_codec(given)
    read_isolation(given)
    unstored = {"name", "aliases", "codec", "on_success", "on_failure", "process", "memory_limit"}
    if read_reactions(given).retry is not None:
        unstored.add("retry")
    return _fields({name: value for name, value in given.items() if name not in unstored})


def check_names(given: Mapping[str, object]) -> tuple[str | None, tuple[str, ...]]:
    """The ``name`` and the ``aliases`` given for a task. Raises `InvalidOptions`."""
    name = given.get("name")
    checked = None if name is None and "name" not in given else text("name", name)
    return checked, texts("aliases", given.get("aliases", ()))


def check_codec(given: Mapping[str, object]) -> Coder | None:
    """The ``codec`` given for a task. Raises `InvalidOptions`."""
    if "codec" not in given:
        return None
    codec: Any = given["codec"]
    try:
        return as_coder(codec)
    except ConfigurationError as error:
        raise InvalidOptions(f"codec: {error}") from error


def job_fields(task: str, base: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """``base``, the fields that a task has already, changed by a job's options. Raises `InvalidOptions`."""
    _refuse_unknown("job", given, JobOptions.__annotations__)
    if "delay" in given and "scheduled_at" in given:
        raise InvalidOptions("delay and scheduled_at both say when the job is due; give one of them")
    fields = {**base, **_fields({k: v for k, v in given.items() if k not in _UNIQUE})}
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
    if (number := seconds_of(value)) is None:
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
    named = [option for option in _UNIQUE if option in given]
    if not named:
        return standing
    if "unique" in given:
        key = text("unique", given["unique"], MAX_UNIQUE_LENGTH)
    elif standing is not None:
        key = standing.text
    else:
        raise InvalidOptions(f"{named[0]} says more of a unique key; give unique=... too")
    window, on_conflict = (standing.window, standing.on_conflict) if standing is not None else (None, "keep")
    if "unique_for" in given:
        window = _seconds("unique_for", given["unique_for"], zero=False)
    if "on_conflict" in given:
        on_conflict = _on_conflict(given["on_conflict"])
    return unique_key(task, key, on_conflict, window=window)


def _on_conflict(value: object) -> OnConflict:
    if value in get_args(OnConflict):
        return cast(OnConflict, value)
    raise _refusal("on_conflict", value, 'must be "keep", "raise" or "replace"')


def unique_key(task: str, key: str, on_conflict: OnConflict = "keep", *, window: float | None = None) -> UniqueKey:
    """The stored form of a task's unique key. Texts that look the same are the same key (Unicode NFC)."""
    key = unicodedata.normalize("NFC", key)
    # The same as in the SQL function enqueue, so that other languages share keys. No name or key holds a \x1f.
    scope = "live" if window is None else "window"
    digest = sha256(f"{task}\x1f{scope}\x1f{key}".encode()).digest()
    return UniqueKey(digest[:16], key, on_conflict, window)


def _refuse_expired_at_birth(fields: Mapping[str, Any]) -> None:
    for due, end in (("delay", "expires_in"), ("scheduled_at", "expires_at")):
        starts, ends = fields.get(due), fields.get(end)
        if starts is not None and ends is not None and ends <= starts:
            raise InvalidOptions(f"expires ({ends}) is not after {due} ({starts}): the job would never start")


_UNIQUE = ("unique", "unique_for", "on_conflict")
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
