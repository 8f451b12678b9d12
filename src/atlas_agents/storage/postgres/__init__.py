"""Postgres: a store that several processes share."""

from atlas_agents.storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
