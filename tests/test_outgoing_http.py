"""Outgoing HTTP: the defaults of client sessions, and the delay between retries."""

import asyncio
import os
import random
import resource
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from atlas_agents.core.aio import BackgroundTasks, SystemClock
from atlas_agents.core.http import backoff, open_session
from atlas_agents.providers.http import HttpClient
from checks import TIMEOUT

ANSWER = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok"


@asynccontextmanager
async def run_server(answer: bytes) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """A server on loopback that sends the same answer to every request, and the requests it received."""
    requests: list[bytes] = []
    connections = BackgroundTasks("test server")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answer)
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.spawn(serve(reader, writer))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", requests
        await connections.wait()


async def test_session_keeps_no_cookies() -> None:
    async with asyncio.timeout(TIMEOUT), run_server(ANSWER) as (url, requests), open_session() as session:
        for _ in range(2):
            async with session.get(url) as response:
                assert await response.text() == "ok"
    assert len(requests) == 2 and not any(b"cookie" in request.lower() for request in requests)


async def test_session_uses_the_environment_proxy_only_if_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asyncio.timeout(TIMEOUT), run_server(ANSWER) as (url, requests), run_server(ANSWER) as (proxy, proxied):
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        for use_proxies in (False, True):
            async with open_session(use_proxies=use_proxies) as session, session.get(url):
                pass
    assert (len(requests), len(proxied)) == (1, 1)


async def test_session_times_out_between_bytes() -> None:
    async with asyncio.timeout(TIMEOUT), run_server(b"") as (url, _), open_session(read_timeout=0.05) as session:
        with pytest.raises(TimeoutError):
            await session.get(url)


def test_backoff_doubles_up_to_its_limit_and_jitter_only_shortens_it() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        for attempt, expected in enumerate((1, 2, 4, 8, 10, 10)):
            assert 0.75 * expected <= backoff(attempt, 1.0, 10.0, rng=rng) <= expected


def test_backoff_differs_between_clients() -> None:
    assert len({backoff(3, 1.0) for _ in range(10)}) == 10


def test_backoff_of_very_many_attempts_is_the_limit() -> None:
    assert 22.5 <= backoff(10**6, 0.1, 30.0) <= 30.0


def test_backoff_grows_by_another_factor() -> None:
    assert 0.75 * 9 <= backoff(2, 1.0, factor=3.0) <= 9


class PausedClock(SystemClock):
    """Sleeps until `go_on` is set."""

    def __init__(self) -> None:
        self.sleeping, self.go_on = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.sleeping.set()
        await self.go_on.wait()


async def test_request_to_a_provider_waits_for_a_file_descriptor() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    clock = PausedClock()
    client = HttpClient(clock=clock)
    async with run_server(ANSWER) as (url, requests), asyncio.timeout(TIMEOUT):
        assert await _status(client, url) == 200
        await client.close()
        next_descriptor = os.dup(0)
        os.close(next_descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor, hard))
        try:
            sending = asyncio.create_task(_status(client, url))
            await clock.sleeping.wait()
            assert len(requests) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        clock.go_on.set()
        assert await sending == 200
        await client.close()


async def _status(client: HttpClient, url: str) -> int:
    async with client.request("GET", url, {}, b"") as response:
        await response.read_all(100)
        return response.status
