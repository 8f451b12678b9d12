"""How a worker asks the queue for runs, also when the connection is lost after a statement was committed and before its
response arrived."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job
from psycopg.conninfo import conninfo_to_dict

from atlas_agents.dispatch.queue import Queue, QueueWorker
from checks import TIMEOUT, scaled, wait_until
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow


class ResponseDroppingProxy:
    """Forwards everything to Postgres. The response to the first message that contains `drop_after` is dropped, and the
    connection is closed once the server has sent it. While it `hangs`, it answers no new connection, ever."""

    def __init__(self, port: int) -> None:
        self.drop_after = b""
        self.dropped = asyncio.Event()
        self.hangs = False
        self.hung = asyncio.Event()
        self._port = port
        self._connections: list[asyncio.Task[None]] = []

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(asyncio.create_task(self._forward(reader, writer)))

    async def close(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.hangs:
            self.hung.set()
            with contextlib.closing(writer):
                await asyncio.Event().wait()
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        answers = asyncio.create_task(self._copy(server_reader, writer))
        try:
            while message := await reader.read(65536):
                drop = bool(self.drop_after) and self.drop_after in message
                if drop:
                    self.drop_after = b""
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                server_writer.write(message)
                if drop:
                    await server_reader.read(65536)
                    self.dropped.set()
                    return
        finally:
            answers.cancel()
            for end in (writer, server_writer):
                end.close()
            await asyncio.gather(answers, return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while message := await reader.read(65536):
                writer.write(message)


@contextlib.asynccontextmanager
async def opened(url: str, schema: str) -> AsyncGenerator[tuple[ResponseDroppingProxy, Queue]]:
    """Open a queue that connects through the proxy."""
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(f"CREATE SCHEMA {schema}".encode())
    server = conninfo_to_dict(url)
    proxy = ResponseDroppingProxy(int(server["port"] or 5432))
    async with await asyncio.start_server(proxy.accept, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        queue = Queue(f"postgresql://postgres@127.0.0.1:{port}/{server['dbname']}?sslmode=disable", schema, "default")
        await queue.open()
        try:
            yield proxy, queue
        finally:
            await queue.close()
            await proxy.close()


async def ignore_released(run_id: str) -> None:
    pass


async def enqueue(url: str, schema: str, run_id: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, options=f"-c search_path={schema}") as other:
        await other.execute(
            """SELECT procrastinate_defer_jobs_v1(ARRAY[ROW('atlas:default', 'atlas.run', 1, NULL, NULL,
            jsonb_build_object('run_id', %s::text), NULL)::procrastinate_job_to_defer_v1])""",
            (run_id,),
        )


async def statuses(url: str, schema: str) -> list[str]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        rows = await connection.execute(f"SELECT status::text FROM {schema}.procrastinate_jobs".encode())
        return [status async for (status,) in rows]


async def test_worker_that_has_fetched_all_runs_asks_again_when_it_is_woken(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[str] = []
    fetches = 0
    fetch = Queue.fetch

    async def execute(run_id: str) -> bool:
        executed.append(run_id)
        return True

    async def count_fetch(queue: Queue, worker: int, limit: int) -> list[Job]:
        nonlocal fetches
        fetches += 1
        return await fetch(queue, worker, limit)

    monkeypatch.setattr(Queue, "fetch", count_fetch)
    monkeypatch.setattr("atlas_agents.dispatch.queue._POLL_INTERVAL", 10 * TIMEOUT)
    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (_, queue):
        await enqueue(url, schema, "first")
        worker = QueueWorker(queue, execute, 8, lambda: None, ignore_released)
        running = asyncio.create_task(worker.run())
        await wait_until(lambda: worker.finished == 1)
        assert fetches == 1
        await enqueue(url, schema, "second")
        worker.wake()
        await wait_until(lambda: worker.finished == 2)
        assert (executed, fetches) == (["first", "second"], 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.finish(1.0)


@pytest.mark.parametrize("statement", ["UPDATE procrastinate_jobs SET status", "DELETE FROM procrastinate_jobs"])
async def test_worker_executes_each_run_once_when_a_response_is_lost(url: str, schema: str, statement: str) -> None:
    executed: list[str] = []

    async def execute(run_id: str) -> bool:
        executed.append(run_id)
        return True

    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (proxy, queue):
        await enqueue(url, schema, "first")
        proxy.drop_after = statement.encode()
        worker = QueueWorker(queue, execute, 1, lambda: None, ignore_released)
        running = asyncio.create_task(worker.run())
        await proxy.dropped.wait()
        await enqueue(url, schema, "second")
        worker.wake()

        async def finished() -> bool:
            return worker.finished == 2 and not worker.running

        await wait_until(finished)
        assert executed == ["first", "second"]
        assert await statuses(url, schema) == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.finish(1.0)


async def test_worker_executes_all_runs_of_a_fetch_whose_response_is_lost_once(url: str, schema: str) -> None:
    runs = [f"r{n}" for n in range(6)]
    executed: list[str] = []

    async def execute(run_id: str) -> bool:
        executed.append(run_id)
        return True

    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (proxy, queue):
        for run in runs:
            await enqueue(url, schema, run)
        proxy.drop_after = b"UPDATE procrastinate_jobs SET status"
        worker = QueueWorker(queue, execute, 8, lambda: None, ignore_released)
        running = asyncio.create_task(worker.run())

        async def finished() -> bool:
            return worker.finished == len(runs) and not worker.running

        await wait_until(finished)
        assert sorted(executed) == runs and await statuses(url, schema) == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await worker.finish(1.0)


async def test_worker_releases_a_run_once_when_the_response_is_lost(url: str, schema: str) -> None:
    async def execute(run_id: str) -> bool:
        return False

    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (proxy, queue):
        await enqueue(url, schema, "first")
        proxy.drop_after = b"SET status = 'todo'"
        worker = QueueWorker(queue, execute, 1, lambda: None, ignore_released)
        running = asyncio.create_task(worker.run())
        await proxy.dropped.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

        async def left() -> bool:
            return not worker.running

        await wait_until(left)
        assert (worker.released, await statuses(url, schema)) == (1, ["todo"])
        await worker.finish(1.0)


@pytest.mark.parametrize("end", [Queue.finish, Queue.release])
async def test_worker_leaves_the_job_of_a_run_that_was_taken_over(
    url: str, schema: str, end: Callable[[Queue, Job], Awaitable[None]]
) -> None:
    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (_, queue):
        await enqueue(url, schema, "first")
        old, new = [await queue.jobs.register_worker() for _ in range(2)]
        (job,) = await queue.fetch(old, 1)
        assert await queue.release_stalled([old]) == ["first"] and await queue.release_stalled([old]) == []
        assert [each.id for each in await queue.fetch(new, 1)] == [job.id]
        await end(queue, job)
        assert [each.id for each in await queue.list_held(new)] == [job.id]


async def test_released_job_is_fetched_at_once_although_the_clock_of_the_worker_is_ahead(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr("procrastinate.utils.utcnow", lambda: ahead)
    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (_, queue):
        await enqueue(url, schema, "first")
        worker = await queue.jobs.register_worker()
        (job,) = await queue.fetch(worker, 1)
        await queue.release(job)
        assert [each.id for each in await queue.fetch(worker, 1)] == [job.id]
        assert await queue.release_stalled([worker]) == ["first"]
        assert [each.id for each in await queue.fetch(worker, 1)] == [job.id]


@contextlib.asynccontextmanager
async def registered(queue: Queue) -> AsyncGenerator[QueueWorker]:
    """Run a worker that finishes each run at once."""

    async def execute(run_id: str) -> bool:
        return True

    worker = QueueWorker(queue, execute, 1, lambda: None, ignore_released)
    running = asyncio.create_task(worker.run())
    await wait_until(lambda: worker.id is not None)
    yield worker
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await worker.finish(1.0)


async def test_worker_sends_heartbeats_although_its_connections_are_not_answered(url: str, schema: str) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        opened(url, schema) as (_, queue),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        registered(queue) as worker,
    ):
        queue.heartbeat_timeout = 1.0
        pids = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'atlas-queue % " + schema + "'"
        stopped = [pid for (pid,) in await (await connection.execute(pids.encode())).fetchall()]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            before = time.monotonic() + queue.heartbeat_timeout  # an earlier one may be on its way
            await wait_until(lambda: time.monotonic() - worker.heartbeat_age > before)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


async def test_run_whose_fetch_is_cancelled_is_released_at_once(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, fetch = asyncio.Event(), Queue.fetch

    async def fetch_slowly(queue: Queue, worker: int, limit: int) -> list[Job]:
        jobs = await fetch(queue, worker, limit)
        fetched.set()  # on the server; the response has not arrived
        await asyncio.Event().wait()
        return jobs

    async def execute(run_id: str) -> bool:
        return True

    monkeypatch.setattr(Queue, "fetch", fetch_slowly)
    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (_, queue):
        await enqueue(url, schema, "first")
        worker = QueueWorker(queue, execute, 1, lambda: None, ignore_released)
        running = asyncio.create_task(worker.run())
        await fetched.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await statuses(url, schema) == ["todo"]
        await worker.finish(1.0)


async def test_queue_reconnects_soon_after_an_outage(schema: str) -> None:
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    with PostgresServer() as server:
        async with asyncio.timeout(TIMEOUT), await psycopg.AsyncConnection.connect(server.url, autocommit=True) as made:
            await made.execute(f"CREATE SCHEMA {schema}".encode())
        queue = Queue(server.url, schema, "default")
        await queue.open()
        try:
            async with asyncio.timeout(TIMEOUT):
                async with server.gone():
                    with pytest.raises(ConnectorException):
                        await queue.note_start()
                    await asyncio.sleep(3.0)
                async with asyncio.timeout(scaled(3.0)):
                    await queue.note_start()
        finally:
            await queue.close()


async def test_queue_reconnects_soon_although_an_attempt_to_connect_is_never_answered(url: str, schema: str) -> None:
    async def reconnect(queue: Queue) -> None:
        while True:
            with contextlib.suppress(ConnectorException):
                return await queue.note_start()

    async with asyncio.timeout(TIMEOUT), opened(url, schema) as (proxy, queue):
        await queue.note_start()
        proxy.hangs = True
        await proxy.close()
        reconnecting = asyncio.create_task(reconnect(queue))
        await proxy.hung.wait()
        proxy.hangs = False
        async with asyncio.timeout(
            scaled(6.0)
        ):  # an attempt takes 2 s; one of 10 s would delay heartbeats for too long
            await reconnecting


async def test_worker_whose_registration_was_lost_in_a_failover_executes_runs_again(url: str, schema: str) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        opened(url, schema) as (_, queue),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        registered(queue) as worker,
    ):
        await connection.execute(f"DELETE FROM {schema}.procrastinate_workers".encode())
        await enqueue(url, schema, "first")
        worker.wake()
        await wait_until(lambda: worker.finished == 1)
