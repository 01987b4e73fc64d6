"""Codecs: values to bytes and back. JSON and MessagePack, by msgspec, come with Prinia."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from prinia.errors import DecodeError, NotStorable
from prinia.payload.models import load
from prinia.payload.storable import explain_failure, find_culprit, plain


class Codec(Protocol):
    """What turns arguments and results into bytes and back: write a class with these three to bring your own.

    A codec needs to know no types. It is given plain values: dict with str keys, list (or tuple), str, int, float,
    bool, None, bytes and datetime; anything else has become one of these as it would for JSON. What it gives back is
    made to the annotated types, from text too where JSON has text (times, base64 for bytes).

    Example::

        class CompressedJson:
            name = "json-zlib"

            def encode(self, value: object) -> bytes:
                return zlib.compress(JsonCodec().encode(value))

            def decode(self, data: bytes) -> object:
                return JsonCodec().decode(zlib.decompress(data))

        app = Prinia(codec=CompressedJson())
    """

    @property
    def name(self) -> str:
        """Stored with each job, so never to be reused for another format: 1 to 32 of a-z, 0-9, ``-``, ``_``, ``.``."""
        ...

    def encode(self, value: Any, /) -> bytes:
        """The bytes of a plain value. Whatever it raises, nothing is stored."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """The plain value again. Whatever it raises, that job alone has failed, and is retried by policy."""
        ...


class _Decoders:
    """Makes a decoder for each type once."""

    __slots__ = ("_decoders",)

    _make: ClassVar[Callable[..., Any]]

    def __init__(self) -> None:
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def _decoder(self, type: Any) -> Callable[[bytes], Any]:
        try:
            return self._decoders[type]
        except KeyError:
            return self._decoders.setdefault(type, self._make(type, dec_hook=load).decode)
        except TypeError:  # a type form that cannot be hashed, such as Annotated with a list in it
            decode: Callable[[bytes], Any] = self._make(type, dec_hook=load).decode
            return decode


class JsonCodec(_Decoders):
    """JSON, strict both ways: what would silently become something else (NaN would be null) is refused.

    Dates, times, UUIDs and decimals are strings, bytes are base64, sets and tuples are arrays. With ``nul=False`` a
    NUL character in a string is refused too: arguments pass through PostgreSQL's own JSON, which cannot hold one.

    Example::

        JsonCodec().encode({"at": date(2030, 1, 2)})    # b'{"at":"2030-01-02"}'
    """

    __slots__ = ("_encode", "_nul")

    name = "json"
    _make = msgspec.json.Decoder

    def __init__(self, *, nul: bool = True) -> None:
        super().__init__()
        self._nul = nul
        self._encode = msgspec.json.Encoder(enc_hook=plain).encode

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

    def decode(self, data: bytes, type: Any = Any, /) -> Any:
        """The value of JSON bytes, of a type if given.

        Raises `DecodeError`, for example ``$.order: expected int, got str``.
        """
        try:
            return self._decoder(type)(data)
        except Exception as error:  # user types may raise anything
            raise DecodeError(describe(error)) from error

    def _refuse(self, value: object) -> None:
        if culprit := find_culprit(value, nul=not self._nul):
            raise NotStorable(str(culprit))


class MessagePackCodec(_Decoders):
    """MessagePack: bytes stay bytes, aware datetimes stay times, NaN and infinity can be stored; ints have 64 bits.

    Example::

        app = Prinia(codec=MessagePackCodec())
    """

    __slots__ = ()

    name = "msgpack"
    _make = msgspec.msgpack.Decoder

    def encode(self, value: object, /) -> bytes:
        """The value as MessagePack. Raises `NotStorable` with the path of what cannot be stored."""
        try:
            return _packer.encode(value)
        except Exception as error:  # user types may raise anything
            raise NotStorable(str(explain_failure(value, error, _packer.encode))) from error

    def decode(self, data: bytes, type: Any = Any, /) -> Any:
        """The value of MessagePack bytes, of a type if given. Raises `DecodeError` with the path of a mismatch."""
        try:
            return self._decoder(type)(data)
        except Exception as error:  # user types may raise anything
            raise DecodeError(describe(error)) from error


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
    text, *steps = str(error).replace("`", "").split(" - at ")
    path = "".join(reversed(steps))  # the outermost step is told last
    text = text[:1].lower() + text[1:] if text.startswith(("Expected", "Object", "Invalid")) else text
    return f"{path}: {text}" if path else text
