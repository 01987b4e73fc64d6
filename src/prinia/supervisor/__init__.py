"""Several workers run as one: in one process by `Supervisor`, in several by `Crew`, which is ``prinia worker -p N``."""

from __future__ import annotations

from prinia.supervisor.crew import Crew
from prinia.supervisor.restarts import EXIT_GAVE_UP
from prinia.supervisor.supervisor import Supervisor

__all__ = ["EXIT_GAVE_UP", "Crew", "Supervisor"]
