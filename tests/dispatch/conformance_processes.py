"""Processes of a dispatcher under test, to be killed, stopped or suspended: one for `inline`, several for a cluster."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import msgspec
from crash.evidence_log import read
from processes import Process

import fork_server
from checks import TIMEOUT, wait_until

HERE = Path(__file__).parent
"""Seconds; exceeded only by a defect."""


class DispatcherSetup(msgspec.Struct, frozen=True):
    """Configuration of a dispatcher. `where` is a SQLite file or a Postgres URL."""

    where: str
    home: Path
    inline: bool = True
    schema: str = "atlas"
    heartbeat_timeout: float = 3.0
    poison: bool = False


class ProcessGroup:
    """All processes in start order. An inline process is replaced when it ends, as a supervisor would; in a cluster the
    others continue."""

    def __init__(self, setup: DispatcherSetup) -> None:
        self.setup = setup
        self.all: list[tuple[str, Process]] = []

    async def start(self, role: str) -> Process:
        """Start a process; AssertionError with its log if it ends before it is ready."""
        s = self.setup
        paths = os.pathsep.join([str(HERE), *sys.path])
        command = [str(HERE / "conformance_process.py"), role, s.where, str(s.home), s.schema, str(s.heartbeat_timeout)]
        log = s.home / f"{role}-{len(os.listdir(s.home))}.log"
        with log.open("w") as file:
            environ = {**os.environ, "PYTHONPATH": paths}
            process = await fork_server.start(*command, "poison" if s.poison else "", stderr=file, env=environ)
        member = Process(process, 0, s.home)
        self.all.append((role, member))
        line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT)
        assert line, log.read_text()[-4000:]
        member.port = int(line)
        return member

    def any_gateway(self) -> Process:
        """Return a random gateway that is running."""
        if not self.gateways:
            raise ConnectionRefusedError("no gateway is there at the moment")
        return random.choice(self.gateways)

    @property
    def gateways(self) -> list[Process]:
        """The gateways that are running and not suspended."""
        return [member for role, member in self.all if role != "worker" and member.port and not member.ended]

    @property
    def alive(self) -> list[tuple[str, Process]]:
        return [(role, member) for role, member in self.all if not member.ended]

    def suspend(self, member: Process) -> None:
        """Suspend a process, so that it looks dead."""
        member.port = 0
        os.kill(member.pid, signal.SIGSTOP)

    def effects(self) -> list[tuple[int, str]]:
        """Return the side effects so far, each with the process that did it."""
        return [(entry.process, entry.name) for entry in read(self.setup.home / "world") if entry.what == "effect"]

    async def wait_for_effects(self, count: int, name: str = "") -> Process:
        """Wait for this many side effects, and return the running process that did the last one."""

        async def enough_effects() -> Process | None:
            found = [process for process, what in self.effects() if name in ("", what)]
            alive = {member.pid: member for _, member in self.alive}
            return alive.get(found[-1]) if len(found) >= count else None

        return await wait_until(enough_effects)

    async def kill(self, member: Process) -> None:
        """Kill a process; an inline one is replaced."""
        await member.kill()
        await self._replace_inline()

    async def stop(self, member: Process) -> int:
        """Stop a process gracefully and return its exit code; an inline one is replaced."""
        code = await member.stop()
        await self._replace_inline()
        return code

    async def _replace_inline(self) -> None:
        if self.setup.inline:
            await self.start("alone")

    async def replace_dead(self) -> None:
        """Restart processes that end, until cancelled."""
        replaced: set[int] = set()
        while True:
            for role, member in list(self.all):
                if member.ended and member.pid not in replaced:
                    replaced.add(member.pid)
                    await self.start(role)
            await asyncio.sleep(0.05)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for _, member in self.alive:
            await member.kill()


@asynccontextmanager
async def start_processes(setup: DispatcherSetup, *roles: str) -> AsyncGenerator[ProcessGroup, None]:
    """Start processes with these roles, the first one before the others to create the schema; inline is one process."""
    async with ProcessGroup(setup) as group:
        if setup.inline:
            await group.start("alone")
        else:
            await group.start(roles[0])
            await asyncio.gather(*(group.start(role) for role in roles[1:]))
        yield group
