"""docs/sql.md: every block runs as pasted, by the role named above it, which may do nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import conninfo, errors

from prinia import JobState, Prinia

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
BLOCK = re.compile(r"<!-- as (?:the )?(\w+) -->\n```sql\n(.*?)```", re.DOTALL)
ROLES = ("shop_producer", "shop_reader")

Rows = list[tuple[object, ...]]


class Page:
    """A database in which the blocks of the page have run. Roles belong to the whole server: these get names of their
    own."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._tag = uuid4().hex[:8]
        self.answers = [(role, self.run(role, block)) for role, block in BLOCK.findall(PAGE.read_text())]

    def _named(self, text: str) -> str:
        for role in ROLES:
            text = text.replace(role, f"{role}_{self._tag}")
        return text

    def run(self, role: str, statements: str) -> list[Rows]:
        """What each of the statements answers to a role that logs in for them."""
        dsn = self.dsn if role == "owner" else conninfo.make_conninfo(self.dsn, user=self._named(role))
        with psycopg.connect(dsn) as connection:
            cursor = connection.execute(self._named(statements).encode())
            answers: list[Rows] = []
            while True:
                answers.append(cursor.fetchall() if cursor.description else [])
                if not cursor.nextset():
                    return answers

    def drop_roles(self) -> None:
        """Take the roles off the server again, with what they own here."""
        for role in ROLES:
            self.run("owner", f"drop owned by {role} cascade; drop role {role}")


@pytest.fixture
def page(migrated: str) -> Iterator[Page]:
    page = Page(migrated)
    yield page
    page.drop_roles()


def test_every_block_runs_as_pasted(page: Page) -> None:
    assert len(page.answers) == PAGE.read_text().count("```sql")
    answers = [answer for role, answer in page.answers if role not in ("owner")]
    [one], [many], [first, second], [inserted], by_id, waits, failed, arguments, times = answers
    assert inserted == []
    assert one == [(1, True)]
    assert many == [(100,)]
    assert [created for _, created in first + second] == [True, False]
    assert first[0][0] == second[0][0]
    assert by_id[0][0][0] == "ready"
    assert [row[:3] for row in waits[0]] == [("default", "ready", 3), ("email", "scheduled", 100)]
    assert failed == [[]]
    assert arguments[0][0] == (1, {"order": 9})
    assert len(times[0]) == 10


def test_roles_may_do_what_they_were_granted_and_no_more(page: Page) -> None:
    ask = "select prinia.enqueue('[]')"
    look = "select * from prinia.all_jobs; select * from prinia.live_jobs; select * from prinia.finished_jobs"
    assert page.run("shop_producer", ask) == [[]]
    page.run("shop_reader", look)
    refused = {
        "shop_producer": [
            *look.split("; "),
            "select from prinia.jobs",
            "insert into prinia.jobs (id, task, args) values (1000, 'x', '{}')",
            "select prinia.complete('{}')",
            "select prinia.make_leaves()",
            "select prinia.ring('{default}')",
        ],
        "shop_reader": [
            ask,
            "select from prinia.jobs",
            "select from prinia.archive",
            "select from prinia.workers",
            "delete from prinia.live_jobs",
            "update prinia.all_jobs set priority = 1",
        ],
    }
    for role, statements in refused.items():
        for statement in statements:
            with pytest.raises((errors.InsufficientPrivilege, errors.ObjectNotInPrerequisiteState)):
                page.run(role, statement)


def test_what_the_page_says_is_refused(page: Page) -> None:
    before = page.run("owner", "select count(*) from prinia.jobs")
    for jobs in (
        '[{"task": "a", "args": {}}, {"task": "a", "args": {}, "priority": 101}]',
        '[{"args": {}}]',
        '[{"task": "a"}]',
        "[{]",
    ):
        with pytest.raises(psycopg.DataError if jobs == "[{]" else psycopg.IntegrityError):
            page.run("shop_producer", f"select prinia.enqueue('{jobs}')")
    assert page.run("owner", "select count(*) from prinia.jobs") == before


async def test_jobs_of_the_page_run(page: Page) -> None:
    app = Prinia(page.dsn)

    @app.task(name="shop.send_reminder")
    async def send_reminder(order: int) -> int:
        return order

    async with app:
        await app.worker(queues=["default"], until_empty=True).run()
        ended = [record.result async for record in app.jobs(task="shop.send_reminder", state=JobState.COMPLETED)]
    # One of the page's first block, one of the trigger for the first order.
    assert sorted(result or b"" for result in ended) == [b"1", b"9"]


def test_every_field_of_enqueue_is_in_its_table(page: Page) -> None:
    [[(source,)]] = page.run("owner", "select prosrc from pg_proc where proname = 'read_jobs'")
    assert isinstance(source, str)
    kinds = r"text\[\]|text|jsonb|json|smallint|integer|timestamptz|float8|boolean"
    fields = set(re.findall(rf"(\w+) (?:{kinds})[,)]", source))
    table = PAGE.read_text().split("| field |")[1].split("\n\n")[0]
    told = {name for line in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    # The retry policy has a form of its own, limits are not there yet.
    assert told == fields - {"retry", "limit_key"} | {"on_conflict"}
