"""Folders that are not, or not quite, data folders: refused with a text that helps, or repaired; never harmed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from prinia.embedded import attach
from prinia.errors import EmbeddedPostgresError
from tests.users import as_root

from .conftest import Place, ask


def test_a_folder_of_another_major(place: Place) -> None:
    data = place.filled()
    (data / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedPostgresError) as caught:
        attach(data)
    text = str(caught.value)
    for part in (str(data), "PostgreSQL 12", "PRINIA_PG_BIN", "programs found are PostgreSQL 1"):
        assert part in text


def test_a_folder_with_other_things(place: Place) -> None:
    data = place.path / "project"
    data.mkdir()
    (data / "pyproject.toml").write_text("mine")
    with pytest.raises(EmbeddedPostgresError, match=r"neither empty nor a PostgreSQL data folder.*pyproject\.toml"):
        attach(data)
    assert os.listdir(data) == ["pyproject.toml"]


def test_a_file(place: Place) -> None:
    (place.path / "data").write_text("mine")
    with pytest.raises(EmbeddedPostgresError, match="is a file"):
        attach(place.path / "data")


def test_half_a_folder_of_somebody_elses_initdb(place: Place) -> None:
    data = place.filled()
    (data / "global" / "pg_control").unlink()
    with pytest.raises(EmbeddedPostgresError, match="half a PostgreSQL data folder"):
        attach(data)
    assert (data / "base").is_dir()


def test_a_move_that_was_cut_off_is_finished(place: Place) -> None:
    data = place.filled()
    ready = data / ".prinia-ready"
    ready.mkdir()
    for name in ("PG_VERSION", "base", "postgresql.conf"):
        os.rename(data / name, ready / name)
    with attach(data) as server:
        assert ask(server.dsn) == 1
    assert not ready.exists()


def test_a_leftover_of_initdb_is_removed(place: Place) -> None:
    leftover = place.path / "data" / ".prinia-initdb-abc"
    leftover.mkdir(parents=True)
    (leftover / "PG_VERSION").write_text("18\n")
    with attach(place.path / "data") as server:
        assert ask(server.dsn) == 1
    assert not leftover.exists()


def test_an_initdb_that_fails_leaves_the_folder_as_it_was(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_programs(place, initdb="echo no room >&2; exit 1")
    monkeypatch.setenv("PRINIA_PG_BIN", str(fake))
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)initdb failed with exit status 1.*no room"):
        attach(place.path / "data")
    assert os.listdir(place.path / "data") == []


def test_a_parent_that_is_a_file(place: Place) -> None:
    (place.path / "file").write_text("")
    with pytest.raises(EmbeddedPostgresError, match="cannot run an embedded server on"):
        attach(place.path / "file" / "data")
    assert list((place.path / "t").iterdir()) == [], "a start that fails leaves nothing in /tmp"


@as_root
def test_a_folder_of_another_user(place: Place) -> None:
    data = place.filled()
    subprocess.run(["chown", "-R", "games", data], check=True)
    with pytest.raises(EmbeddedPostgresError, match=r"belongs to 'games'.*would run as 'nobody'.*chown"):
        attach(data)
    assert data.owner() == "games"


def fake_programs(place: Place, *, initdb: str) -> Path:
    folder = place.path / "bin"
    folder.mkdir()
    for name, body in (("initdb", initdb), ("postgres", 'echo "postgres (PostgreSQL) 18.6"')):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder
