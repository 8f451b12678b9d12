"""Many connections at once: memory of idle ones, timeouts of silent ones, bursts, and running out of files."""

import asyncio
import json
import resource
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gateway_client import UPGRADE
from processes import Process, connect_process, run_gateway
from websockets.exceptions import WebSocketException

from checks import TIMEOUT

pytestmark = pytest.mark.slow
MB = 1024 * 1024


@pytest.fixture(autouse=True)
def many_files() -> None:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


class BareSocket:
    """Minimal WebSocket client, with the handshake and the frames written by hand, so that a thousand are cheap."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "BareSocket":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        headers = {"Host": f"127.0.0.1:{port}"} | {name.replace("_", "-"): value for name, value in UPGRADE.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"GET / HTTP/1.1\r\n{lines}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head, head
        return cls(reader, writer)

    def send(self, **frame: object) -> None:
        data = json.dumps(frame).encode()
        assert len(data) < 126
        self._writer.write(bytes((0x81, 0x80 | len(data), 0, 0, 0, 0)) + data)

    async def receive(self) -> tuple[int, bytes]:
        """Return the opcode and the content of the next frame."""
        first, size = await self._reader.readexactly(2)
        if size == 126:
            size = int.from_bytes(await self._reader.readexactly(2), "big")
        return first & 0x0F, await self._reader.readexactly(size)

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def open_bare_sockets(process: Process, count: int, *, silent: int = 0) -> AsyncGenerator[list[BareSocket], None]:
    """Open this many sockets; the first `silent` ones do not authenticate."""
    token = (process.home / "token").read_text().strip()
    opened: list[BareSocket] = []
    gate = asyncio.Semaphore(50)

    async def one(number: int) -> None:
        async with gate:
            bare = await BareSocket.open(process.port)
            opened.append(bare)
            if number >= silent:
                bare.send(type="auth", token=token)
                assert await bare.receive() == (1, b'{"type":"auth","ok":true}')

    try:
        await asyncio.gather(*(one(number) for number in range(count)))
        yield opened
    finally:
        for each in opened:
            each.close()


async def test_thousand_idle_sockets_use_at_most_32_mib(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "Hi.") as process:
        async with open_bare_sockets(process, 20):
            pass
        before = process.memory()
        async with open_bare_sockets(process, 1000):
            grown = process.memory() - before
            print(f"1,000 sockets: {grown / MB:.1f} MiB")
            assert grown <= 32 * MB
            async with connect_process(process) as client:
                await client.get("chat.send", sessionKey="main", message="Still there?")
                await client.until("chat.final")


async def test_silent_sockets_are_closed(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "Hi.") as process:
        async with open_bare_sockets(process, 20):
            pass
        before = process.memory()
        async with open_bare_sockets(process, 250, silent=250) as silent:
            mute = [await asyncio.open_connection("127.0.0.1", process.port) for _ in range(250)]
            assert process.memory() - before <= 20 * MB
            for bare in silent:
                code, content = await asyncio.wait_for(bare.receive(), TIMEOUT)
                assert (code, int.from_bytes(content[:2], "big")) == (8, 4400)
            for reader, writer in mute:
                assert await asyncio.wait_for(_is_closed(reader), TIMEOUT)
                writer.close()


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_thousand_connections_at_once_are_accepted(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "Hi.") as process:
        started = time.monotonic()
        async with open_bare_sockets(process, 1000, silent=500) as opened:
            print(f"1,000 sockets opened in {time.monotonic() - started:.1f} s")
            assert len(opened) == 1000
            async with connect_process(process) as client:
                assert (await client.get("health.check"))["status"] == "ok"


async def test_gateway_recovers_after_running_out_of_files(tmp_path: Path) -> None:
    async with (
        run_gateway(tmp_path, *["Hi."] * 2, environment={"FILES": "64"}) as process,
        connect_process(process) as client,
    ):
        connections = [await asyncio.open_connection("127.0.0.1", process.port) for _ in range(80)]
        await client.get("chat.send", sessionKey="main", message="Still there?")
        await client.until("chat.final")
        for _, writer in connections:
            writer.close()
        for _ in range(50):
            try:
                async with asyncio.timeout(TIMEOUT), connect_process(process) as late:
                    assert (await late.get("health.check"))["status"] == "ok"
                    break
            except (TimeoutError, OSError, WebSocketException):
                await asyncio.sleep(0.2)
        else:
            pytest.fail("no new connection after the connections had left")


async def test_connections_leave_file_descriptors_to_turns(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "!a", "Hi.", environment={"FILES": "64"}) as process:
        async with connect_process(process) as client:
            connections = [await asyncio.open_connection("127.0.0.1", process.port) for _ in range(80)]
            refused = [await reader.read() for reader, _ in connections[-16:]]
            assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in refused)
            await client.get("chat.send", sessionKey="main", message="Write it down")
            await client.until("chat.final")
            for _, writer in connections:
                writer.close()
        assert (tmp_path / "effects").read_text() == "a\n", "the tool could open its file"
