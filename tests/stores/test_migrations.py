"""Migrations: old databases keep their content, and a failing step changes nothing."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from store_helpers import TENANT, everything, one_of_each

from atlas_agents.core.errors import Conflict, StoreError
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddEvents,
    AddMessage,
    AddMessages,
    AnswerApproval,
    ReserveEvents,
    Store,
)
from atlas_agents.storage import migrations
from atlas_agents.storage.hash_chain import find_audit_break, find_journal_break
from atlas_agents.storage.migrations import STEPS
from conftest import FIXTURES, Make

RELEASED = ["50b06a8c655efcba19a5817cf8dc2045d9c0dee8d98ee15d6a67d5f1dc3cda73"]
"""Digest of each released step, in order. A step is added with its release and never changes."""


def digest(step: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(step).encode()).hexdigest()


def test_no_released_step_was_changed() -> None:
    assert [digest(step) for step in STEPS[: len(RELEASED)]] == RELEASED


def add_step(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, statements))
    monkeypatch.setattr(migrations, "VERSION", len(STEPS) + 1)


@pytest.mark.durable
async def test_older_database_is_migrated_with_its_content(
    store: Store, make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    add_step(
        monkeypatch, "ALTER TABLE runs ADD COLUMN priority {int} NOT NULL DEFAULT 0", "CREATE TABLE later (id {text})"
    )
    newer = await make_store()
    assert await everything(newer) == before
    await newer.commit(TENANT, [AddAudit(b"")])
    await newer.close()
    await (await make_store()).close()
    monkeypatch.undo()
    with pytest.raises(StoreError, match="newer Atlas Agents"):
        await make_store()


@pytest.mark.durable
async def test_failing_migration_changes_nothing(
    store: Store, make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    add_step(monkeypatch, "DELETE FROM audit", "CREATE TABLE runs (id {text})")
    with pytest.raises(StoreError) as raised:
        await make_store()
    assert "\n" not in str(raised.value)
    monkeypatch.undo()
    assert await everything(await make_store()) == before


async def read_all(store: Store, tenant: str) -> dict[str, Any]:
    """Everything the port returns for a tenant, under the names of the fixture."""
    sessions = await store.sessions(tenant)
    listed = [run for session in sessions for run in await store.runs(tenant, session.key)]
    runs = [run for each in listed if (run := await store.run(tenant, each.id))]
    approvals = [await store.approval(tenant, id) for id in ("p1", "p2")]
    return {
        "sessions": sessions,
        "messages": [message for session in sessions for message in await store.messages(tenant, session.key)],
        "runs": runs,
        "journal": [row for run in runs for row in await store.journal(tenant, run.id)],
        "audit": await store.audit(tenant),
        "pending_approvals": await store.pending_approvals(tenant),
        "approvals": [approval for approval in approvals if approval is not None],
        "usage": await store.usage(tenant),
        "counted": [await store.call_count(tenant, agent, "2026-11-15") for agent in ("a", "b")],
    }


def without_new_fields(now: Any, then: Any) -> Any:
    """Remove the fields that the older version did not have."""
    if isinstance(then, dict):
        return {name: without_new_fields(now[name], value) for name, value in cast("dict[str, Any]", then).items()}
    if isinstance(then, list):
        return [without_new_fields(*pair) for pair in zip(now, cast("list[Any]", then), strict=True)]
    return now


@pytest.mark.durable
async def test_database_of_schema_1_reads_as_before(make_store: Make, old_database: Callable[[str], None]) -> None:
    then = json.loads((FIXTURES / "v1.json").read_text())
    old_database("v1")
    for _ in range(2):
        store = await make_store()
        found = {tenant: await read_all(store, tenant) for tenant in ("default", "acme")}
        now = msgspec.to_builtins({**found, "open_runs": await store.open_runs()})
        assert without_new_fields(now, then) == then
        assert len(now["default"]["messages"]) > 10 and len(now["open_runs"]) == 5
        await store.close()


@pytest.mark.durable
async def test_database_of_schema_1_supports_new_features(
    make_store: Make, old_database: Callable[[str], None]
) -> None:
    old_database("v1")
    store = await make_store()
    for tenant in ("default", "acme"):
        assert find_audit_break(await store.audit(tenant)) is None
        for session in await store.sessions(tenant):
            for run in await store.runs(tenant, session.key):
                assert (run.fingerprint, run.events) == ("", 0)
                assert find_journal_break(await store.journal(tenant, run.id)) is None
    (answered,) = await store.commit("acme", [AnswerApproval("p1", b"{}", "b-p1")])
    assert await store.grants("acme", "b-p1") == [answered]
    assert await store.commit("acme", [ReserveEvents("r0", 3), AddEvents("r0", ((2, b"{}"),))]) == [3, None]
    again = AcceptRun("other", "s", "a", idempotency_key="key")
    assert (await store.commit("acme", [again]))[0].id == "r0"
    await store.commit(TENANT + "2", one_of_each())


@pytest.mark.durable
async def test_messages_of_schema_1_are_found_by_their_ids_and_not_added_again(
    make_store: Make, old_database: Callable[[str], None]
) -> None:
    old_database("v1")
    store, count = await make_store(), 0
    for tenant in ("default", "acme"):
        for session in await store.sessions(tenant):
            before = await store.messages(tenant, session.key)
            count += len(before)
            for row in before:
                assert await store.message(tenant, session.key, row.id) == row
                assert await store.commit(tenant, [AddMessage(session.key, row.id, b"again")]) == [row]
                assert await store.commit(tenant, [AddMessage(session.key, row.id, b"again"), AddAudit(b"")])
                with pytest.raises(Conflict):
                    await store.commit(tenant, [AddMessages(session.key, ((row.id, b""),))])
            assert await store.messages(tenant, session.key) == before
    assert count > 10


@pytest.mark.durable
async def test_one_of_many_processes_migrates_the_schema(make_store: Make, old_database: Callable[[str], None]) -> None:
    old_database("v1")
    stores = await asyncio.gather(*(make_store() for _ in range(4)))
    await asyncio.gather(*(store.commit("acme", [ReserveEvents("r0", 1)]) for store in stores))
    run = await stores[0].run("acme", "r0")
    assert run is not None and run.events == 4


@pytest.mark.durable
async def test_changed_step_of_an_applied_migration_is_an_error(
    store: Store, make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    changed = (*STEPS[4], "CREATE TABLE later (id {text})")
    monkeypatch.setattr(migrations, "STEPS", (*STEPS[:4], changed, *STEPS[5:]))
    with pytest.raises(StoreError, match=r"migration 5 was applied with the checksum .* restore a backup"):
        await make_store()
    monkeypatch.undo()
    assert await everything(await make_store()) == before


@pytest.mark.durable
async def test_migration_continues_with_the_step_that_failed(
    store: Store, make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    good, bad = ("CREATE TABLE later (id {text})",), ("CREATE TABLE even_later (id {text})", "DROP TABLE missing")
    monkeypatch.setattr(migrations, "VERSION", len(STEPS) + 2)
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, good, bad))
    with pytest.raises(StoreError, match="missing"):
        await make_store()
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, good, bad[:1]))
    again = await make_store()
    assert await everything(again) == before
