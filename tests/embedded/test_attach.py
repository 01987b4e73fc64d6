"""One process: what attaching gives, and which folders and settings it takes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from prinia.embedded import attach
from prinia.errors import EmbeddedPostgresError
from tests.waiting import until

from .conftest import Place, ask


def test_a_missing_folder_becomes_a_server(place: Place) -> None:
    data = place.path / "new" / "data"
    with attach(data) as server:
        assert server.dsn.startswith("postgresql://prinia@/prinia?host=%2F")
        assert ask(server.dsn, "select current_user || ' ' || current_database()") == "prinia prinia"
        assert ask(server.dsn, "show server_encoding") == "UTF8"
        assert ask(server.dsn, "select datcollate from pg_database where datname = 'prinia'") == "C"
        assert ask(server.dsn, "select rolsuper::text from pg_roles where rolname = current_user") == "true"
    assert not server.is_attached
    until(place.is_quiet, what="server ended after the block")


def test_an_empty_folder_is_filled_in_place(place: Place) -> None:
    data = place.path / "data"
    data.mkdir()
    inode = data.stat().st_ino
    with attach(data) as server:
        assert ask(server.dsn) == 1
        assert data.stat().st_ino == inode
        assert not [name for name in os.listdir(data) if name.startswith(".prinia")]


def test_data_is_there_again_after_a_stop(place: Place) -> None:
    data = place.filled()
    with attach(data) as server:
        ask(server.dsn, "create table t as select 42 as n; select 1")
    assert server.detach(wait=10)
    with attach(data) as server:
        assert ask(server.dsn, "select n from t") == 42


def test_a_second_attach_starts_nothing(place: Place) -> None:
    data = place.filled()
    with attach(data):
        before = place.postmaster(data), place.watchdogs(data)
        with attach(data):
            assert (place.postmaster(data), place.watchdogs(data)) == before
    assert len(before[1]) == 1


def test_two_holds_in_one_process_are_independent(place: Place) -> None:
    data = place.filled()
    first, second = attach(data), attach(data)
    assert first.dsn == second.dsn
    assert first.detach(wait=10) is False, "the other hold keeps it running"
    assert ask(second.dsn) == 1
    assert second.detach(wait=10) is True
    assert second.detach() is True, "again is harmless"


def test_a_clean_stop_leaves_nothing_in_tmp(place: Place) -> None:
    server = attach(place.filled())
    assert list((place.path / "t").iterdir()) == [server.log.parent]
    assert server.detach(wait=10)
    assert list((place.path / "t").iterdir()) == []


def test_a_path_with_a_space_a_quote_and_an_umlaut(place: Place) -> None:
    data = place.filled("it's a földer, really")
    with attach(data) as server:
        assert ask(server.dsn) == 1


def test_a_relative_path(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    data = place.filled()
    monkeypatch.chdir(place.path)
    with attach("./data") as relative, attach(data) as absolute:
        assert relative.dsn == absolute.dsn
        assert relative.data == data.resolve()


def test_a_symlink_to_the_folder_is_the_folder(place: Place) -> None:
    data = place.filled()
    (place.path / "link").symlink_to(data)
    with attach(data) as one, attach(place.path / "link") as other:
        assert one.dsn == other.dsn


def test_an_over_long_or_odd_tmpdir_is_not_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    data = place.filled()
    for name in ("x" * 90, "with, comma"):
        odd = place.path / name
        odd.mkdir(mode=0o711)
        monkeypatch.setenv("TMPDIR", str(odd))
        with attach(data) as server:
            assert ask(server.dsn) == 1
            assert server.log.parent.parent == Path("/tmp")
        assert server.detach(wait=10)


def test_another_tmpdir_still_finds_the_running_server(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with attach(place.filled()) as first:
        monkeypatch.delenv("TMPDIR")
        with attach(first.data) as second:
            assert second.dsn == first.dsn


def test_options_are_settings_of_the_server(place: Place) -> None:
    data = place.filled()
    with attach(data, options={"work_mem": "5MB", "prinia.note": "it's here"}) as server:
        assert ask(server.dsn, "show work_mem") == "5MB"
        assert ask(server.dsn, "show prinia.note") == "it's here"


@pytest.mark.parametrize("name", ["port", "Listen_Addresses", "unix_socket_directories"])
def test_options_that_are_ours_are_refused(place: Place, name: str) -> None:
    with pytest.raises(EmbeddedPostgresError, match="cannot be chosen"):
        attach(place.path / "data", options={name: "1"})


def test_a_server_that_cannot_start_says_why(place: Place) -> None:
    data = place.filled()
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)ended while it started.*no_such_setting"):
        attach(data, options={"no_such_setting": "1"})
    with attach(data) as server:
        assert ask(server.dsn) == 1


def test_a_removed_folder_gets_a_new_server(place: Place) -> None:
    # Asleep, its processes do not notice by themselves for long.
    old = attach(place.filled(), options={"wal_writer_delay": "10s", "autovacuum": "off"})
    ask(old.dsn, "create table t (); select 1")
    shutil.rmtree(old.data)
    with attach(old.data, timeout=8) as new:
        assert ask(new.dsn, "select count(*) from pg_tables where tablename = 't'") == 0
    old.detach()


def test_an_emptied_tmp_gets_a_new_server(place: Place) -> None:
    old = attach(place.filled())
    shutil.rmtree(old.log.parent)
    with attach(old.data) as new:
        assert ask(new.dsn) == 1
    old.detach()


def test_data_removed_right_after_detaching_leaves_nothing(place: Place) -> None:
    """What a script with a temporary folder does."""
    with attach(place.filled()) as server:
        ask(server.dsn, "create table t (); select 1")
    shutil.rmtree(server.data)
    until(place.is_quiet, what="server ended")
    assert list((place.path / "t").iterdir()) == []
