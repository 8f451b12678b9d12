"""Starting and killing processes of a cluster."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import fork_server
from gateway.processes import Process
from stores.postgres_server import PostgresServer

HERE = Path(__file__).parent
WITHIN = 30.0


@asynccontextmanager
async def member(role: str, server: PostgresServer, home: Path) -> AsyncGenerator[Process, None]:
    """A process of the cluster; killed at the end if it is still there."""
    paths = os.pathsep.join([str(HERE), *sys.path])
    command = [str(HERE / "cluster_process.py"), role, server.url, str(home)]
    path = home / f"{role}-{len(os.listdir(home))}.log"
    with path.open("w") as log:
        process = await fork_server.start(*command, stderr=log, env={**os.environ, "PYTHONPATH": paths})
    try:
        line = b""
        with suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), WITHIN)
        assert line, f"{role} is not ready: {path.read_text()[-2000:]}"
        yield Process(process, int(line), home)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def members(up: AsyncExitStack, server: PostgresServer, home: Path, *roles: str) -> list[Process]:
    """All of them, in this order; the first one makes the schema."""
    first = await up.enter_async_context(member(roles[0], server, home))
    others = [up.enter_async_context(member(role, server, home)) for role in roles[1:]]
    return [first, *await asyncio.gather(*others)]
