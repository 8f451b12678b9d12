"""Who is a member of a cluster: every process says so every two seconds, and how it stands, in one row of its own."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import LiteralString

import msgspec

from atlas_agents.core.ids import new_id
from atlas_agents.dispatch.queue import ConnectorException, Queue

logger = logging.getLogger(__name__)
BEAT = 2.0
_KEPT = 3600.0
"""Seconds for which a member that is not heard of any more is remembered."""
_LEAVING = 2.0
_BEAT = """
INSERT INTO cluster_members
    (id, tenant, role, host, pid, door, version, since, seen, worker, capacity, backend, draining)
VALUES (%(id)s, %(tenant)s, %(role)s, %(host)s, %(pid)s, %(door)s, %(version)s,
    now() - make_interval(secs => %(age)s), now(), %(worker)s, %(capacity)s, %(backend)s, %(draining)s)
ON CONFLICT (id) DO UPDATE SET seen = now(), worker = excluded.worker, capacity = excluded.capacity,
    backend = excluded.backend, draining = excluded.draining"""
_TABLE = """
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(1096043601);
    IF to_regclass('cluster_members') IS NULL THEN
        CREATE UNLOGGED TABLE cluster_members (
            id text PRIMARY KEY, tenant text NOT NULL, role text NOT NULL, host text NOT NULL, pid integer NOT NULL,
            door text NOT NULL, version text NOT NULL, since timestamptz NOT NULL, seen timestamptz NOT NULL,
            worker bigint, capacity integer NOT NULL, backend integer, draining boolean NOT NULL);
    END IF;
END $$"""
"""Every member writes its row every two seconds, and anew after a crash of the server: it needs no place in the log."""
_FORGET = "DELETE FROM cluster_members WHERE seen < now() - make_interval(secs => %(kept)s)"
_LEAVE = "DELETE FROM cluster_members WHERE id = %(id)s"


class Standing(msgspec.Struct, frozen=True):
    """How a member stands: its number in the queue and the turns that it has at hand at most, if it works, and whether
    it takes no more. `backend` is the process of Postgres at the other end of the line by which it leads."""

    worker: int | None = None
    capacity: int = 0
    backend: int | None = None
    draining: bool = False


class Roster:
    """This process's row in it. A database that is away, or has lost the row, hears of this process when it is back."""

    def __init__(self, queue: Queue, tenant: str, standing: Callable[[], Standing]) -> None:
        self._queue = queue
        self._standing = standing
        self._changed = asyncio.Event()
        self._there = asyncio.Event()
        self._begun = time.monotonic()
        self._who = {"id": new_id(), "tenant": tenant, "host": socket.gethostname(), "pid": os.getpid()}
        self._who |= {"version": version("atlas-agents"), "role": "worker", "door": ""}

    async def seen(self) -> None:
        """Wait until others can see this process, or for a moment if the database does not take it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(BEAT):
                await self._there.wait()

    def tell(self) -> None:
        """Something has changed that others should see now."""
        self._changed.set()

    async def run(self, role: str, door: str) -> None:
        """Until cancelled."""
        self._who |= {"role": role, "door": door}
        self._begun = time.monotonic()
        made = False
        while True:
            self._changed.clear()
            made = made or (await self._say(_TABLE) and await self._say(_FORGET, kept=_KEPT))
            if made:
                age = time.monotonic() - self._begun
                if await self._say(_BEAT, age=age, **self._who, **msgspec.structs.asdict(self._standing())):
                    self._there.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT):
                    await self._changed.wait()

    async def leave(self) -> None:
        """Be a member no more, if the database can be told."""
        try:
            async with asyncio.timeout(_LEAVING):
                await self._say(_LEAVE, id=self._who["id"])
        except TimeoutError:
            logger.info("others will take this process for lost: the database does not answer")

    async def _say(self, statement: LiteralString, **values: object) -> bool:
        try:
            await self._queue.execute(statement, **values)
        except ConnectorException as trouble:
            logger.info("others cannot see how this process stands: %s", trouble.__cause__ or trouble)
            return False
        return True
