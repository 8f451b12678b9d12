"""SQLite: crashes, full disks, locks held by other processes, and files that must not be changed."""

import asyncio
import contextlib
import errno
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
from sql_texts import COMMON, SQLITE, sqlite_parts
from store_helpers import TENANT, everything, one_of_each, outcomes

from atlas_agents import Agent, Atlas, tool
from atlas_agents.core.errors import Conflict, NotFound, StaleOwner, StoreBusy, StoreError, StoreFull
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJournal,
    AddMessage,
    ClaimRun,
    DropMessages,
    PutSession,
    ReserveEvents,
    SetRun,
)
from atlas_agents.storage.hash_chain import find_audit_break, find_journal_break
from atlas_agents.storage.migrations import schema_version
from atlas_agents.storage.sql import derived_statements
from atlas_agents.storage.sql.tables import Query, Row
from atlas_agents.storage.sqlite import SqliteStore, statements
from atlas_agents.testing import Scripted, calls, says
from checks import TIMEOUT, monitor_loop

HERE = Path(__file__).parent


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    yield store
    await store.close()


async def open_error(path: Path, *, must_exist: bool = False) -> str:
    """The error for a rejected file, which must be unchanged and have no side files."""
    before = {file: file.read_bytes() for file in path.parent.glob("*") if file.is_file()}
    with pytest.raises(StoreError) as raised:
        await SqliteStore(path, must_exist=must_exist).open()
    assert {file: file.read_bytes() for file in path.parent.glob("*") if file.is_file()} == before
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    return str(raised.value)


