"""Runs turns in forked processes that are killed at a chosen point, and goes on with them in others.

A script of its own: it imports once and forks for each case, before any thread is started. The world outside is a file
to which tools append, so that what really happened can be counted. Prints one JSON line per case.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atlas_agents import Agent, Atlas, ToolCall, tool
from atlas_agents.core.store import Write
from atlas_agents.engine.run import Run
from atlas_agents.stores.sqlite import SqliteStore
from atlas_agents.testing import Reply, Scripted, calls, says
from atlas_agents.tools.journal import Journal
from atlas_agents.tools.tool import Effect, Tool

SCRIPTS: dict[str, list[Reply]] = {
    "text": [says("Just words.")],
    "one call": [calls("unsafe", n=1), says("Done.")],
    "pure and keyed": [calls("pure", n=1) + calls("keyed", n=2), says("Done.")],
    "three rounds": [
        calls("unsafe", n=1),
        calls("unsafe", n=2) + calls("keyed", n=3),
        says("And now ") + calls("pure", n=4),
        says("Done."),
    ],
}


class Bomb:
    """Kills this process when it has been passed so many times; 0 never does."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.passed = 0

    def here(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class FragileStore(SqliteStore):
    """A real store that may be killed right before and right after each commit."""

    def __init__(self, path: Path, bomb: Bomb) -> None:
        super().__init__(path)
        self._bomb = bomb

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        self._bomb.here()
        results = await super().commit(tenant, writes)
        self._bomb.here()
        return results


def tools(world: Path, bomb: Bomb) -> list[Tool]:
    def make(effect: Effect) -> Tool:
        async def act(n: int) -> str:
            """Change the world."""
            bomb.here()
            with world.open("a") as file:
                file.write(f"{effect} {n}\n")
            bomb.here()
            return f"did {n}"

        return tool(name=effect, effect=effect)(act)

    return [make(effect) for effect in ("pure", "keyed", "unsafe")]


async def live(folder: Path, script: str, bomb: Bomb, *, first: bool) -> dict[str, Any]:
    """One life of the process: begin the turn or go on with it, and say how things stand."""
    store = FragileStore(folder / "atlas.db", bomb)
    await store.open()
    done = sum(1 for row in await _rows(store, folder) if row.kind == "reply")
    model = Scripted(*SCRIPTS[script][done:], says("spare"))
    atlas = Atlas([Agent("a", model=model, tools=tools(folder / "world", bomb))], store=store)
    if first:
        stream = atlas.send("go", session="s")
        (folder / "run").write_text(stream.stream_id)
        await stream.reply()
        bomb.here()
    else:
        for stream in await atlas.recover():
            await stream.reply()
    report = await _report(store, atlas)
    await atlas.close()
    await store.close()
    return report


async def _rows(store: SqliteStore, folder: Path) -> Sequence[Any]:
    known = folder / "run"
    return await store.journal("default", known.read_text()) if known.exists() else []


async def _report(store: SqliteStore, atlas: Atlas) -> dict[str, Any]:
    from atlas_agents import Message, verify

    messages = [Message.from_json(row.body) for row in await store.messages("default", "s")]
    results = [result for message in messages for result in message.tool_results]
    runs = await store.runs("default", "s")
    records = list(await atlas.audit.records("default"))
    return {
        "roles": [message.role for message in messages],
        "calls": [call.id for message in messages for call in message.tool_calls],
        "answered": [result.call_id for result in results],
        "statuses": [result.status for result in results],
        "runs": [run.status for run in runs],
        "open": len(await store.open_runs()),
        "audited": [record.entry.meta["call_id"] for record in records],
        "chain": verify(records),
        "last": messages[-1].text if messages else "",
    }


def fork(folder: Path, script: str, at: int, *, first: bool) -> tuple[bool, int]:
    """(killed, points passed) of one life in a process of its own; its report lies in the folder."""
    pid = os.fork()
    if pid == 0:
        bomb = Bomb(at)
        code = 1
        try:
            report = asyncio.run(live(folder, script, bomb, first=first))
            (folder / "report").write_text(json.dumps(report))
            (folder / "passed").write_text(str(bomb.passed))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True, at
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{script} at {at}: the process failed, see above")
    return False, int((folder / "passed").read_text())


def case(base: Path, script: str, bombs: tuple[int, ...]) -> dict[str, Any]:
    """Killed at each of these points in turn, then left to end in peace."""
    folder = base / f"{script}-{'-'.join(map(str, bombs))}"
    folder.mkdir(parents=True)
    first, killed = True, list[int]()
    for at in (*bombs, 0):
        dead, _ = fork(folder, script, at, first=first)
        if not dead:
            break
        killed.append(at)
        first = first and not _accepted(folder)
    report: dict[str, Any] = json.loads((folder / "report").read_text())
    world = (folder / "world").read_text().split("\n")[:-1] if (folder / "world").exists() else []
    return {"script": script, "killed": killed, "world": world, **report}


def _accepted(folder: Path) -> bool:
    """Whether the turn was taken in before the kill; if not, the client sends it again."""
    import sqlite3

    with sqlite3.connect(folder / "atlas.db") as database:
        try:
            return database.execute("select count(*) from runs").fetchone()[0] > 0
        except sqlite3.OperationalError:
            return False


async def _nothing(*_: object) -> None:
    """Stands where something should have been written."""


def _never(*_: object) -> bool:
    return False


def _settled_only(journal: Journal, call: ToolCall, **_: object) -> bool:
    return journal.outcome(call) is not None


SEEDS: dict[str, list[tuple[type, str, object]]] = {
    "": [],
    "no intent is written": [(Journal, "intend", _nothing)],
    "a run that goes on names its own messages anew": [(Run, "add_own", Run.add)],
    "an intent without outcome is tried again": [
        (Journal, "intended", _never),
        (Journal, "settled_before", _settled_only),
    ],
    "the turn ends before its end is written": [(Run, "end", _nothing)],
}
"""Promises to break, so that it can be seen that the checks would notice."""


def main() -> None:
    base, doubles = Path(sys.argv[1]), int(sys.argv[2])
    for owner, name, broken in SEEDS[sys.argv[3] if len(sys.argv) > 3 else ""]:
        setattr(owner, name, broken)
    tools(base / "warm", Bomb(0))  # what a first tool imports is imported once, not in every child
    for script in SCRIPTS:
        folder = base / f"{script}-plain"
        folder.mkdir(parents=True)
        _, points = fork(folder, script, 0, first=True)
        pairs = [(at,) for at in range(1, points + 1)]
        seconds = [(at, again) for at in range(1, points + 1, 2) for again in range(1, points + 1, 3)]
        for bombs in (*pairs, *(seconds[:: max(1, len(seconds) // doubles)] if doubles else ())):
            print(json.dumps(case(base, script, bombs)), flush=True)


if __name__ == "__main__":
    main()
