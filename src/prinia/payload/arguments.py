"""Arguments to bytes and back, checked against a task's signature: one object by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Union

import msgspec
from msgspec import UNSET, UnsetType

from prinia.errors import DecodeError, InvalidArguments, NotStorable, PayloadTooLarge, TaskDefinitionError
from prinia.payload.codec import describe, naive_time_in
from prinia.payload.coding import ARGUMENTS_JSON, JSON, Coder, shown_name
from prinia.payload.models import is_model, load
from prinia.payload.signature import Signature
from prinia.payload.storable import find_culprit
from prinia.payload.survival import find_changes, find_unread, may_change
from prinia.payload.times import Check, allows_naive, naive_check, nodes


class Arguments:
    """The arguments of one task: `encode` checks what an enqueuer gives, `decode` gives it to a worker.

    What is given is stored, defaults are not: a job enqueued without an argument gets the default of the code that
    runs it. What arrives is what the annotations say, as strictly as JSON allows: ``"1"`` and ``True`` are no int, an
    int is a fine float. A model that reads something else than it writes is refused. A parameter without annotation, or
    of type Any, takes plain JSON values: a tuple arrives as a list, a datetime as a string, a dict's keys are strings.
    ``coder`` encodes, and ``limit`` is in bytes; both may be changed while no job is being made.
    """

    __slots__ = (
        "_decode", "_fragile", "_naive", "_optional", "_signature", "_struct", "_task", "_untyped", "coder", "limit",
    )  # fmt: skip

    def __init__(self, task: str, signature: Signature, *, limit: int) -> None:
        """Raises `TaskDefinitionError` for types that cannot be stored."""
        self._task = task
        self._signature = signature
        self.limit = limit
        self.coder: Coder = ARGUMENTS_JSON
        self._optional = signature.optional
        types = _inspect(task, signature)
        self._struct = _make_struct(task, signature)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self._struct, dec_hook=load).decode
        self._naive: list[tuple[str, Check]] = [
            (name, check) for name, node in types.items() if (check := naive_check(node))
        ]
        self._untyped = [name for name, node in types.items() if _is_untyped(node)]
        self._fragile = [name for name, node in types.items() if may_change(node)]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The bytes to store. Raises `InvalidArguments` with the path of what does not fit, or `PayloadTooLarge`."""
        coder = self.coder
        try:
            given = self._struct(*args, **kwargs)
        except TypeError as error:
            raise self._explain_call(args, kwargs, error) from None
        try:
            data = coder.encode(given)
        except NotStorable as error:
            raise self._invalid(str(error)) from error.__cause__
        if len(data) > self.limit:
            raise self._too_large(data, coder)
        try:
            arriving = self._decode(data) if coder is ARGUMENTS_JSON else coder.decode(data, self._struct)
        except Exception as error:  # user types may raise anything
            raise self._invalid(self._unread(given) or describe(error)) from None
        if self._naive or self._untyped:
            self._refuse_naive_times(given, arriving, data)
        if self._fragile:
            self._refuse_changes(given, arriving)
        return data

    def check(self, data: bytes, coder: Coder) -> None:
        """Bytes that somebody else encoded: raises as `encode` does when they do not fit."""
        if not isinstance(data, bytes):
            raise InvalidArguments(f"{self._task}: encoded arguments are bytes, not {type(data).__name__}")
        if len(data) > self.limit:
            raise self._too_large(data, coder)
        is_json = coder.name == JSON.name
        try:
            arriving = self._decode(data) if is_json else coder.decode(data, self._struct)
        except Exception as error:  # user types may raise anything
            reason = _without_root(describe(error))
            raise InvalidArguments(f"{self._task}: the encoded arguments do not fit: {reason}") from None
        if is_json and b"\\u0000" in data and (culprit := find_culprit(arriving, nul=True)):
            raise self._invalid(str(culprit))
        self._refuse_naive_parts(arriving)

    def decode(self, data: bytes, coder: Coder = JSON) -> dict[str, object]:
        """The arguments by name, of the annotated types. Raises `DecodeError` with the path of what does not fit."""
        try:
            decoded = self._decode(data) if coder is JSON else coder.decode(data, self._struct)
            arguments = msgspec.structs.asdict(decoded)
        except Exception as error:  # user types may raise anything
            reason = describe(error)
            raise DecodeError(f"{self._task}: stored arguments do not fit: {_without_root(reason)}") from error
        for name in self._optional:
            if arguments[name] is UNSET:
                del arguments[name]
        return arguments

    def _refuse_naive_times(self, given: Any, arriving: Any, data: bytes) -> None:
        self._refuse_naive_parts(arriving)
        if self._untyped and (self.coder is not ARGUMENTS_JSON or naive_time_in(data)):
            for name in self._untyped:
                value = getattr(given, name)
                if value is not UNSET and (culprit := find_culprit(value, naive=True)):
                    raise self._invalid(str(culprit.under(f"$.{name}")))

    def _refuse_changes(self, given: Any, arriving: Any) -> None:
        for name in self._fragile:
            value = getattr(given, name)
            if value is not UNSET and (culprit := next(find_changes(value, getattr(arriving, name)), None)):
                raise self._invalid(str(culprit.under(f"$.{name}")))

    def _unread(self, given: Any) -> str | None:
        """What to say when it is a model's aliases that keep it from being read."""
        for name in self._fragile:
            if culprit := find_unread(getattr(given, name)):
                return str(culprit.under(f"$.{name}"))
        return None

    def _refuse_naive_parts(self, arriving: Any) -> None:
        for name, check in self._naive:
            value = getattr(arriving, name)
            if value is not UNSET and (culprit := check(value, name)):
                raise self._invalid(f"$.{culprit}")

    def _too_large(self, data: bytes, coder: Coder) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"{self._task}: the arguments are {len(data):,} bytes as {shown_name(coder)}, the limit is {self.limit:,}. "
            f"Store the data elsewhere and enqueue where it is"
        )

    def _invalid(self, reason: str) -> InvalidArguments:
        rest = reason.removeprefix("$.")
        return InvalidArguments(f"{self._task}: {'argument ' if rest != reason else 'arguments: '}{rest}")

    def _explain_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: TypeError) -> InvalidArguments:
        for name in kwargs:
            if name in self._signature.injected:
                return InvalidArguments(
                    f"{self._task}: {name} is injected when the job runs and cannot be enqueued; leave it out"
                )
        try:
            self._signature.shown.bind(*args, **kwargs)
        except TypeError as better:
            error = better
        return InvalidArguments(f"{self._task}: {error}. It takes {self._signature.shown}")


