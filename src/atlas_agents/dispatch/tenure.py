"""Who works on a database: one process alone, or the members of one cluster. Postgres keeps the two apart."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg

from atlas_agents.core.errors import ConfigError
from atlas_agents.dispatch.bus import LINE

logger = logging.getLogger(__name__)
_EVERY = 5.0
_TAKEN = "another Atlas works alone on this database: end it, or start all of them with --role"
_SHARED = "a cluster works on this database: use one of its gateways, or start this one with --role"


@asynccontextmanager
async def tenure(url: str, *, shared: bool, schema: str = "atlas", tenant: str = "default") -> AsyncGenerator[None]:
    """Work on a database as long as the block lasts, with others who share it, or alone. ConfigError if that cannot be:
    who works alone takes every open turn for one that was cut short."""
    key = int.from_bytes(hashlib.sha256(f"tenure\0{schema}\0{tenant}".encode()).digest()[:8], signed=True)
    line = await psycopg.AsyncConnection.connect(url, **LINE)
    if not await _take(line, key, shared=shared):
        await line.close()
        raise ConfigError(_TAKEN if shared else _SHARED)
    holding = asyncio.create_task(_hold(url, line, key, shared=shared))
    try:
        yield
    finally:
        holding.cancel()
        with suppress(asyncio.CancelledError):
            await holding


async def _take(line: psycopg.AsyncConnection[Any], key: int, *, shared: bool) -> bool:
    asked = "SELECT pg_try_advisory_lock_shared(%s)" if shared else "SELECT pg_try_advisory_lock(%s)"
    row = await (await line.execute(asked.encode(), (key,))).fetchone()
    return row is not None and bool(row[0])


async def _hold(url: str, line: psycopg.AsyncConnection[Any], key: int, *, shared: bool) -> None:
    """Until cancelled; a line that is lost is made anew."""
    while True:
        try:
            while True:
                await asyncio.sleep(_EVERY)
                async with asyncio.timeout(_EVERY):
                    await line.execute("SELECT 1")
        except (psycopg.Error, OSError, TimeoutError):
            logger.info("the line that holds this process's place on the database is lost; it is made anew")
        finally:
            await line.close()
        line = await _renewed(url, key, shared=shared)


async def _renewed(url: str, key: int, *, shared: bool) -> psycopg.AsyncConnection[Any]:
    while True:
        with suppress(psycopg.Error, OSError, TimeoutError):
            line = await psycopg.AsyncConnection.connect(url, **LINE)
            if await _take(line, key, shared=shared):
                return line
            await line.close()
            logger.error("this process has lost its place on the database: %s", _TAKEN if shared else _SHARED)
        await asyncio.sleep(_EVERY)
