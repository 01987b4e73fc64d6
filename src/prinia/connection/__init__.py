"""Connections that a caller brings: what kinds there are, and what Prinia does on each, one module per library.

A kind is known by the names of its classes, so that no library is imported to ask: who hands in a connection has
imported its library. A library that has connections of its own is only ever used through what it gives for executing
a statement, never through the driver's connection below: its transaction, its errors and its state stay true.
"""

from __future__ import annotations

from prinia.connection.carrier import AwaitedCarrier, BlockingCarrier, Carrier
from prinia.connection.kinds import awaited, blocking, carrier_of, is_async
from prinia.connection.loose import refuse_loose
from prinia.connection.shapes import AnyAsync, AsyncConn, AsyncpgConn, AsyncpgProxy, SyncConn

__all__ = [
    "AnyAsync",
    "AsyncConn",
    "AsyncpgConn",
    "AsyncpgProxy",
    "AwaitedCarrier",
    "BlockingCarrier",
    "Carrier",
    "SyncConn",
    "awaited",
    "blocking",
    "carrier_of",
    "is_async",
    "refuse_loose",
]
