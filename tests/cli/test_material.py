"""What the demo measures, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from prinia.demo.material import gather
from prinia.demo.measure import Function, UnreadableSource, measure_file

SOURCE = """\
class A:
    def f(self):
        def g():
            return 1
        return g

    async def h(self): ...


def f(): return "ü"
"""


def test_a_file_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(SOURCE, encoding="utf-8")
    found = measure_file(path)
    assert (found.file, found.lines, found.classes, found.functions) == ("a.py", 10, 1, 4)
    assert found.longest == (Function("A.f", 4), Function("A.f.g", 2), Function("A.h", 1), Function("f", 1))
    (tmp_path / "empty.py").touch()
    assert measure_file(tmp_path / "empty.py").lines == 0


def test_a_declared_encoding_is_used(tmp_path: Path) -> None:
    path = tmp_path / "latin.py"
    path.write_bytes(b"# -*- coding: latin-1 -*-\nx = '\xfc'\n")
    assert measure_file(path).lines == 2


@pytest.mark.parametrize("limit", [3, 50, None])
def test_only_the_damaged_copies_fail(tmp_path: Path, limit: int | None) -> None:
    material = gather(tmp_path, limit=limit)
    assert len(set(material.healthy)) == len(material.healthy)
    assert limit is None or len(material.healthy) == limit
    for path in material.healthy[:100]:
        measure_file(path)
    errors = []
    for path in material.damaged:
        with pytest.raises((SyntaxError, UnreadableSource), match=rf"\({path.name}, line \d+\)") as failed:
            measure_file(path)
        errors.append(failed.type)
    assert errors == [SyntaxError, IndentationError, UnreadableSource]
