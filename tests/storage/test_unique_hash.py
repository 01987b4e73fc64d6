"""Python and SQL hash unique keys alike, so that a trigger and an app can share one."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Json

from prinia.options import unique_key


@pytest.mark.parametrize("key", ["order:9", "é 😀", "%s", "'", "\\x1f"])
def test_sql_hashes_as_python_does(migrated: str, key: str) -> None:
    with psycopg.connect(migrated) as connection:
        spec = Json([{"task": "shop.send", "args": {}, "unique_key": key}])
        connection.execute("select prinia.enqueue(%s::text)", (spec,))
        [(stored,)] = connection.execute("select unique_hash from prinia.jobs").fetchall()
    assert stored == unique_key("shop.send", key).hash
