"""``embedded:PATH`` wherever a URL is taken."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from prinia.embedded import dsn as dsn_module
from prinia.embedded import open_dsn, resolve
from prinia.errors import EmbeddedPostgresError

from .conftest import Place, ask


@pytest.mark.parametrize("dsn", ["postgresql://db/app", "host=/tmp dbname=x", "", "embedded", "postgres:embedded:x"])
def test_other_dsns_pass_unchanged(dsn: str) -> None:
    assert resolve(dsn) is None
    assert open_dsn(dsn) == dsn


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert resolve("embedded:./data") == tmp_path / "data"
    assert resolve("embedded:data") == tmp_path / "data"
    assert resolve("embedded:a b%20c") == tmp_path / "a b%20c"
    assert resolve("embedded:../x") == tmp_path.parent / "x"
    assert resolve("embedded:/var/x/../data") == Path("/var/data")
    assert resolve("embedded:///var/data") == Path("/var/data")
    assert resolve("embedded:~/x") == tmp_path / "home" / "x"


@pytest.mark.parametrize("dsn", ["embedded:", "embedded://host/data", "embedded://./data"])
def test_what_is_no_path(dsn: str) -> None:
    with pytest.raises(EmbeddedPostgresError, match=r"embedded:\./data"):
        resolve(dsn)


def test_open_dsn_attaches_once_and_again_after_a_crash(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    data = place.filled()
    kept = dsn_module._Kept()
    monkeypatch.setattr(dsn_module, "_kept", kept)
    monkeypatch.chdir(place.path)
    dsn = open_dsn("embedded:./data")
    assert ask(dsn) == 1
    held = kept._attached[data]
    assert open_dsn(f"embedded:{data}") == dsn
    assert kept._attached[data] is held
    os.kill(place.postmaster(data), signal.SIGKILL)
    assert ask(open_dsn("embedded:./data")) == 1
    assert kept._attached[data] is not held
    assert not held.is_attached
    kept._attached[data].detach()
