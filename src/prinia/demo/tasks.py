"""The app of the demo. Its workers are started as ``prinia worker prinia.demo.tasks:app``."""

from __future__ import annotations

import os
from pathlib import Path

from prinia.app import Prinia
from prinia.demo.measure import Measured, measure_file
from prinia.retry import Fixed
from prinia.task import SyncTask

QUEUE = "demo"
TASK = "demo.measure"
SCHEMA_VARIABLE = "PRINIA_DEMO_SCHEMA"


def measure(path: str) -> Measured:
    """Parse a source file and count what is in it."""
    return measure_file(Path(path))


def register(app: Prinia) -> SyncTask[[str], Measured]:
    """Make `measure` a task of an app."""
    # A plain function, because parsing is computing: a worker runs such tasks in threads and stays responsive.
    return app.task(name=TASK, queue=QUEUE, max_attempts=3, retry=Fixed(0.5))(measure)


app = Prinia(schema=os.environ.get(SCHEMA_VARIABLE) or "prinia")
register(app)
