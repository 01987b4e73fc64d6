"""Python and SQL hash unique keys alike, so that a trigger and an app can share one."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Json

from prinia.options import unique_key


@pytest.mark.parametrize("window", [None, 60.5])
@pytest.mark.parametrize("key", ["order:9", "é 😀", "%s", "'", "\\x1f"])
def test_sql_hashes_as_python_does(migrated: str, key: str, window: float | None) -> None:
    with psycopg.connect(migrated) as connection:
        spec = Json([{"task": "shop.send", "args": {}, "unique_key": key, "unique_for": window}])
        connection.execute("select prinia.enqueue(%s::text)", (spec,))
        [(stored,)] = connection.execute(
            "select unique_hash from prinia.jobs where unique_hash is not null union all"
            " select hash from prinia.unique_keys"
        ).fetchall()
    assert stored == unique_key("shop.send", key, window=window).hash
