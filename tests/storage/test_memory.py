"""The memory storage: the public suite, and what only it can be asked."""

from __future__ import annotations

from prinia.storage.memory import MemoryStorage
from prinia.storage.protocol import Storage
from prinia.testing.conformance import StorageConformance


class TestMemory(StorageConformance):
    """All promises, on memory."""

    def make_storage(self) -> Storage:
        return MemoryStorage()
