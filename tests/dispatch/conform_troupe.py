"""The processes of a dispatcher under test, and how they are struck: one on `inline`, several on a cluster."""

import asyncio
import os
import random
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Self

import msgspec
from crash.world import read

import fork_server
from checks import until
from gateway.processes import Process

HERE = Path(__file__).parent
READY = 60.0
"""Seconds; reached only by what is broken."""


class Setting(msgspec.Struct, frozen=True):
    """Where a dispatcher works. `where` is a file of SQLite or the address of a database."""

    where: str
    home: Path
    inline: bool = True
    schema: str = "atlas"
    heartbeat_timeout: float = 3.0
    poison: bool = False


class Troupe:
    """All processes, in the order in which they were started. A process that works alone is replaced when it is lost,
    as whoever watches over it would; of a cluster the others go on."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.all: list[tuple[str, Process]] = []

    async def start(self, role: str) -> Process:
        """A new member. AssertionError with its log if it ends before it is ready."""
        s = self.setting
        paths = os.pathsep.join([str(HERE), *sys.path])
        command = [str(HERE / "conform_process.py"), role, s.where, str(s.home), s.schema, str(s.heartbeat_timeout)]
        log = s.home / f"{role}-{len(os.listdir(s.home))}.log"
        with log.open("w") as file:
            environ = {**os.environ, "PYTHONPATH": paths}
            process = await fork_server.start(*command, "poison" if s.poison else "", stderr=file, env=environ)
        member = Process(process, 0, s.home)
        self.all.append((role, member))
        line = await asyncio.wait_for(process.stdout.readline(), READY)
        assert line, log.read_text()[-4000:]
        member.port = int(line)
        return member

    def front(self) -> Process:
        """One that takes messages in."""
        found = [member for role, member in self.all if role != "worker" and member.port and not member.ended]
        if not found:
            raise ConnectionRefusedError("no gateway is there at the moment")
        return random.choice(found)

    @property
    def living(self) -> list[tuple[str, Process]]:
        return [(role, member) for role, member in self.all if not member.ended]

    async def freeze(self, member: Process) -> None:
        """Stop one, so that it looks dead, and nobody talks to it any more. Not while it holds the lock of a file: that
        would stop the others, too."""
        member.port = 0
        os.kill(member.pid, signal.SIGSTOP)
        while self._locked():
            os.kill(member.pid, signal.SIGCONT)
            await asyncio.sleep(0.01)
            os.kill(member.pid, signal.SIGSTOP)

    def _locked(self) -> bool:
        if self.setting.where.startswith("postgresql:"):
            return False
        with closing(sqlite3.connect(self.setting.where, timeout=0, isolation_level=None)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
                database.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return True
        return False

    def effects(self) -> list[tuple[int, str]]:
        """What has happened, and in which process."""
        return [(note.life, note.name) for note in read(self.setting.home / "world") if note.what == "effect"]

    async def happened(self, count: int, name: str = "") -> Process:
        """Who did it, as soon as so much has happened, and that one is still there."""

        async def enough() -> Process | None:
            found = [life for life, what in self.effects() if name in ("", what)]
            living = {member.pid: member for _, member in self.living}
            return living.get(found[-1]) if len(found) >= count else None

        return await until(enough, patience=READY)

    async def lose(self, member: Process) -> None:
        """Kill one, and have it replaced if nobody else is left."""
        await member.kill()
        await self._fill_up()

    async def end(self, member: Process) -> int:
        """Ask one to end, and have it replaced if nobody else is left; its exit code."""
        code = await member.stop()
        await self._fill_up()
        return code

    async def _fill_up(self) -> None:
        if self.setting.inline:
            await self.start("alone")

    async def replace_the_dead(self) -> None:
        """Until cancelled: whoever ends is started again."""
        replaced: set[int] = set()
        while True:
            for role, member in list(self.all):
                if member.ended and member.pid not in replaced:
                    replaced.add(member.pid)
                    await self.start(role)
            await asyncio.sleep(0.05)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *how: object) -> None:
        for _, member in self.living:
            await member.kill()


@asynccontextmanager
async def troupe(setting: Setting, *roles: str) -> AsyncGenerator[Troupe, None]:
    """All of them, ready; the first one makes the schema. What works alone is one process whatever the roles."""
    async with Troupe(setting) as here:
        if setting.inline:
            await here.start("alone")
        else:
            await here.start(roles[0])
            await asyncio.gather(*(here.start(role) for role in roles[1:]))
        yield here
