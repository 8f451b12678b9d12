"""A signed log tells that rows are missing at the end, or that all hashes were recomputed."""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
from pathlib import Path

from atlas_agents import Agent, Atlas, AuditSigner, SqliteStore, tool
from atlas_agents.testing import Scripted, calls, says

KEY = os.environ.get("AUDIT_KEY", "a key that is not in the database").encode()


@tool
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def main() -> None:
    folder = Path(tempfile.mkdtemp())
    signer = AuditSigner(folder / "heads", KEY, [KEY])
    store = SqliteStore(folder / "shop.db", audit=signer)
    model = Scripted(calls("pay", euros=1) + calls("pay", euros=900), says("Done."))
    await store.open()
    async with Atlas([Agent("shop", model=model, tools=[pay])], store=store) as atlas:
        await atlas.ask("Pay the bills")
        print(await store.verify_audit())

        with contextlib.closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as database:
            database.execute("DELETE FROM audit WHERE seq = 2")
        print(await store.verify_audit())
    await store.close()


asyncio.run(main())
