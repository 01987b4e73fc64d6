"""What keeps the queue healthy beside the workers' work: who is dead, whose jobs come back, what has expired."""

from __future__ import annotations

from prinia.maintenance.leader import Duties, Leader
from prinia.maintenance.watch import Watch

__all__ = ["Duties", "Leader", "Watch"]
