"""What models hold either arrives, or is refused when it is enqueued or returned: nothing changes on the way unseen."""

from __future__ import annotations

import enum
import ipaddress
import itertools
import threading
import warnings
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from prinia import Codec, InvalidArguments, JobFailed, JsonCodec, MessagePackCodec, NotStorable, Prinia
from prinia.job import JobState
from prinia.storage.memory import MemoryStorage

AT = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
NAIVE = datetime(2030, 1, 2)  # noqa: DTZ001
T = TypeVar("T")
MADE = itertools.count()


class OwnJson:
    """Times stay times in it."""

    name = "own"

    def encode(self, value: object) -> bytes:
        return msgspec.msgpack.encode(msgspec.to_builtins(value, enc_hook=repr))

    def decode(self, data: bytes) -> object:
        return msgspec.msgpack.decode(data)


CODECS = [JsonCodec(), MessagePackCodec(), OwnJson()]


class Colour(enum.Enum):
    RED = "red"


class Login(pydantic.BaseModel):
    name: str
    password: pydantic.SecretStr


class Revealed(pydantic.BaseModel):
    password: pydantic.SecretStr

    @pydantic.field_serializer("password")
    def reveal(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


class Aliased(pydantic.BaseModel):
    number: int = pydantic.Field(default=0, validation_alias="no")


class AliasedBothWays(Aliased):
    model_config = pydantic.ConfigDict(populate_by_name=True)


class Excluding(pydantic.BaseModel):
    note: str = pydantic.Field(default="", exclude=True)
    trace: UUID = pydantic.Field(default_factory=uuid4, exclude=True)
    client: Any = pydantic.Field(default=None, exclude=True)
    names: list[str] = pydantic.Field(default_factory=list, exclude=True)
    tags: list[str] = pydantic.Field(default_factory=list)


class Private(pydantic.BaseModel):
    number: int = 1
    _token: str = pydantic.PrivateAttr("")
    _unset: str = pydantic.PrivateAttr()
    _made: datetime = pydantic.PrivateAttr(default_factory=lambda: datetime.now(UTC))
    _cache: dict[str, int] = pydantic.PrivateAttr(default_factory=dict)
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)

    @cached_property
    def twice(self) -> int:
        return 2 * self.number

    def holding(self, name: str, value: object) -> Private:
        setattr(self, name, value)
        return self


class Serializing(pydantic.BaseModel):
    number: int = 0

    @pydantic.model_serializer
    def write(self) -> dict[str, object]:
        return {}


class Doubling(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def double(cls, number: int) -> int:
        return 2 * number


class Base(pydantic.BaseModel):
    id: int


class Derived(Base):
    more: int = 2


class Holder(pydantic.BaseModel):
    one: Base
    all: list[pydantic.SerializeAsAny[Base]] = []
    by_key: dict[int, Base] = {}


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)


class Either(pydantic.BaseModel):
    price: str | Decimal


class Choosing(pydantic.BaseModel):
    """Types that allow both what is given and what it looks like."""

    id: UUID | str = ""
    at: Annotated[datetime, "when"] | str = ""
    price: Decimal | str = ""
    shape: Base | dict[str, int] | None = None
    all: list[int] | tuple[int, ...] = []
    ids: list[UUID | str] | None = None
    only: UUID | int = 0
    by_name: dict[str, UUID] | None = None
    open: dict[str, Any] | tuple[Any, ...] = ()
    colour: Colour | Literal["red"] = "red"


class Writing(pydantic.BaseModel):
    user_id: int = pydantic.Field(serialization_alias="userId")


class Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=pydantic.AliasGenerator(serialization_alias=to_camel))

    user_id: int


class Reading(pydantic.BaseModel):
    user_id: int = pydantic.Field(validation_alias="userId")


class Pathed(pydantic.BaseModel):
    user_id: int = pydantic.Field(validation_alias=pydantic.AliasPath("user", 0))


class Around(pydantic.BaseModel):
    of: Writing


class Closed(Aliased):
    model_config = pydantic.ConfigDict(extra="forbid")


class Tolerant(Aliased):
    other: int = 0


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)

    number: int = pydantic.Field(validation_alias="no")


