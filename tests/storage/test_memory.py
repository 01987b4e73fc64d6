"""The memory storage: the public suite, and what only it can be asked."""

from __future__ import annotations

from uuid import uuid4

import pytest

from prinia.errors import ConnectionKindError, InvalidOptions
from prinia.job import Instance, JobSpec, JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.memory import MemoryStorage
from prinia.storage.protocol import Storage
from prinia.testing import ManualClock
from prinia.testing.conformance import StorageConformance, job


class TestMemory(StorageConformance):
    """All promises, on memory."""

    def make_storage(self) -> Storage:
        return MemoryStorage()
