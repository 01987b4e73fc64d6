"""The command line: ``prinia migrate``, ``prinia worker``, ``prinia enqueue``, ``prinia jobs``, ``prinia queues``,
``prinia pause``, ``prinia resume``, ``prinia workers``, ``prinia audit``, ``prinia explain``, ``prinia doctor``,
``prinia dev``, ``prinia demo``.

Exit codes: 0 done; 1 it could not be done, and a line on standard error says why; 2 the command line makes no sense;
130 and 143 interrupted. `PRINIA_DEBUG=1` shows the traceback of an error.
"""

from __future__ import annotations

import click

from prinia.cli.audit import audit
from prinia.cli.demo import demo
from prinia.cli.dev import dev
from prinia.cli.doctor import doctor
from prinia.cli.enqueue import enqueue
from prinia.cli.explain import explain
from prinia.cli.failing import KindGroup
from prinia.cli.jobs import jobs
from prinia.cli.migrate import migrate
from prinia.cli.operations import OPERATIONS
from prinia.cli.queues import pause, queues, resume
from prinia.cli.worker import worker
from prinia.cli.workers import workers

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


for operation in OPERATIONS:
    jobs.add_command(operation)
main.add_command(audit)
main.add_command(demo)
main.add_command(dev)
main.add_command(doctor)
main.add_command(enqueue)
main.add_command(explain)
main.add_command(jobs)
main.add_command(migrate)
main.add_command(pause)
main.add_command(queues)
main.add_command(resume)
main.add_command(worker)
main.add_command(workers)
