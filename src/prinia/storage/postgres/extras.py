"""What few jobs have, as a claim answers with it: one JSON text, null where all of it is at its default."""

from __future__ import annotations

from typing import Any

import msgspec

from prinia.job import ClaimedExtras
from prinia.retry import RetryPolicy


class _Extras(msgspec.Struct):
    codec: str
    timeout: float | None
    retry: str | None
    expired: bool
    tags: tuple[str, ...] | None
    meta: dict[str, Any] | None
    history: bool = False


_decode_extras = msgspec.json.Decoder(_Extras).decode
_decode_policy = msgspec.json.Decoder(RetryPolicy).decode


def read_extras(text: str) -> ClaimedExtras:
    """What a row says beside its columns. A row may have been written by hand, or by a later version: what cannot be
    read is that job's trouble, never the claim's."""
    try:
        return _read(_decode_extras(text))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return ClaimedExtras(broken=f"the row's retry, tags or meta cannot be read: {type(error).__name__}: {error}")


def _read(extras: _Extras) -> ClaimedExtras:
    return ClaimedExtras(
        codec=extras.codec,
        timeout=extras.timeout,
        retry=_decode_policy(extras.retry) if extras.retry is not None else None,
        expired=extras.expired,
        tags=extras.tags or (),
        meta=extras.meta or {},
        history=extras.history,
    )
