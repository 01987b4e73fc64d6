"""A storage in the memory of one process: for tests, for trying out, for jobs that may be lost with the process.

It keeps every promise of `prinia.storage.protocol` but two: nothing outlives the process, and there is no
transaction of the caller's to push in.
"""

from __future__ import annotations

from prinia.storage.memory.storage import MemoryStorage
from prinia.storage.memory.tables import SystemWallClock, WallClock

__all__ = ["MemoryStorage", "SystemWallClock", "WallClock"]
