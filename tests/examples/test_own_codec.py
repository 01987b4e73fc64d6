"""A codec of the application's own, in its own words."""

from __future__ import annotations

import zlib

import psycopg

from .conftest import Start


def test_arguments_and_results_are_compressed(start: Start, migrated: str) -> None:
    said, complained = start("own_codec/reports.py").communicate(timeout=60)
    assert complained == ""
    assert said.splitlines() == ["10000 cents", f"codec json-zlib, the result is {len(zlib.compress(b'10000'))} bytes"]
    with psycopg.connect(migrated) as connection:
        rows = connection.execute("select task, codec, state, result, octet_length(args) from prinia.archive")
        ((task, codec, state, result, size),) = rows.fetchall()
    assert (task, codec, state, zlib.decompress(result)) == ("reports.total", "json-zlib", "completed", b"10000")
    assert size is None or size < 2048
