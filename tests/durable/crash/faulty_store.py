"""SQLite store with fault points around commits and inside transactions."""

import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

from atlas_agents.core.store import AddJournal, Write
from atlas_agents.storage.sql.tables import Query, Row
from atlas_agents.storage.sqlite import SqliteStore
from crash.fault_points import in_sql, in_store
from crash.process_state import STATE

Commit: TypeAlias = Callable[[str, Sequence[Write]], Awaitable[list[Any]]]
_WRITER = "atlas-sqlite-writer"
_CHANGES = ("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT", "CREATE", "ALTER", "DROP")


class FaultyStore(SqliteStore):
    """A real store with a fault point before and after each commit, and before each read."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        return await commit_with_faults(super().commit, tenant, writes)

    async def fetch(self, query: Query) -> list[Row]:
        in_store(STATE.points.hit("read"))
        return await super().fetch(query)


class FaultyConnection(sqlite3.Connection):
    """A connection with a fault point before each writing statement and each COMMIT of the writer thread."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        point = _find_point(sql)
        if point and not STATE.opening and threading.current_thread().name == _WRITER:
            in_sql(STATE.points.hit(point))
        return super().execute(sql, *values)


@cache
def _find_point(sql: str) -> str:
    """Return the point before a statement; empty for one that does not write."""
    verb, *texts = sql.split(None, 3)
    table = texts[verb != "UPDATE"] if len(texts) > 1 else ""
    return f"sql {verb} {table}".strip() if verb in _CHANGES else ""


async def commit_with_faults(commit: Commit, tenant: str, writes: Sequence[Write]) -> list[Any]:
    """Commit between two fault points, which are named by the journal step, or by the last write."""
    steps = [write.kind for write in writes if isinstance(write, AddJournal)]
    label = steps[0] if steps else type(writes[-1]).__name__
    in_store(STATE.points.hit(f"commit before {label}"))
    results = await commit(tenant, writes)
    in_store(STATE.points.hit(f"commit after {label}"))
    return results


def install_faults() -> None:
    """Give every SQLite connection of this process fault points."""
    sqlite3.connect = partial(sqlite3.connect, factory=FaultyConnection)  # pyrefly: ignore[bad-assignment] - patched
