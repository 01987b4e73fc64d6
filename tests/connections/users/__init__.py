"""How the users of each library write a transaction: one class per kind of connection, all with the same methods.

They are blocking, so that one test serves both colours: what has to be awaited runs on a loop of the user's own.
"""

from __future__ import annotations

from .asyncpg import Asyncpg, AsyncpgBegun, AsyncpgPool
from .base import BAD, AsyncUser, User
from .django import Django, DjangoProxy, DjangoPsycopg2, DjangoServerBinding
from .psycopg import Psycopg, PsycopgAsync, PsycopgAutocommit, PsycopgClient, PsycopgDicts, PsycopgPipeline, PsycopgRaw
from .psycopg2 import Psycopg2, Psycopg2Begun
from .sqlalchemy import (
    SQLAlchemy,
    SQLAlchemyAsync,
    SQLAlchemyAsyncPsycopg,
    SQLAlchemyAsyncScoped,
    SQLAlchemyAsyncSession,
    SQLAlchemyAsyncSessionPsycopg,
    SQLAlchemyPsycopg2,
    SQLAlchemyRunSync,
    SQLAlchemyScoped,
    SQLAlchemySession,
)

__all__ = [
    "BAD",
    "FLAVOURS",
    "KINDS",
    "AsyncUser",
    "Asyncpg",
    "AsyncpgBegun",
    "AsyncpgPool",
    "Django",
    "DjangoProxy",
    "DjangoPsycopg2",
    "DjangoServerBinding",
    "Psycopg",
    "Psycopg2",
    "Psycopg2Begun",
    "PsycopgAsync",
    "PsycopgAutocommit",
    "PsycopgClient",
    "PsycopgDicts",
    "PsycopgPipeline",
    "PsycopgRaw",
    "SQLAlchemy",
    "SQLAlchemyAsync",
    "SQLAlchemyAsyncPsycopg",
    "SQLAlchemyAsyncScoped",
    "SQLAlchemyAsyncSession",
    "SQLAlchemyAsyncSessionPsycopg",
    "SQLAlchemyPsycopg2",
    "SQLAlchemyRunSync",
    "SQLAlchemyScoped",
    "SQLAlchemySession",
    "User",
]

KINDS: tuple[type[User], ...] = (
    Psycopg, PsycopgAutocommit, PsycopgPipeline, PsycopgAsync, Psycopg2, Asyncpg, AsyncpgPool,
    SQLAlchemy, SQLAlchemySession, SQLAlchemyAsync, SQLAlchemyAsyncPsycopg, SQLAlchemyAsyncSession,
    SQLAlchemyAsyncSessionPsycopg, SQLAlchemyRunSync, Django, DjangoPsycopg2,
)  # fmt: skip

#: The same kinds, set up or used in another way.
FLAVOURS: tuple[type[User], ...] = (
    PsycopgDicts, PsycopgRaw, PsycopgClient, Psycopg2Begun, AsyncpgBegun, SQLAlchemyPsycopg2, SQLAlchemyScoped,
    SQLAlchemyAsyncScoped, DjangoServerBinding, DjangoProxy,
)  # fmt: skip
