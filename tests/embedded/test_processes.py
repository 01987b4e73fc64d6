"""Several processes, and what becomes of the server when they are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prinia.embedded import attach
from prinia.embedded import server as server_module
from tests.waiting import until

from .conftest import Place, ask, processes_naming


def kill(pid: int) -> None:
    """``kill -9``, and until it has happened; in some containers nobody reaps, so a zombie is dead too."""
    stat = Path(f"/proc/{pid}/stat")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        until(lambda: stat.read_text().rpartition(")")[2].split()[0] in "XZ", what=f"{pid} is dead")


def kill_watchdog(place: Place, data: Path) -> None:
    """The same for the watchdog of a folder; its server may already be ending when this returns."""
    for pid in place.watchdogs(data):
        kill(pid)


def test_four_processes_start_one_server_on_a_fresh_folder(place: Place) -> None:
    data = place.path / "data"
    with ThreadPoolExecutor(4) as pool:
        holders = list(pool.map(place.hold, [data] * 4))
    assert len({holder.dsn for holder in holders}) == 1
    assert len(place.watchdogs(data)) == 1
    assert ask(holders[0].dsn) == 1
    for holder in holders:
        holder.kill()


def test_threads_of_one_process_start_one_server(place: Place) -> None:
    data = place.filled()
    with ThreadPoolExecutor(4) as pool:
        holds = list(pool.map(attach, [data] * 4))
    assert len(place.watchdogs(data)) == 1
    for hold in holds:
        hold.detach()


def test_kill_9_of_the_last_holder_ends_the_server_within_seconds(place: Place) -> None:
    data = place.filled()
    first, second = place.hold(data), place.hold(data)
    first.kill()
    assert ask(second.dsn) == 1
    second.kill()
    until(place.is_quiet, seconds=5, what="server ended")
    assert not (data / "postmaster.pid").exists(), "it was shut down in good order"


def test_the_server_outlives_the_process_that_started_it(place: Place) -> None:
    data = place.filled()
    starter = place.hold(data)
    pid = place.postmaster(data)
    with attach(data) as server:
        starter.kill()
        let_the_watchdog_look()
        assert ask(server.dsn) == 1
        assert place.postmaster(data) == pid


def let_the_watchdog_look() -> None:
    """That nothing happens can only be seen by waiting: a bit more than two of its rounds."""
    started = time.monotonic()
    until(lambda: time.monotonic() - started > 1.2)


def test_attach_while_the_server_stops_for_want_of_holders(place: Place) -> None:
    data = place.filled()
    for _ in range(2):
        attach(data).detach()
        log = next((place.path / "t").iterdir()) / "log"
        until(lambda log=log: is_stopping(log), what="it stops")  # type: ignore[misc]
        with attach(data) as new:
            let_the_watchdog_look()
            assert ask(new.dsn) == 1


def is_stopping(log: Path) -> bool:
    """Its watchdog has decided; or it is done already, and has removed the log."""
    return not log.exists() or "fast shutdown" in log.read_text()


def test_kill_9_of_the_postmaster_next_attach_starts_it_again(place: Place) -> None:
    data = place.filled()
    with attach(data) as old:
        ask(old.dsn, "create table t as select 7 as n; select 1")
        pid = place.postmaster(data)
        kill(pid)
        with attach(data) as new:
            assert place.postmaster(data) != pid
            assert ask(new.dsn, "select n from t") == 7
            assert ask(old.dsn, "select n from t") == 7, "same address, so old holders find it too"


def test_kill_9_of_the_watchdog_ends_the_server_and_next_attach_starts_it_again(place: Place) -> None:
    data = place.filled()
    with attach(data) as old:
        pid = place.postmaster(data)
        kill_watchdog(place, data)
        until(lambda: not processes_naming(str(old.log.parent)), seconds=5, what="server ended with its watchdog")
        with attach(data) as new:
            assert ask(new.dsn) == 1
            assert place.postmaster(data) != pid


def test_attach_while_the_server_dies_with_its_watchdog(place: Place) -> None:
    data = place.filled()
    with attach(data):
        kill_watchdog(place, data)
        with attach(data) as new:
            assert ask(new.dsn) == 1
            assert len(place.watchdogs(data)) == 1


def test_kill_9_of_watchdog_and_postmaster_at_once(place: Place) -> None:
    data = place.filled()
    with attach(data):
        pid = place.postmaster(data)
        kill_watchdog(place, data)
        kill(pid)
        with attach(data) as new:
            assert ask(new.dsn) == 1


def test_kill_9_of_everything_then_recovery(place: Place) -> None:
    data = place.filled()
    holder = place.hold(data)
    ask(holder.dsn, "create table t as select generate_series(1, 50000) as n; select 1")
    pid = place.postmaster(data)
    holder.kill()
    kill_watchdog(place, data)
    kill(pid)
    with attach(data) as server:
        assert ask(server.dsn, "select count(*) from t") == 50000


def test_sigterm_to_the_watchdog_stops_the_server_in_good_order(place: Place) -> None:
    data = place.filled()
    with attach(data):
        os.kill(place.watchdogs(data)[0], signal.SIGTERM)
        until(place.is_quiet, seconds=5, what="server ended")
        assert not (data / "postmaster.pid").exists()


def test_a_killed_starter_in_the_middle_of_initdb_leaves_no_trap(place: Place) -> None:
    data = place.path / "data"
    starter = place.script("import sys; from prinia.embedded import attach; attach(sys.argv[1])", data)
    until(lambda: list(data.glob(".prinia-initdb-*/PG_VERSION")), what="initdb is at work")
    place.end(starter)
    with attach(data) as server:
        assert ask(server.dsn) == 1
        assert not list(data.glob(".prinia*"))


def test_a_pid_file_that_names_a_living_stranger(place: Place) -> None:
    """As in a restarted container, where pids begin anew."""
    data = place.filled()
    lines = [str(os.getpid()), str(data), "1", "5432", "/nowhere", "", "  1 1", "ready"]
    (data / "postmaster.pid").write_text("\n".join(lines) + "\n")
    with attach(data) as server:
        assert ask(server.dsn) == 1


FORK = """
import os, sys
from prinia.embedded import open_dsn
open_dsn("embedded:" + sys.argv[1])
if os.fork() == 0:
    if sys.argv[2] == "again":
        open_dsn("embedded:" + sys.argv[1])
    print("child", flush=True)
