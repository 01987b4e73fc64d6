"""Where the database is: what was given, or what the environment says."""

from __future__ import annotations

import os
import re

from prinia.errors import ConfigurationError

#: Where the database's URL is looked for when an app is given none.
DATABASE_VARIABLES = ("PRINIA_DATABASE_URL", "DATABASE_URL")


def find_dsn(given: str | None) -> str:
    """The DSN given, else the environment's, in a form that libpq knows. Raises `ConfigurationError`."""
    where, dsn = "dsn", (given or "").strip()
    for variable in DATABASE_VARIABLES:
        if not dsn:
            where, dsn = variable, os.environ.get(variable, "").strip()
    if not dsn:
        raise ConfigurationError(
            "no database is set: set PRINIA_DATABASE_URL (or DATABASE_URL) to postgresql://user@host/name, "
            "or give it: Prinia('postgresql://...'). To try out without a server: embedded:./data"
        )
    return as_libpq(where, dsn)


def as_libpq(where: str, dsn: str) -> str:
    """The DSN in a form that libpq knows; ``where`` it comes from is for the `ConfigurationError` it may raise."""
    scheme, separator, rest = dsn.partition("://")
    if re.fullmatch(r"postgres(ql)?\+\w+", scheme):
        return f"postgresql://{rest}"  # SQLAlchemy's form, which names a driver
    # The rest is not shown: it may hold a password.
    if separator and scheme not in ("postgresql", "postgres") and not scheme.startswith("embedded:"):
        raise ConfigurationError(f"{where} starts with {scheme}://, but Prinia needs PostgreSQL: postgresql://...")
    return dsn
