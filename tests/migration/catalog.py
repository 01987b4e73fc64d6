"""What is in a database, read from its catalogs, for comparing."""

from __future__ import annotations

from typing import Any

import psycopg

_OUTSIDE = {
    "schemas": "select nspname from pg_namespace",
    "relations": "select nspname, relname from pg_class join pg_namespace n on n.oid = relnamespace",
    "functions": "select nspname, proname, p.oid from pg_proc p join pg_namespace n on n.oid = pronamespace",
    "types": "select nspname, typname from pg_type join pg_namespace n on n.oid = typnamespace",
    "extensions": "select extname from pg_extension",
    # Other databases of the server have tests of their own.
    "settings": "select setdatabase, setrole, setconfig from pg_db_role_setting"
    " where setdatabase in (0, (select oid from pg_database where datname = current_database()))",
    "triggers": "select evtname from pg_event_trigger",
    "large objects": "select oid from pg_largeobject_metadata",
}
# Names of the partitions of the archive go by the date, and the schema's own name is replaced: dumps of two schemas,
# or of one made by another way, are equal when the schemas are.
_INSIDE = {
    "columns": """
        select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
               pg_get_expr(d.adbin, d.adrelid)
          from pg_attribute a join pg_class c on c.oid = a.attrelid
          left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
         where c.relnamespace = %(schema)s::oid and a.attnum > 0 and c.relkind in ('r', 'p', 'v', 'S')""",
    "storage": "select relname, relkind, reloptions from pg_class where relnamespace = %(schema)s::oid",
    "indexes": """select pg_get_indexdef(oid) from pg_class
                   where relnamespace = %(schema)s::oid and relkind in ('i', 'I')""",
    "checks": """select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
                  where connamespace = %(schema)s::oid""",
    "functions": """select pg_get_functiondef(oid), proacl::text, proowner::regrole::text from pg_proc
                     where pronamespace = %(schema)s::oid""",
    "views": """select relname, pg_get_viewdef(oid) from pg_class
                 where relnamespace = %(schema)s::oid and relkind = 'v'""",
    "owners": "select relname, relowner::regrole::text from pg_class where relnamespace = %(schema)s::oid",
}

Rows = dict[str, list[tuple[Any, ...]]]


def outside(dsn: str, *schemas: str) -> Rows:
    """Everything in the database that is not in these schemas (nor a table's own TOAST table)."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = {what: connection.execute(query).fetchall() for what, query in _OUTSIDE.items()}
    hidden = {*schemas, "pg_toast"}
    return {what: sorted(row for row in rows if row[0] not in hidden) for what, rows in found.items()}


def inside(dsn: str, schema: str) -> Rows:
    """Everything in one schema, with its name written as ``SCHEMA``."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set search_path = ''")
        oid, quoted = connection.execute(
            "select oid, quote_ident(nspname) from pg_namespace where nspname = %s", (schema,)
        ).fetchall()[0]
        found = {what: connection.execute(query, {"schema": oid}).fetchall() for what, query in _INSIDE.items()}

    always_quoted, literal = '"' + schema.replace('"', '""') + '"', "'" + schema.replace("'", "''") + "'"

    def neutral(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        for name in (always_quoted.replace("'", "''"), always_quoted):
            value = value.replace(name, "SCHEMA")
        return value.replace(quoted + ".", "SCHEMA.").replace(literal, "'SCHEMA'")

    return {what: sorted((tuple(map(neutral, row)) for row in rows), key=repr) for what, rows in found.items()}


def migrated(dsn: str, schema: str) -> list[tuple[Any, ...]]:
    """The recorded versions and names."""
    query = psycopg.sql.SQL("select version, name from {}.migrations order by 1").format(psycopg.sql.Identifier(schema))
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(query).fetchall()
