"""Moving a tenant between two Postgres databases while it is written to, with a kill after each step."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, get_args

import msgspec
import psycopg
import pytest
from postgres_server import PostgresServer
from psycopg.conninfo import conninfo_to_dict
from store_helpers import TENANT, everything, one_of_each

import fork_server
from atlas_agents import StoreError
from atlas_agents.core.errors import StoreLost
from atlas_agents.core.messages import new_id
from atlas_agents.core.store import (
    OPEN,
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJournal,
    AddMessage,
    ClaimRun,
    Document,
    DropSession,
    Passage,
    PutDocument,
    PutSession,
    ReserveEvents,
    SetRun,
    Where,
)
from atlas_agents.storage import tenant_move
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sql.derived import DERIVED_TABLES
from atlas_agents.storage.tenant_move import (
    MOVED_TABLES,
    MoveEnd,
    MoveStep,
    TenantMove,
    abort_move,
    delete_moved,
    move_tenant,
)
from checks import TIMEOUT, wait_until

pytestmark = pytest.mark.slow
PROGRAM = str(Path(__file__).parent / "move_process.py")
STEPS: tuple[MoveStep, ...] = get_args(MoveStep)
BEFORE_SWITCH: tuple[MoveStep, ...] = STEPS[: STEPS.index("opened")]
OTHER = "other"
Opened: TypeAlias = Callable[[str], Awaitable[PostgresStore]]


@pytest.fixture
def databases(postgres_server: PostgresServer, migrated: str) -> Iterator[tuple[str, str]]:
    """Two databases of their own."""
    names = ["d" + new_id().replace("-", "") for _ in range(2)]
    with postgres_server.copy_of(migrated, names[0]) as source, postgres_server.copy_of(migrated, names[1]) as target:
        yield source, target


@pytest.fixture
async def opened() -> AsyncGenerator[Opened]:
    stores: list[PostgresStore] = []

    async def open_store(url: str) -> PostgresStore:
        store = PostgresStore(url, retry_timeout=0.1)
        await store.open()
        stores.append(store)
        return store

    yield open_store
    for store in stores:
        await store.close()


async def run_turn(store: PostgresStore, n: int) -> None:
    """Write a turn as a worker does. Parts that an earlier attempt has written are not written again."""
    run, session = f"run{n}", f"s{n % 3}"
    _, row = await store.commit(TENANT, [PutSession(session), AcceptRun(run, session, "a", idempotency_key=f"k{n}")])
    if (await store.run(TENANT, run)) is None or row.status not in OPEN:
        return
    (epoch,) = await store.commit(TENANT, [ClaimRun(run)])
    seen = {step.kind for step in await store.journal(TENANT, run)}
    if "reply" not in seen:
        step = AddJournal(run, epoch, "reply", "1", b"{}")
        await store.commit(TENANT, [step, AddMessage(session, f"m{n}", b'{"role":"user"}', run), AddAudit(b'{"n":1}')])
    (last,) = await store.commit(TENANT, [ReserveEvents(run, 2, epoch)])
    await store.commit(TENANT, [AddEvents(run, ((last - 1, b"{}"), (last, b"{}")), epoch)])
    await store.commit(TENANT, [SetRun(run, epoch, "done")])


class Writer:
    """Runs turns one after the other, at whichever database the tenant is; `done` are those that were acknowledged."""

    def __init__(self, *stores: PostgresStore) -> None:
        self._stores = stores
        self.done: list[int] = []

    async def run(self) -> None:
        for store in itertools.cycle(self._stores):
            with suppress(StoreLost):  # the tenant is not there
                while True:
                    await run_turn(store, len(self.done))
                    self.done.append(len(self.done))

    async def wait_for_turns(self, count: int) -> None:
        goal = len(self.done) + count
        await wait_until(lambda: len(self.done) >= goal)


@asynccontextmanager
async def writing(*stores: PostgresStore) -> AsyncGenerator[Writer]:
    writer = Writer(*stores)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def dump(url: str, tenant: str = TENANT) -> dict[str, list[Any]]:
    """Return all rows of a tenant, without numbers that a database assigns."""
    found: dict[str, list[Any]] = {}
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for table in MOVED_TABLES:
            hidden = {"passages": "- 'id'", "libraries": "- 'version'"}.get(table, "")
            query = f"SELECT to_jsonb(t) {hidden} AS r FROM atlas.{table} t WHERE tenant = %s ORDER BY r"
            found[table] = await (await connection.execute(query.encode(), (tenant,))).fetchall()
    return found


async def check_complete(store: PostgresStore, writer: Writer) -> None:
    """Check that every acknowledged turn is there exactly once, and that the chains are intact."""
    sessions = await store.sessions(TENANT)
    runs = {row.id: row for session in sessions for row in await store.runs(TENANT, session.key)}
    assert {runs[f"run{n}"].status for n in writer.done} == {"done"}
    messages = [row.id for session in sessions for row in await store.messages(TENANT, session.key)]
    assert len(messages) == len(set(messages))
    assert {f"m{n}" for n in writer.done} <= set(messages)
    assert await store.verify_audit(TENANT) is None
    for n in writer.done:
        steps = await store.journal(TENANT, f"run{n}")
        assert [step.seq for step in steps] == [1]


async def test_every_table_of_a_tenant_is_moved_or_derived(databases: tuple[str, str], opened: Opened) -> None:
    await opened(databases[0])
    async with await psycopg.AsyncConnection.connect(databases[0]) as connection:
        query = """SELECT table_name FROM information_schema.columns
            WHERE table_schema = 'atlas' AND column_name = 'tenant'"""
        tables = {name for (name,) in await (await connection.execute(query)).fetchall()}
    assert tables == {*MOVED_TABLES, *DERIVED_TABLES}


async def test_tenant_has_the_same_rows_after_the_move(databases: tuple[str, str], opened: Opened) -> None:
    source, target = [await opened(url) for url in databases]
    passages = (Passage("Title", "some text", vector=b"\0<" * 4),)
    document = PutDocument(Document("knowledge", "d1", "c", hash="h", model="m", passages=1), passages)
    for tenant in (TENANT, OTHER):
        await source.commit(tenant, [*one_of_each(), document])
        await source.commit(tenant, [PutSession("old"), AddMessage("old", "x", b"{}")])
    before = await everything(source), await dump(databases[0]), await dump(databases[0], OTHER)
    move = TenantMove(TENANT, *databases)
    result = await move_tenant(move)
    assert (result.rows, result.changes) == (sum(map(len, before[1].values())), 0)
    assert await everything(target) == before[0]
    assert (await dump(databases[1]), await dump(databases[0], OTHER)) == before[1:]
    assert not any((await dump(databases[1], OTHER)).values())
    with pytest.raises(StoreLost, match="tenant acme is in another database"):
        await source.commit(TENANT, [PutSession("new")])
    await target.commit(TENANT, [PutSession("new"), DropSession("old"), AddAudit(b"{}")])
    await source.commit(OTHER, [PutSession("new")])
    assert await move_tenant(move) == type(result)()
    assert await delete_moved(move) >= result.rows
    assert not any((await dump(databases[0])).values())
    with pytest.raises(StoreLost):
        await source.commit(TENANT, [PutSession("new")])


async def test_turns_continue_while_their_tenant_moves_there_and_back(
    databases: tuple[str, str], opened: Opened
) -> None:
    source, target = [await opened(url) for url in databases]
    steps: list[str] = []
    async with asyncio.timeout(TIMEOUT), writing(source, target) as writer:
        await writer.wait_for_turns(3)
        result = await move_tenant(TenantMove(TENANT, *databases, on_step=steps.append))
        await writer.wait_for_turns(3)
        await delete_moved(TenantMove(TENANT, *databases))
        await move_tenant(TenantMove(TENANT, databases[1], databases[0]))
        await writer.wait_for_turns(3)
    assert tuple(steps) == STEPS[:-1]
    assert result.pause < TenantMove(TENANT, *databases).max_pause
    await check_complete(source, writer)
    with pytest.raises(StoreLost):
        await target.commit(TENANT, [PutSession("s")])


@pytest.mark.parametrize("step", STEPS[:-1])
async def test_move_that_is_killed_continues(step: str, databases: tuple[str, str], opened: Opened) -> None:
    source, target = [await opened(url) for url in databases]
    async with asyncio.timeout(TIMEOUT), writing(source, target) as writer:
        await writer.wait_for_turns(3)
        process = await fork_server.start(PROGRAM, *databases, "atlas", TENANT, step)
        assert await process.wait() == -9
        if step not in ("fenced", "complete"):  # the tenant is at one of the two
            await writer.wait_for_turns(3)
        await wait_until(lambda: _move_again(databases))
        await writer.wait_for_turns(3)
    await check_complete(target, writer)
    with pytest.raises(StoreLost):
        await source.commit(TENANT, [PutSession("s")])


async def _move_again(databases: tuple[str, str]) -> bool:
    """Continue the move, once the server has noticed that the killed process is gone."""
    try:
        await move_tenant(TenantMove(TENANT, *databases))
    except StoreError as error:
        assert "another process is moving" in str(error)
        return False
    return True


class StopMove(Exception):
    pass


def stop_at(last: str) -> Callable[[MoveStep], None]:
    def on_step(step: MoveStep) -> None:
        if step == last:
            raise StopMove

    return on_step


@pytest.mark.parametrize("step", BEFORE_SWITCH)
async def test_aborted_move_leaves_the_tenant_where_it_was(
    step: str, databases: tuple[str, str], opened: Opened
) -> None:
    source, target = [await opened(url) for url in databases]
    async with asyncio.timeout(TIMEOUT), writing(source) as writer:
        await writer.wait_for_turns(2)
        with pytest.raises(StopMove):
            await move_tenant(TenantMove(TENANT, *databases, on_step=stop_at(step)))
        if step == "complete":  # an error during the pause lifts the fence
            await writer.wait_for_turns(2)
        with pytest.raises(StoreLost):
            await target.commit(TENANT, [PutSession("s")])
        await abort_move(TenantMove(TENANT, *databases))
        await writer.wait_for_turns(2)
    await check_complete(source, writer)
    assert not any((await dump(databases[1])).values())
    await target.commit(TENANT, [PutSession("s")])


async def test_aborted_return_leaves_the_tenant_fenced_where_it_was_before(
    databases: tuple[str, str], opened: Opened
) -> None:
    source, target = [await opened(url) for url in databases]
    await source.commit(TENANT, one_of_each())
    there, back = TenantMove(TENANT, *databases), TenantMove(TENANT, databases[1], databases[0])
    await move_tenant(there)
    await delete_moved(there)
    with pytest.raises(StopMove):
        await move_tenant(msgspec.structs.replace(back, on_step=stop_at("copied")))
    await abort_move(back)
    with pytest.raises(StoreLost):
        await source.commit(TENANT, [PutSession("s")])
    await target.commit(TENANT, [PutSession("s")])
    await move_tenant(back)
    await source.commit(TENANT, [PutSession("s")])


async def test_rows_written_at_the_target_while_a_move_begins_are_kept(
    databases: tuple[str, str], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = [await opened(url) for url in databases]
    await source.commit(TENANT, one_of_each())
    install = MoveEnd.install_triggers

    async def install_late(end: MoveEnd) -> None:
        if end.is_target:
            await target.commit(TENANT, [PutSession("own")])
        await install(end)

    monkeypatch.setattr(MoveEnd, "install_triggers", install_late)
    with pytest.raises(StoreError, match="already has rows of tenant 'acme' in the table sessions"):
        await move_tenant(TenantMove(TENANT, *databases))
    for store in (source, target):
        await store.commit(TENANT, [PutSession("more")])
    assert {session.key for session in await target.sessions(TENANT)} == {"own", "more"}
    async with await psycopg.AsyncConnection.connect(databases[1]) as connection:
        left = await connection.execute("SELECT tgname FROM pg_trigger WHERE starts_with(tgname, 'tenant_move_')")
        assert await left.fetchall() == []


async def test_pause_that_takes_too_long_is_ended(
    databases: tuple[str, str], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = [await opened(url) for url in databases]
    await source.commit(TENANT, one_of_each())

    async def wait_long(end: MoveEnd, _: MoveEnd) -> None:
        await end.connection.execute("SELECT pg_sleep(%s)", (TIMEOUT,))

    monkeypatch.setattr(tenant_move, "_copy_tokens", wait_long)
    with pytest.raises(StoreError, match=r"took longer than the pause of 1 s: it stays where it is"):
        await move_tenant(TenantMove(TENANT, *databases, max_pause=1.0))
    await source.commit(TENANT, [PutSession("s")])
    monkeypatch.undo()
    await move_tenant(TenantMove(TENANT, *databases))


async def test_move_waits_for_the_disk_whatever_the_server_is_set_to(
    databases: tuple[str, str], opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant would be nowhere if the target lost its last commit in a crash, and the source did not."""
    source = await opened(databases[0])
    await source.commit(TENANT, one_of_each())
    names = [conninfo_to_dict(url)["dbname"] for url in databases]
    async with await psycopg.AsyncConnection.connect(databases[0], autocommit=True) as connection:
        for name in names:
            await connection.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    found: list[object] = []
    open_target = MoveEnd.open

    async def read_setting(end: MoveEnd) -> None:
        found.append(await end.read_value("SELECT current_setting('synchronous_commit')"))
        await open_target(end)

    monkeypatch.setattr(MoveEnd, "open", read_setting)
    await move_tenant(TenantMove(TENANT, *databases))
    assert found == ["on"]


