"""The database of bench/large.py, on a small scale: its rows are those that the store of this version writes."""

from pathlib import Path

import pytest

from atlas_agents.storage.hash_chain import AuditSigner
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore
from checks import load_benchmark


@pytest.mark.durable
async def test_the_filled_database_is_read_by_the_store(kind: str, location: tuple[str, str], tmp_path: Path) -> None:
    large, (where, _) = load_benchmark("large"), location
    if kind == "sqlite":
        await large.create(where)
    (large.fill_sqlite if kind == "sqlite" else large.fill_postgres)(where, 0.0005)
    signer = AuditSigner(tmp_path / "heads", large.AUDIT_KEY, (large.AUDIT_KEY,))
    store = (SqliteStore if kind == "sqlite" else PostgresStore)(where, audit=signer)
    await store.open()
    try:
        first = large.session_key(0)
        messages = await store.messages("default", first)
        assert [(each.seq, each.id) for each in messages] == [(1, "m0-1"), (2, "m0-2")]
        assert large.RARE in messages[0].body.decode()
        found = await store.message("default", first, "m0-2")
        assert found is not None and found.seq == 2
        matches = (await store.search_sessions("default", large.RARE)).matches
        assert [(each.session, each.seq) for each in matches] == [(first, 1)]
        assert await store.verify_audit("default") is None
    finally:
        await store.close()
