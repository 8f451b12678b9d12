"""Postgres: restarts, outages, locks held by other processes, and databases that must not be changed."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT, outcomes

from atlas_agents.core.errors import StoreBusy, StoreError, StoreLost
from atlas_agents.core.store import AddAudit, PutRecord, PutSession, Write
from atlas_agents.storage.hash_chain import find_audit_break
from atlas_agents.storage.migrations import schema_version
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.postgres.store import tenant_lock_id
from atlas_agents.storage.sql.tables import Query
from checks import TIMEOUT, linux_only, measure_loop_time, scaled, wait_until

pytestmark = pytest.mark.slow  # each test starts processes of its own

WRITE = [AddAudit(b"")]


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[PostgresServer]:
    """A server of its own, which these tests stop and pause."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
async def store(postgres_server: PostgresServer, schema: str) -> AsyncIterator[PostgresStore]:
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    store = PostgresStore(postgres_server.url, schema=schema, retry_timeout=TIMEOUT)
    await store.open()
    yield store
    await store.close()


async def test_commits_survive_restarts_and_none_is_lost_or_doubled(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    acknowledged: list[bytes] = []
    fifty, stop = asyncio.Event(), asyncio.Event()

    async def commit(caller: int) -> None:
        n = 0
        while not stop.is_set():
            entry = b"%d-%d" % (caller, n)
            await store.commit(TENANT, [AddAudit(entry)])
            acknowledged.append(entry)
            if len(acknowledged) % 50 == 0:
                fifty.set()
            n += 1

    async with asyncio.timeout(TIMEOUT):
        callers = [asyncio.create_task(commit(n)) for n in range(8)]
        for _ in range(3):
            fifty.clear()
            await fifty.wait()
            await asyncio.to_thread(postgres_server.stop)
            await asyncio.to_thread(postgres_server.start)
        stop.set()
        await asyncio.gather(*callers)
    entries = await store.audit(TENANT)
    assert sorted(entry.entry for entry in entries) == sorted(acknowledged)
    assert find_audit_break(entries) is None


class CuttingProxy:
    """A proxy that breaks the connection at a COMMIT or stops answering: before it arrives, or after it is done."""

    def __init__(self, port: int, *, arrives: bool, silent: bool) -> None:
        self.cuts = 0
        self.tasks: list[asyncio.Task[None]] = []
        self._port = port
        self._arrives = arrives
        self._silent = silent

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.append(asyncio.create_task(self._forward(reader, writer)))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, out = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.create_task(self._copy(there, writer))
        while data := await reader.read(65536):
            cut = b"COMMIT\0" in data and not self.cuts
            if cut:
                self.cuts += 1
                back.cancel()
                await asyncio.wait([back])
            if self._arrives or not cut:
                out.write(data)
            if cut and self._arrives:
                await self._forward_until_answered(reader, out, there)
            while cut and self._silent and await reader.read(65536):
                continue
            if cut:
                break
        for end in (writer, out):
            end.close()
            await asyncio.wait([asyncio.ensure_future(end.wait_closed())])
        await asyncio.wait([back])

    async def _forward_until_answered(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, there: asyncio.StreamReader
    ) -> None:
        """Forward what belongs to the COMMIT: in pipeline mode, the server answers only when asked to."""
        answered = asyncio.create_task(there.read(65536))
        while not answered.done():
            more = asyncio.create_task(reader.read(65536))
            await asyncio.wait([answered, more], return_when=asyncio.FIRST_COMPLETED)
            if more.done():
                out.write(more.result())
            more.cancel()
            await asyncio.wait([more])

    async def _copy(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65536):
            writer.write(data)
            await writer.drain()


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("arrives", [True, False])
async def test_connection_cut_at_the_commit_neither_doubles_nor_loses_it(
    postgres_server: PostgresServer, schema: str, arrives: bool, silent: bool
) -> None:
    proxy = CuttingProxy(postgres_server.port, arrives=arrives, silent=silent)
    async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        creating = PostgresStore(postgres_server.url, schema=schema)
        await creating.open()
        await creating.close()
        store = PostgresStore(url, schema=schema, busy_timeout=1.0, answer_timeout=3.0)
        proxy.cuts = 1  # intact while it is opened
        await store.open()
        proxy.cuts = 0
        async with asyncio.timeout(TIMEOUT):
            results = await asyncio.gather(*(store.commit(TENANT, WRITE) for _ in range(3)))
        assert proxy.cuts == 1
        assert [row.seq for (row,) in results] == [row.seq for row in await store.audit(TENANT)] == [1, 2, 3]
        await store.close()
        await asyncio.wait_for(asyncio.gather(*proxy.tasks), TIMEOUT)


async def test_long_outage_is_reported_soon_and_recovered_from(
    postgres_server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    hasty = PostgresStore(postgres_server.url, schema=schema, retry_timeout=0.3)
    await hasty.open()
    await hasty.commit(TENANT, WRITE)
    await asyncio.to_thread(postgres_server.stop)
    try:
        async with asyncio.timeout(TIMEOUT):
            good, bad = await outcomes(hasty.commit(TENANT, WRITE) for _ in range(10))
            assert not good and {type(error) for error in bad} == {StoreLost}
            with pytest.raises(StoreLost) as lost:
                await hasty.audit(TENANT)
            assert "\n" not in str(lost.value)
            with pytest.raises(StoreLost, match="cannot reach Postgres"):
                await PostgresStore(postgres_server.url).open()
            late = asyncio.create_task(store.commit(TENANT, WRITE))
    finally:
        await asyncio.to_thread(postgres_server.start)
    async with asyncio.timeout(TIMEOUT):
        await late
        await hasty.close()
    assert len(await store.audit(TENANT)) == 2


@linux_only
async def test_frozen_server_is_reported_in_time_and_recovered_from(
    postgres_server: PostgresServer, schema: str
) -> None:
    hasty = PostgresStore(postgres_server.url, schema=schema, retry_timeout=0.5, busy_timeout=0.5, answer_timeout=1.0)
    await hasty.open()
    await asyncio.gather(*(hasty.commit(tenant, WRITE) for tenant in "abc"))
    with postgres_server.frozen():
        async with measure_loop_time() as elapsed:
            writing = [asyncio.create_task(hasty.commit(tenant, WRITE)) for tenant in "abcabc"]
            good, bad = await outcomes([*writing, hasty.audit("a"), hasty.open_runs()])
            with pytest.raises(StoreLost):
                await hasty.commit("a", WRITE)
        assert not good and {type(error) for error in bad} == {StoreLost}
        assert not any(error.unclear or "\n" in str(error) for error in bad if isinstance(error, StoreLost))
        assert elapsed.seconds < scaled(5)
    async with asyncio.timeout(TIMEOUT):
        found: list[int] = []
        while len(found) < 3:
            with contextlib.suppress(StoreLost):
                found = [len(await hasty.audit(tenant)) for tenant in "abc"]
        assert found == [1, 1, 1]
        await hasty.commit("a", WRITE)
        await hasty.close()


@linux_only
async def test_frozen_server_is_reported_within_the_default_timeout(
    postgres_server: PostgresServer, schema: str
) -> None:
    store = PostgresStore(postgres_server.url, schema=schema)
    await store.open()
    await asyncio.gather(*(store.commit(tenant, WRITE) for tenant in "abc"))
    with postgres_server.frozen():
        async with measure_loop_time() as elapsed:
            good, bad = await outcomes(
                [store.commit("a", WRITE), store.audit("a"), PostgresStore(postgres_server.url).open()]
            )
        assert not good and [type(error) for error in bad] == [StoreLost] * 3
        assert elapsed.seconds < scaled(13)
    await store.close()


async def test_answer_timeout_must_exceed_busy_timeout(postgres_server: PostgresServer, schema: str) -> None:
    with pytest.raises(StoreError, match="answer_timeout"):
        PostgresStore(postgres_server.url, busy_timeout=10.0)


async def test_lock_held_too_long_raises_store_busy_for_its_tenant_only(
    postgres_server: PostgresServer, schema: str
) -> None:
    store = PostgresStore(postgres_server.url, schema=schema, busy_timeout=0.3)
    await store.open()
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await other.execute("SELECT pg_advisory_xact_lock(%s)", (tenant_lock_id(schema, TENANT),))
        async with asyncio.timeout(TIMEOUT):
            held = [asyncio.create_task(store.commit(TENANT, WRITE)) for _ in range(5)]
            await store.commit("another", WRITE)
            good, bad = await outcomes(held)
        assert not good and {type(error) for error in bad} == {StoreBusy}
    await store.commit(TENANT, WRITE)
    assert len(await store.audit(TENANT)) == 1
    await store.close()


async def test_connection_commits_synchronously_and_limits_idle_transactions(store: PostgresStore) -> None:
    names = "synchronous_commit", "idle_in_transaction_session_timeout", "lock_timeout"
    columns = ", ".join(f"current_setting('{name}')" for name in names)
    assert await store.fetch(Query(f"SELECT {columns}", {})) == [("on", "10s", "5s")]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_commits_that_waited_for_each_other_see_what_was_committed_whatever_the_default_isolation_is(
    postgres_server: PostgresServer, schema: str, level: str
) -> None:
    """With such a default, a transaction would not see what was committed while it waited for its tenant's lock."""
    given = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
    url = f"{postgres_server.url}?{urlencode({'options': given}, quote_via=quote)}"
    stores = [PostgresStore(url, schema=schema, busy_timeout=TIMEOUT / 2, answer_timeout=TIMEOUT) for _ in range(2)]
    for store in stores:
        await store.open()
    count = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    try:
        await stores[0].commit(TENANT, [PutRecord("probe", "p", b"")])
        async with await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True) as other:

            async def both_wait() -> bool:
                return await (await other.execute(count)).fetchone() == (2,)

            lock = tenant_lock_id(schema, TENANT)
            await other.execute("SELECT pg_advisory_lock(%s)", (lock,))
            commits = [asyncio.create_task(each.commit(TENANT, [PutRecord("probe", "p", b"")])) for each in stores]
            await wait_until(both_wait)
            await other.execute("SELECT pg_advisory_unlock(%s)", (lock,))
            good, refused = await outcomes(commits)
    finally:
        for store in stores:
            await store.close()
    assert not refused and sorted(record.version for (record,) in good) == [2, 3]


async def test_newer_schema_is_rejected(postgres_server: PostgresServer, store: PostgresStore, schema: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
        await connection.execute(
            f"INSERT INTO {schema}.schema_versions VALUES ({schema_version('postgres') + 1}, '')".encode()
        )
    with pytest.raises(StoreError, match="newer Atlas Agents"):
        await PostgresStore(postgres_server.url, schema=schema).open()


async def test_many_processes_may_open_a_new_schema_at_once(postgres_server: PostgresServer, schema: str) -> None:
    stores = [PostgresStore(postgres_server.url, schema=schema) for _ in range(5)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.commit(TENANT, WRITE) for store in stores))
    assert len(await stores[0].audit(TENANT)) == 5
    await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://postgres:hunter2@127.0.0.1:{port}/nowhere", "refused the connection"),
        ("postgresql://stranger:hunter2@127.0.0.1:{port}/postgres", "refused the connection"),
        ("postgresql://postgres:hunter2@127.0.0.1:1/postgres", "cannot reach Postgres"),
        ("postgresq://postgres:hunter2@127.0.0.1:{port}/postgres", "invalid Postgres URL"),
    ],
)
async def test_connection_error_does_not_contain_the_password(
    postgres_server: PostgresServer, url: str, reason: str
) -> None:
    with pytest.raises(StoreError, match=reason) as raised:
        await PostgresStore(url.format(port=postgres_server.port)).open()
    assert "hunter2" not in str(raised.value) and "\n" not in str(raised.value)


