"""Which codecs an app reads and which it writes, and the guard around those that Prinia did not write."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Protocol

import msgspec

from prinia.errors import ConfigurationError, DecodeError, NotStorable
from prinia.job import MAX_ARGS_BYTES
from prinia.payload.codec import Codec, JsonCodec, MessagePackCodec, describe
from prinia.payload.models import load
from prinia.payload.storable import explain_failure, plain


class Coder(Protocol):
    """A codec as Prinia uses it: it raises two kinds of errors only, and makes what the annotations say."""

    @property
    def name(self) -> str:
        """The codec's name."""
        ...

    def encode(self, value: object, /) -> bytes:
        """The bytes of a value. Raises `NotStorable` with the path of what cannot be stored."""
        ...

    def decode(self, data: bytes, type: Any, /) -> Any:
        """The value again, of the type given. Raises `DecodeError` with the path of what does not fit."""
        ...


#: For results, and for reading whatever is JSON.
JSON = JsonCodec()
#: For writing arguments.
ARGUMENTS_JSON = JsonCodec(nul=False)
_BUILT_IN: dict[type, Coder] = {JsonCodec: JSON, MessagePackCodec: MessagePackCodec()}
_NAME = re.compile(r"[a-z][a-z0-9._-]{0,31}").fullmatch


class Codecs:
    """The codecs of an app: ``default`` writes the arguments of new jobs, all others are read too.

    JSON and MessagePack can be read always, whatever the default.
    """

    __slots__ = ("_by_name", "default", "max_args_bytes")

    def __init__(
        self, default: Codec | None = None, others: Iterable[Codec] = (), *, max_args_bytes: int = MAX_ARGS_BYTES
    ) -> None:
        """Raises `ConfigurationError` for what is no codec, and for two of one name."""
        self._by_name: dict[str, Coder] = {coder.name: coder for coder in _BUILT_IN.values()}
        self.max_args_bytes = max_args_bytes
        if not isinstance(others, Iterable):
            raise ConfigurationError(f"codecs={ascii(others)[:80]} must be a list of codecs")
        for codec in others:
            self._add(codec)
        self.default: Coder = ARGUMENTS_JSON if default is None else for_arguments(self._add(default))

    def find(self, name: str) -> Coder | None:
        """The codec of that name."""
        return self._by_name.get(name)

    def writes_as(self, other: Codecs) -> bool:
        """Whether both write the arguments of new jobs by the same codec, settings of its own included."""
        return _identity(self.default) == _identity(other.default)

    def _add(self, codec: Codec) -> Coder:
        coder = as_coder(codec)
        self.refuse_clash(coder)
        return self._by_name.setdefault(coder.name, coder)

    def refuse_clash(self, coder: Coder) -> None:
        """Raise `ConfigurationError` when another kind of codec has its name."""
        known = self._by_name.get(coder.name, coder)
        if _kind(known) is not _kind(coder):
            raise ConfigurationError(
                f"two codecs have the name {coder.name!r}: {_kind(known).__name__} and {_kind(coder).__name__}"
            )


def as_coder(codec: Codec) -> Coder:
    """The codec, guarded unless it is one of Prinia's own. Raises `ConfigurationError` for what cannot be one."""
    if own := _BUILT_IN.get(type(codec)):
        return own
    if isinstance(codec, type):
        raise ConfigurationError(f"codec {codec.__name__} is a class; give an instance: {codec.__name__}()")
    name, kind = getattr(codec, "name", None), type(codec).__name__
    for method in ("encode", "decode"):
        if not callable(getattr(codec, method, None)):
            raise ConfigurationError(f"{kind} is no codec, it has no method {method}(); see prinia.Codec")
    if not isinstance(name, str) or not _NAME(name):
        raise ConfigurationError(
            f"the name of codec {kind} is {ascii(name)[:80]}; it must be 1 to 32 of a-z, 0-9, '-', '_' and '.', "
            f"a letter first"
        )
    if any(name == own.name for own in _BUILT_IN.values()):
        raise ConfigurationError(f"the name of codec {kind} is {name!r}, which is taken by {name} itself; use another")
    return GuardedCodec(codec, name)


def for_arguments(coder: Coder) -> Coder:
    """The codec for writing arguments, which as JSON pass through PostgreSQL's own."""
    return ARGUMENTS_JSON if coder is JSON else coder


def shown_name(coder: Coder) -> str:
    """The codec's name for a sentence."""
    return {"json": "JSON", "msgpack": "MessagePack"}.get(coder.name, coder.name)


def _identity(coder: Coder) -> object:
    return coder.codec if isinstance(coder, GuardedCodec) else type(coder)


def _kind(coder: Coder) -> type:
    return type(coder.codec) if isinstance(coder, GuardedCodec) else type(coder)


class GuardedCodec:
    """A codec of somebody else's: whatever it raises or returns becomes a clear error of the job at hand."""

    __slots__ = ("codec", "name")

    def __init__(self, codec: Codec, name: str) -> None:
        self.codec = codec
        self.name = name

    def encode(self, value: object, /) -> bytes:
        """Hand the codec the plain form of the value. Raises `NotStorable`."""
        try:
            simple = _simplify(value)
        except Exception as error:  # user types may raise anything
            raise NotStorable(str(explain_failure(value, error, _simplify))) from error
        try:
            data: object = self.codec.encode(simple)
        except KeyboardInterrupt:
            raise  # somebody wants to end the program
        except BaseException as error:
            raise NotStorable(f"$: codec {self.name!r} cannot encode it: {_told(error)}") from error
        if not isinstance(data, bytes):
            raise NotStorable(f"$: codec {self.name!r} returned {type(data).__name__} where it should return bytes")
        return bytes(data)

    def decode(self, data: bytes, type: Any, /) -> Any:
        """Make the type of the plain value that the codec gives back. Raises `DecodeError`."""
        try:
            simple = self.codec.decode(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise DecodeError(f"codec {self.name!r} cannot decode it: {_told(error)}") from error
        try:
            return msgspec.convert(simple, type, strict=True, str_keys=True, dec_hook=load)
        except Exception as error:  # user types may raise anything
            raise DecodeError(describe(error)) from error


def _simplify(value: object) -> object:
    return msgspec.to_builtins(value, builtin_types=(bytes, datetime), str_keys=True, enc_hook=plain)


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an error of somebody else's may not even have a text
        return type(error).__name__
