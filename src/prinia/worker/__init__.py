"""The worker engine. A job's life in it reads along `claim`, `run`, `ack`."""

from __future__ import annotations

from prinia.worker.ledger import WorkerStats
from prinia.worker.signals import EXIT_CLEAN, EXIT_LEFT_BEHIND, run_with_signals
from prinia.worker.worker import Worker

__all__ = ["EXIT_CLEAN", "EXIT_LEFT_BEHIND", "Worker", "WorkerStats", "run_with_signals"]
