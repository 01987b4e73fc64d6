"""Do models arrive as they were given? Not all read what they write: secrets become asterisks, excluded fields are
missing, a validator changes again what it has changed. So what was given is compared with what is read of its bytes.

It is asked for types with pydantic models or attrs classes in them only: of other types msgspec reads what it writes.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Set
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from prinia.payload import models
from prinia.payload.storable import Culprit, article, find_culprit, walk
from prinia.payload.times import nodes

_SCALARS = (str, int, float, bool, type(None))
#: What JSON has.
_PLAIN = (*_SCALARS, list, tuple, dict)
#: Types that leave open what is in them.
_OPEN: tuple[Any, ...] = (
    Any, object, abc.Mapping, abc.MutableMapping, abc.Iterable, abc.Collection, abc.Sequence, abc.MutableSequence,
    abc.Set, abc.MutableSet,
)  # fmt: skip
#: What two of which are the same when they are equal, wherever they come from.
_DATA = (*_SCALARS, bytes, bytearray, Decimal, date, UUID)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_MISSING = object()


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """One thing that objects of a class hold.

    ``open`` when its type leaves open what it is, so that it arrives as plain values; ``lost`` says why it would arrive
    changed if it does, and what to do. ``choices`` are the types that a union in its type allows. With a ``factory``
    each object makes its own, unless it was given.
    """

    name: str
    open: bool
    lost: str
    choices: frozenset[Any] = frozenset()
    factory: Callable[[], object] | None = None


# Not frozen: many are made for each job, and setting the fields of a frozen one takes three times as long.
@dataclasses.dataclass(slots=True)
class _Pair:
    """A part of what was given, and what it arrives as. Treat it as frozen."""

    given: Any
    arriving: Any
    path: str
    member: _Member


def may_change(root: msgspec.inspect.Type) -> bool:
    """Whether in a type are classes with their own idea of what is written and read: models, or classes of attrs."""
    kinds = [getattr(node, "cls", None) for node in nodes(root)]
    return any(models.is_model(kind) or hasattr(kind, "__attrs_attrs__") for kind in kinds)


def returns_may_change(hint: Any) -> bool:
    """`may_change` of a return type, which may be of any kind."""
    try:
        return may_change(msgspec.inspect.type_info(hint))
    except Exception:  # what msgspec does not know is looked at when a result is read
        return False


def find_changes(given: object, arriving: object) -> Iterator[Culprit]:
    """The parts of ``given`` that are not what arrives, each with the reason and what to do, in reading order.

    What types leave open arrives as plain values: a tuple as a list, a datetime as a string, a model as a dict. A time
    without a time zone among those is a culprit too (`NAIVE`): no type says that it should have none.

    Example::

        next(find_changes(User(password=SecretStr("x")), User(password=SecretStr("**********"))))
        # $.password: is a secret, which is stored as asterisks: ...
    """
    stack = [_Pair(given, arriving, "$", _ROOT)]
    while stack:
        pair = stack.pop()
        parts = _parts(pair)
        if isinstance(parts, Culprit):
            yield parts
        else:
            stack += reversed(parts)


def _done(given: object, arriving: object) -> bool:
    """Whether there is nothing to look at. Most parts are scalars: a pair for each would take five times as long."""
    return type(given) is type(arriving) and type(given) in _SCALARS and given == arriving


def _parts(pair: _Pair) -> list[_Pair] | Culprit:
    """The parts of a pair, none for one that is the same on both sides."""
    kind: Any = type(pair.given)
    other: Any = type(pair.arriving)
    look = _look_of(kind)
    if kind is not other and _has_choice(pair):
        return Culprit(
            pair.path,
            f"is {article(kind.__name__)} and would arrive as {article(other.__name__)}, as its type allows both: "
            f"annotate it as one of them",
        )
    if look is not None and look is _look_of(other):
        return look(pair)
    return _leaf(pair) or []


def _has_choice(pair: _Pair) -> bool:
    """Whether a plain value is meant to be that, although it arrives as something else that its type allows."""
    kind, other = type(pair.given), type(pair.arriving)
    if pair.arriving is _MISSING or kind not in _PLAIN or other in (_PLAIN if pair.member.open else _SCALARS):
        return False
    return not pair.member.choices.isdisjoint((kind, Any, object))


@lru_cache(maxsize=1000)
def _look_of(kind: Any) -> Callable[[_Pair], list[_Pair] | Culprit] | None:
    """How to look into objects of a class; None where there is nothing to look into."""
    if models.is_model(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "__attrs_attrs__"):
        return _fields
    if dataclasses.is_dataclass(kind):
        return _fields
    if issubclass(kind, Mapping):
        return _items
    if issubclass(kind, list | tuple):
        return _elements
    return _set if issubclass(kind, Set) else None


def _fields(pair: _Pair) -> list[_Pair] | Culprit:
    given, arriving = pair.given, pair.arriving
    kind: Any = type(given)
    other: Any = type(arriving)
    if kind is not other and (kind := _class_of(given)) is not (other := _class_of(arriving)):
        return Culprit(
            pair.path,
            f"is {article(kind.__name__)} and would arrive as {article(other.__name__)}: annotate it as "
            f"{article(kind.__name__)}",
        )
    get = models.get if models.is_model(kind) else getattr
    pairs = []
    for member in _members(kind):
        value, other_value = get(given, member.name, _MISSING), get(arriving, member.name, _MISSING)
        if not (value is _MISSING or _done(value, other_value) or _is_own(given, member, value, other_value)):
            pairs.append(_Pair(value, other_value, f"{pair.path}.{member.name}", member))
    if extra := getattr(given, "__pydantic_extra__", None):
        pairs.append(_Pair(extra, arriving.__pydantic_extra__ or {}, pair.path, _EXTRA))
    return pairs


def _is_own(holder: object, member: _Member, value: object, arriving: object) -> bool:
    """Whether ``value`` is what its holder has made for itself: a lock, an id, a time. Data put in later is not."""
    if member.factory is None or member.name in getattr(holder, "model_fields_set", ()):
        return False
    try:
        return not _is_data(value) or bool(member.factory() != arriving)  # which makes another one each time
    except Exception:  # user code may raise anything, or takes what nobody has here
        return True


def _is_data(value: Any) -> bool:
    """Whether a value is plain all through, so that == tells whether it is the same."""
    if isinstance(value, Mapping):
        return all(_is_data(key) and _is_data(part) for key, part in value.items())
    if isinstance(value, list | tuple | Set):
        return all(map(_is_data, value))
    return isinstance(value, _DATA)


def _items(pair: _Pair) -> list[_Pair] | Culprit:
    given, arriving, member = pair.given, pair.arriving, pair.member
    if len(given) != len(arriving):
        return Culprit(pair.path, member.lost)
    if given.keys() == arriving.keys():
        return [
            _Pair(value, arriving[key], f"{pair.path}[{key!r}]", member)
            for key, value in given.items()
            if not _done(value, arriving[key])
        ]
    pairs = []
    for (key, value), (other_key, other) in zip(given.items(), arriving.items(), strict=True):
        path = f"{pair.path}[{key!r}]"
        # Where a type leaves that open, keys arrive as strings.
        if not (member.open and isinstance(other_key, str) and not isinstance(key, str) and type(key) in _SCALARS):
            pairs.append(_Pair(key, other_key, path, member))
        pairs.append(_Pair(value, other, path, member))
    return pairs


def _elements(pair: _Pair) -> list[_Pair] | Culprit:
    if len(pair.given) != len(pair.arriving):
        return Culprit(pair.path, pair.member.lost)
    return [
        _Pair(one, other, f"{pair.path}[{index}]", pair.member)
        for index, (one, other) in enumerate(zip(pair.given, pair.arriving, strict=True))
        if not _done(one, other)
    ]


def _set(pair: _Pair) -> list[_Pair] | Culprit:
    given, arriving = pair.given, pair.arriving
    # Elements may compare by identity, so each looks for its like.
    same = given == arriving or (
        len(given) == len(arriving) and all(any(_survives(a, b) for b in arriving) for a in given)
    )
    return [] if same else Culprit(pair.path, pair.member.lost)


def _survives(given: object, arriving: object) -> bool:
    return next(find_changes(given, arriving), None) is None


def _leaf(pair: _Pair) -> Culprit | None:
    given, arriving, member = pair.given, pair.arriving, pair.member
    if member.open:
        if naive := find_culprit(given, naive=True):
            return naive.under(pair.path)
        if type(arriving) in _PLAIN and type(given) not in _PLAIN and not _is_secret(given):
            return None
    # Plain values in a field of another type were made to what the type says.
    made = type(given) in _PLAIN and type(arriving) not in _PLAIN and arriving is not _MISSING
    if made or _is_same(given, arriving):
        return None
    return Culprit(pair.path, _MASKED if _is_secret(given) else member.lost)


def _is_same(given: Any, arriving: Any) -> bool:
    try:
        if given == arriving or (given != given and arriving != arriving):  # NaN of several types
            return True
        if isinstance(given, datetime) and isinstance(arriving, datetime):
            # In the hour that a clock shows twice, times of two zones are never equal to Python.
            return given.utcoffset() is not None and given.astimezone(UTC) == arriving.astimezone(UTC)
    except Exception:  # user types may raise anything; nobody can say then
        return True
    comparison: Any = type(given).__eq__
    return type(given) is type(arriving) and comparison is object.__eq__  # which nobody can compare


def _is_secret(value: object) -> bool:
    return hasattr(value, "get_secret_value")


def _class_of(value: Any) -> type:
    """The class of a value; of a generic model the one without parameters, as they are not told from its fields."""
    generic: dict[str, Any] = getattr(value, "__pydantic_generic_metadata__", {})
    kind: type = generic.get("origin") or type(value)
    return kind


@lru_cache(maxsize=1000)
def _members(kind: Any) -> list[_Member]:
    """What objects of a class hold, apart from what the class says is made anew in each, or is no part of its value."""
    if models.is_model(kind):
        return [
            _member(kind, field.name, field.type, excluded=field.excluded, factory=field.factory)
            for field in models.held(kind)
        ]
    hints = _hints(kind)
    return [_member(kind, name, hints.get(name), factory=factory) for name, factory in _names(kind)]


def _member(
    kind: type, name: str, hint: Any, *, excluded: bool = False, factory: Callable[[], object] | None = None
) -> _Member:
    if excluded:
        lost = f"would not arrive, as {kind.__name__} excludes it (exclude=True): {_INSTEAD}"
        return _Member(name, False, lost, factory=factory)
    if name.startswith("_") and not (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        lost = f"would not arrive, as attributes with an underscore are not stored: {_INSTEAD}"
        return _Member(name, False, lost, factory=factory)
    own = None if models.is_model(kind) else factory
    return _Member(name, is_open(hint), _changed(kind), frozenset(_choices(hint)), own)


def _changed(kind: type) -> str:
    return (
        f"would arrive changed, as {kind.__name__} reads something else than it writes (see its aliases, serializers "
        f"and validators): change {kind.__name__}, or give plain values"
    )


def _names(kind: Any) -> Iterator[tuple[str, Callable[[], object] | None]]:
    """The names of the parts of an object's value. With each the factory of one that only the object itself makes."""
    if issubclass(kind, msgspec.Struct):
        yield from ((name, None) for name in kind.__struct_fields__)
    elif dataclasses.is_dataclass(kind):
        yield from ((field.name, None) for field in dataclasses.fields(kind) if field.compare)
    else:
        for field in kind.__attrs_attrs__:
            if field.eq:
                yield field.name, None if field.init else getattr(field.default, "factory", None)


