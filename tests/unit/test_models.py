"""attrs classes and pydantic models as arguments and results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any, Generic, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from prinia import Codec, DecodeError, InvalidArguments, JsonCodec, MessagePackCodec, Prinia, TaskDefinitionError
from prinia.storage.memory import MemoryStorage

AT = datetime(2030, 1, 2, tzinfo=UTC)
NAIVE = datetime(2030, 1, 2)  # noqa: DTZ001
T = TypeVar("T")


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    sold_at: datetime = pydantic.Field(alias="soldAt")
    cents: int = pydantic.Field(gt=0)
    share: float = 1.0
    link: pydantic.HttpUrl | None = None


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Numbers(pydantic.RootModel[list[int]]): ...


class LineOrLoose(pydantic.RootModel["Line | Loose"]): ...


class Local(pydantic.BaseModel):
    """Times that are meant to have no zone, and others."""

    opens: pydantic.NaiveDatetime
    also: list[pydantic.NaiveDatetime] | None = None
    at: datetime = AT


class Loose(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


@dataclass
class Basket:
    lines: list[Line]


@attrs.define
class Parcel:
    weight: float = attrs.field(validator=attrs.validators.gt(0))
    basket: Basket | None = None
    sent_at: datetime = AT


class OwnJson:
    name = "own"

    def encode(self, value: object) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> object:
        return msgspec.json.decode(data)


CODECS = [JsonCodec(), MessagePackCodec(), OwnJson()]
LINE = Line(soldAt=AT, cents=5, link=pydantic.HttpUrl("https://example.org/"))
PARCEL = Parcel(2.5, Basket([LINE]))


def unchecked(**values: Any) -> Line:
    """A model that was changed to hold what it may not."""
    held: dict[str, Any] = {"sold_at": AT, "cents": 5, "share": 1.0, "link": None}
    return Line.model_construct(**held | values)


def parcel_with(line: Line) -> Parcel:
    return Parcel(1.0, Basket([LINE, line]))


def new_app(codec: Codec | None = None) -> Prinia:
    return Prinia(storage=MemoryStorage(), codec=codec)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
async def test_they_go_there_and_back(codec: Codec) -> None:
    app = new_app(codec)
    given: dict[str, Any] = {
        "parcel": PARCEL, "line": LINE, "by_name": {"a": [LINE]}, "page": Page[Line](items=[LINE]),
        "numbers": Numbers([1, 2]), "local": Local(opens=NAIVE, also=[NAIVE]), "loose": Loose.model_validate({"a": 1}),
    }  # fmt: skip

    @app.task
    async def send(
        parcel: Parcel,
        line: Line,
        by_name: dict[str, list[Line]],
        page: Page[Line],
        numbers: Numbers,
        local: Local,
        loose: Loose,
        maybe: Line | None = None,
        other: Line = LINE,
    ) -> list[Parcel]:
        assert given == {
            "parcel": parcel, "line": line, "by_name": by_name, "page": page, "numbers": numbers, "local": local,
            "loose": loose,
        }  # fmt: skip
        assert (maybe, other) == (None, LINE)
        return [parcel]

    @app.task
    async def back(maybe: Line | None) -> Page[Line] | None:
        return Page[Line](items=[maybe]) if maybe is not None else None

    async with app.worker():
        assert await (await send.aenqueue(**given)).aresult(timeout=10) == [PARCEL]
        assert await (await back.aenqueue(LINE)).aresult(timeout=10) == Page[Line](items=[LINE])
        assert await (await back.aenqueue(None)).aresult(timeout=10) is None


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (unchecked(cents=0), "parcel.basket.lines[1].cents: input should be greater than 0"),
        (unchecked(cents="5"), "parcel.basket.lines[1].cents: input should be a valid integer"),
        (unchecked(cents=0, share="x"), "parcel.basket.lines[1].cents: input should be greater than 0 (and 1 more)"),
        (unchecked(sold_at=NAIVE), "parcel.basket.lines[1].sold_at: has no time zone"),
        ({"cents": 1}, "parcel.basket.lines[1].soldAt: field required"),
        (3, "parcel.basket.lines[1]: input should be an object"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(codec: Codec, given: Any, said: str) -> None:
    @new_app(codec).task(name="send")
    async def send(parcel: Parcel) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        send.job(parcel_with(given))
    assert str(caught.value).startswith(f"send: argument {said}")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: [unchecked(share=float("nan"))], "lines[0].share: NaN has no place in JSON"),
        (lambda: Page[Any](items=["a\0"]), "lines.items[0]: contains a NUL character"),
        (lambda: Page[Any](items=[object()]), "lines: cannot be stored: Unable to serialize unknown type"),
        (lambda: Page[Any](items=[{"at": NAIVE}]), "lines.items[0].at: has no time zone"),
        (lambda: Loose.model_validate({"at": NAIVE}), "lines.at: has no time zone"),
        (lambda: Local(opens=NAIVE, at=NAIVE), "lines.at: has no time zone"),
    ],
)
def test_untyped_parameters_are_looked_into_too(make: Callable[[], Any], said: str) -> None:
    @new_app().task(name="send")
    async def send(lines: Any) -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        send.job(make())
    assert str(caught.value).startswith(f"send: argument {said}")


def test_a_validator_of_attrs_runs_when_a_job_is_made_and_when_it_runs() -> None:
    @new_app().task(name="send")
    async def send(parcel: Parcel) -> None: ...

    parcel = Parcel(1.0)
    object.__setattr__(parcel, "weight", -1.0)
    with pytest.raises(InvalidArguments, match=r"send: argument parcel: 'weight' must be > 0: -1.0"):
        send.job(parcel)
    with pytest.raises(DecodeError, match=r"'weight' must be > 0"):
        send.decode("json", b'{"parcel":{"weight":-1}}')
    with pytest.raises(InvalidArguments, match=r"send: argument parcel.sent_at: has no time zone"):
        send.job(Parcel(1.0, sent_at=NAIVE))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_result_that_does_not_fit_says_where(codec: Codec) -> None:
    @new_app(codec).task(name="send")
    def send() -> list[Line]:
        return []

    data = send.encode_result([unchecked(cents=0)], codec.name)
    with pytest.raises(DecodeError, match=r"the return type: \$\[0\]\.cents: input should be greater than 0"):
        send.decode_result(data, codec.name)


def test_other_types_of_pydantic_are_still_refused() -> None:
    with pytest.raises(TaskDefinitionError, match=r"parameter to: pydantic.*HttpUrl cannot be stored"):

        @new_app().task
        def send(to: pydantic.HttpUrl) -> None: ...


def test_a_time_of_the_day_without_zone_comes_with_its_own_advice() -> None:
    @new_app().task(name="ring")
    def ring(at: time, also: Any = None) -> None: ...

    advice = r"has no time zone; write for example time\(9, 30, tzinfo=timezone.utc\), or .*Annotated\[time, "
    with pytest.raises(InvalidArguments, match=f"^ring: argument at: {advice}"):
        ring.job(time(9, 30))
    with pytest.raises(InvalidArguments, match=f"^ring: argument also: {advice}"):
        ring.job(time(9, 30, tzinfo=UTC), time(9, 30))
    with pytest.raises(InvalidArguments, match=r"^ring: argument also: has no time zone; write .* datetime.now\("):
        ring.job(time(9, 30, tzinfo=UTC), NAIVE)


def test_a_default_made_from_the_object_is_refused_in_own_words() -> None:
    @attrs.define
    class Doubled:
        one: int = 1
        two: int = attrs.field(default=attrs.Factory(lambda self: 2 * self.one, takes_self=True))

    def send(to: Any) -> None: ...

    send.__annotations__["to"] = Doubled
    with pytest.raises(TaskDefinitionError, match=r"parameter to: a class of attrs .*\(@x.default\)") as caught:
        new_app().task(send)
    assert "GitHub" not in str(caught.value)


def test_a_union_of_models_is_taken_as_a_model() -> None:
    with pytest.raises(
        TaskDefinitionError, match=r"parameter one: Type unions .* class Pet\(RootModel\[Cat \| Dog\]\)"
    ):

        @new_app().task
        def refused(one: Line | Loose) -> None: ...

    @new_app().task
    def taken(one: LineOrLoose) -> None: ...

    arriving = taken.decode("json", taken.job(LineOrLoose(LINE)).spec.args)
    assert arriving == {"one": LineOrLoose(LINE)}


def test_pydantic_is_not_imported_to_ask() -> None:
    code = (
        "import sys; from prinia import Prinia; from prinia.storage.memory import MemoryStorage\n"
        "app = Prinia(storage=MemoryStorage())\n"
        "@app.task\n"
        "def send(a: int, b: list = ()) -> None: ...\n"
        "try: send.enqueue(object())\n"
        "except TypeError: pass\n"
        "send.enqueue(1)\n"
        "print([name for name in ('pydantic', 'attrs', 'attr') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert said.stdout.strip() == "[]"
