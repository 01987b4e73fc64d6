"""Signatures: what may be a task, and what is told of a function that may not."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from prinia import INJECTED, Context, TaskDefinitionError
from prinia.payload.signature import qualified, read_signature

if TYPE_CHECKING:
    from decimal import Decimal


class Mailer:
    async def send(self, to: str) -> int:
        return len(to)

    @staticmethod
    def count(to: str) -> int:
        return len(to)


class Client: ...


def everything(a: int, ctx: Context = INJECTED, b: str = "x", *, client: Client = INJECTED, c: float) -> bytes:
    return b""


def test_a_signature_is_read() -> None:
    signature = read_signature(everything)
    assert signature.positional == {"a": int}
    assert signature.named == {"b": str, "c": float}
    assert signature.optional == {"b"}
    assert signature.injected == {"ctx": Context, "client": Client}
    assert signature.positions == {"ctx": 1, "client": None}
    assert signature.returns is bytes


def test_missing_annotations_are_any() -> None:
    def bare(a, b=1): ...  # type: ignore[no-untyped-def]

    signature = read_signature(bare)
    assert signature.types == {"a": Any, "b": Any}
    assert signature.returns is Any


def no_default(ctx: Context) -> None: ...
def other_default(ctx: Context = Context()) -> None: ...  # noqa: B008
def maybe(ctx: Context | None = INJECTED) -> None: ...
def untyped(thing=INJECTED) -> None: ...  # type: ignore[no-untyped-def]
def starred(*names: str) -> None: ...
def double_starred(**names: str) -> None: ...
def positional_only(a: int, /, b: int) -> None: ...
def unresolvable(price: Decimal) -> None: ...
def unresolvable_result() -> Decimal:
    raise NotImplementedError


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (no_default, "write ctx: Context = INJECTED"),
        (other_default, "write ctx: Context = INJECTED"),
        (maybe, "write ctx: Context = INJECTED"),
        (untyped, "thing = INJECTED needs a type"),
        (starred, r"\*names: 'str' cannot be enqueued: .* Use a parameter that is a list or a dict"),
        (double_starred, r"\*\*names: 'str' cannot be enqueued"),
        (positional_only, "a is positional-only, .* Remove the / from the signature"),
        (unresolvable, "an annotation cannot be resolved: name 'Decimal' is not defined. Import the name for real"),
        (unresolvable_result, "an annotation cannot be resolved: name 'Decimal'"),
        (generator, "yields: a task returns its result"),
        (async_generator, "yields: a task returns its result"),
        (Mailer.send, r"Mailer.send is a function in a class body: .* send = app.task\(mailer.send\)"),
        (Mailer.count, "Mailer.count is a function in a class body"),
        (Mailer, "not of a type; wrap it in a function"),
        (Mailer.__dict__["count"], "not of a staticmethod"),
        (functools.partial(everything, 1), "not of a partial; wrap it in a function"),
        (print, "not of a builtin_function_or_method"),
    ],
)
def test_functions_that_cannot_be_tasks_are_refused_with_the_fix(function: Callable[..., Any], text: str) -> None:
    with pytest.raises(TaskDefinitionError, match=text):
        read_signature(function)


def test_bound_methods_lambdas_and_wrapped_functions_are_fine() -> None:
    assert read_signature(Mailer().send).types == {"to": str}
    assert read_signature(lambda x: x).types == {"x": Any}

    @functools.wraps(everything)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert read_signature(wrapper).types == {"a": int, "b": str, "c": float}


def test_a_method_of_a_local_class_is_in_a_class_body_too() -> None:
    class Local:
        def send(self) -> None: ...

    with pytest.raises(TaskDefinitionError, match="class body"):
        read_signature(Local.send)
    assert read_signature(Local().send).types == {}


def test_names_of_the_surrounding_function_resolve_when_given() -> None:
    class Local: ...

    def task(x: Local) -> None: ...

    with pytest.raises(TaskDefinitionError, match="name 'Local' is not defined"):
        read_signature(task)
    assert read_signature(task, {"Local": Local}).types == {"x": Local}


def test_names_are_module_and_qualname() -> None:
    def local() -> None: ...

    assert qualified(everything) == f"{__name__}.everything"
    assert qualified(local).endswith("names_are_module_and_qualname.<locals>.local")
    assert qualified(Mailer().send) == f"{__name__}.Mailer.send"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["shop/jobs.py"], "jobs.send"),
        (["-m", "shop.jobs"], "shop.jobs.send"),
        (["-c", "from shop.jobs import app; print(*app.tasks)"], "shop.jobs.send"),
    ],
)
def test_a_program_names_its_tasks_as_a_worker_would(tmp_path: Path, command: list[str], name: str) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(
        "from prinia import Prinia\n"
        "app = Prinia()\n"
        "@app.task\n"
        "async def send() -> None: ...\n"
        "if __name__ == '__main__':\n"
        "    print(*app.tasks)\n"
    )
    answer = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == name
