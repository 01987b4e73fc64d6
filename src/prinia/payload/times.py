"""Times without a time zone, found by type: compiled once per task, free for types that hold no time."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from msgspec import inspect as info

from prinia.payload.storable import Culprit, find_culprit, naive_culprit

#: Given a decoded value and its path, the first naive time in it, or None.
Check = Callable[[Any, str], Culprit | None]

_PYTHON_TYPES: dict[type[info.Type], type] = {
    info.DateTimeType: datetime.datetime,
    info.TimeType: datetime.time,
    info.ListType: list,
    info.SetType: set,
    info.FrozenSetType: frozenset,
    info.VarTupleType: tuple,
    info.TupleType: tuple,
    info.DictType: dict,
    info.TypedDictType: dict,
}
_Fielded: TypeAlias = info.StructType | info.DataclassType | info.NamedTupleType | info.TypedDictType


def nodes(root: info.Type) -> Iterator[info.Type]:
    """Every type that a value of type ``root`` can be made of, each class once."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        mark = id(getattr(node, "cls", node))
        if mark not in seen:
            seen.add(mark)
            yield node
            stack.extend(_parts(node))


def _parts(node: info.Type) -> Iterable[info.Type]:
    match node:
        case info.Metadata(type=inner):
            return (inner,)
        case info.UnionType(types=types) | info.TupleType(item_types=types):
            return types
        case info.DictType(key_type=key, value_type=value):
            return (key, value)
        case info.ListType() | info.SetType() | info.FrozenSetType() | info.VarTupleType():
            return (node.item_type,)
        case info.StructType() | info.DataclassType() | info.NamedTupleType() | info.TypedDictType():
            return [field.type for field in node.fields]
        case _:
            return ()


def asks_for_zone(node: info.Type) -> bool:
    """Whether the node is a time whose annotation does not say what a missing zone means, or may hold one unseen."""
    return isinstance(node, info.CustomType) or (
        isinstance(node, info.DateTimeType | info.TimeType) and node.tz is None
    )


def allows_naive(node: info.Type) -> bool:
    """Whether the node is a time whose annotation says that it has no zone."""
    return isinstance(node, info.DateTimeType | info.TimeType) and node.tz is False


def naive_check(root: info.Type) -> Check | None:
    """A function that finds naive times in decoded values of a type, or None where there can be none.

    ``Annotated[datetime, msgspec.Meta(tz=False)]`` says that a time is meant to be naive.
    """
    return _Compiler().compile(root)


class _Compiler:
    """Builds checks; a class that contains itself is met again while its check is being built."""

    def __init__(self) -> None:
        self._classes: dict[type, Check] = {}

    def compile(self, node: info.Type) -> Check | None:
        if not any(map(asks_for_zone, nodes(node))):
            return None
        match node:
            case info.Metadata(type=inner):
                return self.compile(inner)
            case info.DateTimeType() | info.TimeType():
                return lambda value, path: naive_culprit(value, path)
            case info.CustomType():
                return _in_model
            case info.ListType() | info.SetType() | info.FrozenSetType() | info.VarTupleType():
                return _each(self.compile(node.item_type))
            case info.TupleType():
                return _members([self.compile(item) for item in node.item_types])
            case info.DictType():
                return _items(self.compile(node.key_type), self.compile(node.value_type))
            case info.UnionType():
                return self._union(node)
            case info.StructType() | info.DataclassType() | info.NamedTupleType() | info.TypedDictType():
                return self._fields(node)
            case _:
                return None

    def _union(self, node: info.UnionType) -> Check:
        # msgspec allows no two members whose decoded values have the same Python type.
        choices = [(_python_type(member), check) for member in node.types if (check := self.compile(member))]

        def check_union(value: Any, path: str) -> Culprit | None:
            return next((check(value, path) for kind, check in choices if isinstance(value, kind)), None)

        return check_union

    def _fields(self, node: _Fielded) -> Check:
        if node.cls in self._classes:
            # Looked up when called: the check of a class that contains itself is not ready yet.
            return lambda value, path: self._classes[node.cls](value, path)
        self._classes[node.cls] = lambda value, path: None
        get = dict.get if isinstance(node, info.TypedDictType) else getattr
        checks = [
            (field.name, field.encode_name, check)
            for field in node.fields
            if (check := self.compile(field.type)) is not None
        ]

        def check_fields(value: Any, path: str) -> Culprit | None:
            for name, shown, check in checks:
                part = get(value, name, None)
                if part is not None and (found := check(part, f"{path}.{shown}")):
                    return found
            return None

        self._classes[node.cls] = check_fields
        return check_fields


def _python_type(node: info.Type) -> type:
    if isinstance(node, info.Metadata):
        return _python_type(node.type)
    own: type = getattr(node, "cls", object)
    return _PYTHON_TYPES.get(type(node), own)


def _in_model(value: Any, path: str) -> Culprit | None:
    culprit = find_culprit(value, naive=True)
    return culprit.under(path) if culprit else None


def _each(check: Check | None) -> Check:
    def check_each(value: Any, path: str) -> Culprit | None:
        if check is None:
            return None
        return next((found for index, part in enumerate(value) if (found := check(part, f"{path}[{index}]"))), None)

    return check_each


def _members(checks: list[Check | None]) -> Check:
    def check_members(value: Any, path: str) -> Culprit | None:
        pairs = enumerate(zip(value, checks, strict=True))
        return next((found for i, (part, check) in pairs if check and (found := check(part, f"{path}[{i}]"))), None)

    return check_members


def _items(key_check: Check | None, value_check: Check | None) -> Check:
    def check_items(value: Any, path: str) -> Culprit | None:
        for key, part in value.items():
            step = f"{path}[{key!r}]"
            found = (key_check and key_check(key, step)) or (value_check and value_check(part, step))
            if found:
                return found
        return None

    return check_items
