"""``prinia demo``: Prinia at work on something that every machine with Python has, its standard library.

One job per source file, run by real worker processes on a real server; each parses its file and measures it. Three
damaged copies fail, one job is due later, one overtakes the others. The closing figures are read from the archive.

Nothing of the library is imported or run by it, only parsed.
"""

from __future__ import annotations

from prinia.demo.figures import Figures
from prinia.demo.run import Outcome, Plan, run_demo

__all__ = ["Figures", "Outcome", "Plan", "run_demo"]
