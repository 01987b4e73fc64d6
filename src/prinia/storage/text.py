"""Texts that people wrote or exceptions carried, made fit for any storage."""

from __future__ import annotations

from prinia.job import MAX_ERROR_BYTES

_CUT = "…"


def storable(text: str, *, limit: int = MAX_ERROR_BYTES) -> str:
    """``text`` with NUL and lone surrogates written as escapes, and at most ``limit`` bytes of UTF-8 long.

    Error messages, tracebacks and reasons may hold anything; a text column may not.

    Example::

        storable("a\\0b")   # 'a\\\\x00b'
    """
    # A character takes at least a byte: what is past the limit in characters need not be looked at.
    data = text[: limit + 1].replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - len(_CUT.encode())].decode(errors="ignore") + _CUT