async def test_invalid_schema_name_is_rejected() -> None:
    with pytest.raises(StoreError, match="schema"):
        PostgresStore("", schema='x"; DROP')


async def test_transaction_hook_commits_or_rolls_back_with_the_writes(
    postgres_server: PostgresServer, schema: str
) -> None:
    async def hook(
        session: psycopg.AsyncConnection[Any], tenant: str, writes: Sequence[Write], results: Sequence[Any]
    ) -> None:
        row = await (await session.execute("SELECT count(*) FROM sessions")).fetchone()
        assert row is not None and len(writes) == len(results)
        if any(result.key == "refused" for result in results):  # then every commit is tried alone
            raise StoreError("not this one")
        seen.append((tenant, results[0].key, row[0]))

    seen: list[tuple[str, str, int]] = []
    store = PostgresStore(postgres_server.url, schema=schema, retry_timeout=TIMEOUT, transaction_hook=hook)
    await store.open()
    try:
        keys = ("a", "refused", "b")
        good, bad = await outcomes(store.commit(TENANT, [PutSession(key)]) for key in keys)
        assert (len(good), [str(error) for error in bad]) == (2, ["not this one"])
        assert seen == [(TENANT, "a", 1), (TENANT, "b", 2)]
        assert [session.key for session in await store.sessions(TENANT)] == ["b", "a"]
    finally:
        await store.close()
