"""Tests that run something as another operating system user."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from prinia.embedded.account import server_account

NEEDS_ROOT = "needs root"
NO_PYTHON = "no Python of this version outside root's home"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)


def python_for_everybody() -> str:
    """An interpreter that every user can run; the one that runs this can be in root's home."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        if os.access(python, os.X_OK) and server_account().may_run(Path(python).resolve()):
            return python
    pytest.skip(NO_PYTHON)
