"""The app of the demo. Its workers are started as ``prinia worker prinia.demo.tasks:app``."""

from __future__ import annotations

import os
from pathlib import Path

from prinia.app import Prinia
from prinia.demo.measure import Measured, measure_file
from prinia.retry import Fixed

QUEUE = "demo"
TASK = "demo.measure"
SCHEMA_VARIABLE = "PRINIA_DEMO_SCHEMA"

app = Prinia(schema=os.environ.get(SCHEMA_VARIABLE) or "prinia")


# A plain function: parsing is computing, and a worker keeps its event loop free by running such tasks in threads.
@app.task(name=TASK, queue=QUEUE, max_attempts=3, retry=Fixed(0.5))
def measure(path: str) -> Measured:
    """Parse a source file and count what is in it."""
    return measure_file(Path(path))
