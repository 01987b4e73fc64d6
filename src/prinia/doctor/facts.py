"""What is known of a database and a deployment, as data. All times are seconds; ages are as of ``Server.now``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from prinia.changes import Pause
from prinia.overview import QueueRecord, WorkerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server as this role meets it. ``error`` is why it cannot be reached; nothing else is known then.

    ``version`` is its major version. ``now`` is its clock, ``skew`` by how much that is ahead of this machine's.
    """

    place: str
    error: str | None = None
    version: int = 0
    standby: bool = False
    read_only: bool = False
    now: datetime | None = None
    skew: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """``recorded`` are the migrations that were applied: version, name, checksum, by which Prinia."""

    name: str
    recorded: tuple[tuple[int, str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A table, view or function of the schema, and which of its privileges this role has."""

    kind: str
    name: str
    held: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What a role may do. ``owner`` says whether the tables are its own, or a role's that it belongs to."""

    role: str
    schema: str
    usage: bool
    owner: bool
    things: tuple[Thing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whether these tables are those that were served before: see ``meet()`` in the schema. ``name`` and ``since`` are
    of the database in which workers served them; ``known`` is false when none ever did. ``jobs``: it has live ones."""

    schema: str
    known: bool
    original: bool = True
    name: str = ""
    since: datetime | None = None
    jobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Whether notifications arrive: ``error`` why nothing could be tried, ``direct`` whether the session is our own.
    ``separate`` says that a listen_dsn of its own was tried."""

    direct: bool = False
    heard: bool = False
    separate: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Connections of clients: how many there are, for how many there is room, and what limits that."""

    used: int
    room: int
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A hot table as autovacuum sees it. ``limit`` is how many dead rows let it come, ``vacuumed`` how long ago
    it did."""

    name: str
    dead: int
    limit: float
    vacuumed: float | None
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who keeps dead rows from being removed: a "session", a "prepared" transaction or a "slot".

    ``name`` is a pid, a transaction's or a slot's name; ``xids`` how many transactions began since; ``seconds`` for how
    long, None where this role may not see it, or the slot does not tell.
    """

    kind: str
    name: str
    role: str = ""
    application: str = ""
    state: str = ""
    xids: int = 0
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Who leads, in which term."""

    instance: UUID | None
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Ready jobs of a task among the first of a queue; ``more`` when not all of those were looked at."""

    queue: str
    task: str
    jobs: int
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Jobs that failed within the last day, by task, among the latest that ended badly."""

    by_task: Mapping[str, int]
    more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything. What could not be looked at is None, and why is in ``unseen`` by its name; what there was no point in
    looking at is only None."""

    server: Server
    settings: Mapping[str, str] | None = None
    slots: Slots | None = None
    notifications: float | None = None
    tables: tuple[Table, ...] | None = None
    holders: tuple[Holder, ...] | None = None
    listening: Listening | None = None
    schema: Schema | None = None
    rights: Rights | None = None
    identity: Identity | None = None
    indexes: tuple[str, ...] | None = None
    leaves: tuple[str, ...] | None = None
    leader: Leader | None = None
    workers: tuple[WorkerRecord, ...] | None = None
    queues: tuple[QueueRecord, ...] | None = None
    pauses: tuple[Pause, ...] | None = None
    waiting: tuple[Waiting, ...] | None = None
    failures: Failures | None = None
    unseen: Mapping[str, str] = field(default_factory=dict)
