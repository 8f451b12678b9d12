"""Where things are kept: one port (`core.store`), and memory, SQLite and Postgres behind it.

Import the store that is needed from its own module; Postgres needs the extra `postgres`.
"""
