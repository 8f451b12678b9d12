"""Commits on Postgres whose outcome is unknown: the connection is lost between COMMIT and its answer."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator

import psycopg
import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT

from atlas_agents.core.store import AddAudit
from atlas_agents.storage.postgres import PostgresStore
from checks import TIMEOUT

pytestmark = pytest.mark.slow  # each test starts a server of its own

QUIET_SERVER = (
    "autovacuum = off",
    "checkpoint_timeout = '1d'",
    "max_wal_senders = 0",
    "wal_level = minimal",
    "wal_writer_delay = '10s'",
)
"""Settings under which a server neither flushes its log nor starts transactions by itself for some seconds."""


class HoldingProxy:
    """Forwards everything to Postgres. Once `armed`, it holds the next COMMIT back and refuses new connections."""

    def __init__(self, port: int) -> None:
        self.armed = False
        self.held = asyncio.Event()
        self.accepting = True
        self.repeated = asyncio.Event()
        self._port = port
        self._connections: list[asyncio.Task[None]] = []
        self._held_at: tuple[asyncio.StreamWriter, asyncio.StreamWriter, bytes] | None = None

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(asyncio.create_task(self._forward(reader, writer)))

    def cut_client(self) -> None:
        """Close the client's side of the connection whose COMMIT is held; the server's side stays open."""
        assert self._held_at is not None
        self._held_at[0].close()

    def deliver_commit(self) -> None:
        assert self._held_at is not None
        self._held_at[1].write(self._held_at[2])

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.accepting:
            writer.close()
            return
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        answers = asyncio.create_task(self._copy(server_reader, writer))
        try:
            while message := await reader.read(65536):
                if self.armed and b"COMMIT\0" in message:
                    self.armed = False
                    self.accepting = False
                    self._held_at = writer, server_writer, message
                    self.held.set()
                    await answers
                    return
                server_writer.write(message)
                if self.held.is_set() and b"SELECT" in message and b"set_config" not in message:
                    self.repeated.set()
        finally:
            answers.cancel()
            for end in (writer, server_writer):
                end.close()
            await asyncio.gather(answers, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while message := await reader.read(65536):
                writer.write(message)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@contextlib.asynccontextmanager
async def opened(server: PostgresServer, schema: str) -> AsyncGenerator[tuple[HoldingProxy, PostgresStore]]:
    """A store that reaches the server through the proxy."""
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    proxy = HoldingProxy(server.port)
    async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        store = PostgresStore(url, schema=schema, retry_timeout=3 * TIMEOUT)
        await store.open()
        try:
            yield proxy, store
        finally:
            proxy.accepting = True
            await store.close()
            await proxy.close()


async def fetch_value(server: PostgresServer, statement: str) -> str:
    """Run one statement on a connection of its own and return the first column as text."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        cursor = await connection.execute(statement.encode())
        row = await cursor.fetchone() if cursor.description else None
        return "" if row is None else str(row[0])


async def reuse_transaction_id(server: PostgresServer, xid: str) -> None:
    """Commit transactions until the server has handed out this transaction id again."""
    while (given := int(await fetch_value(server, "SELECT pg_current_xact_id()"))) < int(xid):
        continue
    assert given == int(xid), "the server did not reuse the id: it was flushed before the crash"
    assert await fetch_value(server, f"SELECT pg_xact_status('{xid}'::xid8)") == "committed"


async def test_commit_is_written_again_when_its_transaction_id_is_reused_after_a_crash(
    server: PostgresServer, schema: str
) -> None:
    # Nothing may flush the transaction's first records, and no background work may take an id of its own:
    # the id is given again only if those records are lost, and only then to the next transaction.
    for setting in QUIET_SERVER:
        await fetch_value(server, f"ALTER SYSTEM SET {setting}")
    async with server.gone():
        pass
    async with asyncio.timeout(TIMEOUT), opened(server, schema) as (proxy, store):
        await store.commit(TENANT, [AddAudit(b"before")])
        proxy.armed = True
        commit = asyncio.create_task(store.commit(TENANT, [AddAudit(b"cut off")]))
        await proxy.held.wait()
        xid = await fetch_value(server, "SELECT backend_xid FROM pg_stat_activity WHERE backend_xid IS NOT NULL")
        async with server.gone():
            pass
        await reuse_transaction_id(server, xid)
        proxy.accepting = True
        (row,) = await commit
        assert [(entry.seq, entry.entry) for entry in await store.audit(TENANT)] == [(1, b"before"), (2, b"cut off")]
        assert row.seq == 2


async def test_commit_that_arrives_late_is_awaited_and_not_repeated(server: PostgresServer, schema: str) -> None:
    async with asyncio.timeout(TIMEOUT), opened(server, schema) as (proxy, store):
        proxy.armed = True
        commit = asyncio.create_task(store.commit(TENANT, [AddAudit(b"late")]))
        await proxy.held.wait()
        proxy.accepting = True
        proxy.cut_client()
        await proxy.repeated.wait()
        proxy.deliver_commit()
        (row,) = await commit
        assert [(entry.seq, entry.entry) for entry in await store.audit(TENANT)] == [(1, b"late")]
        assert row.seq == 1


async def test_tokens_of_many_commits_take_one_row_per_writer_and_tenant_and_are_pruned_after_a_day(
    server: PostgresServer, schema: str
) -> None:
    async with asyncio.timeout(TIMEOUT), opened(server, schema) as (_, store):
        for _ in range(20):
            await asyncio.gather(*(store.commit(tenant, [AddAudit(b"")]) for tenant in ("a", "it's", "c")))
        count = f"SELECT count(*) FROM {schema}.commit_tokens"
        assert await fetch_value(server, count) == "3"
        await fetch_value(server, f"UPDATE {schema}.commit_tokens SET written_at = now() - interval '25 hours'")
        await store.commit("a", [AddAudit(b"")])
        await store.close()
        await store.open()
        assert await fetch_value(server, count) == "1"
        await store.commit("it's", [AddAudit(b"")])
        assert await fetch_value(server, count) == "2"
