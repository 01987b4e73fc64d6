"""Jobs on PostgreSQL. Importing this imports psycopg."""

from __future__ import annotations

from prinia.storage.postgres.storage import PostgresStorage

__all__ = ["PostgresStorage"]
