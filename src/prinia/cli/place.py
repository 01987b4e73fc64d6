"""Where a database URL leads, in words that hold no secret."""

from __future__ import annotations

from prinia.errors import ConfigurationError


def describe(dsn: str) -> str:
    """Database, host and user of a libpq connection string, without its password. Raises `ConfigurationError`.

    Example::

        describe("postgresql://shop:secret@db/orders")      # 'orders on db as shop'
    """
    import psycopg
    from psycopg import pq
    from psycopg.conninfo import conninfo_to_dict

    known = {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.val}
    try:
        known |= {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.Error as error:
        raise ConfigurationError(f"the database URL makes no sense: {str(error).strip()}") from error
    host = known.get("host") or known.get("hostaddr") or "this machine"
    port = "" if known.get("port", "5432") == "5432" else f":{known['port']}"
    user = known.get("user", "")
    return f"{known.get('dbname') or user} on {host}{port} as {user}"
