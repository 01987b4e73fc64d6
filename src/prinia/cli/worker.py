"""``prinia worker``."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click

from prinia.app import Prinia
from prinia.cli.place import describe
from prinia.cli.target import find_app, import_kindly
from prinia.errors import ConfigurationError, InvalidOptions
from prinia.options import text

if TYPE_CHECKING:
    from prinia.worker import Worker

_EPILOG = (
    "The first SIGTERM or Ctrl-C lets running jobs finish for --stop-timeout seconds, the second cancels them and "
    "hands them back, the third ends at once. Exit codes: 0 every job was finished or handed back, 1 it could not "
    "start or a resource of it died, 2 wrong usage, 3 some jobs could not be handed back (they run again), 130 and 143 "
    "ended at once."
)


def _label(context: click.Context, parameter: click.Parameter, given: str | tuple[str, ...] | None) -> Any:
    try:
        for one in (given,) if isinstance(given, str) else given or ():
            text(parameter.opts[-1], one)
    except InvalidOptions as error:
        raise click.BadParameter(str(error)) from error
    return given


def _finite(context: click.Context, parameter: click.Parameter, given: float | None) -> float | None:
    if given is not None and not math.isfinite(given):
        raise click.BadParameter(f"{given} is no number of seconds")
    return given


@click.command(epilog=_EPILOG)
@click.argument("target", metavar="MODULE:APP")
@click.option("-q", "--queue", "queues", multiple=True, metavar="QUEUE", callback=_label,
              help="Serve this queue; may be repeated. Else the queues of the app's tasks.")  # fmt: skip
@click.option("--import", "imports", multiple=True, metavar="MODULE",
              help="Import this module too, for its tasks; may be repeated.")  # fmt: skip
@click.option("-c", "--concurrency", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="How many jobs run at once.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="How many of those may be plain functions, which run in threads.")  # fmt: skip
@click.option(
    "--name",
    metavar="LABEL",
    callback=_label,
    help="A label, any number of workers may share it; else the machine's name.",
)
@click.option("--stop-timeout", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS",
              callback=_finite, help="How long a stop lets running jobs finish.")  # fmt: skip
@click.option("--poll", type=click.FloatRange(0, min_open=True), default=None, metavar="SECONDS", callback=_finite,
              help="How often an idle worker looks unasked.  [default: 30, with --no-listen 1]")  # fmt: skip
@click.option("--no-listen", is_flag=True, help="Poll alone: no LISTEN connection, which else wakes it at once.")
@click.option("--claim-batch", type=click.IntRange(1, 500), default=500, show_default=True, metavar="N",
              help="How many jobs one claim takes at most.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              show_default=True, help="What is logged, to standard error.")  # fmt: skip
def worker(
    target: str,
    queues: tuple[str, ...],
    imports: tuple[str, ...],
    concurrency: int,
    threads: int,
    name: str | None,
    stop_timeout: float,
    poll: float | None,
    no_listen: bool,
    claim_batch: int,
    log_level: str,
) -> None:
    """Run the jobs of an app.

    MODULE:APP is where the app is: shop.jobs:app, or shop.jobs where there is only one.
    """
    app = find_app(target)
    for module in imports:
        import_kindly(module)
    _log_to_stderr(log_level)
    serving = app.worker(
        queues=queues or None,
        concurrency=concurrency,
        threads=threads,
        name=name,
        stop_timeout=stop_timeout,
        poll=poll,
        listen=not no_listen,
        claim_batch=claim_batch,
    )
    click.echo(_banner(app, serving, concurrency))
    from prinia.worker import run_with_signals

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        code = runner.run(run_with_signals(serving, last=True))
    click.get_current_context().exit(code)


def _banner(app: Prinia, serving: Worker, concurrency: int) -> str:
    lines = {
        "database": _place(app),
        "queues": ", ".join(serving.queues),
        "tasks": ", ".join(sorted(app.tasks)),
        "concurrency": str(concurrency),
    }
    head = f"Prinia {metadata.version('prinia')}: worker {serving.name!r}, process {os.getpid()}"
    return "\n".join([head, *(f"  {what:<12} {value}" for what, value in lines.items())])


def _place(app: Prinia) -> str:
    try:
        dsn = app.dsn
    except ConfigurationError:  # an app that was given a storage of its own
        return type(app.storage).__name__
    return f"{describe(dsn)}, schema {app.schema!r}"


def _log_to_stderr(level: str) -> None:
    """Unless the app's own module has set logging up."""
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("prinia").setLevel(level.upper())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where that is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
