"""Modules with tasks that nobody imports but the app."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prinia import ConfigurationError, Prinia
from prinia.storage.memory import MemoryStorage

APP = """
from prinia import Prinia
from prinia.storage.memory import MemoryStorage
app = Prinia(storage=MemoryStorage(), imports=["{package}.jobs", "{package}.mail"])
"""
JOBS = """
from {package}.app import app

@app.task(name="{name}", queue="{name}")
def task() -> None: ...
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package with a name of its own, importable for the test."""
    folder = tmp_path / f"shop_{abs(hash(tmp_path))}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def write(package: Path, **modules: str) -> None:
    for name, text in modules.items():
        (package / f"{name}.py").write_text(text.replace("{package}", package.name))


def app_of(package: Path) -> Prinia:
    __import__(f"{package.name}.app")
    app: Prinia = sys.modules[f"{package.name}.app"].app
    return app


def test_they_are_imported_when_a_worker_is_made_and_not_before(package: Path) -> None:
    write(package, app=APP, jobs=JOBS.replace("{name}", "jobs"), mail=JOBS.replace("{name}", "mail"))
    app = app_of(package)
    assert dict(app.tasks) == {}
    worker = app.worker()
    assert sorted(app.tasks) == ["jobs", "mail"]
    assert worker.queues == ("jobs", "mail")
    app.import_tasks()
    assert len(app.tasks) == 2


def test_they_are_imported_when_asked_for_with_others(package: Path) -> None:
    write(package, app=APP, more=JOBS.replace("{name}", "more"))
    write(package, **{name: JOBS.replace("{name}", name) for name in ("jobs", "mail")})
    app = app_of(package)
    app.import_tasks(f"{package.name}.more")
    assert sorted(app.tasks) == ["jobs", "mail", "more"]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        (None, r"there is no module '{package}.jobs', looked for in /.* and where Python's modules are"),
        (
            "import nosuchthing",
            r"importing {package}.jobs failed: ModuleNotFoundError: No module named 'nosuchthing' \(",
        ),
        ("\n\n{}['x']", r"importing {package}.jobs failed: KeyError: 'x' \(.*jobs.py, line 3\)"),
        ("def (:", r"importing {package}.jobs failed: SyntaxError: invalid syntax \(jobs.py, line 1\)"),
        ("import sys\nsys.exit(3)", r"importing {package}.jobs ended the program: it calls sys.exit\(3\) \(.*line 2\)"),
        (
            "from {package}.app import app\napp.task(name='')",
            r"importing {package}.jobs failed: InvalidOptions: name='' .*jobs.py, line 2\)",
        ),
    ],
)
def test_what_does_not_import_says_which_why_and_where(package: Path, jobs: str | None, said: str) -> None:
    write(package, app=APP, **({} if jobs is None else {"jobs": jobs}))
    app = app_of(package)
    for call in (app.worker, app.import_tasks):
        with pytest.raises(ConfigurationError, match=said.replace("{package}", package.name)):
            call()


def test_a_package_that_is_missing_is_the_one_named() -> None:
    with pytest.raises(ConfigurationError, match=r"there is no module 'nosuch', which nosuch\.jobs is in, looked for"):
        Prinia(storage=MemoryStorage(), imports=["nosuch.jobs"]).import_tasks()


@pytest.mark.parametrize(
    ("imports", "said"),
    [
        ("shop.jobs", r"imports='shop.jobs' must be a list of modules, such as imports=\['shop.jobs'\]"),
        (7, "imports=7 must be a list of modules"),
        (["shop/jobs.py"], "imports: 'shop/jobs.py' is no name of a module; write it as in: shop.jobs"),
        ([".jobs"], "imports: '.jobs' is no name of a module"),
        ([7], "imports: 7 is no name of a module"),
        ([""], "imports: '' is no name of a module"),
    ],
)
def test_what_names_no_module_is_refused_at_once(imports: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Prinia(imports=imports)
