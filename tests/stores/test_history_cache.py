"""History cache: only new messages are read, and the result always equals the database."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from atlas_agents import Agent, Atlas, tool
from atlas_agents.config.open import open_valkey
from atlas_agents.core.messages import new_id
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import AddMessage, DropSession, PutSession, StoredMessage, Write
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sql.tables import Query, Row
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.storage.valkey_cache import EXPIRY, SessionCopies, ValkeyCache
from atlas_agents.testing import Scripted, calls, fails, says
from checks import TIMEOUT, wait_until
from stores.postgres_server import PostgresServer
from stores.valkey_server import ValkeyServer

pytestmark = pytest.mark.slow


class Counting(PostgresStore):
    """Counts the statements and rows it reads."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.statements = self.rows = 0
        self.shared: Any = None

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


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.made("d" + new_id().replace("-", ""))


@asynccontextmanager
async def opened(url: str, valkey: ValkeyServer | None = None, max_bytes: int = 64 << 20) -> AsyncGenerator[Counting]:
    shared = ValkeyCache(open_valkey(Secret(valkey.url))) if valkey is not None else None
    store = Counting(url, history_cache=HistoryCache(shared, max_bytes=max_bytes))
    store.shared = shared
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


async def start_session(store: PostgresStore) -> int:
    session = await store.session("t", "s")
    assert session is not None
    return session.created_at


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


@asynccontextmanager
async def read_repeatedly(server: ValkeyServer) -> AsyncGenerator[Any]:
    client = open_valkey(Secret(server.url))
    try:
        yield client
    finally:
        await client.aclose()


async def wait_for_entries(client: Any, count: int) -> bytes:
    """Wait until the cache has this many entries of the only session, and return its key."""

    async def has_entries() -> bytes | None:
        keys: list[bytes] = await client.keys("atlas:*:session:*")
        return keys[0] if keys and await client.hlen(keys[0]) >= count else None

    return await wait_until(has_entries)


async def has_no_entries(client: Any, key: bytes) -> bool:
    return not await client.exists(key)


async def test_other_process_reads_a_long_history_from_valkey_and_only_the_rest_from_postgres(
    url: str, valkey: ValkeyServer
) -> None:
    async with opened(url, valkey) as one, opened(url, valkey) as two, read_repeatedly(valkey) as client:
        await client.flushall()
        await add_messages(one, range(1000))
        await read(one)
        key = await wait_for_entries(client, 1)
        assert EXPIRY - 60 < await client.ttl(key) <= EXPIRY
        await add_messages(one, range(1000, 1002))
        assert await read(two) == [str(n) for n in range(1002)]
        assert two.count() == (2, 1 + 3)
        await wait_for_entries(client, 2)
        await one.commit("t", [DropSession("s")])
        await wait_until(lambda: has_no_entries(client, key))


async def corrupt(client: Any, key: bytes) -> None:
    for field, value in (await client.hgetall(key)).items():
        await client.hset(key, field, value[:-3] + b"xyz")


async def forge(client: Any, key: bytes) -> None:
    """Well formed and in the right place, but written without the secret."""
    for field, value in (await client.hgetall(key)).items():
        if field.endswith(b".5"):
            previous, ((id, run_id, _), last) = msgspec.msgpack.decode(value[16:])
            forged = msgspec.msgpack.encode([previous, [[id, run_id, b'"forged"'], last]])
            await client.hset(key, field, value[:16] + forged)


async def swap(client: Any, key: bytes) -> None:
    """Valid entries, swapped with one another."""
    found = await client.hgetall(key)
    await client.hset(key, mapping=dict(zip(found, reversed(list(found.values())), strict=True)))


async def cut(client: Any, key: bytes) -> None:
    for field in list(await client.hkeys(key))[::2]:
        await client.hdel(key, field)


async def add_foreign_entry(client: Any, key: bytes) -> None:
    found = await client.hkeys(key)
    await client.hset(key, mapping={field: b"" for field in found} | {b"odd": b"\xff", b"1.x": b"y"})


async def retype(client: Any, key: bytes) -> None:
    await client.delete(key)
    await client.set(key, "a text")


async def flush(client: Any, key: bytes) -> None:
    await client.flushall()


@pytest.mark.parametrize("harm", [corrupt, forge, swap, cut, add_foreign_entry, retype, flush])
async def test_tampered_cache_entries_never_change_the_history(
    url: str, valkey: ValkeyServer, harm: Callable[[Any, bytes], Any]
) -> None:
    async with opened(url, valkey) as one, read_repeatedly(valkey) as client:
        await client.flushall()
        for n in range(0, 10, 2):
            await add_messages(one, range(n, n + 2))
            await read(one)
        await harm(client, await wait_for_entries(client, 5))
        async with opened(url, valkey) as two:
            assert await read(two) == [str(n) for n in range(10)]
            await add_messages(two, range(10, 12))
            assert await read(one) == await read(two) == [str(n) for n in range(12)]


