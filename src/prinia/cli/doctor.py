"""``prinia doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from prinia.cli.database import choose_app, on_database
from prinia.cli.failing import FAILED, Misuse
from prinia.cli.output import print_json
from prinia.cli.place import describe
from prinia.wording import plural

if TYPE_CHECKING:
    from prinia.doctor import Finding


@click.command(
    epilog="Example: prinia doctor --app shop.jobs:app. Exit codes: 0 no problem was found, 1 one was, or with "
    "--strict a warning, 2 wrong usage."
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@on_database
def doctor(strict: bool, as_json: bool, **place: Any) -> None:
    """Check the database and the deployment, and say what to do.

    It changes nothing. With --app it tries the app's listen_dsn, too.
    """
    from prinia.doctor import Level, collect, examine
    from prinia.storage.postgres import PostgresStorage

    app = choose_app(**place)
    storage = app.storage
    if not isinstance(storage, PostgresStorage):
        raise Misuse(f"the app's jobs are in a {type(storage).__name__}: the doctor only knows PostgreSQL")
    where = describe(storage.dsn)
    order = list(Level)
    findings = sorted(examine(collect(storage, place=where)), key=lambda finding: order.index(finding.level))
    counts = Counter(finding.level for finding in findings)
    if as_json:
        levels = {level.value: counts[level] for level in Level}
        print_json({"database": where, "schema": app.schema, "levels": levels, "findings": findings})
    else:
        _print(findings)
        bad = (plural(counts[level], level) for level in (Level.PROBLEM, Level.WARNING, Level.NOTE))
        click.echo(f"{', '.join(bad)}, {counts[Level.OK]} ok")
    if counts[Level.PROBLEM] or (strict and counts[Level.WARNING]):
        click.get_current_context().exit(FAILED)


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        click.echo(f"{finding.level:7}  {finding.check:{width}}  {finding.found}")
        first, *more = (finding.advice or "").splitlines() or [""]
        if first:
            click.echo(f"{'':7}  {'':{width}}  -> {first}")
        for line in more:
            click.echo(f"{'':7}  {'':{width}}     {line}")