class MadeAnew(pydantic.BaseModel):
    _id: str = pydantic.PrivateAttr(default_factory=lambda: uuid4().hex)
    _number: int = pydantic.PrivateAttr(default_factory=MADE.__next__)


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Point(NamedTuple):
    x: int
    at: Any


class Extra(TypedDict):
    at: Any


class ByIdentity:
    """A class of an application's, which knows nothing of ==."""

    def __init__(self, text: str) -> None:
        self.text = text


class Incomparable(ByIdentity):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("cannot tell")

    __hash__ = None  # type: ignore[assignment]


def of(kind: Any) -> Any:
    return Annotated[
        kind,
        pydantic.PlainValidator(lambda text: text if isinstance(text, kind) else kind(text)),
        pydantic.PlainSerializer(lambda value: value.text),
    ]


class Everything(pydantic.BaseModel):
    """Whatever changes its form on the way and is the same all the same."""

    number: float = 1
    price: Decimal = Decimal("1.10")
    no_price: Decimal = pydantic.Field(default=Decimal("NaN"), allow_inf_nan=True)
    at: datetime = datetime(2030, 1, 2, 3, tzinfo=timezone(timedelta(hours=5)))
    twice_shown: datetime = datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    naive: pydantic.NaiveDatetime = NAIVE
    day: date = date(2030, 1, 2)
    hour: time = time(1, 2, 3, tzinfo=UTC)
    length: timedelta = timedelta(days=1, microseconds=1)
    id: UUID = UUID(int=7)
    colour: Colour = Colour.RED
    names: set[str] = {"b", "a", "c"}
    frozen: frozenset[int] = frozenset({3, 1})
    pair: tuple[int, str] = (1, "a")
    many: tuple[int, ...] = (1, 2)
    by_number: dict[int, str] = {2: "b", 1: "a"}
    by_day: dict[date, Colour] = {date(2030, 1, 1): Colour.RED}
    data: bytes = b"abc"
    path: Path = Path("a/b")
    link: pydantic.HttpUrl = pydantic.HttpUrl("https://example.org/")
    address: ipaddress.IPv4Address = ipaddress.IPv4Address("127.0.0.1")
    parsed: pydantic.Json[list[int]] = [1, 2]
    identity: of(ByIdentity) = ByIdentity("a")  # type: ignore[valid-type]
    incomparable: of(Incomparable) = Incomparable("a")  # type: ignore[valid-type]
    old: int = pydantic.Field(default=1, deprecated=True)
    anything: Any = (1, AT, Colour.RED, {Decimal(1)}, UUID(int=1), Base(id=1), timedelta(1), Path("a"), b"x")
    plain: dict[str, Any] = {"a": {1: (AT,), None: 2, Colour.RED: 3, 1.5: AT}, "b": Point(1, AT)}
    typed: Extra = {"at": AT}
    bare: dict = {"at": AT, "all": frozenset({1})}  # type: ignore[type-arg]
    union: list[Any] | None = [AT]


@attrs.define
class Parcel:
    weight: float = 1
    lines: list[Base] = attrs.field(factory=list)
    anything: Any = None
    closes: Annotated[datetime, msgspec.Meta(tz=False)] = NAIVE
    _made: UUID = attrs.field(factory=uuid4, init=False)


@attrs.define
class Heavy(Parcel):
    more: int = 1


@attrs.define(eq=False)
class Hidden:
    open: int = 1
    _token: str = "x"
    _cache: str = attrs.field(default="", eq=False)


@attrs.define
class Collecting:
    _names: list[str] = attrs.field(factory=list, init=False)


@attrs.define
class Counting:
    number: int

    def __attrs_post_init__(self) -> None:
        self.number += 1


@dataclass
class Box:
    parcels: dict[str, list[Parcel]]
    _seen: Any = AT
    made: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.made = next(MADE)


def new_task(kind: Any, codec: Codec | None = None) -> Any:
    def send(one: Any) -> None: ...

    send.__annotations__ = {"one": kind, "return": None}
    return Prinia(storage=MemoryStorage(), codec=codec).task(name="send")(send)


def unchecked(kind: Any, **values: Any) -> Any:
    return kind.model_construct(**values)


def filled(holder: Any) -> Any:
    """The object with a name in the list that it has made for itself."""
    (holder._names if hasattr(holder, "_names") else holder.names).append("x")
    return holder


