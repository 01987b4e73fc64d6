"""JSON as it is stored: what is refused, and where in a value it is."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from prinia.errors import DecodeError, NotStorable
from prinia.payload.codec import JsonCodec
from prinia.payload.storable import find_culprit

NAN = float("nan")
SURROGATE = "a\ud800b"


@dataclass
class Item:
    name: str
    price: float | None = None


class Order(msgspec.Struct, rename="camel"):
    line_items: list[Item]


class Point(NamedTuple):
    x: float
    y: float


class Colour(enum.Enum):
    RED = "red"


class Marked(str):
    def __str__(self) -> str:
        return "not what is meant"


class Count(int):
    pass


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"at": date(2030, 1, 2)}, b'{"at":"2030-01-02"}'),
        (datetime(2030, 1, 2, tzinfo=UTC), b'"2030-01-02T00:00:00Z"'),
        (UUID(int=7), b'"00000000-0000-0000-0000-000000000007"'),
        (Decimal("1.10"), b'"1.10"'),
        (Point(1.0, 2.0), b"[1.0,2.0]"),
        (Colour.RED, b'"red"'),
        ({3}, b"[3]"),
        (Order([Item("a")]), b'{"lineItems":[{"name":"a","price":null}]}'),
        (b"\xff", b'"/w=="'),
        (2**70, b"1180591620717411303424"),
        (Marked("<b>"), b'"<b>"'),
        ([Count(3)], b"[3]"),
        (None, b"null"),
        ("null", b'"null"'),
        ([None, 1.5, "x"], b'[null,1.5,"x"]'),
    ],
)
def test_what_is_stored(value: object, stored: bytes) -> None:
    assert JsonCodec().encode(value) == stored


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (NAN, "$: NaN has no place in JSON"),
        ({"a": [1.0, None, float("-inf")]}, "$.a[2]: -Infinity has no place in JSON"),
        (Order([Item("a"), Item("b", float("inf"))]), "$.lineItems[1].price: Infinity has no place in JSON"),
        ({"n": 2**70, "x": NAN}, "$.x: NaN has no place in JSON"),
        ([Point(1.0, NAN)], "$[0][1]: NaN has no place in JSON"),
        ({"a": SURROGATE}, "$.a: contains a lone surrogate at position 1"),
        ({SURROGATE: 1}, r"$: the key 'a\ud800b' contains a lone surrogate"),
        ({"a b": SURROGATE}, "$['a b']: contains a lone surrogate"),
        ([1, {2: object()}], "$[1][2]: an object cannot be stored"),
        ([Item], "$[0]: a type cannot be stored"),
        ((n for n in "ab"), "$: a generator cannot be stored"),
        ({"n": 10**5000}, "$.n: cannot be stored: Exceeds the limit"),
        (circle(), "$: is nested too deeply, or contains itself"),
        ({"a": circle(), "b": SURROGATE}, "$"),
        ({"a": SURROGATE, "b": circle()}, "$.a: contains a lone surrogate"),
    ],
)
def test_what_is_refused_and_where(value: object, text: str) -> None:
    with pytest.raises(NotStorable) as caught:
        JsonCodec().encode(value)
    assert str(caught.value).startswith(text)


def test_nul_is_refused_only_where_asked() -> None:
    value = {"a": ["fine", "x\0y"]}
    assert JsonCodec().decode(JsonCodec().encode(value), Any) == value
    with pytest.raises(NotStorable, match=r"^\$\.a\[1\]: contains a NUL character"):
        JsonCodec(nul=False).encode(value)
    with pytest.raises(NotStorable, match=r"the key 'x\\x00' contains a NUL"):
        JsonCodec(nul=False).encode({"x\0": 1})


def test_what_only_looks_like_nul_or_null_passes() -> None:
    value = {"a": "\\u0000", "b": "null", "c": None, "d": [1.5] * 3}
    assert JsonCodec(nul=False).decode(JsonCodec(nul=False).encode(value), Any) == value


def test_a_nan_key_is_no_null() -> None:
    assert JsonCodec().encode({"a": None}) == b'{"a":null}'
    with pytest.raises(NotStorable, match="NaN"):
        JsonCodec().encode({NAN: None})


def test_a_surrogate_is_found_in_a_circle_without_end() -> None:
    ring: list[Any] = []
    ring += [ring, ring]
    assert str(find_culprit(ring)) == "$: is nested too deeply, or contains itself"


@pytest.mark.parametrize(
    ("data", "type", "text"),
    [
        (b'{"name":1}', Item, "$.name: expected str, got int"),
        (b'{"a":[1,"2"]}', dict[str, list[int]], "$[...][1]: expected int, got str"),
        (b'{"name":"a"', Item, "input data was truncated"),
        (b"\xff", str, "JSON is malformed"),
        (b"{}", int | complex, "Type unions"),
    ],
)
def test_what_does_not_decode_says_why(data: bytes, type: Any, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        JsonCodec().decode(data, type)
    assert str(caught.value).lower().startswith(text.lower())


def test_naive_times_are_found_when_asked_for() -> None:
    value = {"a": [time(1, 2, tzinfo=UTC), datetime(2030, 1, 1)]}  # noqa: DTZ001
    assert find_culprit(value) is None
    culprit = find_culprit(value, naive=True)
    assert culprit is not None
    assert culprit.path == "$.a[1]"
