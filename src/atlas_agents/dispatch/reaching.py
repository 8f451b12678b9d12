"""Reaching Postgres at the start: it may be on its way up, and is waited for then, but not for ever."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from procrastinate.exceptions import ConnectorException

from atlas_agents.core.errors import StoreLost

logger = logging.getLogger(__name__)
T = TypeVar("T")
_LONGEST = 15.0
_PAUSE = 0.5


async def reached(work: Callable[[], Awaitable[T]]) -> T:
    """What it gives, tried again while Postgres cannot be reached. StoreLost if that takes too long."""
    said = "it does not answer"
    try:
        async with asyncio.timeout(_LONGEST):
            while True:
                try:
                    return await work()
                except (psycopg.OperationalError, ConnectorException, OSError) as trouble:
                    said = " ".join(str(trouble.__cause__ or trouble).split())[:200]
                    logger.warning("Postgres cannot be reached, and is waited for: %s", said)
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise StoreLost(f"Postgres could not be reached for {_LONGEST:g} seconds ({said}): see that it runs") from None
