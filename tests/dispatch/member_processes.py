"""Start and kill cluster members as processes."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from processes import Process

import fork_server
from checks import TIMEOUT
from stores.postgres_server import PostgresServer

HERE = Path(__file__).parent


@asynccontextmanager
async def member(
    role: str, server: PostgresServer, home: Path, script: str = "cluster_process.py"
) -> AsyncGenerator[Process, None]:
    """Run a member process for the duration of the block."""
    paths = os.pathsep.join([str(HERE), *sys.path])
    command = [str(HERE / script), role, server.url, str(home)]
    path = home / f"{role}-{len(os.listdir(home))}.log"
    with path.open("w") as log:
        process = await fork_server.start(*command, stderr=log, env={**os.environ, "PYTHONPATH": paths})
    try:
        line = b""
        with suppress(TimeoutError):
            line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT)
        assert line, f"{role} is not ready: {path.read_text()[-2000:]}"
        yield Process(process, int(line), home)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def members(
    stack: AsyncExitStack, server: PostgresServer, home: Path, *roles: str, script: str = "cluster_process.py"
) -> list[Process]:
    """Start members with these roles, the first one alone because it creates the schema."""
    first = await stack.enter_async_context(member(roles[0], server, home, script))
    others = [stack.enter_async_context(member(role, server, home, script)) for role in roles[1:]]
    return [first, *await asyncio.gather(*others)]
