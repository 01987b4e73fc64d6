"""Models of pydantic among arguments and results. A model in hand means that pydantic is loaded: it never is here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec


def is_model(kind: object) -> bool:
    """Whether this is a class of pydantic 2's models."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(kind, type) and issubclass(kind, base) and hasattr(kind, "model_validate")


def dump(model: Any) -> Any:
    """What JSON can hold of a model, under its aliases."""
    # What does not fit is said when the model is loaded again, so no warnings here.
    return model.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)


def load(kind: Any, value: object) -> Any:
    """msgspec's hook for types that it does not know: the model that was dumped.

    Raises `ValueError` and `TypeError`, which msgspec completes with the path that leads here.
    """
    if not is_model(kind):
        return _instance(kind, value)
    try:
        # As JSON, not as Python objects: a strict model takes a time only as text there.
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(_first_of(error)) from error


def _instance(kind: Any, value: object) -> object:
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise TypeError(f"Expected {getattr(kind, '__name__', kind)}, got {type(value).__name__}")


def _first_of(error: Any) -> str:
    """The first of the mismatches, in msgspec's form: the path last."""
    first, *others = error.errors(include_url=False, include_context=False, include_input=False)
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    more = f" (and {len(others)} more)" if others else ""
    text = f"{first['msg'][:1].lower()}{first['msg'][1:]}{more}"
    return f"{text} - at {path}" if path else text


class Held(NamedTuple):
    """A field of a model, or a private attribute, whose ``type`` is None. ``factory`` is its default_factory."""

    name: str
    type: Any
    excluded: bool
    factory: Callable[[], object] | None


def held(kind: Any) -> Iterator[Held]:
    """What models of a class hold: the fields, then the private attributes."""
    for name, field in kind.model_fields.items():
        yield Held(name, field.annotation, bool(field.exclude), field.default_factory)
    for name, private in kind.__private_attributes__.items():
        yield Held(name, None, excluded=False, factory=private.default_factory)


def unread_field(kind: Any) -> str | None:
    """The first field that a class of models writes under a name that it cannot read; None when there is none."""
    forbids = kind.model_config.get("extra") == "forbid"
    by_name = any(kind.model_config.get(setting) for setting in ("populate_by_name", "validate_by_name"))
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        read = list(getattr(alias, "choices", [alias]))  # one name, or AliasChoices
        if alias is None or by_name:
            read.append(name)
        needed = (field.is_required() or forbids) and not field.exclude
        if needed and (field.serialization_alias or name) not in read:
            return str(name)
    return None


def get(model: Any, name: str, default: object) -> Any:
    """The value of a field or a private attribute. Unlike getattr it does not warn of a field that is deprecated."""
    values = model.__dict__ if not name.startswith("_") else getattr(model, "__pydantic_private__", None) or {}
    return values.get(name, default)


def live_fields(model: Any) -> Iterator[tuple[str, object]]:
    """The values that a model holds, those of fields that say that their times have no zone (NaiveDatetime) aside."""
    for name, field in type(model).model_fields.items():
        if "NaiveDatetime" not in repr(field.annotation):
            yield name, get(model, name, None)
    yield from (model.__pydantic_extra__ or {}).items()
