"""A codec: JSON, compressed. It need not know the types of anybody's arguments."""

from __future__ import annotations

import zlib

from prinia import JsonCodec


class CompressedJson:
    name = "json-zlib"

    def __init__(self) -> None:
        self._json = JsonCodec()

    def encode(self, value: object) -> bytes:
        return zlib.compress(self._json.encode(value))

    def decode(self, data: bytes) -> object:
        return self._json.decode(zlib.decompress(data))
