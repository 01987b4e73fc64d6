"""The PostgreSQL storage: the public suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from prinia.storage.postgres import PostgresStorage
from prinia.storage.protocol import Storage
from prinia.testing.conformance import StorageConformance


class TestPostgres(StorageConformance):
    """All promises, on PostgreSQL."""

    @pytest.fixture(autouse=True)
    def _databases(self, new_migrated: Callable[[], str]) -> None:
        self._new_migrated = new_migrated

    def make_storage(self) -> Storage:
        self._dsn = self._new_migrated()
        return PostgresStorage(self._dsn)

    @contextmanager
    def transaction(self, storage: Storage) -> Iterator[Any]:
        with psycopg.connect(self._dsn) as connection:
            yield connection
