"""Codecs: values to bytes and back. JSON by msgspec is the one that comes with Prinia."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from prinia.errors import DecodeError, NotStorable
from prinia.storable import explain_failure, find_culprit, plain


class Codec(Protocol):
    """What turns arguments and results into bytes and back. Its name is stored with each job."""

    @property
    def name(self) -> str:
        """Short, lower-case, never reused for another format."""
        ...

    def encode(self, value: object, /) -> bytes:
        """The bytes of a value. Raises `NotStorable` with the path of what cannot be stored."""
        ...

    def decode(self, data: bytes, type: Any, /) -> Any:
        """The value again, of the type given. Raises `DecodeError` with the path of what does not fit."""
        ...


class JsonCodec:
    """JSON, strict both ways: what would silently become something else (NaN would be null) is refused.

    Dates, times, UUIDs and decimals are strings, bytes are base64, sets and tuples are arrays. With ``nul=False`` a
    NUL character in a string is refused too: arguments pass through PostgreSQL's own JSON, which cannot hold one.

    Example::

        JsonCodec().encode({"at": date(2030, 1, 2)})    # b'{"at":"2030-01-02"}'
    """

    __slots__ = ("_decoders", "_encode", "_nul")

    name = "json"

    def __init__(self, *, nul: bool = True) -> None:
        self._nul = nul
        self._encode = msgspec.json.Encoder(enc_hook=plain).encode
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def encode(self, value: object, /) -> bytes:
        """The value as JSON. Raises `NotStorable`, for example ``$.a[3]: NaN has no place in JSON``."""
        try:
            data = self._encode(value)
        except Exception as error:  # user types may raise anything
            raise NotStorable(str(explain_failure(value, error))) from error
        # find() on bytes is twice as fast as "in", and this runs for every job.
        if data.find(b"null") >= 0 and _may_have_nonfinite(value):
            self._refuse(value)
        if not self._nul and data.find(b"\\u0000") >= 0:
            self._refuse(value)
        return data

    def decode(self, data: bytes, type: Any, /) -> Any:
        """The value of JSON bytes. Raises `DecodeError`, for example ``$.order: expected int, got str``."""
        try:
            return self._decoder(type)(data)
        except Exception as error:  # user types may raise anything
            raise DecodeError(describe(error)) from error

    def _decoder(self, type: Any) -> Callable[[bytes], Any]:
        try:
            return self._decoders[type]
        except KeyError:
            return self._decoders.setdefault(type, msgspec.json.Decoder(type).decode)
        except TypeError:  # a type form that cannot be hashed, such as Annotated with a list in it
            return msgspec.json.Decoder(type).decode

    def _refuse(self, value: object) -> None:
        if culprit := find_culprit(value, nul=not self._nul):
            raise NotStorable(str(culprit))


#: Finds the JSON string of a time that has no time zone. It may also find a text that only looks like one.
naive_time_in = re.compile(rb'"(?:\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d(?:\.\d{1,6})?"').search

_packer = msgspec.msgpack.Encoder(enc_hook=plain)
_nonfinite_in = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search


def _may_have_nonfinite(value: object) -> bool:
    """Whether a null in the JSON may stand for a NaN or an infinity.

    MessagePack keeps these, and its encoder is some hundred times faster than a walk in Python.
    """
    try:
        return _nonfinite_in(_packer.encode(value)) is not None
    except Exception:  # an int beyond 64 bits, which only JSON can carry
        return True


def describe(error: Exception) -> str:
    """msgspec's words for a mismatch, the path first and the types without back quotes.

    Example::

        describe(error)   # "$.order: expected int, got str"
    """
    text = str(error)
    text, _, path = text.replace("`", "").partition(" - at ")
    text = text[:1].lower() + text[1:] if text.startswith(("Expected", "Object", "Invalid")) else text
    return f"{path}: {text}" if path else text
