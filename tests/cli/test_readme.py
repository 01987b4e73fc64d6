"""The code in README.md runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .conftest import Cli

README = Path(__file__).parents[2] / "README.md"


def test_its_code_runs_when_pasted(cli: Cli, migrated: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    said = []
    for name, block in zip(["shop.py", "reports.py", "program.py"], blocks, strict=True):
        cli.module(name, block)
        done = subprocess.run(
            [sys.executable, name], cwd=cli.folder, env={"PRINIA_DATABASE_URL": migrated}, capture_output=True,
            text=True, timeout=100, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        said.append(done.stdout)
    assert said == ["reminded of order 9 on attempt 1\n", "True ready\n", "14\n"]
