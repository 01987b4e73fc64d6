"""Where a database URL leads, in words that hold no secret."""

from __future__ import annotations


def describe(dsn: str) -> str:
    """Database, host and user of a libpq connection string, without its password.

    Example::

        describe("postgresql://shop:secret@db/orders")      # 'orders on db as shop'
    """
    import psycopg
    from psycopg import pq
    from psycopg.conninfo import conninfo_to_dict

    known = {one.keyword.decode(): one.val.decode() for one in pq.Conninfo.get_defaults() if one.val}
    try:
        known |= {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.Error:
        return "a database whose URL cannot be read"
    host = known.get("host") or known.get("hostaddr") or "this machine"
    port = "" if known.get("port", "5432") == "5432" else f":{known['port']}"
    user = known.get("user", "")
    return f"{known.get('dbname') or user} on {host}{port} as {user}"
