"""The promise that wrong calls are errors to the type checkers, without plugins, kept by the checkers themselves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"
USE = Path(__file__).with_name("use_core.py")
MARK = "  # type: ignore"
MUST_BE_ERRORS = {n for n, line in enumerate(USE.read_text().splitlines(), 1) if line.endswith(MARK)}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place without the project's own settings: marked.py, and bare.py in which nothing is ignored."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "marked.py").write_text(USE.read_text())
    (folder / "bare.py").write_text(USE.read_text().replace(MARK, ""))
    (folder / "mypy.ini").write_text("[mypy]\n")
    settings = {"include": ["*.py"], "reportUnnecessaryTypeIgnoreComment": "error"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    # Else the wrapper asks for its newest version on the network.
    environ = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def mypy(folder: Path, *files: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "mypy", "--strict", "--warn-unused-ignores", "--config-file", "mypy.ini", *files)


def pyright(folder: Path, file: str) -> tuple[set[int], str]:
    answer = run(folder, "pyright", "--outputjson", "--pythonpath", sys.executable)
    found = [one for one in json.loads(answer.stdout)["generalDiagnostics"] if one["severity"] == "error"]
    own = [one for one in found if Path(one["file"]).name == file]
    return {one["range"]["start"]["line"] + 1 for one in own}, "\n".join(one["message"] for one in own)


def test_there_is_something_to_find() -> None:
    assert len(MUST_BE_ERRORS) >= 19


def test_mypy_accepts_right_calls_and_needs_every_ignore(folder: Path) -> None:
    answer = mypy(folder, "marked.py")
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_mypy_finds_each_wrong_call(folder: Path) -> None:
    answer = mypy(folder, "bare.py")
    found = {int(number) for number in re.findall(r"^bare\.py:(\d+): error:", answer.stdout, re.MULTILINE)}
    assert found == MUST_BE_ERRORS, answer.stdout + answer.stderr


def test_pyright_accepts_right_calls_and_needs_every_ignore(folder: Path) -> None:
    found, messages = pyright(folder, "marked.py")
    assert found == set(), messages


def test_pyright_finds_each_wrong_call(folder: Path) -> None:
    found, messages = pyright(folder, "bare.py")
    assert found == MUST_BE_ERRORS, messages


def test_mypy_accepts_each_program_of_the_guide(folder: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (folder / "guide").mkdir()
    for number, program in enumerate(programs):
        (folder / "guide" / f"program_{number}.py").write_text(program, encoding="utf-8")
    answer = mypy(folder, "guide")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{len(programs)} source files" in answer.stdout