def _without_root(reason: str) -> str:
    return reason.removeprefix("$.")


def _inspect(task: str, signature: Signature) -> dict[str, msgspec.inspect.Type]:
    """What each type is made of. Raises `TaskDefinitionError` for one that msgspec does not know."""
    found = {}
    for name, hint in signature.types.items():
        try:
            found[name] = msgspec.inspect.type_info(hint)
        except Exception as error:  # names in nested classes are resolved here, and may raise anything
            raise TaskDefinitionError(f"{task}: parameter {name}: {_told(str(error))}") from error
        for node in nodes(found[name]):
            if isinstance(node, msgspec.inspect.CustomType | msgspec.inspect.ExtType) and not is_model(
                getattr(node, "cls", None)
            ):
                raise TaskDefinitionError(_unknown_type(task, name, getattr(node, "cls", type(node))))
    return found


def _told(text: str) -> str:
    """msgspec's words for a type that it does not know, or better ones."""
    if "takes_self" in text:
        return (
            "a class of attrs in it has a default that is made from the object itself (@x.default), which cannot be "
            "read back: give it a plain default, or an attrs.Factory of a function that takes no self"
        )
    if "custom type" in text:
        return f"{text}. A union of pydantic models can be taken as a model: class Pet(RootModel[Cat | Dog]): ..."
    return text


def _unknown_type(task: str, parameter: str, kind: type) -> str:
    return (
        f"{task}: parameter {parameter}: {kind.__module__}.{kind.__qualname__} cannot be stored. Arguments are made of "
        f"dataclasses, msgspec structs, attrs classes, pydantic models, TypedDicts, NamedTuples, Enums, list, dict, "
        f"set, tuple, str, int, float, bool, bytes, Decimal, UUID and times; or give the parameter the default INJECTED"
    )


def _is_untyped(node: msgspec.inspect.Type) -> bool:
    """Whether a time could hide where no type says so. Where naive ones are wanted nobody can tell them apart."""
    parts = list(nodes(node))
    return any(isinstance(part, msgspec.inspect.AnyType) for part in parts) and not any(map(allows_naive, parts))


def _make_struct(task: str, signature: Signature) -> Any:
    """A class with a field for each parameter. One that was not given is UNSET, so that it is not stored."""

    def fields(types: Mapping[str, Any]) -> list[tuple[str, Any] | tuple[str, Any, Any]]:
        return [
            # Not hint | UnsetType: not every type form has an operator.
            (name, Union[hint, UnsetType], UNSET)  # noqa: UP007
            if name in signature.optional
            else (name, hint)
            for name, hint in types.items()
        ]

    try:
        base = msgspec.defstruct("Arguments", fields(signature.positional), forbid_unknown_fields=True)
        if not signature.named:
            return base
        return msgspec.defstruct(
            "Arguments", fields(signature.named), bases=(base,), kw_only=True, forbid_unknown_fields=True
        )
    except Exception as error:  # msgspec refuses names and types with errors of many kinds
        raise TaskDefinitionError(f"{task}: its parameters cannot be stored: {error}") from error
