"""The command line: ``prinia migrate``, ``prinia worker``, ``prinia demo``.

Exit codes: 0 done; 1 it could not be done, and a line on standard error says why; 2 the command line makes no sense;
130 and 143 interrupted. `PRINIA_DEBUG=1` shows the traceback of an error.
"""

from __future__ import annotations

import click

from prinia.cli.demo import demo
from prinia.cli.failing import KindGroup
from prinia.cli.migrate import migrate
from prinia.cli.worker import worker

__all__ = ["main"]


@click.group(
    cls=KindGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed (a line on standard error says why), 2 wrong usage, 130 interrupted. "
    "PRINIA_DEBUG=1 shows tracebacks.",
)
@click.version_option(package_name="prinia", prog_name="prinia", message="%(prog)s %(version)s")
def main() -> None:
    """Prinia: background jobs on PostgreSQL."""


main.add_command(demo)
main.add_command(migrate)
main.add_command(worker)
