"""Child process: fills the disk or the database, frees some space, and prints one line of JSON about what it saw.

fill_disk.py limit PATH     no file of this process may grow beyond 600 KB
fill_disk.py disk PATH      fill the disk; deleting a ballast file next to the database frees space
"""

import asyncio
import contextlib
import json
import resource
import sqlite3
import sys
from pathlib import Path
from typing import Any

from store_helpers import TENANT, outcomes

from atlas_agents.core.errors import StoreFull
from atlas_agents.core.store import AddAudit, AddMessage, PutSession
from atlas_agents.storage.hash_chain import find_audit_break
from atlas_agents.storage.sqlite import SqliteStore

_, HARD = resource.getrlimit(resource.RLIMIT_FSIZE)


def take_space(mode: str, path: Path) -> None:
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, HARD))
    else:
        path.with_name("ballast").write_bytes(bytes(1_000_000))


def free_space(mode: str, path: Path) -> None:
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (HARD, HARD))
    else:
        path.with_name("ballast").unlink()


async def fill(store: SqliteStore) -> int:
    """The number of commits before one failed."""
    for committed in range(100_000):
        try:
            await store.commit(TENANT, [AddMessage("s", f"{committed}", b"x" * 1000), AddAudit(b"%d" % committed)])
        except StoreFull:
            return committed
    raise AssertionError("it was never full")


async def main(mode: str, path: Path) -> dict[str, Any]:
    store = SqliteStore(path)
    await store.open()
    await store.commit(TENANT, [PutSession("s")])
    take_space(mode, path)
    committed = await fill(store)
    read = len(await store.messages(TENANT, "s")), len(await store.audit(TENANT))
    _, refused = await outcomes(store.commit(TENANT, [AddMessage("s", f"big{n}", b"x" * 99_999)]) for n in range(5))
    free_space(mode, path)
    (message,) = await store.commit(TENANT, [AddMessage("s", "last", b"x" * 99_999)])
    chain = find_audit_break(await store.audit(TENANT))
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (integrity,) = connection.execute("PRAGMA integrity_check").fetchone()
    return {
        "kept": committed,
        "read": read,
        "refused": [f"{type(error).__name__}: {error}" for error in refused],
        "last": message.seq,
        "broken": chain,
        "integrity": integrity,
    }


print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
