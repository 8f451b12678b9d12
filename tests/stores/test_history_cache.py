"""History cache: only new messages are read, and the result always equals the database."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atlas_agents.core.messages import new_id
from atlas_agents.core.store import AddMessage, DropSession, PutSession, Write
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sql.tables import Query, Row
from checks import TIMEOUT
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow


class Counting(PostgresStore):
    """Counts the statements and rows it reads."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.statements = self.rows = 0

    async def fetch(self, query: Query) -> list[Row]:
        found = await super().fetch(query)
        self.statements += 1
        self.rows += len(found)
        return found

    def count(self) -> tuple[int, int]:
        """Statements and rows since the last call."""
        counts = self.statements, self.rows
        self.statements = self.rows = 0
        return counts


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.made("d" + new_id().replace("-", ""))


@asynccontextmanager
async def opened(url: str, max_bytes: int = 64 << 20) -> AsyncGenerator[Counting]:
    store = Counting(url, history_cache=HistoryCache(max_bytes=max_bytes))
    async with asyncio.timeout(TIMEOUT):
        await store.open()
        store.count()
        try:
            yield store
        finally:
            await store.close()


async def add_messages(
    store: PostgresStore, numbers: range, session: str = "s", tenant: str = "t", prefix: str = ""
) -> None:
    writes: list[Write] = [PutSession(session)]
    writes += [AddMessage(session, f"m{n}", f'"{prefix}{n}"'.encode(), f"r{n}") for n in numbers]
    await store.commit(tenant, writes)


async def read(store: PostgresStore, session: str = "s", tenant: str = "t") -> list[str]:
    return [row.body.decode().strip('"') for row in await store.messages(tenant, session)]


@pytest.mark.parametrize("length", [10, 1000])
async def test_turn_reads_only_new_messages_of_a_conversation_of_any_length(url: str, length: int) -> None:
    async with opened(url) as worker, opened(url) as other:
        await add_messages(other, range(length))
        assert len(await read(worker)) == length
        assert worker.count() == (1, length)
        for n in range(length, length + 6, 2):
            await add_messages(other, range(n, n + 2))
            assert await read(worker) == [str(each) for each in range(n + 2)]
            assert worker.count() == (1, 3)


async def test_cached_read_equals_an_uncached_read(url: str) -> None:
    async with opened(url) as worker, opened(url) as other:
        await add_messages(other, range(5))
        await worker.messages("t", "s")
        await add_messages(other, range(5, 8))
        plain = PostgresStore(url)
        await plain.open()
        rows = await plain.messages("t", "s")
        await plain.close()
        assert await worker.messages("t", "s") == rows
        assert await worker.messages("t", "s", limit=2, last=True) == rows[-2:]
        assert await worker.messages("t", "s", after=6) == rows[6:]


async def test_session_recreated_by_another_process_is_read_again(url: str) -> None:
    async with opened(url) as worker, opened(url) as other:
        assert await read(worker) == []
        await add_messages(other, range(4))
        assert await read(worker) == ["0", "1", "2", "3"]
        await other.commit("t", [DropSession("s")])
        assert await read(worker) == []
        await add_messages(other, range(2))
        assert await read(worker) == ["0", "1"]
        await other.commit("t", [DropSession("s")])
        await add_messages(other, range(3), prefix="new")  # the same ids, as after an import of edited messages
        assert await read(worker) == ["new0", "new1", "new2"]
        await other.commit("t", [DropSession("s")])
        await asyncio.sleep(0.002)
        edited: list[Write] = [PutSession("s"), AddMessage("s", "m0", b'"edited"', "r0")]
        edited += [AddMessage("s", f"m{n}", f'"new{n}"'.encode(), f"r{n}") for n in (1, 2)]
        await other.commit("t", edited)
        assert await read(worker) == ["edited", "new1", "new2"]


async def test_tenants_with_the_same_session_key_have_separate_entries(url: str) -> None:
    async with opened(url) as store:
        await add_messages(store, range(2), tenant="a")
        await add_messages(store, range(3), tenant="b", prefix="b")
        assert await read(store, tenant="a") == ["0", "1"]
        assert await read(store, tenant="b") == ["b0", "b1", "b2"]


async def test_cache_is_bounded_and_keeps_the_latest_entries(url: str) -> None:
    async with opened(url, max_bytes=10_000) as store:
        for n in range(4):
            await add_messages(store, range(10), session=f"s{n}")
            assert len(await read(store, f"s{n}")) == 10
        store.count()
        await read(store, "s3")
        assert store.count() == (1, 1)
        await read(store, "s0")
        assert store.count() == (1, 10)
        await add_messages(store, range(100), session="long")
        assert len(await read(store, "long")) == 100
        await read(store, "s3")


async def test_session_that_outgrows_the_cache_leaves_it(url: str) -> None:
    async with opened(url, max_bytes=10_000) as store:
        for n in range(40):
            await add_messages(store, range(n, n + 1))
            assert len(await read(store)) == n + 1
        store.count()
        await read(store)
        assert store.count() == (1, 40)


async def test_concurrent_reads_return_the_same_history(url: str) -> None:
    async with opened(url) as worker, opened(url) as other:
        await add_messages(other, range(3))
        await read(worker)
        for n in range(3, 30):
            reads = [read(worker) for _ in range(4)]
            await asyncio.gather(add_messages(other, range(n, n + 1)), *reads)
            assert await read(worker) == [str(each) for each in range(n + 1)]
