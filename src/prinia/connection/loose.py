"""A connection on which what Prinia does would commit at once, by itself."""

from __future__ import annotations

import warnings
from typing import Any

from prinia.connection.kinds import carrier_of
from prinia.errors import ConnectionUnusable


def refuse_loose(connection: Any, what: str, *, strict: bool, instead: str = "", above: int) -> None:
    """Warn of a connection in autocommit and outside a transaction; when strict, raise `ConnectionUnusable`.

    ``what`` would be done on it, ``instead`` is what else to write; the line for the warning to show is so many frames
    ``above``. Raises `ConnectionKindError`, and `ConnectionUnusable` for a connection that is closed or has failed.
    """
    carrier = carrier_of(connection)
    carrier.check()
    if not carrier.commits_at_once():
        return
    reason = (
        f"{what} on a connection in autocommit, outside a transaction: that would commit at once, by itself. "
        f"Open a transaction around it ({carrier.begin}){instead}"
    )
    if strict:
        raise ConnectionUnusable(reason)
    warnings.warn(reason, RuntimeWarning, stacklevel=above + 1)
