"""Which database a command works on: one that is named, or an app's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from prinia.app import Prinia
from prinia.cli.failing import Misuse
from prinia.cli.settings import TABLE, find_settings, variable
from prinia.cli.stacking import stack
from prinia.cli.target import find_app

#: The command takes ``app``, ``database_url``, ``schema`` and ``as_json``; the first three are for `choose_app`.
on_database = stack(
    click.option("--app", metavar="MODULE:APP",
                 help="The app whose database it is; else PRINIA_APP, else app in [tool.prinia] of pyproject.toml."),
    click.option("--database-url", metavar="URL",
                 help="The database itself; else the app's, else PRINIA_DATABASE_URL, else DATABASE_URL."),
    click.option("--schema", metavar="NAME",
                 help="The schema that holds Prinia's tables; else the app's, else prinia."),
    click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON."),
)  # fmt: skip


def choose_app(app: str | None, database_url: str | None, schema: str | None) -> Prinia:
    """The app to work with, which need not know the tasks of the jobs. Raises `Misuse`."""
    target = app or (None if database_url else settled_app())
    if target is None:
        return Prinia(database_url, schema=schema or "prinia")
    try:
        found = find_app(target)
    except Misuse as error:
        raise Misuse(f"{error.message}. With --database-url URL it goes without the app") from error
    if database_url is None and schema is None:
        return found
    return Prinia(database_url or found.dsn, schema=schema or found.schema)


@contextmanager
def connected(app: Prinia) -> Iterator[Prinia]:
    """The app with its connections kept open, for commands of many statements."""
    # Connects by itself, and says at once what is wrong. A pool goes on trying for a while, and then knows less.
    app.pauses()
    with app:
        yield app


def settled_app() -> str | None:
    """The app that the environment or the file names."""
    name = variable("app")
    if given := os.environ.get(name):
        return given
    path, settings = find_settings(Path.cwd())
    target = settings.get("app")
    if target is not None and not isinstance(target, str):
        raise Misuse(f"{path}: {TABLE} app = {target!r} must be a text, such as 'shop.jobs:app'")
    return target
