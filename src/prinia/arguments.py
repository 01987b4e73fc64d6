"""Arguments to bytes and back, checked against a task's signature: one JSON object by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Union

import msgspec
from msgspec import UNSET, UnsetType

from prinia.codec import JsonCodec, describe, naive_time_in
from prinia.errors import DecodeError, InvalidArguments, NotStorable, PayloadTooLarge, TaskDefinitionError
from prinia.signature import Signature
from prinia.storable import NAIVE, find_culprit
from prinia.times import Check, allows_naive, naive_check, nodes

_CODEC = JsonCodec(nul=False)


class Arguments:
    """The arguments of one task: `encode` checks what an enqueuer gives, `decode` gives it to a worker.

    What is given is stored, defaults are not: a job enqueued without an argument gets the default of the code that
    runs it. What arrives is what the annotations say, as strictly as JSON allows: ``"1"`` and ``True`` are no int, an
    int is a fine float. A parameter without annotation, or of type Any, takes plain JSON values: a tuple arrives as a
    list, a datetime as a string, a dict's keys are strings.
    """

    __slots__ = ("_decode", "_limit", "_naive", "_named", "_optional", "_signature", "_struct", "_task", "_untyped")

    def __init__(self, task: str, signature: Signature, *, limit: int) -> None:
        """Raises `TaskDefinitionError` for types that cannot be stored."""
        self._task = task
        self._signature = signature
        self._limit = limit
        self._optional = signature.optional
        types = _inspect(task, signature)
        self._struct = _make_struct(task, signature)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(self._struct).decode
        self._naive: list[tuple[str, Check]] = [
            (name, check) for name, node in types.items() if (check := naive_check(node))
        ]
        self._untyped = [name for name, node in types.items() if _is_untyped(node)]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The bytes to store. Raises `InvalidArguments` with the path of what does not fit, or `PayloadTooLarge`."""
        try:
            given = self._struct(*args, **kwargs)
        except TypeError as error:
            raise self._explain_call(args, kwargs, error) from None
        try:
            data = _CODEC.encode(given)
        except NotStorable as error:
            raise self._invalid(str(error)) from error.__cause__
        if len(data) > self._limit:
            raise PayloadTooLarge(
                f"{self._task}: the arguments are {len(data):,} bytes as JSON, the limit is {self._limit:,}. "
                f"Store the data elsewhere and enqueue where it is"
            )
        try:
            arriving = self._decode(data)
        except Exception as error:  # user types may raise anything
            raise self._invalid(describe(error)) from None
        if self._naive or self._untyped:
            self._refuse_naive_times(given, arriving, data)
        return data

    def decode(self, data: bytes) -> dict[str, object]:
        """The arguments by name, of the annotated types. Raises `DecodeError` with the path of what does not fit."""
        try:
            arguments = msgspec.structs.asdict(self._decode(data))
        except Exception as error:  # user types may raise anything
            reason = describe(error)
            raise DecodeError(f"{self._task}: stored arguments do not fit: {_without_root(reason)}") from error
        for name in self._optional:
            if arguments[name] is UNSET:
                del arguments[name]
        return arguments

    def _refuse_naive_times(self, given: Any, arriving: Any, data: bytes) -> None:
        for name, check in self._naive:
            value = getattr(arriving, name)
            if value is not UNSET and (path := check(value, name)):
                raise self._invalid(f"{path}: {NAIVE}")
        if self._untyped and naive_time_in(data):
            for name in self._untyped:
                value = getattr(given, name)
                if value is not UNSET and (culprit := find_culprit(value, naive=True)):
                    raise self._invalid(f"{name}{culprit.path[1:]}: {culprit.reason}")

    def _invalid(self, reason: str) -> InvalidArguments:
        return InvalidArguments(f"{self._task}: argument {_without_root(reason)}")

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
            raise TaskDefinitionError(f"{task}: parameter {name}: {error}") from error
        for node in nodes(found[name]):
            if isinstance(node, msgspec.inspect.CustomType | msgspec.inspect.ExtType):
                raise TaskDefinitionError(_unknown_type(task, name, getattr(node, "cls", type(node))))
    return found


def _unknown_type(task: str, parameter: str, kind: type) -> str:
    return (
        f"{task}: parameter {parameter}: {kind.__module__}.{kind.__qualname__} cannot be stored. Arguments are made of "
        f"dataclasses, msgspec structs, TypedDicts, NamedTuples, Enums, list, dict, set, tuple, str, int, float, bool, "
        f"bytes, Decimal, UUID and times; or give the parameter the default INJECTED"
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