UNDERSCORE = "would not arrive, as attributes with an underscore are not stored: make it an ordinary field"
CHANGED = "would arrive changed, as {0} reads something else than it writes \\(see its aliases, serializers and"
EXCLUDED = r"would not arrive, as Excluding excludes it \(exclude=True\): make it an ordinary field"
SECRET = "is a secret, which is stored as asterisks: hand over where it is kept"
LOST: dict[str, tuple[Any, Any, str]] = {
    "secret": (Login, Login(name="a", password=pydantic.SecretStr("x")), f"one.password: {SECRET}"),
    "secret among others": (
        dict[str, list[Login]],
        {"a": [Login(name="a", password=pydantic.SecretStr(x)) for x in ("", "x")]},
        rf"one\['a'\]\[1\].password: {SECRET}",
    ),
    "secret in an open field": (Loose, Loose.model_validate({"a": {"b": pydantic.SecretStr("x")}}), SECRET),
    "alias": (Aliased, Aliased(no=1), "one.number: " + CHANGED.format("Aliased")),  # type: ignore[call-arg]
    "excluded": (Excluding, Excluding(note="x"), f"one.note: {EXCLUDED}"),
    "excluded, of its own": (Excluding, Excluding(trace=UUID(int=1)), f"one.trace: {EXCLUDED}"),
    "excluded, of any type": (Excluding, Excluding(client=AT), f"one.client: {EXCLUDED}"),
    "private": (Private, Private().holding("_token", "x"), f"one._token: {UNDERSCORE}"),
    "private without default": (Private, Private().holding("_unset", "x"), f"one._unset: {UNDERSCORE}"),
    "model_serializer": (Serializing, Serializing(number=1), "one.number: " + CHANGED.format("Serializing")),
    "validator": (Doubling, Doubling(number=2), "one.number: " + CHANGED.format("Doubling")),
    "derived": (Base, Derived(id=1), "one: is a Derived and would arrive as a Base: annotate it as a Derived"),
    "derived inside": (Holder, Holder(one=Derived(id=1)), "one.one: is a Derived and would arrive as a Base"),
    "derived, written whole": (Holder, Holder(one=Base(id=1), all=[Derived(id=1)]), r"one.all\[0\]: is a Derived"),
    "derived by key": (Holder, Holder(one=Base(id=1), by_key={7: Derived(id=1)}), r"one.by_key\[7\]: is a Derived"),
    "union": (Either, Either(price=Decimal(1)), "one.price: " + CHANGED.format("Either")),
    "derived of attrs": (Parcel, Heavy(), "one: is a Heavy and would arrive as a Parcel"),
    "private, filled": (Private, Private().holding("_cache", {"a": 1}), f"one._cache: {UNDERSCORE}"),
    "excluded, filled": (Excluding, filled(Excluding()), f"one.names: {EXCLUDED}"),
    "private of attrs, filled": (Collecting, filled(Collecting()), f"one._names: {UNDERSCORE}"),
    "looks like a UUID": (Choosing, Choosing(id=str(UUID(int=1))), "one.id: is a str and would arrive as a UUID"),
    "looks like a time": (Choosing, Choosing(at=AT.isoformat()), "one.at: is a str and would arrive as a datetime"),
    "looks like a number": (Choosing, Choosing(price="12.50"), "one.price: is a str and would arrive as a Decimal"),
    "looks like a model": (Choosing, unchecked(Choosing, shape={"id": 1}), "one.shape: is a dict and would .* a Base"),
    "looks like a list": (Choosing, Choosing(all=(1, 2)), "one.all: is a tuple and would arrive as a list"),
    "looks like one in a list": (Choosing, Choosing(ids=["", str(UUID(int=1))]), r"one.ids\[1\]: is a str and would"),
    "underscore of attrs": (Hidden, Hidden(token="y"), f"one._token: {UNDERSCORE}"),
    "post_init of attrs": (Counting, Counting(1), "one.number: " + CHANGED.format("Counting")),
    "model in attrs in a dataclass": (
        Box, Box({"a": [Parcel(), Parcel(lines=[Derived(id=1)])]}), r"one.parcels\['a'\]\[1\].lines\[0\]: is a Derived",
    ),
}  # fmt: skip


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize(("kind", "given", "said"), LOST.values(), ids=LOST)
def test_what_would_be_lost_is_refused(kind: Any, given: Any, said: str, codec: Codec) -> None:
    with pytest.raises(InvalidArguments, match=f"^send: argument .*{said}") as caught:
        new_task(kind, codec).job(given)
    assert "SecretStr(" not in str(caught.value), "what is private is not shown"