def _choices(hint: Any, in_union: bool = False) -> Iterator[Any]:
    """The types that are members of a union somewhere in a type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        yield from _choices(arguments[0], in_union)
    else:
        is_union = origin in (typing.Union, types.UnionType)
        if in_union and not is_union:
            yield origin or hint
        for argument in arguments:
            yield from _choices(argument, is_union)


def find_unread(given: object) -> Culprit | None:
    """The first model in ``given`` that cannot be read again, as its aliases for reading are not those for writing."""
    for path, part, _ in walk(given, live=True):
        kind = type(part)
        if models.is_model(kind) and (field := models.unread_field(kind)):
            return Culprit(f"{path}.{field}", _changed(kind))
    return None


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:  # annotations are evaluated, and may raise anything
        return {}


def is_open(hint: Any) -> bool:
    """Whether a type leaves open what its values, or parts of them, are.

    Example::

        is_open(dict[str, Any])   # True
    """
    if isinstance(hint, typing.TypeVar):
        return True
    if arguments := typing.get_args(hint):
        return any(map(is_open, arguments))
    kind = typing.get_origin(hint) or hint
    # A TypedDict and a NamedTuple are containers too: what is in them is not looked at.
    return kind in _OPEN or (isinstance(kind, type) and issubclass(kind, _CONTAINERS))


_INSTEAD = "make it an ordinary field, or hand it over by itself"
_MASKED = (
    "is a secret, which is stored as asterisks: hand over where it is kept, or have a field_serializer reveal it, so "
    "that it is stored in clear text"
)
_ROOT = _Member("", False, "would arrive changed: give a value of the type that is annotated")
_EXTRA = _Member("", True, "would arrive changed: make it a field of the model")
