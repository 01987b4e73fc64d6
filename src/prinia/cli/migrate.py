"""``prinia migrate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from prinia.app import Prinia
from prinia.cli.failing import FAILED
from prinia.cli.place import describe

if TYPE_CHECKING:
    from prinia.storage.postgres.migrate import Migration


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 when migrations are pending.")
@click.option("--sql", is_flag=True, help="Change nothing; print the migrations as a script for psql.")
@click.option("--since", type=click.IntRange(0), default=0, metavar="VERSION", help="With --sql: leave out up to this.")
@click.option("--adopt", is_flag=True, help="Let the jobs of a restored or copied database run in this one.")
@click.option("--schema", default="prinia", show_default=True, help="The schema that holds Prinia's tables.")
@click.option("--database-url", help="The database; else PRINIA_DATABASE_URL, else DATABASE_URL.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def migrate(
    check: bool, sql: bool, since: int, adopt: bool, schema: str, database_url: str | None, as_json: bool
) -> None:
    """Bring Prinia's tables up to date.

    Any number of processes may do this at once, and workers may go on meanwhile. It makes the schema if need be, and
    touches nothing outside of it.
    """
    if check and sql:
        raise click.UsageError("--check and --sql exclude each other")
    if adopt and (check or sql):
        raise click.UsageError("--adopt excludes --check and --sql")
    if since and not sql:
        raise click.UsageError("--since goes with --sql")
    if as_json and sql:
        raise click.UsageError("--json and --sql exclude each other")
    if sql:
        from prinia.storage.postgres.migrate import script

        click.echo(script(schema, since=since), nl=False)
        return
    dsn = Prinia(database_url, schema=schema).dsn
    if check:
        _check(dsn, schema, as_json)
    else:
        _apply(dsn, schema, adopt, as_json)


def _check(dsn: str, schema: str, as_json: bool) -> None:
    from prinia.storage.postgres.migrate import pending
    from prinia.storage.postgres.sql import migrate_command

    lacking = pending(dsn, schema)
    if as_json:
        _print_json(dsn, schema, applied=[], pending=[_as_dict(migration) for migration in lacking])
    elif lacking:
        click.echo(f"{_where(dsn, schema)} lacks {', '.join(migration.label for migration in lacking)}.")
        click.echo(f"Run: {migrate_command(schema)}")
    else:
        click.echo(f"{_where(dsn, schema)} is up to date.")
    if lacking:
        click.get_current_context().exit(FAILED)


def _apply(dsn: str, schema: str, adopt: bool, as_json: bool) -> None:
    from prinia.storage.postgres.identity import adopt as adopt_here
    from prinia.storage.postgres.migrate import migrate as apply

    applied = apply(dsn, schema=schema, progress=lambda text: click.echo(text, err=as_json))
    adopted = adopt_here(dsn, schema) if adopt else None
    if as_json:
        steps = [{"version": one.version, "name": one.name, "seconds": round(one.seconds, 3)} for one in applied]
        _print_json(dsn, schema, applied=steps, pending=[], **({} if adopted is None else {"adopted": adopted}))
        return
    click.echo(f"{_where(dsn, schema)} is {'now' if applied else 'already'} up to date.")
    if adopted is not None:
        click.echo(f"Workers take it as the original from now on; it has {adopted} live jobs.")


def _as_dict(migration: Migration) -> dict[str, Any]:
    return {"version": migration.version, "name": migration.name}


def _where(dsn: str, schema: str) -> str:
    return f"schema {schema!r} of {describe(dsn)}"


def _print_json(dsn: str, schema: str, **more: Any) -> None:
    click.echo(json.dumps({"database": describe(dsn), "schema": schema, **more}))