sys.stdin.read()
"""


def test_a_forked_child_does_not_hold_for_its_parent(place: Place) -> None:
    data = place.filled()
    parent = place.script(FORK, data, "not")
    place.expect(parent, "child")
    os.kill(parent.pid, signal.SIGKILL)
    until(place.is_quiet, seconds=5, what="server ended although the child lives")
    assert place.processes(), "the child lives"
    place.end(parent)


def test_a_forked_child_holds_when_it_asks_itself(place: Place) -> None:
    data = place.filled()
    parent = place.script(FORK, data, "again")
    place.expect(parent, "child")
    parent.kill()
    pid = place.postmaster(data)
    with attach(data) as server:
        assert ask(server.dsn) == 1
    assert place.postmaster(data) == pid
    assert place.watchdogs(data)
    place.end(parent)


def test_where_the_kernel_cannot_tie_them_a_new_watchdog_adopts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What macOS does; here with a server whose tie is cut by a watchdog that is only stopped, not told."""
    data = place.filled()
    monkeypatch.setattr(server_module, "DIES_WITH_WATCHDOG", False)
    monkeypatch.setattr(server_module, "_WATCHDOG", untied_watchdog(place))
    with attach(data):
        pid = place.postmaster(data)
        kill_watchdog(place, data)
        with attach(data) as again:
            assert ask(again.dsn) == 1
            assert place.postmaster(data) == pid
            assert len(place.watchdogs(data)) == 1
    until(place.is_quiet, seconds=5, what="the adopted server ended")


def untied_watchdog(place: Place) -> object:
    """Our watchdog's text with another platform in it; named so that it is found by the same search."""
    text = server_module._WATCHDOG.read_text(encoding="utf-8")
    assert text.count('sys.platform != "linux"') == 1
    path = place.path / "watchdog.py"
    path.write_text(text.replace('sys.platform != "linux"', "True"), encoding="utf-8")
    return path
