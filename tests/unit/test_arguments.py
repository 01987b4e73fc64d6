"""Arguments: what is stored, what comes back, and what is refused with its path."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest

from prinia import INJECTED, Context, DecodeError, InvalidArguments, PayloadTooLarge, TaskDefinitionError
from prinia.payload.arguments import Arguments
from prinia.payload.signature import read_signature

NAIVE = datetime(2030, 1, 2, 3, 4, 5)  # noqa: DTZ001
AWARE = NAIVE.replace(tzinfo=UTC)
MeantNaive = Annotated[datetime, msgspec.Meta(tz=False)]


@dataclass
class Item:
    name: str
    at: datetime | None = None


@dataclass
class Order:
    id: int
    items: list[Item] = field(default_factory=list)


class Tree(msgspec.Struct):
    at: datetime | None = None
    kids: list[Tree] = []


class Shape(TypedDict, total=False):
    sides: int
    seen: tuple[datetime, str]


class Pair(NamedTuple):
    left: int
    right: time


class Mood(enum.Enum):
    GOOD = "good"


def arguments(function: Callable[..., Any], limit: int = 1024 * 1024) -> Arguments:
    return Arguments("shop.send", read_signature(function), limit=limit)


def refused(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        arguments(function).encode(args, kwargs)
    return str(caught.value)


def plain(order: int, note: str = "none", *, urgent: bool = False) -> None: ...


def test_what_is_given_is_stored_and_defaults_are_not() -> None:
    plain_arguments = arguments(plain)
    assert plain_arguments.encode((9,), {}) == b'{"order":9}'
    assert plain_arguments.encode((9, "none"), {"urgent": False}) == b'{"order":9,"note":"none","urgent":false}'
    assert plain_arguments.encode((), {"note": "x", "order": 1}) == b'{"order":1,"note":"x"}'
    assert plain_arguments.decode(b'{"order":9}') == {"order": 9}
    assert plain_arguments.decode(b'{"urgent":true,"order":9}') == {"order": 9, "urgent": True}


def test_none_is_a_value_and_not_a_missing_one() -> None:
    def optional(note: str | None = "x", count: int | None = 3) -> None: ...

    assert arguments(optional).encode((None,), {}) == b'{"note":null}'
    assert arguments(optional).decode(b'{"note":null}') == {"note": None}
    assert arguments(optional).decode(b"{}") == {}


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "shop.send: missing a required argument: 'order'. It takes (order: 'int', note: 'str' = 'none'"),
        ((1, "a", True), {}, "shop.send: too many positional arguments. It takes"),
        ((1,), {"to": 2}, "shop.send: got an unexpected keyword argument 'to'. It takes"),
        ((1,), {"order": 2}, "shop.send: multiple values for argument 'order'. It takes"),
        (("9",), {}, "shop.send: argument order: expected int, got str"),
        ((True,), {}, "shop.send: argument order: expected int, got bool"),
        ((1.0,), {}, "shop.send: argument order: expected int, got float"),
        ((None,), {}, "shop.send: argument order: expected int, got null"),
        ((float("nan"),), {}, "shop.send: argument order: NaN has no place in JSON"),
        ((1, "a\0b"), {}, "shop.send: argument note: contains a NUL character"),
        ((1, "a\udfff"), {}, "shop.send: argument note: contains a lone surrogate at position 1"),
        ((object(),), {}, "shop.send: argument order: an object cannot be stored"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    assert refused(plain, *args, **kwargs).startswith(text)


def test_the_path_leads_into_nested_values() -> None:
    def task(order: Order) -> None: ...

    good = [Item("a"), Item("b"), Item("c")]
    assert refused(task, Order(1, [*good, Item("x\0")])).startswith(
        "shop.send: argument order.items[3].name: contains a NUL"
    )
    assert refused(task, Order(1, [*good, Item(5)])) == (  # type: ignore[arg-type]
        "shop.send: argument order.items[3].name: expected str, got int"
    )
    assert "order.items[0].at: has no time zone" in refused(task, Order(1, [Item("a", NAIVE)]))


def test_values_arrive_with_their_types() -> None:
    def task(
        order: Order,
        tree: Tree,
        shape: Shape,
        pair: Pair,
        mood: Mood,
        ids: set[UUID],
        prices: dict[str, Decimal],
        waits: Sequence[timedelta],
        raw: bytes,
        kind: Literal["a", "b"],
        when: datetime,
    ) -> None: ...

    given = {
        "order": Order(1, [Item("a", AWARE)]),
        "tree": Tree(AWARE, [Tree(AWARE)]),
        "shape": {"sides": 3, "seen": (AWARE, "x")},
        "pair": Pair(1, time(3, tzinfo=UTC)),
        "mood": Mood.GOOD,
        "ids": {UUID(int=1)},
        "prices": {"a": Decimal("1.10")},
        "waits": [timedelta(days=1, microseconds=3)],
        "raw": b"\0\xff",
        "kind": "b",
        "when": AWARE,
    }
    assert arguments(task).decode(arguments(task).encode((), given)) == given


def test_big_whole_numbers_round_trip() -> None:
    def task(number: int, anything: Any) -> None: ...

    for number in (2**63, 2**64, -(2**63) - 1, 2**70, 10**1000):
        stored = arguments(task).encode((number, [number]), {})
        assert arguments(task).decode(stored) == {"number": number, "anything": [number]}
    assert "argument number: cannot be stored: Exceeds the limit" in refused(task, 10**5000, 1)


@pytest.mark.parametrize(
    ("hint", "value", "path"),
    [
        (datetime, NAIVE, "x"),
        (time, time(1), "x"),
        (time, time(1, tzinfo=ZoneInfo("Europe/Rome")), "x"),  # a zone that has no offset without a day
        (datetime | None, NAIVE, "x"),
        (list[datetime], [AWARE, NAIVE], "x[1]"),
        (set[datetime], {NAIVE}, "x[0]"),
        (frozenset[time], {time(1)}, "x[0]"),
        (tuple[int, datetime], (1, NAIVE), "x[1]"),
        (tuple[datetime, ...], (AWARE, NAIVE), "x[1]"),
        (dict[str, list[datetime]], {"a": [NAIVE]}, "x['a'][0]"),
        (dict[datetime, int], {NAIVE: 1}, "x[datetime"),
        (list[datetime] | datetime, [NAIVE], "x[0]"),
        (Tree, Tree(AWARE, [Tree(), Tree(None, [Tree(NAIVE)])]), "x.kids[1].kids[0].at"),
        (Shape, {"seen": (NAIVE, "a")}, "x.seen[0]"),
        (Pair, Pair(1, time(2)), "x.right"),
        (Annotated[datetime, msgspec.Meta(description="when")], NAIVE, "x"),
        (MeantNaive | list[datetime], [NAIVE], "x[0]"),
        (Any, NAIVE, "x"),
        (Any, {"a": [1, {"b": time(1)}]}, "x.a[1].b"),
        (list, [NAIVE], "x[0]"),
        (dict[str, Any], {"a": NAIVE}, "x.a"),
    ],
)
def test_naive_times_are_refused_with_their_path(hint: Any, value: object, path: str) -> None:
    def task(x: Any) -> None: ...

    task.__annotations__["x"] = hint
    reason = refused(task, value)
    assert reason.startswith(f"shop.send: argument {path}")
    assert "has no time zone" in reason


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (MeantNaive, NAIVE),
        (list[MeantNaive | None], [NAIVE, None]),
        (MeantNaive | list[datetime], NAIVE),
        (tuple[Any, MeantNaive], ("x", NAIVE)),
        (Any, "2030-01-02T03:04:05"),
        (str, "03:04:05"),
        (Tree, Tree(None)),
    ],
)
def test_times_meant_to_be_naive_and_their_lookalikes_pass(hint: Any, value: object) -> None:
    def task(x: Any) -> None: ...

    task.__annotations__["x"] = hint
    assert arguments(task).encode((value,), {})


def test_a_time_meant_to_be_naive_must_be() -> None:
    def task(at: MeantNaive) -> None: ...

    assert "argument at: expected datetime with no timezone" in refused(task, AWARE)


def test_a_parameter_without_annotation_takes_plain_json() -> None:
    def task(a, b=()):  # type: ignore[no-untyped-def]
        ...

    stored = arguments(task).encode(({"x": (1, None)},), {})
    assert arguments(task).decode(stored) == {"a": {"x": [1, None]}}
    assert "argument a.x[1]: NaN" in refused(task, {"x": (1, float("nan"))})


def test_arguments_above_the_limit_are_refused_with_both_numbers() -> None:
    with pytest.raises(PayloadTooLarge, match=r"shop.send: the arguments are 1,011 bytes as JSON, the limit is 1,000"):
        arguments(plain, 1000).encode((1,), {"note": "x" * (1011 - 21)})
    assert len(arguments(plain, 1000).encode((1,), {"note": "x" * (1000 - 21)})) == 1000


def with_context(a: int, ctx: Context = INJECTED, b: int = 2, *, c: int = 3) -> None: ...


def test_injected_parameters_are_not_enqueued() -> None:
    assert arguments(with_context).encode((1,), {"b": 5, "c": 6}) == b'{"a":1,"b":5,"c":6}'
    reason = refused(with_context, 1, ctx=Context())
    assert reason == "shop.send: ctx is injected when the job runs and cannot be enqueued; leave it out"
    # Its position is the context's, so that b would silently become something else.
    reason = refused(with_context, 1, 2)
    assert reason == "shop.send: too many positional arguments. It takes (a: 'int', *, b: 'int' = 2, c: 'int' = 3)"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"order":"9"}', "shop.send: stored arguments do not fit: order: expected int, got str"),
        (b"{}", "shop.send: stored arguments do not fit: object missing required field order"),
        (b'{"order":1,"to":2}', "shop.send: stored arguments do not fit: object contains unknown field to"),
        (b'{"order":1', "shop.send: stored arguments do not fit: Input data was truncated"),
        (b"[1]", "shop.send: stored arguments do not fit: expected object, got array"),
        (b"\x00", "shop.send: stored arguments do not fit: JSON is malformed"),
    ],
)
def test_stored_arguments_that_do_not_fit_say_why(data: bytes, text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        arguments(plain).decode(data)
    assert str(caught.value).startswith(text)


class Custom: ...


@pytest.mark.parametrize("hint", [Custom, list[Custom], Custom | None, dict[str, tuple[Custom, int]], object, complex])
def test_types_that_cannot_be_stored_are_refused_when_decorated(hint: Any) -> None:
    def task(x: Any) -> None: ...

    task.__annotations__["x"] = hint
    with pytest.raises(TaskDefinitionError, match=r"shop.send: parameter x: .* cannot be stored"):
        arguments(task)


@pytest.mark.parametrize("hint", [int | Custom, list[int] | list[str]])
def test_types_that_msgspec_refuses_are_refused_when_decorated(hint: Any) -> None:
    def task(x: Any) -> None: ...

    task.__annotations__["x"] = hint
    with pytest.raises(TaskDefinitionError, match=r"^shop\.send: parameter x: Type unions"):
        arguments(task)


def test_odd_parameter_names_work_or_are_refused_kindly() -> None:
    def task(self: int, cls: int, _x: int, type: int) -> None: ...

    assert arguments(task).encode((1, 2, 3, 4), {}) == b'{"self":1,"cls":2,"_x":3,"type":4}'

    def odd(__x: int) -> None: ...

    with pytest.raises(TaskDefinitionError, match=r"^shop\.send: its parameters cannot be stored"):
        arguments(odd)
