"""Child process: opens a database, whose derived tables are refreshed in the background, and kills itself meanwhile.

Arguments: the database, the Postgres schema, the number of the batch, and the seconds from its start until SIGKILL.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from atlas_agents.core.store import RefreshIndexes, Write
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sql.reads import SqlReads
from atlas_agents.storage.sqlite import SqliteStore

WHERE, SCHEMA = sys.argv[1:3]
LAST, SECONDS = int(sys.argv[3]), float(sys.argv[4])


class Killing(SqlReads):
    """Starts a timer with the last batch."""

    batches = 0

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        self.batches += RefreshIndexes() in writes
        if self.batches == LAST:
            threading.Timer(SECONDS, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return await super().commit(tenant, writes)


class KillingSqlite(Killing, SqliteStore): ...


class KillingPostgres(Killing, PostgresStore): ...


async def main() -> None:
    store = KillingPostgres(WHERE, schema=SCHEMA) if WHERE.startswith("postgresql:") else KillingSqlite(WHERE)
    await store.open()
    await asyncio.Event().wait()


asyncio.run(main())
