"""Start, stop and kill a gateway in its own process."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_client import Client, open_socket

import fork_server
from checks import TIMEOUT

HERE = Path(__file__).parent


class Process:
    """A gateway process, from its start to its end. `open_socket` and `connect_process` accept it."""

    def __init__(self, process: fork_server.ForkedProcess, port: int, home: Path) -> None:
        self._process = process
        self.port = port
        self.home = home

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """Send SIGTERM, wait, and return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self._process.wait(), TIMEOUT)

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def run_gateway(
    home: Path, *replies: str, pause: float = 0.01, environment: dict[str, str] | None = None
) -> AsyncGenerator[Process, None]:
    """Run a gateway whose model gives these replies; it is killed at the end if it is still running."""
    paths = os.pathsep.join([str(HERE), *sys.path])
    command = [str(HERE / "gateway_process.py"), str(home), str(pause), *replies]
    with (home / "log").open("a") as log:
        environ = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
        process = await fork_server.start(*command, stderr=log, env=environ)
    try:
        line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT)
        assert line, (home / "log").read_text()
        yield Process(process, int(line), home)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def connect_process(process: Process, *, full: bool = True, **options: Any) -> AsyncGenerator[Client, None]:
    """Connect and authenticate a client."""
    async with open_socket(process, **options) as client:
        token = (process.home / "token").read_text().strip()
        await client.send(type="auth", token=token, **({"protocol": 1} if full else {}))
        assert (await client.next())["ok"] is True
        yield client
