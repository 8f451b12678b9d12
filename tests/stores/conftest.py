"""A place to keep things, of each kind: every test of the port runs on all of them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from postgres_server import PostgresServer

from atlas_agents.core.ids import new_id
from atlas_agents.core.store import Store
from atlas_agents.stores.memory import MemoryStore
from atlas_agents.stores.postgres import PostgresStore
from atlas_agents.stores.sqlite import SqliteStore

KINDS = ("memory", "sqlite", "postgres")
DURABLE = ("sqlite", "postgres")

Make: TypeAlias = Callable[[], Awaitable[Store]]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def make_store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    """Opens a store at the test's place; again and again it is the same place."""
    opened: list[Store] = []
    schema = f"t{new_id()}"

    async def make() -> Store:
        store: Store
        if kind == "memory":
            store = MemoryStore()
        elif kind == "sqlite":
            store = SqliteStore(tmp_path / "atlas.db")
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            store = PostgresStore(server.url, schema=schema)
        await store.open()
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def store(make_store: Make) -> Store:
    return await make_store()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        durable = metafunc.definition.get_closest_marker("durable") is not None
        metafunc.parametrize("kind", DURABLE if durable else KINDS)
