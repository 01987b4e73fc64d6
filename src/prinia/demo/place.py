"""Where the demo's jobs live: on a server of its own, or in a scratch schema of a given database."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from prinia.demo.tasks import QUEUE
from prinia.embedded import attach, find_binaries
from prinia.errors import EmbeddedPostgresError

_LOOK = "select id, state, attempt, started_at, errors -> -1 ->> $$message$$ as error from {}.all_jobs order by id"


@dataclass(frozen=True, slots=True)
class Place:
    """A database, a schema in it, and a folder for files. ``data`` is the data folder of a server of one's own."""

    dsn: str
    schema: str
    folder: Path
    data: Path | None = None

    def how_to_look_around(self) -> tuple[str, ...]:
        """Lines that tell how to look at what was kept."""
        found = find_binaries().bin / "psql" if self.data is not None else None
        psql = str(found) if found is not None and found.exists() else (shutil.which("psql") or "psql")
        lines = []
        if self.data is not None:
            url = f"PRINIA_DATABASE_URL=embedded:{self.data}"
            lines += [
                f"Kept: {self.data}",
                "Its server runs while somebody uses it. Start it again, with a worker (Ctrl-C stops both):",
                f"  {quote(url)} prinia worker prinia.demo.tasks:app -q {QUEUE}",
                "and look at the jobs from another terminal meanwhile:",
            ]
        else:
            lines += [f"Kept: schema {self.schema}. Look at the jobs with:"]
        look = _LOOK.format('"' + self.schema.replace('"', '""') + '"')
        return (*lines, f"  {quote(psql)} {quote(self.dsn)} -c {quote(look)}")


@contextmanager
def own_server(*, keep: bool) -> Iterator[Place]:
    """A server in a new folder, which is removed at the end unless it is to be kept.

    Raises `EmbeddedPostgresError` when there are no server programs.
    """
    with _scratch_folder(keep=keep) as folder:
        try:
            server = attach(folder / "data", options={"fsync": "off"})
        except EmbeddedPostgresError as error:
            raise EmbeddedPostgresError(f"{error} Or use a database of yours: --database-url URL") from error
        try:
            yield Place(server.dsn, "prinia", folder, server.data)
        finally:
            server.detach(wait=10)


@contextmanager
def own_schema(dsn: str, *, keep: bool) -> Iterator[Place]:
    """A new schema in a given database, which is dropped at the end unless it is to be kept."""
    import psycopg
    from psycopg import sql

    schema = f"prinia_demo_{secrets.token_hex(4)}"
    with _scratch_folder(keep=False) as folder:
        try:
            yield Place(dsn, schema, folder)
        finally:
            if not keep:
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))


@contextmanager
def _scratch_folder(*, keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="prinia-demo-"))
    try:
        # As root the server runs as another user, who must be able to enter; the data folder itself stays closed.
        os.chmod(folder, 0o711)  # noqa: S103
        yield folder
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