async def test_entries_of_another_or_an_earlier_session_are_ignored(url: str, valkey: ValkeyServer) -> None:
    async with opened(url, valkey) as one, read_repeatedly(valkey) as client:
        await client.flushall()
        await add_messages(one, range(4), session="other", prefix="secret")
        await read(one, "other")
        key = await wait_for_entries(client, 1)
        found = await client.hgetall(key)
        await add_messages(one, range(4))
        created = await start_session(one)
        (stolen,) = found.values()
        await client.hset(key.replace(b"other", b"s"), b"%d.1" % created, stolen)
        async with opened(url, valkey) as two:
            assert await two.shared.get("t", "s", created) == ()
            assert await read(two) == ["0", "1", "2", "3"]


async def test_entries_of_a_diverged_copy_of_the_database_are_ignored(url: str, valkey: ValkeyServer) -> None:
    """A copy of the database has the same secret. Messages written there later must not appear here."""
    async with opened(url, valkey) as one, read_repeatedly(valkey) as client:
        await client.flushall()
        rows: tuple[StoredMessage, ...] = ()
        for piece in (range(3), range(3, 5), range(5, 6)):
            await add_messages(one, piece)
            rows = tuple(await one.messages("t", "s"))
        await wait_for_entries(client, 3)
        newer = [StoredMessage("s", seq, f"x{seq}", "r", b'"there"') for seq in (4, 5)]
        created = await start_session(one)
        one.shared.put("t", "s", created, (*rows[:3], *newer), 3)
        await asyncio.wait(set(one.shared._tasks))
        assert await one.shared.get("t", "s", created) == (*rows[:3], *newer)
        async with opened(url, valkey) as two:
            assert await read(two) == ["0", "1", "2", "3", "4", "5"]


async def test_without_valkey_the_database_is_read_without_delay(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with ValkeyServer() as server:
        async with opened(url, server) as one:
            await add_messages(one, range(3))
            await read(one)
            server.stop()
            async with opened(url, server) as two:
                with caplog.at_level(logging.WARNING):
                    assert await read(two) == ["0", "1", "2"]
                    for n in range(20):
                        await add_messages(two, range(2), session=f"s{n}")
                        assert await read(two, f"s{n}") == ["0", "1"]
                assert (
                    len([record for record in caplog.records if "shared copies" in record.message]) <= 2
                )  # one of each
            server.start()
            with server.frozen():
                async with opened(url, server) as two:
                    assert await read(two) == ["0", "1", "2"]
    assert "canary" not in caplog.text


async def test_state_of_a_session_is_copied_for_other_programs() -> None:
    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def approve(request: Any) -> bool:
        shown.append(await read("s"))
        return True

    async def read(session: str) -> dict[str, Any]:
        await asyncio.wait_for(copies.flushed(), TIMEOUT)
        return msgspec.json.decode(await client.get(f"agent:session:{session}") or b"{}")

    shown: list[dict[str, Any]] = []
    store, model = MemoryStore(), Scripted(calls("pay"), says("Done."), fails(ValueError("no")), says("Again."))
    with ValkeyServer() as server:
        client: Any = open_valkey(Secret(server.url))
        async with Atlas([Agent("a", model=model, tools=[pay])], store=store, approve=approve, retries=()) as atlas:
            copies = SessionCopies(open_valkey(Secret(server.url)), lambda run: store.run(atlas.tenant, run))
            for name in ("stream:start", "approval:asked", "approval:answered", "tool:result", "stream:end"):
                atlas.on(name, copies.receive)
            await atlas.ask("Pay.", session="s", user="ann")
            done = await read("s")
            with pytest.raises(ValueError, match="no"):
                await atlas.ask("Pay.", session="t")
            failed = await read("t")
            server.stop()
            assert (await atlas.ask("Go on.", session="s")).text == "Again."  # without the server
            await copies.close()
        await client.aclose()
    assert [each["status"] for each in (*shown, done, failed)] == ["waiting", "done", "failed"]
    assert (done["agentId"], done["user"], [(each["tool"], each["status"]) for each in done["steps"]]) == (
        "a",
        "ann",
        [("pay", "ok")],
    )
    assert done["startedAt"] <= done["steps"][0]["at"] <= done["endedAt"]
