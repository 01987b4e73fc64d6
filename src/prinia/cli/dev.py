"""``prinia dev``: what it takes to develop, in one command: a database, its tables, and a worker of the newest code.

The process that is started imports nothing of the application (`prinia.cli.restarting`). The worker runs in one of its
own, which is this command again and is told so by the environment: that finds the app, and with it the database.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from prinia.app import Prinia
from prinia.cli.failing import Misuse
from prinia.cli.place import describe
from prinia.cli.settings import GIVEN, SettingsCommand
from prinia.cli.target import find_app, find_folders
from prinia.cli.worker import finite, log_to_stderr, worker
from prinia.dsn import DATABASE_VARIABLES
from prinia.errors import ConfigurationError

if TYPE_CHECKING:
    from prinia.cli.restarting import Part

#: Where a server of its own has its data, if nothing else is said; in a folder that git passes over.
_HOME = ".prinia"
_DATA = os.path.join(_HOME, "data")
_NUMBERS = ("concurrency", "threads", "stop_timeout")
_AS_OF_WORKER = ("queues", "imports", "concurrency", "threads", "log_level")

_EPILOG = (
    "For example: prinia dev shop.jobs:app -c 5. The database is the app's own, else PRINIA_DATABASE_URL, else "
    "DATABASE_URL, else a PostgreSQL server that is started for it and stops with it. What else prinia worker can be "
    "told is taken from the environment and from pyproject.toml. The first Ctrl-C lets running jobs finish for "
    "--stop-timeout seconds, the second hands them back. Exit codes: 0 stopped, 1 it could not start, 2 wrong usage, 3 "
    "some jobs could not be handed back (they run again)."
)


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """What the command was told."""

    app: str
    reload: bool
    data: str
    stop_timeout: float
    queues: tuple[str, ...]
    imports: tuple[str, ...]
    concurrency: int
    threads: int
    log_level: str

    @property
    def for_worker(self) -> list[str]:
        """The part that ``prinia worker`` is told."""
        queues = [f"--queue={queue}" for queue in self.queues]
        imports = [f"--import={module}" for module in self.imports]
        numbers = [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in _NUMBERS]
        return [self.app, *queues, *imports, *numbers, f"--log-level={self.log_level}", "--processes=1"]


@click.command(cls=SettingsCommand, epilog=_EPILOG)
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("--reload/--no-reload", default=True, help="Start the worker anew when a Python file changes, in this "
              "folder or in that of the app's package (the default), or do not.")  # fmt: skip
@click.option("--data", metavar="DIR", default=_DATA, show_default=True,
              help="Where a server that is started has its data.")  # fmt: skip
@click.option("--stop-timeout", type=click.FloatRange(0), default=5.0, show_default=True, metavar="SECONDS",
              callback=finite, help="How long a stop, and a new start, lets running jobs finish.")  # fmt: skip
def dev(**given: Any) -> None:
    """Develop: a database, and a worker that is started anew when the code changes.

    MODULE:APP is where the app is: shop.jobs:app, or shop.jobs where there is only one.
    """
    from prinia.cli.restarting import Part, keep_worker

    if not given["app"]:
        raise Misuse("which app? Write prinia dev MODULE:APP, or set PRINIA_APP, or app in [tool.prinia]")
    options, context = Options(**given), click.get_current_context()
    if (part := Part.taken()) is None:
        log_to_stderr(options.log_level)
        folders = find_folders(options.app)
        arguments = ["dev", *context.meta[GIVEN]]
        context.exit(keep_worker(arguments, _environment(options.data), folders if options.reload else None,
                                 stop_timeout=options.stop_timeout))  # fmt: skip
    _prepare(options, part)
    with worker.make_context("worker", options.for_worker, parent=context.parent) as inner:
        worker.invoke(inner)


dev.params += [one for one in worker.params if one.name in _AS_OF_WORKER]


def _environment(data: str) -> dict[str, str]:
    """That of the worker: with a database in any case, and what jobs print is seen at once."""
    named = any(os.environ.get(variable, "").strip() for variable in DATABASE_VARIABLES)
    database = {} if named else {DATABASE_VARIABLES[0]: f"embedded:{data}"}
    return {"PYTHONUNBUFFERED": "1", **os.environ, **database}


def _prepare(options: Options, part: Part) -> None:
    """Have the app's database ready, and tell the parent of it."""
    app = find_app(options.app)
    try:
        url = app.database_url
    except ConfigurationError:
        return  # it has a storage of its own, or the worker says what is wrong
    folder = _make_ready(app, url)
    if part.first:
        _introduce(app, url, folder, options)
    part.tell(folder)


def _make_ready(app: Prinia, url: str) -> Path | None:
    """Start the server if it is an embedded one, and bring the tables up to date; returns the server's data folder."""
    from prinia.embedded import resolve
    from prinia.storage.postgres.migrate import migrate

    folder = resolve(url)
    if folder is not None and not folder.exists():
        click.echo(f"Making a PostgreSQL server for you, in {folder} ...", err=True)
        if folder == Path(_DATA).resolve():
            _keep_out_of_git(Path(_HOME))
    migrate(app.dsn, schema=app.schema, progress=lambda text: click.echo(text, err=True))
    return folder


def _keep_out_of_git(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def _introduce(app: Prinia, url: str, folder: Path | None, options: Options) -> None:
    """What the developer has to know, once."""
    lines = [f"Developing {options.app}, on {describe(app.dsn)}, schema {app.schema!r}."]
    if folder is not None and url == os.environ.get(DATABASE_VARIABLES[0], "").strip():
        lines += ["To enqueue from another shell, paste there:",
                  f"    export {DATABASE_VARIABLES[0]}={shlex.quote(f'embedded:{folder}')}"]  # fmt: skip
    if options.reload:
        places = " and ".join(map(str, find_folders(options.app)))
        lines.append(f"The worker is started anew when a Python file changes in {places}.")
    click.echo("\n".join(lines))
