"""What is wrong with what is injected is said before a worker starts, all at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Protocol

import pytest

from prinia import INJECTED, ConfigurationError, Context, Prinia, WorkerContext
from prinia.storage.memory import MemoryStorage
from tests.engine.things import Pool, Session, Settings


class TestChecks:
    def check(self, app: Prinia) -> str:
        with pytest.raises(ConfigurationError) as caught:
            app.worker()
        return str(caught.value)

    @pytest.fixture
    def app(self) -> Prinia:
        return Prinia(storage=MemoryStorage())

    def test_what_nothing_provides(self, app: Prinia) -> None:
        @app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        assert self.check(app) == (
            "worker: task use wants pool: Pool injected, but nothing provides it; register what does: @app.provide on "
            "a function that returns Pool"
        )

    def test_what_nothing_provides_but_something_close_does(self, app: Prinia) -> None:
        class Pools: ...

        class Derived(Pool): ...

        @app.provide
        def pools() -> Pools:
            return Pools()

        @app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        assert (
            "is TestChecks.test_what_nothing_provides_but_something_close_does.<locals>.Pools meant"
            not in self.check(app)
        )

        app.provide(value=Derived())
        assert "which is one: give that provider type=Pool, or annotate the parameter with" in self.check(app)

    def test_a_protocol_that_something_provided_follows(self, app: Prinia) -> None:
        class Store(Protocol):
            def get(self) -> str: ...

        class Disk(Store):
            def get(self) -> str:
                return "x"

        app.provide(value=Disk())
        app.provide(value=Session())

        @app.task(name="use")
        async def use(store: Store = INJECTED) -> None: ...

        assert "Disk, which is one: give that provider type=" in self.check(app)

    def test_a_type_without_a_hash(self, app: Prinia) -> None:
        @app.provide
        def session(pool: Annotated[Pool, []] = INJECTED) -> Session:
            return Session()

        @app.task(name="use")
        async def use(pool: Annotated[Pool, []] = INJECTED) -> None: ...

        said = self.check(app)
        assert said.startswith("worker: 2 faults")
        assert said.count("a type that cannot be looked up: it has no hash") == 2
        with pytest.raises(ConfigurationError, match="it has no hash"):
            app.provide(value=Pool(), type=Annotated[Pool, []])

    def test_a_name_that_is_nearly_right(self, app: Prinia) -> None:
        app.provide(value=Session())
        Sessions = type("Sessions", (), {})

        async def use(session: Any = INJECTED) -> None: ...

        use.__annotations__["session"] = Sessions
        app.task(use)
        assert "is Session meant, which the value given for Session provides?" in self.check(app)

    def test_two_that_provide_one_thing(self, app: Prinia) -> None:
        @app.provide
        def one() -> Pool:
            return Pool()

        @app.provide
        def other() -> Pool:
            return Pool()

        @app.task(name="use")
        async def use() -> None: ...

        where = f"{__name__}.TestChecks.test_two_that_provide_one_thing.<locals>"
        assert self.check(app) == (
            f"worker: two resources provide Pool: {where}.one and {where}.other; remove one, or give one of them "
            f"another type=..."
        )

    def test_a_wider_scope_that_wants_a_narrower_one(self, app: Prinia) -> None:
        @app.provide(scope="job")
        def session() -> Session:
            return Session()

        @app.provide
        def pool(session: Session = INJECTED, ctx: Context = INJECTED) -> Pool:
            return Pool()

        @app.provide(scope="app")
        def settings(worker: WorkerContext = INJECTED) -> Settings:
            return Settings()

        @app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        first, *faults = self.check(app).splitlines()
        where = f"{__name__}.TestChecks.test_a_wider_scope_that_wants_a_narrower_one.<locals>"
        assert first == "worker: 3 faults in what is injected:"
        assert faults == [
            f'- {where}.pool wants session: Session, but has scope "worker" and lives longer: {where}.session has '
            f'scope "job", it is opened and closed with its job',
            f'- {where}.pool wants ctx: Context, which there is in scope "job", but it has scope "worker"',
            f'- {where}.settings wants worker: WorkerContext, which there is in scope "worker", but it has scope "app"',
        ]

    def test_a_ring(self, app: Prinia) -> None:
        @app.provide
        def pool(session: Session = INJECTED) -> Pool:
            return Pool()

        @app.provide
        def session(settings: Settings = INJECTED) -> Session:
            return Session()

        @app.provide
        def settings(session: Session = INJECTED) -> Settings:
            return Settings()

        @app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        where = f"{__name__}.TestChecks.test_a_ring.<locals>"
        assert self.check(app) == (
            f"worker: resources want each other: {where}.session -> {where}.settings -> {where}.session"
        )

    def test_a_thread_cannot_serve_the_loop(self, app: Prinia) -> None:
        @app.provide(scope="job")
        def pool() -> Pool:
            return Pool()

        @app.provide(scope="job")
        async def session(pool: Pool = INJECTED) -> Session:
            return Session()

        @app.task(name="fine")
        async def fine(session: Session = INJECTED) -> None: ...

        app.worker()

        @app.task(name="use")
        def use(session: Session = INJECTED) -> None: ...

        said = self.check(app)
        assert "task use runs in a thread" in said
        assert "make both async, both plain, or the task a coroutine function" in said

    def test_all_faults_at_once(self, app: Prinia) -> None:
        @app.on_start
        def warm_up(worker: WorkerContext, session: Session = INJECTED) -> None: ...

        @app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        @app.provide(scope="job")
        def settings(pools: list[Pool] = INJECTED) -> Settings:
            return Settings()

        said = self.check(app)
        assert said.startswith("worker: 3 faults in what is injected:\n- ")
        assert "task use wants pool: Pool injected" in said
        assert "settings wants pools: list[" in said
        assert "warm_up wants session: Session" in said

    @pytest.mark.parametrize("kind", ["context", "worker"])
    def test_a_context_needs_the_default(self, app: Prinia, kind: str) -> None:
        async def use(worker: WorkerContext) -> None: ...

        async def use_context(ctx: Context) -> None: ...

        with pytest.raises(ConfigurationError, match=r"Context = INJECTED \(from prinia import INJECTED\)"):
            app.task(use if kind == "worker" else use_context)

    def test_factories_that_are_none(self, app: Prinia) -> None:
        def silent():  # type: ignore[no-untyped-def]
            return 1

        def nothing() -> None: ...

        def not_injected(pool: Pool) -> Session:
            return Session()

        def untyped(pool=INJECTED) -> Session:  # type: ignore[no-untyped-def]
            return Session()

        def badly_annotated() -> Pool:  # type: ignore[misc]
            yield Pool()

        @contextlib.contextmanager
        def managed() -> Iterator[Pool]:
            yield Pool()

        def context() -> Context:
            return Context()

        for factory, said in (
            (silent, r"silent does not say what it provides; annotate what it returns"),
            (nothing, "provides NoneType, which nothing can be told apart by"),
            (not_injected, r"nobody would give it pool; write pool: Pool = INJECTED"),
            (untyped, r"nobody would give it pool; write pool: Database = INJECTED"),
            (badly_annotated, r"yields, so annotate -> Iterator\[...\]"),
            (managed, r"behind another decorator, such as @contextmanager; leave that out"),
            (context, "provides Context"),
            (Pool, r"a resource is made by a function.*goes in by provide\(value=...\)"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                app.provide(factory)
        with pytest.raises(ConfigurationError, match='scope=\'request\' must be "app", "worker" or "job"'):
            app.provide(scope="request")(silent)  # type: ignore[call-overload]
        with pytest.raises(ConfigurationError, match="a factory or a value, not both"):
            app.provide(silent, value=1)  # type: ignore[call-overload]
