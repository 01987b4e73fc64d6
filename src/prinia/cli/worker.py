"""``prinia worker``."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING, Any

import click
import msgspec

from prinia.app import Prinia
from prinia.cli.failing import Misuse
from prinia.cli.place import describe
from prinia.cli.settings import GIVEN, Names, SettingsCommand
from prinia.cli.target import find_app, import_kindly
from prinia.errors import ConfigurationError, InvalidOptions
from prinia.options import text

if TYPE_CHECKING:
    from prinia.supervisor.tether import Seat
    from prinia.worker import Worker

_EPILOG = (
    "The first SIGTERM or Ctrl-C lets running jobs finish for --stop-timeout seconds, the second cancels them and "
    "hands them back, the third ends at once. Each setting may also be given in the environment, and by its name "
    "there, without PRINIA_ and in small letters, in the table [tool.prinia] of pyproject.toml (lists as lists). The "
    "command line goes first, then the environment, then the file. Exit codes: 0 every job was finished or handed "
    "back, 1 it could not start (a port for --health that is in use, too) or a resource of it died, 2 wrong usage, 3 "
    "some jobs could not be handed back (they run again), 4 a process failed too often, 130 and 143 ended at once."
)


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """What the command was told."""

    app: str
    queues: tuple[str, ...]
    imports: tuple[str, ...]
    concurrency: int
    threads: int
    pool: int | None
    processes: int
    max_jobs: int | None
    max_rss: float | None
    until_empty: bool
    name: str | None
    stop_timeout: float
    poll: float | None
    listen: bool
    claim_batch: int
    health: str | None
    log_level: str

    @property
    def needs_crew(self) -> bool:
        """Whether a parent is needed that starts processes."""
        return self.processes > 1 or self.max_jobs is not None or self.max_rss is not None


def _label(context: click.Context, parameter: click.Parameter, given: str | tuple[str, ...] | None) -> Any:
    try:
        for one in (given,) if isinstance(given, str) else given or ():
            text(parameter.opts[-1], one)
    except InvalidOptions as error:
        raise click.BadParameter(str(error)) from error
    return given


def finite(context: click.Context, parameter: click.Parameter, given: float | None) -> float | None:
    """A number of seconds that is one: neither infinite nor none at all."""
    if given is not None and not math.isfinite(given):
        raise click.BadParameter(f"{given} is no number of seconds")
    return given


@click.command(cls=SettingsCommand, epilog=_EPILOG)
@click.argument("app", metavar="[MODULE:APP]", required=False)
@click.option("-q", "--queue", "queues", multiple=True, metavar="QUEUE", callback=_label, type=Names(),
              help="Serve this queue; may be repeated. Else the queues of the app's tasks.")  # fmt: skip
@click.option("--import", "imports", multiple=True, metavar="MODULE", type=Names(),
              help="Import this module too, for its tasks; may be repeated.")  # fmt: skip
@click.option("-c", "--concurrency", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="How many jobs run at once, in each process.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="How many of those may be plain functions, which run in threads.")  # fmt: skip
@click.option("--pool", type=click.IntRange(1), default=None, metavar="N",
              help="How many may run in processes of their own (process=True).  [default: processors]")  # fmt: skip
@click.option("-p", "--processes", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N",
              help="How many processes with a worker each; with several, this one starts anew what fails.")  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(1), default=None, metavar="N",
              help="Replace a process after so many jobs, one at a time and without a gap.")  # fmt: skip
@click.option("--max-rss", type=click.FloatRange(1), default=None, metavar="MB", callback=finite,
              help="Replace a process that has so much memory, likewise.")  # fmt: skip
@click.option("--until-empty", is_flag=True, help="End with 0 once nothing is due and none of its jobs runs. Jobs that "
              "are due later, retries too, are not waited for.")  # fmt: skip
@click.option("--name", metavar="LABEL", callback=_label,
              help="A label, any number of workers may share it; else the machine's name.")  # fmt: skip
@click.option("--stop-timeout", type=click.FloatRange(0), default=30.0, show_default=True, metavar="SECONDS",
              callback=finite, help="How long a stop lets running jobs finish.")  # fmt: skip
@click.option("--poll", type=click.FloatRange(0, min_open=True), default=None, metavar="SECONDS", callback=finite,
              help="How often an idle worker looks unasked.  [default: 30, with --no-listen 1]")  # fmt: skip
@click.option("--listen/--no-listen", default=True,
              help="Be woken over a LISTEN connection (the default), or poll alone.")  # fmt: skip
@click.option("--claim-batch", type=click.IntRange(1, 500), default=500, show_default=True, metavar="N",
              help="How many jobs one claim takes at most.")  # fmt: skip
@click.option("--health", metavar="ADDRESS", help="Serve /live and /ready as JSON on PORT, HOST:PORT or unix:PATH.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              show_default=True, help="What is logged, to standard error.")  # fmt: skip
def worker(**given: Any) -> None:
    """Run the jobs of an app.

    MODULE:APP is where the app is: shop.jobs:app, or shop.jobs where there is only one.
    """
    from prinia.supervisor.tether import Seat

    if not given["app"]:
        raise Misuse("which app? Write prinia worker MODULE:APP, or set PRINIA_APP, or app in [tool.prinia]")
    options, context = Options(**given), click.get_current_context()
    seat = Seat.taken()
    if seat is None and options.needs_crew:
        context.exit(_run_crew(options, context.meta[GIVEN]))
    context.exit(_serve(options, seat))


def _run_crew(options: Options, given: list[str]) -> int:
    from prinia.health import read_address
    from prinia.supervisor import Crew

    log_to_stderr(options.log_level)
    crew = Crew(
        [sys.executable, "-m", "prinia", "worker", *given],
        options.processes,
        stop_timeout=options.stop_timeout,
        health=None if options.health is None else read_address(options.health),
    )
    count = f"{options.processes} process{'es' if options.processes > 1 else ''}"
    click.echo(f"Prinia {metadata.version('prinia')}: {count} of {options.app} under process {os.getpid()}")
    return asyncio.run(crew.run())


def _serve(options: Options, seat: Seat | None) -> int:
    from prinia.supervisor.tether import Stamina, run_in_crew
    from prinia.worker import run_with_signals

    app = find_app(options.app)
    for module in options.imports:
        import_kindly(module)
    log_to_stderr(options.log_level, process=seat is not None)
    serving = app.worker(
        queues=options.queues or None,
        concurrency=options.concurrency,
        threads=options.threads,
        pool=options.pool,
        name=options.name,
        stop_timeout=options.stop_timeout,
        poll=options.poll,
        listen=options.listen,
        claim_batch=options.claim_batch,
        until_empty=options.until_empty,
        health=options.health if seat is None else f"unix:{seat.health}",
    )
    click.echo(_banner(app, serving, options.concurrency))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        if seat is None:
            return runner.run(run_with_signals(serving, last=True))
        stamina = Stamina(max_jobs=options.max_jobs, max_rss=options.max_rss)
        return runner.run(run_in_crew(serving, seat, stamina=stamina, stop_timeout=options.stop_timeout))


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


def log_to_stderr(level: str, *, process: bool = False) -> None:
    """Unless the app's own module has set logging up. With the process's number where there are several."""
    if not logging.getLogger().handlers:
        number = " [%(process)d]" if process else ""
        logging.basicConfig(format=f"%(asctime)s{number} %(levelname)s %(name)s: %(message)s")
        logging.getLogger("prinia").setLevel(level.upper())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where that is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
