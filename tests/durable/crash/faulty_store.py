"""Where the points stand: around the store's one verb that writes, and inside of the transactions themselves."""

import sqlite3
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from atlas_agents.core.store import AddJournal, Write
from atlas_agents.storage.sql.query import Query, Row
from atlas_agents.storage.sqlite import SqliteStore
from crash.fault_points import in_sql, in_store
from crash.process_state import STATE

_WRITER = "atlas-sqlite-writer"
_CHANGES = ("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT", "CREATE", "ALTER", "DROP")


class FaultyStore(SqliteStore):
    """A real store with a point before and after each commit, and before each read."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        label = commit_label(writes)
        in_store(STATE.points.hit(f"commit before {label}"))
        results = await super().commit(tenant, writes)
        in_store(STATE.points.hit(f"commit after {label}"))
        return results

    async def fetch(self, query: Query) -> list[Row]:
        in_store(STATE.points.hit("read"))
        return await super().fetch(query)


class FaultyConnection(sqlite3.Connection):
    """A connection with a point before each statement of the writer that changes something, and before each COMMIT.

    Before a SELECT or a savepoint the file is as it was at the point before: those have none.
    """

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if threading.current_thread().name != _WRITER or STATE.opening:
            return super().execute(sql, *values)
        verb, *texts = sql.split(None, 3)
        if verb in _CHANGES:
            table = texts[verb != "UPDATE"] if len(texts) > 1 else ""
            in_sql(STATE.points.hit(f"sql {verb} {table}".strip()))
        return super().execute(sql, *values)


def commit_label(writes: Sequence[Write]) -> str:
    """What a commit is about: the step of the journal that it carries, or else its last write."""
    steps = [write.kind for write in writes if isinstance(write, AddJournal)]
    return steps[0] if steps else type(writes[-1]).__name__


def install_faults() -> None:
    """From here on every connection of this process to SQLite is a pointed one."""
    sqlite3.connect = partial(sqlite3.connect, factory=FaultyConnection)
