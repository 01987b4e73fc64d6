"""``prinia doctor``: what is wrong with a database and a deployment, and what to do.

Facts are collected first (`prinia.doctor.collecting`, the only part that knows a database), each by itself: what this
role may not see is said and hinders nothing else. Checks are pure functions of facts. docs/when-jobs-wait.md has a line
on each.
"""

from __future__ import annotations

from prinia.doctor.collecting import collect
from prinia.doctor.examining import CHECKS, examine
from prinia.doctor.finding import Finding, Level

__all__ = ["CHECKS", "Finding", "Level", "collect", "examine"]
