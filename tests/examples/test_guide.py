"""Each program of docs/guide.md runs, and prints what stands below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg import conninfo

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = [
    pytest.param(*found, id=section.partition("\n")[0])
    for section in GUIDE.read_text(encoding="utf-8").split("\n## ")
    for found in PROGRAM.findall(section)
]


def test_no_program_is_overlooked() -> None:
    assert len(PROGRAMS) == GUIDE.read_text(encoding="utf-8").count("```python")


@pytest.mark.parametrize(("program", "said"), PROGRAMS)
def test_a_program_prints_what_it_says(program: str, said: str, migrated: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, env=os.environ | {"PRINIA_DATABASE_URL": _url(migrated)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def _url(dsn: str) -> str:
    """The connection string as a URL, which SQLAlchemy needs."""
    place = conninfo.conninfo_to_dict(dsn)
    return f"postgresql://{place['user']}@/{place['dbname']}?host={place['host']}&port={place['port']}"
