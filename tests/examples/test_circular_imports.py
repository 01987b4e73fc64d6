"""Modules that enqueue each other's tasks, and neither knows the app."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from .conftest import EXAMPLES


def test_an_order_goes_round(migrated: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "circular_imports"],
        cwd=EXAMPLES,
        env=os.environ | {"PRINIA_DATABASE_URL": migrated},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "orders: 7 is placed",
        "mail: thank you for order 7",
        "orders: 7 is confirmed",
    ]
    with psycopg.connect(migrated) as connection:
        rows = connection.execute("select task, queue, state, tags, attempt from prinia.archive order by id").fetchall()
    assert rows == [
        ("circular_imports.orders.place", "orders", "completed", None, 1),
        ("circular_imports.mail.send", "mail", "completed", ["order:7"], 1),
        ("circular_imports.orders.confirm", "orders", "completed", None, 1),
    ]


@pytest.mark.parametrize("first", ["app", "mail", "orders"])
def test_any_of_the_modules_may_be_imported_first(first: str) -> None:
    code = (
        f"import circular_imports.{first}; from circular_imports.app import app; print(*sorted(app.tasks), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == [
        "circular_imports.mail.send",
        "circular_imports.orders.confirm",
        "circular_imports.orders.place",
    ]
