"""Fixtures: every test of the store port runs on each kind of store."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from store_helpers import Make

from atlas_agents.core.messages import new_id
from atlas_agents.core.store import Store
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore

KINDS = ("memory", "sqlite", "postgres")
DURABLE = ("sqlite", "postgres")


@pytest.fixture(scope="session")
def migrated(postgres_server: PostgresServer) -> str:
    """The name of a database with empty tables in the schema `atlas`, to copy for each test."""
    name = "migrated" + new_id().replace("-", "")

    async def open_once() -> None:
        store = PostgresStore(postgres_server.made(name), schema="atlas")
        await store.open()
        await store.close()

    with ThreadPoolExecutor(1) as thread:  # a test may be running in the event loop of this one
        thread.submit(asyncio.run, open_once()).result()
    return name


@pytest.fixture
def schema() -> str:
    """A Postgres schema for one test."""
    return "t" + new_id().replace("-", "")


@pytest.fixture
def location(kind: str, schema: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Where the store of the test is: a file, or the URL of a database and a schema; nowhere for one in memory."""
    if kind != "postgres":
        yield (str(tmp_path / "atlas.db") if kind == "sqlite" else ""), ""
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.copy_of(request.getfixturevalue("migrated"), schema) as url:
        yield url, "atlas"


@pytest.fixture
async def make_store(kind: str, location: tuple[str, str]) -> AsyncIterator[Make]:
    """Open the store of the test. Each call opens the same database again."""
    opened: list[Store] = []
    where, schema = location

    async def make() -> Store:
        store: Store
        if kind == "memory":
            store = MemoryStore()
        elif kind == "sqlite":
            store = SqliteStore(where)
        else:
            store = PostgresStore(where, schema=schema)
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
