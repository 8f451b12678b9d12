"""Child process: commits concurrently until it is killed, and prints each number after its commit returned."""

import asyncio
import sys

from store_helpers import TENANT

from atlas_agents.core.store import AddAudit, AddMessage, PutSession
from atlas_agents.storage.sqlite import SqliteStore


async def main(path: str) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.commit(TENANT, [PutSession("s")])
    numbers = iter(range(1_000_000))

    async def one() -> None:
        for n in numbers:
            body = b"%d" % n
            await store.commit(TENANT, [AddMessage("s", str(n), body), AddAudit(body)])
            sys.stdout.write(f"{n}\n")
            sys.stdout.flush()

    await asyncio.gather(*(one() for _ in range(8)))


asyncio.run(main(sys.argv[1]))
