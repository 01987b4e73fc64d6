"""SQL lives in ``.sql`` files: one statement each in ``queries/``, numbered steps in ``migrations/``.

In them ``{schema}`` stands for the quoted name of Prinia's schema, ``{schema_literal}`` for the same name as a string,
``{job_ids_literal}`` for the name of the id sequence as a string. Values are never put into the text.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from importlib.resources import files

from prinia.errors import ConfigurationError

MAX_SCHEMA_BYTES = 63

DEFAULT_SCHEMA = "prinia"

#: What the driver takes as SQL made at run time.
Statement = bytes


@cache
def _read(folder: str, name: str) -> str:
    return (files("prinia.storage.postgres") / folder / name).read_text(encoding="utf-8")


@cache
def _statement(name: str) -> str:
    """A query without its comment lines: a comment may hold a percent sign or a brace, a statement may not."""
    lines = _read("queries", f"{name}.sql").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def migrate_command(schema: str) -> str:
    """What to type to bring this schema up to date.

    Example::

        migrate_command("my jobs")      # "prinia migrate --schema 'my jobs'"
    """
    return "prinia migrate" + ("" if schema == DEFAULT_SCHEMA else f" --schema {shlex.quote(schema)}")


class Sql:
    """The statements of one schema.

    Example::

        Sql("my jobs").query("claim", limit="100")
    """

    def __init__(self, schema: str) -> None:
        size = len(schema.encode(errors="replace"))
        if not 0 < size <= MAX_SCHEMA_BYTES or schema.startswith("pg_") or re.search(r"[\0{}]|\$\w*\$", schema):
            raise ConfigurationError(
                f"schema {schema!r} cannot be used: give a name of 1 to {MAX_SCHEMA_BYTES} bytes that does not start"
                " with pg_ and holds no braces, no $…$ and no NUL"
            )
        self.schema = schema
        self.quoted = '"' + schema.replace('"', '""') + '"'

    def query(self, name: str, **parts: str) -> Statement:
        """The statement of ``queries/NAME.sql``; ``parts`` fill its other braces (SQL text, never values)."""
        text = _statement(name)
        for part, value in parts.items():
            text = text.replace("{" + part + "}", value)
        return self.statement(text)

    def statement(self, text: str) -> Statement:
        """A statement to run with parameters: a percent sign in the schema's name is doubled."""
        return self.render(text, escape=True).encode()

    def call(self, name: str) -> str:
        """The text of ``queries/NAME.sql`` for a caller's connection of any kind: its one parameter stands as
        ``{text}``, and nothing is escaped."""
        return self.render(_statement(name))

    def part(self, name: str) -> str:
        """The text of ``queries/NAME.sql`` as a part of another statement."""
        return _statement(name)

    def migration(self, filename: str) -> str:
        """The text of one migration, ready to run as it is."""
        return self.render(_read("migrations", filename))

    def render(self, text: str, *, escape: bool = False) -> str:
        """The text with the schema filled in."""
        names = {
            "{schema}": self.quoted,
            "{schema_literal}": _literal(self.schema),
            "{job_ids_literal}": _literal(f"{self.quoted}.job_ids"),
        }
        for token, name in names.items():
            text = text.replace(token, name.replace("%", "%%") if escape else name)
        return text
