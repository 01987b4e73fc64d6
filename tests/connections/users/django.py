"""Django, over psycopg 3 and over psycopg2."""

from __future__ import annotations

import itertools
import sys
from typing import Any, ClassVar

from .base import User


class Django(User):
    kind = "django-psycopg"
    options: ClassVar[dict[str, Any]] = {}
    _aliases = itertools.count(1)

    def open(self) -> None:
        import django  # type: ignore[import-untyped, unused-ignore]
        from django.conf import settings  # type: ignore[import-untyped, unused-ignore]

        if not settings.configured:
            settings.configure(DATABASES={}, USE_TZ=True)
            django.setup()
        from django.db import connections  # type: ignore[import-untyped, unused-ignore]

        parts = self.parts
        self.alias = f"shop{next(self._aliases)}"
        told = {
            "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts.get("user", ""),
            "HOST": parts.get("host", ""), "PORT": parts.get("port", ""), "PASSWORD": parts.get("password", ""),
            "OPTIONS": self.options,
        }  # fmt: skip
        settled = connections.configure_settings({"default": {}, self.alias: told})[self.alias]
        connections.settings[self.alias] = settled
        connections[self.alias] = self.wrapper()(settled, self.alias)
        self.within = connections[self.alias]

    def wrapper(self) -> Any:
        from django.db.backends.postgresql.base import DatabaseWrapper  # type: ignore[import-untyped, unused-ignore]

        return DatabaseWrapper

    def loosen(self) -> None:
        """It is loose outside an atomic block."""

    def begin(self) -> None:
        from django.db import transaction

        self._atomic = transaction.atomic(using=self.alias)
        self._atomic.__enter__()

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self._atomic.__exit__(OSError, OSError(), None)

    def execute(self, statement: str) -> None:
        with self.within.cursor() as cursor:
            cursor.execute(statement)

    def savepoint(self) -> Any:
        from django.db import transaction

        inner = transaction.atomic(using=self.alias)
        inner.__enter__()
        return inner

    def release(self, savepoint: Any) -> None:
        savepoint.__exit__(None, None, None)

    def undo(self, savepoint: Any) -> None:
        savepoint.__exit__(OSError, OSError(), None)


class DjangoServerBinding(Django):
    kind = "django-server-binding"
    options: ClassVar[dict[str, Any]] = {"server_side_binding": True}


class DjangoProxy(Django):
    """``django.db.connection``, which stands for the connection of the thread."""

    kind = "django-proxy"

    def open(self) -> None:
        super().open()
        from django.db import connections
        from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped, unused-ignore]

        self.within = ConnectionProxy(connections, self.alias)


class DjangoPsycopg2(Django):
    """Django's backend as it is where psycopg 3 is not installed."""

    kind = "django-psycopg2"
    _wrapper: ClassVar[Any] = None

    def wrapper(self) -> Any:
        if self._wrapper is None:
            type(self)._wrapper = _without_psycopg()
        return self._wrapper


def _without_psycopg() -> Any:
    """The backend imported anew, as a second copy that finds psycopg2 only."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_backend(name)}
    driver = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "psycopg"}
    sys.modules.update(dict.fromkeys(driver))  # type: ignore[arg-type]
    try:
        from django.db.backends.postgresql.base import DatabaseWrapper

        return DatabaseWrapper
    finally:
        for name in [name for name in sys.modules if _is_backend(name)]:
            del sys.modules[name]
        sys.modules.update(hidden | driver)


def _is_backend(name: str) -> bool:
    return name.startswith("django.db.backends.postgresql")
