"""A flush of acks as the parameters of its statement."""

from __future__ import annotations

import base64
import json
from typing import Any

from prinia.job import JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.postgres.connection import array
from prinia.storage.text import storable

#: The state in which an ack of this kind ends its job.
END = {
    AckKind.COMPLETE: JobState.COMPLETED,
    AckKind.FAIL: JobState.FAILED,
    AckKind.CANCEL: JobState.CANCELLED,
}
ENDS = frozenset(END.values())


def complete_params(acks: list[Ack]) -> dict[str, str]:
    """For ``complete.sql``, beside ids and owner."""
    return {
        "tokens": array([ack.token for ack in acks]),
        "results": array(["null" if ack.result is None else f'"\\\\x{ack.result.hex()}"' for ack in acks]),
    }


def ack_params(acks: list[Ack]) -> dict[str, str]:
    """For ``ack.sql``, beside ids and owner."""
    return {"acks": json.dumps([_ack_row(ack) for ack in acks])}


def _ack_row(ack: Ack) -> dict[str, Any]:
    row: dict[str, Any] = {"id": ack.id, "token": ack.token, "kind": ack.kind, "delay": ack.delay}
    row["uncounted"] = ack.uncounted
    if ack.result is not None:
        row["result64"] = base64.b64encode(ack.result).decode()
    if ack.reason is not None:
        row["reason"] = storable(ack.reason)
    if ack.error is not None:
        row["error_attempt"] = ack.error.attempt
        row["error_kind"] = storable(ack.error.kind)
        row["error_message"] = storable(ack.error.message)
        row["error_traceback"] = ack.error.traceback and storable(ack.error.traceback)
    return row
