"""The conformance suite bites: each broken storage fails the tests that are there for its bug."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from unittest import SkipTest

from prinia.storage.protocol import Storage
from prinia.testing.conformance import StorageConformance

from .broken import Broken

SUITE = tuple(name for name in dir(StorageConformance) if name.startswith("test_"))


def failures(double: type[Broken], names: tuple[str, ...] = SUITE) -> set[str]:
    """Which of these tests fail on a double."""

    class Suite(StorageConformance):
        patience = 0.4

        def make_storage(self) -> Storage:
            return double()

        def transaction(self, storage: Storage) -> AbstractContextManager[Any] | None:
            assert isinstance(storage, Broken)
            return storage.transaction()

    def fails(name: str) -> bool:
        try:
            getattr(Suite(), name)()
        except SkipTest:
            return False
        except Exception:
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        return {name for name, failed in zip(names, pool.map(fails, names), strict=True) if failed}
