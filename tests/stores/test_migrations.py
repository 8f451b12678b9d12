"""The schema moves forward only: old databases come along with all they hold, and a step that fails changes nothing."""

import hashlib

import pytest
from store_words import TENANT, everything, one_of_each

from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import AddAudit, Store
from atlas_agents.stores import migrations
from atlas_agents.stores.migrations import STEPS
from conftest import Make

RELEASED: list[str] = []
"""The digest of each released step, in order; a step joins the list with its release and never changes again."""


def digest(step: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(step).encode()).hexdigest()


def test_no_released_step_was_changed() -> None:
    assert [digest(step) for step in STEPS[: len(RELEASED)]] == RELEASED


def add_step(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    monkeypatch.setattr(migrations, "STEPS", (*STEPS, statements))
    monkeypatch.setattr(migrations, "VERSION", len(STEPS) + 1)


@pytest.mark.durable
async def test_an_older_database_comes_along_with_all_it_holds(
    store: Store, make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit(TENANT, one_of_each())
    before = await everything(store)
    await store.close()
    add_step(
        monkeypatch, "ALTER TABLE runs ADD COLUMN priority {int} NOT NULL DEFAULT 0", "CREATE TABLE jobs (id {text})"
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
async def test_a_step_that_fails_changes_nothing(
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