async def create_database(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.commit(TENANT, [*one_of_each(), *(AddAudit(b"x" * 500) for _ in range(100))])
    await store.close()


def modified(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


async def test_new_database_is_private_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "atlas.db"
    store = SqliteStore(path)
    await store.open()
    await store.commit(TENANT, [AddAudit(b"")])
    found = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    await store.close()
    assert found == {"atlas.db": 0o600, "atlas.db-wal": 0o600, "atlas.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("round", range(5))
async def test_acknowledged_commits_survive_kill_9(tmp_path: Path, round: int) -> None:
    path = tmp_path / "atlas.db"
    child = await asyncio.create_subprocess_exec(
        sys.executable, HERE / "commit_forever.py", path, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    output: set[bytes] = set()
    async with asyncio.timeout(TIMEOUT):
        while len(output) < 5 + 40 * round:
            output.add((await child.stdout.readline()).strip())
        child.kill()
        output |= {line for line in (await child.stdout.read()).split(b"\n")[:-1] if line}
        await child.wait()
    store = SqliteStore(path, must_exist=True)
    await store.open()
    entries = await store.audit(TENANT)
    messages = await store.messages(TENANT, "s")
    await store.close()
    assert output <= {entry.entry for entry in entries} and find_audit_break(entries) is None
    assert [message.body for message in messages] == [entry.entry for entry in entries]


ON_A_SMALL_DISK = 'mount -t tmpfs -o size=2m tmpfs "$1" && exec "$2" "$3" disk "$1/atlas.db"'
UNSHARED = ["unshare", "--mount", "--map-root-user"]


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    with contextlib.suppress(OSError), tempfile.TemporaryDirectory() as position:
        tried = [*UNSHARED, "mount", "-t", "tmpfs", "tmpfs", position]
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.parametrize("mode", ["limit", "disk"])
async def test_full_disk_raises_store_full_loses_nothing_and_recovers(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, str(HERE / "fill_disk.py"), mode, str(tmp_path / "atlas.db")]
    if mode == "disk":
        if not await asyncio.to_thread(can_mount):
            pytest.skip("this user may not mount a small disk")
        script = str(HERE / "fill_disk.py")
        command = [*UNSHARED, "sh", "-c", ON_A_SMALL_DISK, "sh", str(tmp_path), sys.executable, script]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(TIMEOUT):
        output, _ = await child.communicate()
    seen = json.loads(output)
    commits = seen["kept"]
    assert commits > 5 and seen["read"] == [commits, commits] and seen["last"] == commits + 1
    assert len(seen["refused"]) == 5
    for line in seen["refused"]:
        assert line.startswith("StoreFull: ") and "free some disk space" in line and "\n" not in line
    assert seen["broken"] is None and seen["integrity"] == "ok"


async def test_full_database_rejects_large_commits_and_accepts_small_ones(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db", max_pages=100)
    await store.open()
    await store.commit(TENANT, [PutSession("s")])
    sizes = [100, 500_000, 100, 400_000, 100]
    good, bad = await outcomes(store.commit(TENANT, [AddMessage("s", f"{n}", b"x" * n)]) for n in sizes)
    await store.commit(TENANT, [AddMessage("s", "last", b"")])
    assert len(good) == 3 and [type(error) for error in bad] == [StoreFull] * 2
    assert [message.seq for message in await store.messages(TENANT, "s")] == [1, 2]
    await store.close()
    roomier = SqliteStore(tmp_path / "atlas.db", max_pages=600)
    await roomier.open()
    await roomier.commit(TENANT, [AddMessage("s", "500000", b"x" * 500_000)])
    await roomier.close()
    with contextlib.closing(sqlite3.connect(roomier.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""


@contextlib.contextmanager
def hold_lock(path: Path, seconds: float) -> Generator[None]:
    """Another process holds an exclusive lock."""
    with subprocess.Popen([sys.executable, "-c", HOLD, path, str(seconds)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            other.kill()


async def test_commit_waits_for_a_lock_held_for_a_second(store: SqliteStore) -> None:
    patient = SqliteStore(store.path, busy_timeout=TIMEOUT)
    await patient.open()
    with hold_lock(store.path, 1):
        async with monitor_loop() as monitor:
            good, bad = await outcomes(patient.commit(TENANT, [AddAudit(b"%d" % n)]) for n in range(5))
    await patient.close()
    assert len(good) == 5 and not bad
    assert monitor.rounds > 5, "the event loop is free while a commit waits"


async def test_lock_held_too_long_raises_store_busy_until_it_is_released(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db", busy_timeout=0.3)
    await store.open()
    with hold_lock(store.path, 600):
        async with asyncio.timeout(TIMEOUT):
            good, bad = await outcomes(store.commit(TENANT, [AddAudit(b"")]) for _ in range(5))
        assert not good and {type(error) for error in bad} == {StoreBusy}
        assert await store.audit(TENANT) == []
    await store.commit(TENANT, [AddAudit(b"")])
    assert len(await store.audit(TENANT)) == 1
    await store.close()


@pytest.mark.slow
async def test_default_busy_timeout_is_five_seconds(store: SqliteStore) -> None:
    loop = asyncio.get_running_loop()
    with hold_lock(store.path, 600):
        begin = loop.time()
        with pytest.raises(StoreBusy, match="try again"):
            await store.commit(TENANT, [AddAudit(b"")])
        assert loop.time() - begin > 4
    await store.commit(TENANT, [AddAudit(b"")])
    assert len(await store.audit(TENANT)) == 1


async def test_commit_that_reads_first_never_fails_because_of_a_concurrent_write(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "atlas.db") for _ in range(2)]
    for store in stores:
        await store.open()
    good, bad = await outcomes(stores[n % 2].commit(TENANT, [AddAudit(b"%d" % n)]) for n in range(200))
    assert len(good) == 200 and not bad
    assert find_audit_break(await stores[0].audit(TENANT)) is None
    for store in stores:
        await store.close()


async def test_two_processes_may_open_a_new_database_at_once(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "atlas.db") for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.commit(TENANT, [AddAudit(b"")]) for store in stores))
    assert len(await stores[0].audit(TENANT)) == 6
    await asyncio.gather(*(store.close() for store in stores))


async def test_newer_schema_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "atlas.db"
    await create_database(path)
    modified(path, f"PRAGMA user_version = {schema_version('sqlite') + 1}")
    assert "newer Atlas Agents" in await open_error(path)


async def test_database_of_another_program_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    modified(path, "CREATE TABLE theirs (x)")
    assert "another program" in await open_error(path)


async def test_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 1000)
    assert "not an SQLite database" in await open_error(path)


async def test_directory_is_rejected(tmp_path: Path) -> None:
    assert "directory" in await open_error(tmp_path)


async def test_damaged_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "atlas.db"
    await create_database(path)
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(content)
    assert "damaged" in await open_error(path)


async def test_truncated_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "atlas.db"
    await create_database(path)
    path.write_bytes(path.read_bytes()[: 3 * 4096])
    assert "damaged" in await open_error(path)


async def test_missing_database_that_must_exist_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "atlas.db"
    assert "missing" in await open_error(path, must_exist=True)
    path.touch()
    assert "empty" in await open_error(path, must_exist=True)
    path.unlink()
    path.with_name("atlas.db-wal").write_bytes(b"what is left of it")
    assert "missing" in await open_error(path)


OPEN_AS_OTHER_USER = """
import asyncio, os, sys
from atlas_agents.storage.sqlite import SqliteStore
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
asyncio.run(SqliteStore(sys.argv[1]).open())
"""


@pytest.mark.parametrize(("file", "folder"), [(0o444, 0o777), (0o666, 0o555)])
async def test_read_only_database_is_rejected(file: int, folder: int) -> None:
    """Root may write everywhere, so another user tries, in a directory that it can reach."""
    with tempfile.TemporaryDirectory() as position:
        path = Path(position) / "atlas.db"
        await create_database(path)
        path.chmod(file)
        path.parent.chmod(folder)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN_AS_OTHER_USER, path, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(TIMEOUT):
            _, output = await child.communicate()
        path.parent.chmod(0o700)
    assert f"StoreError: database {path} is read-only" in output.decode()


async def test_database_that_was_moved_while_in_use_takes_no_more_commits(store: SqliteStore) -> None:
    await store.commit(TENANT, [AddAudit(b"")])
    moved = store.path.rename(store.path.with_name("moved.db"))
    with pytest.raises(StoreError, match="moved or removed"):
        await store.commit(TENANT, [AddAudit(b"")])
    moved.rename(store.path)
    await store.commit(TENANT, [AddAudit(b"")])
    assert len(await store.audit(TENANT)) == 2


async def test_first_search_after_the_database_was_moved_creates_no_file(store: SqliteStore) -> None:
    store.path.rename(store.path.with_name("moved.db"))
    with pytest.raises(StoreError, match="cannot open database"):
        await store.search_sessions(TENANT, "words")
    assert not store.path.exists()


async def test_long_conversation_is_read_completely_and_in_order(store: SqliteStore) -> None:
    ids = [f"m{n}" for n in range(600)]
    await store.commit(TENANT, [PutSession("s"), *[AddMessage("s", id, b"{}") for id in ids]])
    assert [row.id for row in await store.messages(TENANT, "s")] == ids
    assert [row.id for row in await store.messages(TENANT, "s", after=100, before=500)] == ids[100:499]


async def test_long_conversation_that_is_deleted_meanwhile_is_not_read_in_part(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit(TENANT, [PutSession("s"), *[AddMessage("s", f"m{n}", b"{}") for n in range(600)]])
    search = store.search

    async def delete_and_search(query: Query) -> list[Row]:
        await store.commit(TENANT, [DropMessages("s", 0)])
        return await search(query)

    monkeypatch.setattr(store, "search", delete_and_search)
    assert await store.messages(TENANT, "s") == []


async def test_close_finishes_pending_commits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    tasks = [asyncio.create_task(store.commit(TENANT, [AddAudit(b"")])) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    assert len((await outcomes(tasks))[0]) == 20
    assert not store.path.with_name("atlas.db-wal").exists()
    await store.open()
    assert len((await everything(store))["audit"]) == 20
    await store.close()


_OF_A_SEARCH = re.compile(
    r"SCAN (d|days|open_days|found|\(subquery-[0-9]+\)|[wm][0-9]*"
    r"|(passage|session)_words VIRTUAL TABLE INDEX [0-9]+:M[23]<?)$"
)


def _plan(connection: sqlite3.Connection, form: str, explain: str = "EXPLAIN QUERY PLAN") -> list[str]:
    """Return the lines of the plan of a statement, or the operations of its program."""
    values = dict.fromkeys(re.findall(r":(\w+)", form), 1)
    return [row[1 if explain == "EXPLAIN" else 3] for row in connection.execute(f"{explain} {form}", values)]


async def test_writes_of_a_turn_create_no_temporary_tables(store: SqliteStore) -> None:
    indexed = {statements.ADD_RUN: 1, statements.SET_RUN: 2}  # to check the condition of the index of open runs
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        for statement in statements.PARTS:
            operations = [each for part in sqlite_parts(statement) for each in _plan(connection, part, "EXPLAIN")]
            assert operations.count("OpenEphemeral") == indexed.get(statement, 0), statement


async def test_no_statement_scans_a_whole_table(store: SqliteStore) -> None:
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        for name, statement in (COMMON | SQLITE).items():
            if name.startswith("usage_"):  # they scan what their subqueries have found
                continue
            plan = [line for part in sqlite_parts(statement) for line in _plan(connection, part)]
            whole = [line for line in plan if line.startswith("SCAN ") and not _OF_A_SEARCH.match(line)]
            assert set(whole) <= {
                "SCAN CONSTANT ROW",
                "SCAN 2 CONSTANT ROWS",
                "SCAN runs USING INDEX runs_open",
                "SCAN records USING INDEX records_of_tenants",
            }, (name, plan)


@pytest.mark.parametrize(
    "statement",
    [statements.START_NEXT, statements.QUEUED_RUNS_OF, statements.SET_RUN, derived_statements.note_last_turns(2)],
    ids=["START_NEXT", "QUEUED_RUNS_OF", "SET_RUN", "note_last_turns"],
)
async def test_statement_of_a_turn_does_not_read_all_turns_of_its_session(store: SqliteStore, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        plan = [line for part in sqlite_parts(statement) for line in _plan(connection, part)]
    searched = [line for line in plan if line.startswith(("SEARCH runs ", "SEARCH a "))]
    few = ("INDEX runs_open", "AND place=?", "AND place>?", "AND id=?")
    assert searched
    assert all(any(each in line for each in few) for line in searched), plan


async def test_documented_statements_remove_the_words_of_a_deleted_session_from_the_file(tmp_path: Path) -> None:
    file, guide = tmp_path / "atlas.db", Path(__file__).parents[2] / "docs" / "guide" / "operations.md"
    store = SqliteStore(file)
    await store.open()
    agent = Agent("assistant", model=Scripted(says("Fine."), says("Good.")))
    async with Atlas([agent], store=store) as atlas:
        await atlas.ask("My word is zanzibarquux", session="one")
        await atlas.ask("Hello", session="two")
        assert (await store.search_sessions("default", "zanzibarquux")).matches
        await atlas.sessions.delete("one")
        assert not (await store.search_sessions("default", "zanzibarquux")).matches
    await store.close()
    (script,) = re.findall(r"```sql title=.sqlite3 .*\n([^`]+)```", guide.read_text())
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(script)
    assert b"zanzibarquux" not in file.read_bytes()


async def test_new_file_has_the_schema_of_an_empty_one_that_was_filled(tmp_path: Path) -> None:
    found: list[set[tuple[str, ...]]] = []
    for name in ("new.db", "empty.db"):
        if name == "empty.db":
            (tmp_path / name).touch()  # it is filled instead of created
        store = SqliteStore(tmp_path / name)
        await store.open()
        await store.close()
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as connection:
            found.append(set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")))
    assert found[0] == found[1] and len(found[0]) > 50
    assert set(os.listdir(tmp_path)) == {"new.db", "empty.db"}


async def test_new_database_on_a_disk_without_hard_links_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(source))

    found: list[dict[str, object]] = []
    for name in ("linked.db", "filled.db"):
        store = SqliteStore(tmp_path / name)
        await store.open()
        await store.close()
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as connection:
            pragmas = ("application_id", "user_version", "page_size", "journal_mode", "encoding", "auto_vacuum")
            found.append({each: connection.execute(f"PRAGMA {each}").fetchone()[0] for each in pragmas})
            found[-1]["versions"] = connection.execute("SELECT * FROM schema_versions").fetchall()
            found[-1]["schema"] = set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"))
        monkeypatch.setattr(os, "link", no_link)
    assert found[0] == found[1] and found[0]["journal_mode"] == "wal"
    assert set(os.listdir(tmp_path)) == {"linked.db", "filled.db"}


def journal_step(epoch: int, key: str) -> AddJournal:
    return AddJournal("r", epoch, "outcome", key, b"{}")


async def test_chains_that_two_stores_continue_in_turn_stay_intact(store: SqliteStore) -> None:
    other = SqliteStore(store.path)
    await other.open()
    await store.commit(TENANT, [PutSession("s"), AcceptRun("r", "s", "a"), ClaimRun("r"), journal_step(1, "1")])
    for number in range(3):
        owner = 2 * number + 2
        await other.commit(TENANT, [ClaimRun("r"), journal_step(owner, f"other {number}"), AddAudit(b"other")])
        with pytest.raises(StaleOwner):
            await store.commit(TENANT, [journal_step(owner - 1, f"late {number}")])
        await store.commit(TENANT, [ClaimRun("r"), journal_step(owner + 1, f"own {number}"), AddAudit(b"own")])
    await other.close()
    steps, entries = await store.journal(TENANT, "r"), await store.audit(TENANT)
    assert find_journal_break(steps) is None and find_audit_break(entries) is None
    assert [step.key for step in steps] == ["1", "other 0", "own 0", "other 1", "own 1", "other 2", "own 2"]
    assert [row.entry for row in entries] == [b"other", b"own"] * 3


async def test_chains_continue_after_a_commit_that_failed(store: SqliteStore) -> None:
    await store.commit(TENANT, [PutSession("s"), AcceptRun("r", "s", "a"), ClaimRun("r"), journal_step(1, "1")])
    for _ in range(2):
        with pytest.raises(NotFound):
            await store.commit(TENANT, [journal_step(1, "2"), AddAudit(b"lost"), ClaimRun("missing")])
    await store.commit(TENANT, [journal_step(1, "2"), AddAudit(b"kept"), SetRun("r", 1, "done")])
    with pytest.raises(Conflict):
        await store.commit(TENANT, [journal_step(1, "3")])
    steps, entries = await store.journal(TENANT, "r"), await store.audit(TENANT)
    assert find_journal_break(steps) is None and find_audit_break(entries) is None
    assert [step.key for step in steps] == ["1", "2"] and [row.entry for row in entries] == [b"kept"]


async def test_numbers_of_other_runs_are_out_of_reach(store: SqliteStore) -> None:
    """The id of an event has the number of its run and its own, so a large number must not lead to the next run."""
    runs = [AcceptRun("a", "s", "agent"), AcceptRun("b", "t", "agent")]
    await store.commit(TENANT, [PutSession("s"), PutSession("t"), *runs, ReserveEvents("b", 4)])
    await store.commit(TENANT, [AddEvents("b", ((1, b"1"), (4, b"4")))])
    for after in (0, 1 << 31, 1 << 40, (1 << 63) - 1, -5):
        assert await store.events(TENANT, "a", after=after) == []
        assert len(await store.events(TENANT, "b", after=after)) == (2 if after <= 0 else 0)
    await store.commit(TENANT, [ReserveEvents("a", (1 << 31) - 1)])
    with pytest.raises(StoreError, match="has reserved all of its 2147483647 events"):
        await store.commit(TENANT, [ReserveEvents("a", 1)])
    await store.commit(TENANT, [AddEvents("a", (((1 << 31) - 1, b"last"),))])
    assert [row.seq for row in await store.events(TENANT, "a")] == [(1 << 31) - 1]
    assert [row.seq for row in await store.events(TENANT, "b")] == [1, 4]


USE_AFTER_FORK = """
import asyncio, os, signal, sys
from atlas_agents import Agent, Atlas, StoreError
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, says

store = SqliteStore(sys.argv[1])
asyncio.run(store.open())
child = os.fork()
if not child:
    signal.alarm(int(sys.argv[2]))
    atlas = Atlas([Agent("a", model=Scripted(says("Hi.")))], store=store)
    for use in (lambda: atlas.ask_sync("Hi", session="s"), lambda: asyncio.run(store.open()),
                lambda: asyncio.run(store.close())):
        try:
            use()
        except StoreError as error:
            print(str(error).replace(f"process {os.getpid()}", "this process"), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
print(status, os.getpid())
asyncio.run(store.close())
"""


def test_store_that_was_opened_before_a_fork_is_an_error(tmp_path: Path) -> None:
    """The threads of the store do not exist in the child, so a request would wait for ever."""
    path, seconds = tmp_path / "atlas.db", TIMEOUT / 4
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", USE_AFTER_FORK, str(path), str(int(seconds))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    *errors, ended = done.stdout.splitlines()
    status, parent = ended.split()
    assert (
        errors
        == [
            f"database {path} was opened in process {parent}, before a fork: create and open a SqliteStore in this "
            "process, after the fork"
        ]
        * 3
    )
    assert (status, done.stderr) == ("0", "")


def read_log(database: Path) -> list[tuple[int, bool]]:
    """The page and whether it ends a transaction, of each frame in the write-ahead log."""
    data = database.with_name(f"{database.name}-wal").read_bytes()
    size = 24 + int.from_bytes(data[8:12], "big")
    frames = [data[at : at + 24] for at in range(32, len(data), size)]
    assert all(frame[8:16] == data[16:24] for frame in frames), "the log has started over"
    return [(int.from_bytes(frame[:4], "big"), any(frame[4:8])) for frame in frames]


async def test_turn_with_a_tool_call_writes_few_pages(store: SqliteStore) -> None:
    """Bounds the pages and commits of a turn. A new index or another copy of a message shows here."""
    turns, replies = 10, [calls("look", thing="stone"), says("word " * 50)]

    @tool
    async def look(thing: str) -> str:
        """Look at something."""
        return f"It is a {thing}."

    async with Atlas([Agent("assistant", model=Scripted(*replies * 2 * turns), tools=[look])], store=store) as atlas:
        for number in range(turns):
            await atlas.ask("Go", session=f"s{number % 5}")
        before = len(read_log(store.path))
        for number in range(turns):
            await atlas.ask("Go", session=f"s{number % 5}")
        frames = read_log(store.path)[before:]
    with contextlib.closing(sqlite3.connect(store.path)) as connection:
        names = dict(connection.execute("SELECT pageno, name FROM dbstat"))
        assert connection.execute("PRAGMA page_size").fetchone() == (1024,)
    written = Counter(names.get(page, "free") for page, _ in frames)
    assert sum(ends for _, ends in frames) == 4 * turns
    assert len(frames) <= 41 * turns, written
    assert written["journal_rows"] <= 7 * turns, written