async def test_process_that_is_redirected_finds_the_passages_of_the_collection(databases: tuple[str, str]) -> None:
    """Passages have other numbers at the target, and the process has compared their vectors before."""
    stores = [PostgresStore(url, pgvector=False) for url in databases]
    for store in stores:
        await store.open()
    try:
        vector = b"\0<" * 4
        for n, tenant in enumerate((OTHER, TENANT, TENANT)):  # the numbers of the tenant begin with 2
            passages = (Passage("", f"text of {n}", vector=vector),)
            document = Document("memory", f"d{n}", f"owner{n}", hash="h", model="m", passages=1)
            await stores[0].commit(tenant, [PutDocument(document, passages)])

        async def find(store: PostgresStore) -> tuple[str, str]:
            (hit,) = await store.find_nearest(TENANT, Where("memory", "owner1"), "m", vector)
            (found,) = await store.passages(TENANT, [hit.passage])
            return found.collection, found.text

        assert await find(stores[0]) == ("owner1", "text of 1")
        await move_tenant(TenantMove(TENANT, *databases))
        caches = [store._vectors._matrices for store in stores]
        caches[1].update(caches[0])
        assert await find(stores[1]) == ("owner1", "text of 1")
    finally:
        for store in stores:
            await store.close()


async def test_moves_that_contradict_each_other_are_refused(
    databases: tuple[str, str], opened: Opened, postgres_server: PostgresServer
) -> None:
    third = await asyncio.to_thread(postgres_server.made, "d" + new_id().replace("-", ""))
    source, target, _ = [await opened(url) for url in (*databases, third)]
    await source.commit(TENANT, one_of_each())
    await target.commit(OTHER, one_of_each())
    await source.commit(OTHER, one_of_each())
    with pytest.raises(StoreError, match="same database"):
        await move_tenant(TenantMove(TENANT, databases[0], databases[0]))
    with pytest.raises(StoreError, match="already has rows of tenant 'other' in the table sessions"):
        await move_tenant(TenantMove(OTHER, *databases))
    with pytest.raises(StopMove):
        await move_tenant(TenantMove(TENANT, *databases, on_step=stop_at("copied")))
    one, other = databases
    for wrong_source, wrong_target in ((one, third), (other, third), (third, other), (other, one)):
        with pytest.raises(StoreError, match="complete or abort that move first"):
            await move_tenant(TenantMove(TENANT, wrong_source, wrong_target))
    await move_tenant(TenantMove(TENANT, *databases))
    with pytest.raises(StoreError, match="complete or abort that move first"):
        await move_tenant(TenantMove(TENANT, databases[0], third))
    with pytest.raises(StoreError, match="at the target already"):
        await abort_move(TenantMove(TENANT, *databases))
