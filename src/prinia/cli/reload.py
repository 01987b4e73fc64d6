"""Seeing that Python files change: by watchfiles where that is installed, else by looking at them again and again.

Left out are hidden folders, virtual environments and what was installed by others. Looking takes a tenth of the time at
most: with very many files a change is seen later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

#: Seconds between two looks, and for how long nothing must change for a change to be over.
EVERY, SETTLED = 0.3, 0.2
#: A change that does not end is told after so many times that.
_PATIENCE = 10
_LEFT_OUT = frozenset(("__pycache__", "site-packages", "dist-packages", "node_modules"))
_VIRTUAL = "pyvenv.cfg"

#: Of a file, what is another one when it was written or replaced.
_Seen = dict[Path, tuple[int, int, int]]


def changes(folders: Sequence[Path], *, look: bool = False) -> Iterator[frozenset[Path]]:
    """The Python files in these folders that were written, made or removed since the item before; mostly none.

    There is an item a few times a second, and a first one at the start. ``look`` does without watchfiles.

    Example::

        for changed in changes([Path("src")]):
            if changed:
                print("changed:", *changed)
    """
    if not look and folders:
        try:
            return _watch(folders)
        except ImportError:
            pass
    return _look(folders)


def _watch(folders: Sequence[Path]) -> Iterator[frozenset[Path]]:
    import watchfiles

    # Filtered here: what watchfiles itself leaves out gives no item, and there may be much of it.
    found = watchfiles.watch(
        *folders,
        watch_filter=None,
        step=round(SETTLED * 1000),
        debounce=round(SETTLED * _PATIENCE * 1000),
        rust_timeout=round(EVERY * 1000),
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    return (frozenset(path for _, name in each if _counts(path := Path(name), folders)) for each in found)


def _counts(path: Path, folders: Sequence[Path]) -> bool:
    if path.suffix != ".py":
        return False
    between = [folder for folder in path.parents if any(root in folder.parents for root in folders)]
    return not any(_is_left_out(folder.name) or (folder / _VIRTUAL).exists() for folder in between)


def _look(folders: Sequence[Path]) -> Iterator[frozenset[Path]]:
    before = _snapshot(folders)
    changed: frozenset[Path] = frozenset()
    took = 0.0
    while True:
        yield changed
        changed = frozenset()
        time.sleep(max(EVERY, 9 * took))
        for _ in range(_PATIENCE):
            started = time.monotonic()
            now = _snapshot(folders)
            took = time.monotonic() - started
            if now == before:
                break
            changed |= {path for path, _ in now.items() ^ before.items()}
            before = now
            time.sleep(SETTLED)


def _snapshot(folders: Sequence[Path]) -> _Seen:
    seen: _Seen = {}
    for folder in folders:
        for path in _python_files(folder):
            try:
                about = path.stat()
            except OSError:  # removed just now
                continue
            seen[path] = (about.st_mtime_ns, about.st_size, about.st_ino)
    return seen


def _python_files(root: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(root):
        if _VIRTUAL in names and Path(place) != root:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not _is_left_out(name)]
        yield from (Path(place, name) for name in names if name.endswith(".py"))


def _is_left_out(name: str) -> bool:
    return name.startswith(".") or name in _LEFT_OUT
