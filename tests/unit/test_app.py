"""The app: which database it finds, and that its parts work together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import psycopg
import pytest

from prinia import INJECTED, ColourError, ConfigurationError, Context, JobFailed, JobNotFound, MigrationsPending, Prinia
from prinia.storage.memory import MemoryStorage
from prinia.storage.postgres import PostgresStorage

URL = "postgresql://localhost/shop"


@pytest.mark.parametrize(
    ("given", "environment", "dsn"),
    [
        (URL, {"PRINIA_DATABASE_URL": "postgresql://other"}, URL),
        (None, {"PRINIA_DATABASE_URL": URL, "DATABASE_URL": "postgresql://other"}, URL),
        (None, {"DATABASE_URL": URL}, URL),
        (None, {"PRINIA_DATABASE_URL": "", "DATABASE_URL": URL}, URL),
        ("postgres://localhost/shop", {}, "postgres://localhost/shop"),
        ("host=localhost dbname=shop", {}, "host=localhost dbname=shop"),
        (None, {"DATABASE_URL": "postgresql+asyncpg://u:p@h/d?x=y"}, "postgresql://u:p@h/d?x=y"),
        (None, {"DATABASE_URL": "postgres+psycopg://h/d"}, "postgresql://h/d"),
        (f" {URL}", {}, URL),
        (None, {"PRINIA_DATABASE_URL": " ", "DATABASE_URL": f"  {URL}\n"}, URL),
        (" postgresql+psycopg://h/d", {}, "postgresql://h/d"),
    ],
)
def test_where_the_database_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, given: str | None, environment: dict[str, str], dsn: str
) -> None:
    app = Prinia(given)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)  # after the constructor: it is looked up at first use
    assert app.dsn == dsn


def test_no_database_is_an_error_of_the_first_use_with_the_fix() -> None:
    app = Prinia()
    send = app.task(name="send")(lambda: None)
    assert send.job().spec.args == b"{}"
    with pytest.raises(ConfigurationError, match="set PRINIA_DATABASE_URL"):
        _ = app.dsn
    with pytest.raises(ConfigurationError, match="set PRINIA_DATABASE_URL"):
        send.enqueue()


def test_another_database_is_refused_without_showing_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "mysql://me:secret@localhost/shop")
    with pytest.raises(ConfigurationError, match=r"DATABASE_URL starts with mysql://") as caught:
        _ = Prinia().dsn
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, -5, True, 1.5, "1"])
def test_a_limit_that_makes_no_sense_is_refused(size: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_args_bytes"):
        Prinia(max_args_bytes=size)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dsn": 5}, "dsn=5 must be a str"),
        ({"listen_dsn": b"x"}, "listen_dsn=b'x' must be a str"),
        ({"schema": None}, "schema=None must be a str"),
        ({"schema": 5}, "schema=5 must be a str"),
        ({"storage": 5}, "storage=5 must be a storage"),
        ({"storage": "postgresql://localhost"}, "must be a storage"),
    ],
)
def test_values_of_a_wrong_type_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Prinia(**given)
    assert said in str(caught.value)


def test_the_limit_of_arguments_is_the_apps() -> None:
    send = Prinia(max_args_bytes=20).task(name="send")(lambda x: None)
    assert send.job("x" * 12).spec.args == b'{"x":"%s"}' % (b"x" * 12)
    with pytest.raises(ValueError, match="send: the arguments are 21 bytes as JSON, the limit is 20"):
        send.job("x" * 13)


def test_the_storage_is_made_once_and_kept() -> None:
    app = Prinia(URL)
    assert app.storage is app.storage
    given = MemoryStorage()
    assert Prinia(storage=given).storage is given


@pytest.mark.parametrize(
    ("given", "listens"),
    [
        (None, URL),
        ("postgresql://direct/shop", "postgresql://direct/shop"),
        ("postgres+psycopg://d/s", "postgresql://d/s"),
    ],
)
def test_workers_listen_where_they_are_told(given: str | None, listens: str) -> None:
    storage = Prinia(URL, listen_dsn=given).storage
    assert isinstance(storage, PostgresStorage)
    assert storage._listen_dsn() == listens


def test_a_place_to_listen_that_is_no_postgresql_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="listen_dsn starts with redis://"):
        Prinia(URL, listen_dsn="redis://localhost")


async def test_an_app_is_a_context_that_nests() -> None:
    app = Prinia(storage=MemoryStorage())
    send = app.task(name="send")(lambda: None)
    async with app as one, app as two:
        assert one is two is app
        assert (await send.aenqueue()).id == 1
    async with app:
        assert (await send.aenqueue()).id == 2


def test_an_app_is_a_blocking_context_that_nests() -> None:
    app = Prinia(storage=MemoryStorage())
    with app as one, app as two:
        assert one is two is app
        assert app.task(name="send")(lambda: None).enqueue().id == 1


async def test_a_worker_of_the_app_has_as_many_threads_as_it_is_told() -> None:
    app = Prinia(storage=MemoryStorage())
    together = threading.Barrier(3)

    @app.task(name="meet")
    def meet() -> int:
        return together.wait(30)

    async with app, app.worker(threads=3):
        jobs = await app.aenqueue_many(meet.job() for _ in range(3))
        assert sorted([await job.aresult(timeout=30) for job in jobs]) == [0, 1, 2]
    with pytest.raises(ConfigurationError, match="threads=0"):
        app.worker(threads=0)


async def test_a_worker_of_the_app_runs_its_jobs() -> None:
    app = Prinia(storage=MemoryStorage())

    @app.task
    async def double(number: int, ctx: Context = INJECTED) -> tuple[int, int]:
        return number * 2, ctx.attempt

    @app.task(max_attempts=1)
    async def broken() -> None:
        raise ValueError("boom")

    async with app, app.worker(name="test"):
        assert await (await double.aenqueue(21)).aresult(timeout=30) == (42, 1)
        jobs = await app.aenqueue_many(double.job(n) for n in range(3))
        assert [await job.aresult(timeout=30) for job in jobs] == [(0, 1), (2, 1), (4, 1)]
        with pytest.raises(JobFailed, match=r"failed after 1 attempt; last error: .*ValueError: boom"):
            await (await broken.aenqueue()).aresult(timeout=30)


def test_an_app_migrates_its_database(database: str) -> None:
    app = Prinia(database, schema="jobs")
    with pytest.raises(
        MigrationsPending, match=r"no Prinia tables in schema 'jobs'\. Run: prinia migrate --schema jobs$"
    ):
        app.check_migrations()
    app.migrate()
    app.check_migrations()


async def test_jobs_commit_and_roll_back_with_the_callers_transaction(migrated: str) -> None:
    app = Prinia(migrated, strict=True)
    send = app.task(name="send")(lambda order: None)
    async with app, await psycopg.AsyncConnection.connect(app.dsn, autocommit=True) as connection:
        async with connection.transaction():
            kept = await send.within(connection).aenqueue(1)
            many = await app.within(connection).aenqueue_many(send.job(n) for n in range(3))
            with pytest.raises(JobNotFound):
                await kept.ainfo()
        assert {job.xid for job in many} == {kept.xid} != {None}
        assert [(await job.ainfo()).args for job in (kept, *many)] == [b'{"order":%d}' % n for n in (1, 0, 1, 2)]
        async with connection.transaction(force_rollback=True):
            gone = await send.within(connection).aenqueue(2)
        with pytest.raises(JobNotFound):
            await gone.ainfo()


def test_the_tasks_of_an_app_cannot_be_changed_from_outside() -> None:
    app = Prinia()
    with pytest.raises(TypeError):
        app.tasks["a"] = app.task(lambda: None)  # type: ignore[index]


def test_an_app_can_be_made_and_filled_without_a_driver() -> None:
    code = (
        "import sys; from prinia import Prinia; app = Prinia('postgresql://h/d')\n"
        "@app.task\nasync def send(order: int) -> None: ...\n"
        "send.job(1); app.dsn; assert 'psycopg' not in sys.modules; print('ok')"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert answer.stdout == "ok\n"


def test_an_app_with_its_own_storage_never_touches_the_environments_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://somebody/elses")
    app = Prinia(storage=MemoryStorage())
    for call in (lambda: app.dsn, app.migrate, app.check_migrations):
        with pytest.raises(ConfigurationError, match="was given a storage"):
            call()


async def test_blocking_calls_of_the_app_refuse_a_running_loop() -> None:
    app = Prinia(storage=MemoryStorage())
    for call in (app.migrate, app.check_migrations, app.open):
        with pytest.raises(ColourError, match="Write: await"):
            call()
