"""Commits on Postgres whose outcome is unknown: the connection is lost between COMMIT and its answer."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT

from atlas_agents.core.errors import StoreLost
from atlas_agents.core.store import AddAudit, AddMessage, PutRecord, PutSession, Store, Write
from atlas_agents.storage.postgres import PostgresStore
from checks import TIMEOUT, wait_until

pytestmark = pytest.mark.slow  # starts servers

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


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def crashing_server() -> Iterator[PostgresServer]:
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
    given = 0
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        while given < int(xid):
            (given,) = await (await connection.execute("SELECT pg_current_xact_id()::text::bigint")).fetchone() or (0,)
    assert given == int(xid), "the server did not reuse the id: it was flushed before the crash"
    assert await fetch_value(server, f"SELECT pg_xact_status('{xid}'::xid8)") == "committed"


async def test_commit_is_written_again_when_its_transaction_id_is_reused_after_a_crash(
    crashing_server: PostgresServer, schema: str
) -> None:
    # Nothing may flush the transaction's first records, and no background work may take an id of its own:
    # the id is given again only if those records are lost, and only then to the next transaction.
    for setting in QUIET_SERVER:
        await fetch_value(crashing_server, f"ALTER SYSTEM SET {setting}")
    async with crashing_server.gone():
        pass
    async with asyncio.timeout(TIMEOUT), opened(crashing_server, schema) as (proxy, store):
        await store.commit(TENANT, [AddAudit(b"before")])
        proxy.armed = True
        commit = asyncio.create_task(store.commit(TENANT, [AddAudit(b"cut off")]))
        await proxy.held.wait()
        xid = await fetch_value(
            crashing_server, "SELECT backend_xid FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
        )
        async with crashing_server.gone():
            pass
        await reuse_transaction_id(crashing_server, xid)
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


class Stopper:
    """Transaction hook that stops the server process of its connection, so that COMMIT reaches a stopped process."""

    def __init__(self) -> None:
        self.armed = False
        self.stopped: int | None = None

    async def hook(self, connection: psycopg.AsyncConnection[Any], *_: object) -> None:
        if self.armed:
            self.armed = False
            self.stopped = connection.info.backend_pid
            os.kill(self.stopped, signal.SIGSTOP)

    async def resume(self) -> None:
        """Let the stopped process go on, and wait until it has ended: its client is gone."""
        assert self.stopped is not None
        os.kill(self.stopped, signal.SIGCONT)
        process = Path(f"/proc/{self.stopped}")
        await wait_until(lambda: not process.exists())


@contextlib.asynccontextmanager
async def stopping(server: PostgresServer, schema: str, retry_timeout: float) -> AsyncGenerator[tuple[Stopper, Store]]:
    """A store that soon gives up on a server process that does not answer."""
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    stopper = Stopper()
    store = PostgresStore(
        server.url,
        schema=schema,
        transaction_hook=stopper.hook,
        busy_timeout=0.2,
        answer_timeout=1.0,
        retry_timeout=retry_timeout,
    )
    await store.open()
    try:
        yield stopper, store
    finally:
        if stopper.stopped is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopper.stopped, signal.SIGCONT)
        await store.close()


async def is_deciding(server: PostgresServer) -> bool:
    """Return whether a writer waits for the end of a transaction whose COMMIT was not answered."""
    waiting = """SELECT count(*) FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND query LIKE '_INSERT INTO commit_tokens%RETURNING%'"""
    return await fetch_value(server, waiting) != "0"


TURN: tuple[Write, ...] = (PutSession("s"), AddMessage("s", "m", b"{}"), AddAudit(b"in"))
STEPWISE: tuple[Write, ...] = (*TURN, PutRecord("tenant", "r", b"{}"))


@pytest.mark.parametrize("writes", [TURN, STEPWISE], ids=["in two messages", "step by step"])
async def test_commit_that_a_stopped_server_process_executes_late_is_found_and_not_repeated(
    server: PostgresServer, schema: str, writes: tuple[Write, ...]
) -> None:
    async with asyncio.timeout(2 * TIMEOUT), stopping(server, schema, 3 * TIMEOUT) as (stopper, store):
        stopper.armed = True
        commit = asyncio.create_task(store.commit(TENANT, writes))
        while not await is_deciding(server):
            continue
        await stopper.resume()
        _, message, entry, *_ = await commit
        assert await store.messages(TENANT, "s") == [message] and message.id == "m"
        assert await store.audit(TENANT) == [entry] and entry.entry == b"in"


@pytest.mark.parametrize("writes", [TURN, STEPWISE], ids=["in two messages", "step by step"])
async def test_commit_is_unclear_while_its_server_process_is_stopped_and_is_written_once(
    server: PostgresServer, schema: str, writes: tuple[Write, ...]
) -> None:
    async with asyncio.timeout(2 * TIMEOUT), stopping(server, schema, 0.5) as (stopper, store):
        stopper.armed = True
        with pytest.raises(StoreLost) as lost:
            await store.commit(TENANT, writes)
        assert lost.value.unclear
        await stopper.resume()
        assert [message.id for message in await store.messages(TENANT, "s")] == ["m"]
        await store.commit(TENANT, [AddMessage("s", "n", b"{}"), AddAudit(b"again")])
        assert [row.seq for row in await store.audit(TENANT)] == [1, 2]


async def test_transaction_that_a_stopped_server_process_begins_late_writes_nothing(
    server: PostgresServer, schema: str
) -> None:
    """Its writer has repeated it with another connection. The first message contains no COMMIT."""
    async with asyncio.timeout(2 * TIMEOUT), stopping(server, schema, 3 * TIMEOUT) as (stopper, store):
        await store.commit(TENANT, [PutSession("s")])
        pool = "FROM pg_stat_activity WHERE application_name = 'atlas-agents'"
        stopper.stopped = int(await fetch_value(server, f"SELECT pid {pool} AND query LIKE 'COMMIT%'"))
        # Without the others, the next commit uses this connection.
        await fetch_value(server, f"SELECT count(pg_terminate_backend(pid)) {pool} AND pid <> {stopper.stopped}")
        os.kill(stopper.stopped, signal.SIGSTOP)
        await store.commit(TENANT, TURN)
        await stopper.resume()
        assert [message.id for message in await store.messages(TENANT, "s")] == ["m"]
        assert [row.entry for row in await store.audit(TENANT)] == [b"in"]


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
