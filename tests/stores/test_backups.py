"""Backup and restore of SQLite, and the documented commands for Postgres."""

import asyncio
import contextlib
import os
import re
import sqlite3
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT, everything, one_of_each

from atlas_agents.core.errors import Conflict, StoreBusy, StoreError
from atlas_agents.core.store import AddAudit, AddMessage, Prune, PutSession, SetRun, Store
from atlas_agents.storage.hash_chain import find_audit_break
from atlas_agents.storage.migrations import schema_version
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.storage.sqlite.files import DatabaseSummary, back_up, inspect, restore


@contextlib.asynccontextmanager
async def open_store(path: Path) -> AsyncGenerator[SqliteStore, None]:
    """A store that is open inside the block."""
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill_database(path: Path, more: int = 0) -> None:
    async with open_store(path) as store:
        await store.commit(TENANT, one_of_each())
        for n in range(more):
            await store.commit(TENANT, [AddMessage("s", f"x{n}", os.urandom(4000))])


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith("-lock")}


async def test_backup_is_complete_a_single_file_and_private(tmp_path: Path) -> None:
    source, target, back = tmp_path / "atlas.db", tmp_path / "copy", tmp_path / "new" / "atlas.db"
    back.parent.mkdir()
    await fill_database(source)
    content = back_up(source, target)
    assert content == DatabaseSummary(schema_version("sqlite"), target.stat().st_size, 1, 1, 1, 1, 1) == inspect(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert files_in(tmp_path) == {"atlas.db", "copy", "new"}
    assert restore(target, back) == (content, None)
    assert stat.S_IMODE(back.stat().st_mode) == 0o600
    async with open_store(source) as one, open_store(back) as other:
        assert await everything(one) == await everything(other)


async def test_backup_during_writes_is_a_consistent_snapshot(tmp_path: Path) -> None:
    source = tmp_path / "atlas.db"
    await fill_database(source, more=400)
    progress: list[tuple[int, int]] = []

    def on_progress(part: int, total: int) -> None:
        progress.append((part, total))

    done = asyncio.Event()

    async def write(store: Store) -> int:
        n = 0
        while not done.is_set() or n < 50:
            await store.commit(TENANT, [AddMessage("s", f"w{n}", os.urandom(2000)), AddAudit(b'{"n":%d}' % n)])
            n += 1
        return n

    async with open_store(source) as store:
        writing = asyncio.create_task(write(store))
        copies = [tmp_path / f"copy{n}" for n in range(3)]
        contents = [await asyncio.to_thread(back_up, source, each, on_progress) for each in copies]
        done.set()
        written = await writing
    assert written >= 50 and progress[-1][0] == progress[-1][1] >= 1_600_000
    for content in contents:
        assert content.broken is None and content.messages - 400 == content.audit
    assert contents[0].audit < contents[-1].audit <= written + 1


async def test_backup_overwrites_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "atlas.db", tmp_path / "copy"
    with pytest.raises(StoreError, match="not found: database"):
        back_up(source, target)
    await fill_database(source)
    target.write_text("mine")
    with pytest.raises(Conflict, match="choose another file"):
        back_up(source, target)
    assert target.read_text() == "mine"
    with pytest.raises(StoreError, match=r"cannot write .*: No such file"):
        back_up(source, tmp_path / "nowhere" / "copy")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE t (x)")
    with pytest.raises(StoreError, match="not a database of Atlas Agents"):
        back_up(tmp_path / "other.db", tmp_path / "copy2")
    assert files_in(tmp_path) == {"atlas.db", "copy", "other.db"}


async def test_restoring_an_incomplete_backup_changes_nothing(tmp_path: Path) -> None:
    source, target, copy = tmp_path / "atlas.db", tmp_path / "new.db", tmp_path / "copy"
    await fill_database(source, more=200)
    content = back_up(source, copy)
    whole = copy.read_bytes()
    wrong = {
        "damaged": whole[: 4096 * 30] + b"\xff" * 4096 * 20 + whole[4096 * 50 :],
        "cut": whole[: len(whole) // 2],
        "no database": b"words" * 1000,
        "empty": b"",
        "newer": whole[:60] + (99).to_bytes(4) + whole[64:],
    }
    for name, damaged in wrong.items():
        copy.write_bytes(damaged)
        with pytest.raises(StoreError) as raised:
            restore(copy, target)
        assert str(copy) in str(raised.value) and "\n" not in str(raised.value), name
        assert not target.exists() and files_in(tmp_path) == {"atlas.db", "copy"}, name
    (tmp_path / "copy-wal").write_bytes(b"more")
    copy.write_bytes(whole)
    with pytest.raises(StoreError, match="part of it is in copy-wal"):
        restore(copy, target)
    (tmp_path / "copy-wal").unlink()
    assert restore(copy, target)[0] == content


async def test_backup_with_a_broken_audit_log_is_restored_only_on_request(tmp_path: Path) -> None:
    source, target, copy = tmp_path / "atlas.db", tmp_path / "new.db", tmp_path / "copy"
    await fill_database(source)
    async with open_store(source) as store:
        await store.commit(TENANT, [AddAudit(b'{"n":2}')])
    with contextlib.closing(sqlite3.connect(source, isolation_level=None)) as other:
        other.execute("UPDATE audit SET entry = '{}' WHERE seq = 2")
    reason = "the audit log of tenant 'acme' is broken at entry 2"
    assert back_up(source, copy).broken == reason
    with pytest.raises(StoreError, match=reason):
        restore(copy, target)
    assert not target.exists()
    assert restore(copy, target, unverified=True)[0].broken == reason


async def test_database_that_is_in_use_or_not_empty_is_not_replaced(tmp_path: Path) -> None:
    source, copy = tmp_path / "atlas.db", tmp_path / "copy"
    await fill_database(source)
    back_up(source, copy)
    async with open_store(source) as store:
        with pytest.raises(StoreBusy, match="in use: stop the gateway first"):
            await asyncio.to_thread(restore, copy, source, replace=True)
        await store.commit(TENANT, [PutSession("later")])
        before = await everything(store)
    with pytest.raises(Conflict, match="not empty: pass --replace"):
        restore(copy, source)
    with pytest.raises(Conflict, match="the database itself"):
        restore(source, source, replace=True)
    async with open_store(source) as store:
        assert await everything(store) == before
    _, old = restore(copy, source, replace=True)
    assert old is not None and old.name.startswith("atlas.db.replaced-")
    async with open_store(old) as was, open_store(source) as now:
        assert await everything(was) == before and await now.session(TENANT, "later") is None


@pytest.mark.parametrize("existing", ["nothing", "empty file", "fresh", "damaged"])
async def test_empty_or_damaged_files_may_be_replaced(existing: str, tmp_path: Path) -> None:
    source, copy, target = tmp_path / "atlas.db", tmp_path / "copy", tmp_path / "target.db"
    await fill_database(source)
    back_up(source, copy)
    if existing == "empty file":
        target.touch()
    elif existing == "fresh":
        async with open_store(target):
            pass
    elif existing == "damaged":
        target.write_bytes(os.urandom(9000))
        with pytest.raises(Conflict, match="--replace"):
            restore(copy, target)
    _, old = restore(copy, target, replace=existing == "damaged")
    assert (old is None) == (existing == "nothing")
    async with open_store(source) as one, open_store(target) as other:
        assert await everything(one) == await everything(other)


def documented_command(title: str) -> str:
    """A command of docs/guide/operations.md."""
    page = (Path(__file__).parents[2] / "docs/guide/operations.md").read_text(encoding="utf-8")
    found = re.search(rf'^```bash title="{title}"\n(.*?)\n```$', page, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


async def test_documented_postgres_dump_and_restore_commands_work(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    one, two = postgres_server.made("one"), postgres_server.made("two")
    store, restored = PostgresStore(one), PostgresStore(two)
    await store.open()
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await asyncio.to_thread(postgres_server.say, documented_command("dump"), one, tmp_path)
    await store.commit(TENANT, [AddAudit(b'{"n":2}')])
    await store.close()
    await asyncio.to_thread(postgres_server.say, documented_command("load"), two, tmp_path)
    await restored.open()
    try:
        assert await everything(restored) == before
        assert find_audit_break(await restored.audit(TENANT)) is None
        await restored.commit(TENANT, [SetRun("r1", 0, "done"), AddAudit(b'{"n":3}')])
        (gone,) = await restored.commit(TENANT, [Prune("events", 1 << 62)])
        assert gone.rows == 2 and [row.seq for row in await restored.audit(TENANT)] == [1, 2]
    finally:
        await restored.close()
