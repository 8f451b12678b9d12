"""Stores behind the port in `core.store`: in memory, SQLite and Postgres.

Import a store from its own module. Postgres needs the extra `postgres`.
"""
