"""Where in a value is what cannot be stored? Asked only once something is known or feared to be wrong."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from prinia.payload import models

#: Deeper than any value that msgspec can encode: a walk that gets here goes in circles.
_DEEPEST = 2000
_TOO_DEEP = "is nested too deeply, or contains itself"


@dataclasses.dataclass(frozen=True, slots=True)
class Culprit:
    """One thing that cannot be stored: its path from the root (``$``), what is wrong with it, and what to do."""

    path: str
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}{self.advice}"

    def under(self, path: str) -> Culprit:
        """The same in a larger whole, where what was the root is at ``path``."""
        return dataclasses.replace(self, path=path + self.path.removeprefix("$"))


def find_culprit(value: object, *, nul: bool = False, naive: bool = False) -> Culprit | None:
    """The first part of ``value``, in reading order, that cannot be stored; None when all is fine.

    With ``nul`` a NUL character counts too. With ``naive`` a time without a time zone is looked for, and nothing else.

    Example::

        find_culprit({"a": [1.0, float("nan")]})   # $.a[1]: NaN has no place in JSON
    """
    return _find(value, _naive_reason if naive else partial(_reason, nul=nul), live=naive)


def explain_failure(value: object, error: Exception, encode: Callable[[Any], object] | None = None) -> Culprit:
    """Why encoding ``value`` raised ``error``, and where. ``encode`` is what raised it, if it does not make JSON."""
    if isinstance(error, RecursionError):
        return Culprit("$", _TOO_DEEP)
    judge = partial(_reason, encode=encode) if encode is not None else _reason
    return _find(value, judge) or Culprit("$", str(error))


def _find(value: object, judge: Callable[[object], str | None], *, live: bool = False) -> Culprit | None:
    try:
        for path, part, is_leaf in walk(value, live=live):
            if isinstance(part, Mapping):
                for key in part:
                    if reason := judge(key):
                        return Culprit(path, f"the key {_short(key)} {reason}", _advice(key, reason))
            if is_leaf and (reason := judge(part)):
                return Culprit(path, reason, _advice(part, reason))
    except RecursionError:
        return Culprit("$", _TOO_DEEP)
    return None


def walk(value: object, *, live: bool) -> Iterator[tuple[str, object, bool]]:
    """Each part of ``value``, in reading order, with its path, and whether there is nothing in it.

    ``live`` looks into models as they are, not as they are dumped. Raises `RecursionError` for what contains itself.
    """
    stack: list[tuple[int, str, object]] = [(0, "$", value)]
    while stack:
        depth, path, part = stack.pop()
        if depth > _DEEPEST:
            raise RecursionError(_TOO_DEEP)
        children = _children(part, live)
        yield path, part, children is None
        if children is not None:
            stack.extend(reversed([(depth + 1, path + step, child) for step, child in children]))


def plain(value: object) -> object:
    """The plain form of a pydantic model, or of a subclass of str, int or float, which msgspec refuses as they stand.

    Frameworks have such types (marked-safe strings, numeric scalars). Raises `NotImplementedError` for others.
    """
    if models.is_model(type(value)):
        return models.dump(value)
    # Not str(value) and so on: the subclass may have its own idea of that.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise NotImplementedError(f"{article(_type_name(value))} cannot be stored")


def _children(part: Any, live: bool) -> Iterator[tuple[str, object]] | None:
    """The parts of a container with the steps that lead to them; None for anything else."""
    if models.is_model(type(part)):
        # A dumped model holds its times as text; a live one holds types that only pydantic knows.
        return ((f".{name}", child) for name, child in models.live_fields(part)) if live else _dumped(part)
    if isinstance(part, Mapping):
        return ((_key_step(key), child) for key, child in part.items())
    if isinstance(part, list | tuple | set | frozenset):
        return ((f"[{index}]", child) for index, child in enumerate(part))
    if isinstance(part, type):
        return None
    if isinstance(part, msgspec.Struct):
        return _fields(part, zip(part.__struct_encode_fields__, part.__struct_fields__, strict=True))
    if dataclasses.is_dataclass(part):
        return _fields(part, ((field.name, field.name) for field in dataclasses.fields(part)))
    if hasattr(part, "__attrs_attrs__"):
        return _fields(part, ((field.name, field.name) for field in part.__attrs_attrs__))
    return None


def _dumped(model: object) -> Iterator[tuple[str, object]] | None:
    try:
        return iter([("", models.dump(model))])
    except Exception:  # the encoder has met it too, and says it better
        return None


def _fields(part: object, names: Iterator[tuple[str, str]] | zip[tuple[str, str]]) -> Iterator[tuple[str, object]]:
    for shown, name in names:
        child = getattr(part, name, msgspec.UNSET)
        if child is not msgspec.UNSET:
            yield f".{shown}", child


def _key_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_short(key)}]"


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def article(word: str) -> str:
    """The word after its "a" or "an"."""
    # No vowel is heard in User, UUID or Unit.
    return f"an {word}" if word[0] in "aeioAEIO" else f"a {word}"


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _reason(leaf: object, nul: bool = False, encode: Callable[[Any], object] | None = None) -> str | None:
    """What is wrong with a value that is no container."""
    if isinstance(leaf, enum.Enum):
        leaf = leaf.value
    if isinstance(leaf, str):
        return _reason_of_text(leaf, nul)
    if isinstance(leaf, float) and encode is None:
        return None if math.isfinite(leaf) else f"{_nonfinite_name(leaf)} has no place in JSON"
    return _reason_of_other(leaf, encode or _encode_json)


def _naive_reason(leaf: object) -> str | None:
    return NAIVE if isinstance(leaf, datetime.datetime | datetime.time) and is_naive(leaf) else None


#: What is said of a time without a time zone.
NAIVE = "has no time zone"


def _advice(value: object, reason: str) -> str:
    if reason != NAIVE:
        return ""
    if isinstance(value, datetime.datetime):
        return "; write for example datetime.now(timezone.utc)"
    return (
        "; write for example time(9, 30, tzinfo=timezone.utc), or annotate a parameter, or a field of a dataclass, as "
        "Annotated[time, msgspec.Meta(tz=False)]"
    )


def naive_culprit(value: datetime.datetime | datetime.time, path: str) -> Culprit | None:
    """The time as a culprit if it has no time zone."""
    return Culprit(path, NAIVE, _advice(value, NAIVE)) if is_naive(value) else None


def is_naive(value: datetime.datetime | datetime.time) -> bool:
    """Whether nobody can tell which moment is meant."""
    return value.utcoffset() is None


def text_fault(text: str) -> str | None:
    """What makes a text unfit for PostgreSQL: NUL or a lone surrogate. None for a fit one."""
    return _reason_of_text(text, True)


def _reason_of_text(text: str, nul: bool) -> str | None:
    if nul and "\0" in text:
        return "contains a NUL character, which PostgreSQL cannot store in text"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"contains a lone surrogate at position {error.start}, which is no Unicode character"
    return None


def _nonfinite_name(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _encode_json(value: object) -> bytes:
    return msgspec.json.encode(value, enc_hook=plain)


def _reason_of_other(leaf: Any, encode: Callable[[Any], object]) -> str | None:
    try:
        encode(leaf)
    except NotImplementedError as error:
        return str(error)
    except Exception as error:
        # int and str refuse in words of their own (too many digits, for one).
        return f"cannot be stored: {error}"
    return None
