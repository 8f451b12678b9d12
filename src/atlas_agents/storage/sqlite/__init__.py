"""SQLite: stores in a file and in memory, and the files of the first."""

from atlas_agents.storage.sqlite.store import MemoryStore, SqliteStore

__all__ = ["MemoryStore", "SqliteStore"]
