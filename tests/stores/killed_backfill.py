"""Child process: opens a database, whose derived tables are refreshed in the background, and kills itself meanwhile.

Arguments: the database, the Postgres schema, the number of the batch, and the seconds from its start until SIGKILL.
"""

import asyncio
import itertools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from atlas_agents.core.store import RefreshIndexes, Write
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sql import reads
from atlas_agents.storage.sqlite import SqliteStore

WHERE, SCHEMA = sys.argv[1:3]
LAST, SECONDS = int(sys.argv[3]), float(sys.argv[4])


_batches = itertools.count(1)


def count_batch(writes: Sequence[Write]) -> None:
    """Start a timer with the last batch."""
    if RefreshIndexes() in writes and next(_batches) == LAST:
        threading.Timer(SECONDS, os.kill, (os.getpid(), signal.SIGKILL)).start()


class KilledSqlite(SqliteStore):
    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        count_batch(writes)
        return await super().commit(tenant, writes)


class KilledPostgres(PostgresStore):
    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        count_batch(writes)
        return await super().commit(tenant, writes)


async def main() -> None:
    setattr(reads, "_REFRESH_DELAY", 0.0)  # noqa: B010 - it is another module's
    store = KilledPostgres(WHERE, schema=SCHEMA) if WHERE.startswith("postgresql:") else KilledSqlite(WHERE)
    await store.open()
    await asyncio.Event().wait()


asyncio.run(main())
