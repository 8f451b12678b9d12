"""Write the stores of tests/data: `python tests/stores/write_data.py`.

Until 0.1.0 is tagged, run it after each change of a schema or of a stored form; see docs/design/compatibility.md.
"""

import asyncio
import contextlib
import re
import sqlite3
import struct
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from postgres_server import PostgresServer
from store_helpers import TENANT, one_of_each

from atlas_agents import Agent, Atlas, AtlasStream, PostgresStore, SqliteStore, Tool, tool
from atlas_agents.core.store import (
    AddUsage,
    BudgetLimit,
    Document,
    Passage,
    PutDocument,
    PutSession,
    RefreshIndexes,
    ReserveBudget,
    Store,
    UsageRow,
    Write,
)
from atlas_agents.storage.sqlite.files import back_up
from atlas_agents.testing import Scripted, calls, says

DATA = Path(__file__).parents[1] / "data"
VECTOR = struct.pack("<3e", 0.0, 0.6, 0.8)
MODEL = "lamp"
_COMMENT = re.compile(r"--( (Name|PostgreSQL database dump|Dumped (from|by)).*)?")


class Pausing(Scripted):
    """A model that never ends its last reply."""

    paused = asyncio.Event()

    async def stream(self, request: Any) -> AsyncGenerator[Any, None]:
        async for chunk in super().stream(request):
            if len(self.requests) == len(self._replies) and chunk.__class__.__name__ == "DoneChunk":
                self.paused.set()
                await asyncio.Event().wait()
            yield chunk


def tools(actions: list[str], paused: asyncio.Event | None = None) -> list[Tool]:
    """Tools that note what they do. The last two do not end before the process does if there is an event to set."""

    async def act_on(what: str, n: int) -> str:
        actions.append(f"{what} {n}")
        if paused is not None and what != "look":
            paused.set()
            await asyncio.Event().wait()
        return f"{what} {n}: done"

    @tool(effect="pure")
    async def look(n: int) -> str:
        """Look."""
        return await act_on("look", n)

    @tool(effect="keyed")
    async def write(n: int) -> str:
        """Write under a key."""
        return await act_on("write", n)

    @tool(effect="unsafe")
    async def act(n: int) -> str:
        """Act."""
        return await act_on("act", n)

    return [look, write, act]


def rows() -> list[Write]:
    """Writes that, with the turns, touch every table and every kind of row."""
    document = Document("knowledge", "d1", "handbook", "/lamps.md", title="Lamps", hash="h", model=MODEL)
    passages = (Passage("Lamps", "A lamp gives light.", "1", VECTOR), Passage("", "No vector."))
    budget = BudgetLimit("day", "2026-11-15", (100,))
    return [
        *one_of_each(),
        PutSession("@ann/notes", "a", "Notes", metadata={"branch": {"root": "s"}}),
        AddUsage(UsageRow("2026-01-02", "@ann/notes", "a", "m", 1, 2, 3, 4, 1, 5, 6, 7)),
        PutDocument(document, passages),
        ReserveBudget("r1", (budget,), (5, 1, 0, 7, 0)),
    ]


async def fill(store: Store, copy: Any) -> None:
    """Store rows and four turns, the last three unfinished; call a function while these are running."""
    await store.commit(TENANT, rows())
    paused = asyncio.Event()
    model = Pausing(calls("look", n=1), says("Whole."), calls("act", n=2), calls("write", n=3), says("Before."))
    model.paused = paused
    async with Atlas([Agent("a", model=model, tools=tools([], paused))], store=store) as atlas:
        await atlas.ask("hello", session="whole")
        streams = list[AtlasStream]()
        for session in ("in a call", "in a keyed call", "while speaking"):
            paused.clear()
            streams.append(atlas.send("hello", session=session))
            await paused.wait()
        for tenant in (TENANT, "default"):
            while await store.commit(tenant, [RefreshIndexes()]) != [0]:
                pass
        await asyncio.to_thread(copy)
        for stream in streams:
            await atlas.cancel(stream.stream_id)


def dump_sqlite(path: Path) -> Iterator[str]:
    """Yield the statements that create the database. The full-text indexes are built from the tables."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        for name in ("application_id", "user_version"):
            yield f"PRAGMA {name} = {database.execute(f'PRAGMA {name}').fetchone()[0]}"
        found = database.execute("SELECT type, name, sql FROM sqlite_master WHERE sql <> '' ORDER BY rowid").fetchall()
        words = [name for _, name, sql in found if sql.startswith("CREATE VIRTUAL")]
        kept = [each for each in found if not each[1].startswith(("sqlite_", *(f"{name}_" for name in words)))]
        yield from (sql for kind, _, sql in kept if kind == "table")
        for kind, name, _ in kept:
            if kind == "table" and name not in words:
                columns = [column for _, column, *_ in database.execute(f"PRAGMA table_info({name})")]
                quoted = ", ".join(f"quote({column})" for column in columns)
                for row in database.execute(f"SELECT {quoted} FROM {name}").fetchall():
                    yield f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join(row)})"
        yield from (f"INSERT INTO {name} ({name}) VALUES ('rebuild')" for name in words)
        yield from (sql for kind, _, sql in kept if kind != "table")


def dump_postgres(server: PostgresServer) -> Iterator[str]:
    """Yield the lines of a dump, without its comments and settings."""
    options = ["--inserts", "--no-owner", "--schema=atlas", server.url]
    done = subprocess.run([server.program("pg_dump"), *options], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        if (
            line
            and not _COMMENT.fullmatch(line)
            and not line.startswith(("SET ", "\\", "SELECT pg_catalog.set_config"))
        ):
            yield line


async def write_sqlite() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(f"{folder}/atlas.db")
        await store.open()
        await fill(store, lambda: back_up(store.path, Path(folder) / "copy.db"))
        await store.close()
        statements = dump_sqlite(Path(folder) / "copy.db")
        (DATA / "sqlite.sql").write_text("".join(f"{each};\n" for each in statements), encoding="utf-8")


async def write_postgres() -> None:
    with PostgresServer() as server:
        store = PostgresStore(server.url)
        await store.open()
        lines = list[str]()
        await fill(store, lambda: lines.extend(dump_postgres(server)))
        await store.close()
        (DATA / "postgres.sql").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    asyncio.run(write_sqlite())
    asyncio.run(write_postgres())
