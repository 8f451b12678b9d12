"""Isolation of the tests: sockets reach loopback only, and no key of the machine is visible."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from checks import TIMEOUT

PUBLIC_ADDRESS = "192.0.2.1"  # reserved for documentation: no host answers
NAME = "nowhere.invalid"

os.environ["ATLAS_PLANTED"] = "while the tests were collected"


def connect(host: str) -> None:
    with socket.socket() as client:
        client.settimeout(TIMEOUT)
        client.connect((host, 80))


def connect_ex(host: str) -> None:
    with socket.socket() as client:
        client.settimeout(TIMEOUT)
        client.connect_ex((host, 80))


def create_connection(host: str) -> None:
    socket.create_connection((host, 80), timeout=TIMEOUT).close()


def send_datagram(host: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.sendto(b"?", (host, 53))


def look_up(host: str) -> None:
    socket.getaddrinfo(host, 80)


def look_up_with_gethostbyname(host: str) -> None:
    socket.gethostbyname(host)


async def open_connection(host: str) -> None:
    _, writer = await asyncio.open_connection(host, 80)
    writer.close()


async def sock_connect(host: str) -> None:
    with socket.socket() as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (host, 80))


async def look_up_with_the_loop(host: str) -> None:
    await asyncio.get_running_loop().getaddrinfo(host, 80)


async def fetch(host: str) -> None:
    async with aiohttp.ClientSession() as http, http.get(f"http://{host}/"):
        pass


@pytest.mark.parametrize("host", [PUBLIC_ADDRESS, NAME])
@pytest.mark.parametrize("reach", [connect, create_connection, look_up, look_up_with_gethostbyname])
def test_blocking_socket_cannot_leave_loopback(reach: Callable[[str], None], host: str) -> None:
    with pytest.raises(RuntimeError, match=f"loopback only, not .*{host}"):
        reach(host)


@pytest.mark.parametrize("reach", [connect_ex, send_datagram])
def test_no_other_call_reaches_an_address_beyond_loopback(reach: Callable[[str], None]) -> None:
    with pytest.raises(RuntimeError, match=f"loopback only, not .*{PUBLIC_ADDRESS}"):
        reach(PUBLIC_ADDRESS)


@pytest.mark.parametrize("host", [PUBLIC_ADDRESS, NAME])
@pytest.mark.parametrize("reach", [open_connection, sock_connect, look_up_with_the_loop, fetch])
async def test_asyncio_socket_cannot_leave_loopback(reach: Callable[[str], Awaitable[None]], host: str) -> None:
    with pytest.raises(RuntimeError, match=f"loopback only, not .*{host}"):
        async with asyncio.timeout(TIMEOUT):
            await reach(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_loopback_is_reachable(host: str) -> None:
    server = await asyncio.start_server(_greet, "127.0.0.1", 0)
    async with server, asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_connection(host, server.sockets[0].getsockname()[1])
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()


async def test_unix_socket_is_reachable(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(_greet, tmp_path / "s")
    async with server, asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        assert await reader.read() == b"hello"
        writer.close()
        await writer.wait_closed()


def test_keys_and_settings_of_the_machine_are_removed() -> None:
    assert [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_", "ATLAS_"))] == []


async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()
    await writer.wait_closed()