@pytest.mark.parametrize(("kind", "given", "said"), LOST.values(), ids=LOST)
def test_as_a_result_it_is_not_storable(kind: Any, given: Any, said: str) -> None:
    def give() -> Any: ...

    give.__annotations__ = {"return": kind}
    task = Prinia(storage=MemoryStorage()).task(name="give")(give)
    with pytest.raises(NotStorable, match=said.replace("one", r"\$", 1) if said.startswith("one") else said):
        task.encode_result(given)


UNREAD: dict[str, tuple[Any, Any, str]] = {
    "written under an alias": (Writing, Writing(user_id=1), "one.user_id: " + CHANGED.format("Writing")),
    "written under a made alias": (Camel, Camel(user_id=1), "one.user_id: " + CHANGED.format("Camel")),
    "read under an alias": (Reading, Reading(userId=1), "one.user_id: " + CHANGED.format("Reading")),  # type: ignore[call-arg]
    "read under a path": (
        Pathed, Pathed.model_validate({"user": [1]}), "one.user_id: " + CHANGED.format("Pathed"),
    ),
    "written under an alias, inside": (list[Around], [Around(of=Writing(user_id=1))], r"one\[0\].of.user_id: would"),
    "alias where nothing else may be": (Closed, Closed(no=1), "one.number: " + CHANGED.format("Closed")),  # type: ignore[call-arg]
}  # fmt: skip


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize(("kind", "given", "said"), UNREAD.values(), ids=UNREAD)
def test_a_model_that_cannot_be_read_by_its_aliases_is_refused(kind: Any, given: Any, said: str, codec: Codec) -> None:
    with pytest.raises(InvalidArguments, match=f"^send: argument {said}"):
        new_task(kind, codec).job(given)


@pytest.mark.parametrize("given", [unchecked(Tolerant, other="x"), unchecked(ByName, number="x")])
def test_aliases_are_not_blamed_for_what_they_do_not_break(given: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"^send: argument one.\w+: input should be a valid integer"):
        new_task(type(given)).job(given)


def test_values_by_name_are_told_the_alias() -> None:
    with pytest.raises(InvalidArguments, match=r"^send: argument one.userId: field required"):
        new_task(Reading).job({"user_id": 1})


FINE: dict[str, tuple[Any, Any]] = {
    "everything": (Everything, Everything()),
    "no secret": (Login, Login(name="a", password=pydantic.SecretStr(""))),
    "revealed": (Revealed, Revealed(password=pydantic.SecretStr("x"))),
    "alias both ways": (AliasedBothWays, AliasedBothWays(number=1)),
    "alias left out": (Aliased, Aliased()),
    "nothing excluded": (Excluding, Excluding(tags=["a"])),
    "nothing private": (Private, Private(number=2).holding("_lock", threading.Lock())),
    "private objects": (Private, Private().holding("_cache", {"a": ByIdentity("x")})),
    "private, made anew": (MadeAnew, MadeAnew()),
    "excluded, made anew": (Excluding, Excluding()),
    "plain of a union, as text": (Choosing, Choosing(id="x", at="now", price="many", shape=Base(id=1), all=[1])),
    "plain where the union is of others": (Choosing, unchecked(Choosing, only=str(UUID(int=1)))),
    "plain where a key is plain": (Choosing, unchecked(Choosing, by_name={"a": str(UUID(int=1))})),
    "a tuple in an open choice": (Choosing, Choosing(open={"a": (1, 2)})),
    "a literal or an enum": (Choosing, Choosing(colour="red")),
    "serialized default": (Serializing, Serializing()),
    "whole": (Holder, Holder(one=Base(id=1), all=[Base(id=2)], by_key={1: Base(id=3)})),
    "text of a union": (Either, Either(price="1")),
    "generic without parameter": (Page[Base], Page(items=[Base(id=1)])),
    "generic with another one": (Page[Base], Page[Any](items=[Base(id=1)])),
    "generic of anything": (Page, Page(items=[(1, AT)])),
    "fields that were never set": (Base | None, unchecked(Base, id=1)),
    "a tuple for a list": (Page[int], unchecked(Page[int], items=(1, 2))),
    "extra": (Loose, Loose.model_validate({"a": (1, {2: AT}), "b": Base(id=1)})),
    "by name": (dict[Colour, Login], {"red": {"name": "a", "password": "x"}}),
    "by name, as given": (tuple[datetime, Login], ["2030-01-01T00:00:00Z", {"name": "a", "password": "x"}]),
    "attrs": (Parcel, Parcel(lines=[Base(id=1)], anything={"a": (AT, {1: Colour.RED})}, closes=NAIVE)),
    "attrs derived": (Heavy, Heavy(more=3)),
    "attrs without ==": (Hidden, Hidden(cache="filled")),
    "dataclass": (Box, Box({"a": [Parcel()]}, _seen=AT)),
}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize(("kind", "given"), FINE.values(), ids=FINE)
def test_what_arrives_is_not_refused(kind: Any, given: Any, codec: Codec) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_task(kind, codec).job(given)


