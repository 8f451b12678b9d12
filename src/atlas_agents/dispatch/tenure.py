"""Who works on a database: one process alone, or the members of one cluster. Postgres keeps the two apart."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg

from atlas_agents.core.errors import ConfigError
from atlas_agents.dispatch.bus import LINE
from atlas_agents.dispatch.reaching import reached

logger = logging.getLogger(__name__)
_EVERY = 5.0
_PATIENCE = 3.0
"""Seconds for which a place is waited for: the server needs a moment to see that who had it was killed."""
_LOOK = 0.2
_WATCHED = """SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
set_config('tcp_keepalives_count', '5', false)"""
"""The server finds out by itself that a machine is gone; by its own settings that takes it two hours."""
_TAKEN = "another Atlas works alone on this database: end it, or start all of them with --role"
_SHARED = "a cluster works on this database: use one of its gateways, or start this one with --role"


@asynccontextmanager
async def tenure(url: str, *, shared: bool, schema: str = "atlas", tenant: str = "default") -> AsyncGenerator[None]:
    """Work on a database as long as the block lasts, with others who share it, or alone. ConfigError if that cannot be:
    who works alone takes every open turn for one that was cut short."""
    key = int.from_bytes(hashlib.sha256(f"tenure\0{schema}\0{tenant}".encode()).digest()[:8], signed=True)
    line = await reached(lambda: _taken(url, key, shared=shared, patience=_PATIENCE))
    if line is None:
        raise ConfigError(_TAKEN if shared else _SHARED)
    holding = asyncio.create_task(_hold(url, line, key, shared=shared))
    try:
        yield
    finally:
        holding.cancel()
        with suppress(asyncio.CancelledError):
            await holding


async def _taken(url: str, key: int, *, shared: bool, patience: float = 0.0) -> psycopg.AsyncConnection[Any] | None:
    """A line that holds the place; None if others have it, also after a while."""
    line = await psycopg.AsyncConnection.connect(url, **LINE)
    try:
        await line.execute(_WATCHED)
        asked = "SELECT pg_try_advisory_lock_shared(%s)" if shared else "SELECT pg_try_advisory_lock(%s)"
        end = time.monotonic() + patience
        while True:
            row = await (await line.execute(asked.encode(), (key,))).fetchone()
            if row is not None and row[0]:
                return line
            if time.monotonic() >= end:
                break
            await asyncio.sleep(_LOOK)
    except BaseException:
        await line.close()
        raise
    await line.close()
    return None


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
            line = await _taken(url, key, shared=shared)
            if line is not None:
                return line
            logger.error("this process has lost its place on the database: %s", _TAKEN if shared else _SHARED)
        await asyncio.sleep(_EVERY)
