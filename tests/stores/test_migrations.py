"""Migrations, with steps that only these tests have: content is kept, and a failing step changes nothing."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

import pytest
from store_helpers import TENANT, Make, everything, one_of_each
from test_derived import database

from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import AddAudit, Store
from atlas_agents.storage import migrations
from atlas_agents.storage.migrations import STEPS, Database
from atlas_agents.storage.sqlite import files as sqlite_files

pytestmark = pytest.mark.durable
AddSteps: TypeAlias = Callable[..., None]


@pytest.fixture
def add_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> AddSteps:
    """Let the schema of the test's database have further steps. Each call replaces those of the call before."""
    name = cast("Database", kind)
    released = STEPS[name]
    monkeypatch.setattr(sqlite_files, "_empty_file", sqlite_files._empty_file.__wrapped__)  # not the copy that is kept

    def add(*steps: str) -> None:
        monkeypatch.setitem(STEPS, name, (*released, *steps))

    return add


async def test_steps_are_applied_once_and_keep_the_content(
    store: Store, make_store: Make, add_steps: AddSteps, location: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    add_steps(
        "-- The first; of two.\nALTER TABLE runs ADD COLUMN later INTEGER DEFAULT 7; CREATE TABLE later (id TEXT);\n",
        "INSERT INTO later SELECT id FROM runs",
    )
    with caplog.at_level("INFO", "atlas_agents.storage.migrations"):
        newer = await make_store()
    steps = [message for message in caplog.messages if message.startswith("migrating the database: ")]
    assert [message.split()[-2:] for message in steps] == [["step=2", "of=3"], ["step=3", "of=3"]]
    assert await everything(newer) == before
    await newer.commit(TENANT, [AddAudit(b"")])
    await newer.close()
    await (await make_store()).close()
    with database(*location) as execute:
        assert execute("SELECT id FROM later") == [("r1",)] and execute("SELECT later FROM runs") == [(7,)]
        assert [version for version, _ in execute("SELECT * FROM schema_versions ORDER BY version")] == [1, 2, 3]
    add_steps()
    with pytest.raises(StoreError, match=r"schema version 3, but .* supports up to 1: use a newer Atlas Agents"):
        await make_store()


async def test_new_database_has_all_steps(
    location: tuple[str, str], make_store: Make, add_steps: AddSteps, caplog: pytest.LogCaptureFixture
) -> None:
    add_steps("CREATE TABLE later (id TEXT)")
    store = await make_store()
    await store.commit(TENANT, one_of_each())
    with database(*location) as execute:
        assert execute("SELECT * FROM later") == []


async def test_failing_step_changes_nothing(store: Store, make_store: Make, add_steps: AddSteps) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    add_steps("DELETE FROM audit;\nCREATE TABLE runs (id TEXT);\n")
    with pytest.raises(StoreError) as raised:
        await make_store()
    assert "\n" not in str(raised.value)
    add_steps()
    assert await everything(await make_store()) == before


async def test_migration_continues_with_the_step_that_failed(
    store: Store, make_store: Make, add_steps: AddSteps
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    add_steps("CREATE TABLE later (id TEXT)", "CREATE TABLE even_later (id TEXT);\nDROP TABLE missing")
    with pytest.raises(StoreError, match="missing"):
        await make_store()
    add_steps("CREATE TABLE later (id TEXT)", "CREATE TABLE even_later (id TEXT)")
    assert await everything(await make_store()) == before


async def test_one_of_many_processes_migrates_the_schema(store: Store, make_store: Make, add_steps: AddSteps) -> None:
    await store.commit(TENANT, one_of_each())
    await store.close()
    add_steps("UPDATE runs SET events = events + 5", "UPDATE runs SET events = events + 30")
    stores = await asyncio.gather(*(make_store() for _ in range(4)))
    for each in stores:
        run = await each.run(TENANT, "r1")
        assert run is not None and run.events == 37


async def test_changed_step_of_an_applied_migration_is_an_error(
    store: Store, make_store: Make, add_steps: AddSteps
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    add_steps("CREATE TABLE later (id TEXT)")
    await (await make_store()).close()
    add_steps("CREATE TABLE later (id TEXT, more TEXT)")
    with pytest.raises(StoreError, match=r"migration 2 was applied with the checksum .* restore a backup"):
        await make_store()
    add_steps("CREATE TABLE later (id TEXT)")
    assert await everything(await make_store()) == before


def test_both_databases_have_the_same_version() -> None:
    assert migrations.schema_version("sqlite") == migrations.schema_version("postgres")