def test_a_cached_property_is_no_part_of_a_model() -> None:
    given = Private(number=2)
    assert given.twice == 4
    new_task(Private).job(given)


def test_a_number_that_is_none_is_the_same_as_itself() -> None:
    new_task(Parcel, MessagePackCodec()).job(Parcel(weight=float("nan")))


def test_sets_are_compared_by_what_is_in_them() -> None:
    @attrs.frozen(eq=False)
    class Spot:
        x: int
        _y: int = 0

    task = new_task(list[set[Spot]])
    task.job([{Spot(n) for n in range(9)}])
    with pytest.raises(InvalidArguments, match=r"argument one\[1\]: would arrive changed"):
        task.job([set(), {Spot(1), Spot(2, y=1)}])


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize(
    ("kind", "given", "path"),
    [
        (Page[Any], Page[Any](items=[1, {"at": NAIVE}]), r"one.items\[1\]\['at'\]"),
        (Page[dict], Page[dict](items=[{"a": [NAIVE.time()]}]), r"one.items\[0\]\['a'\]\[0\]"),  # type: ignore[type-arg]
        (Page[Any], Page[Any](items=[Page[Any](items=[NAIVE])]), r"one.items\[0\].items\[0\]"),
        (Page[Any], Page[Any](items=[{NAIVE: 1}]), r"one.items\[0\]\[datetime.*\]"),
        (Loose, Loose.model_validate({"at": NAIVE}), r"one\['at'\]"),
        (Parcel, Parcel(anything={"at": NAIVE}), r"one.anything\['at'\]"),
        (dict[str, Parcel], {"x": Parcel(anything=(NAIVE,))}, r"one\['x'\].anything\[0\]"),
    ],
)
def test_a_time_without_zone_is_found_in_open_fields(kind: Any, given: Any, path: str, codec: Codec) -> None:
    with pytest.raises(InvalidArguments, match=rf"^send: argument {path}: has no time zone; write for example"):
        new_task(kind, codec).job(given)


def test_in_results_such_a_time_is_taken() -> None:
    def give() -> Page[Any]:
        return Page[Any](items=[])

    task = Prinia(storage=MemoryStorage()).task(give)
    assert task.encode_result(Page[Any](items=[NAIVE])) == b'{"items":["2030-01-02T00:00:00"]}'


async def test_a_job_whose_result_would_change_ends_as_failed_and_is_kept() -> None:
    app = Prinia(storage=MemoryStorage())
    runs = itertools.count(1)

    @app.task(name="login")
    async def login() -> Login:
        next(runs)
        return Login(name="a", password=pydantic.SecretStr("x"))

    async with app.worker():
        job = await login.aenqueue()
        with pytest.raises(JobFailed, match=r"result not storable: \$.password: is a secret"):
            await job.aresult(timeout=10)
        assert (await job.ainfo()).state is JobState.FAILED
        assert next(runs) == 2, "it would be no better the next time"
