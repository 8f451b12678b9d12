"""Derived tables: what they contain follows from the rows, however and whenever these were stored."""

from collections.abc import Callable, Sequence

import pytest
from store_helpers import TENANT

from atlas_agents.core.messages import Message, Text
from atlas_agents.core.store import (
    AddMessage,
    AddMessages,
    DropMessages,
    DropSession,
    PutSession,
    RefreshIndexes,
    ReplaceMessage,
    Store,
)
from atlas_agents.storage.sqlite import SqliteStore
from conftest import Make


def said(text: str, role: str = "user") -> bytes:
    return Message(role, (Text(text),)).to_json()  # type: ignore[arg-type]


async def add_session(store: Store, key: str, *texts: str, label: str = "", tenant: str = TENANT) -> None:
    messages = tuple([(f"{key} {n}", said(text)) for n, text in enumerate(texts)])
    await store.commit(tenant, [PutSession(key, label=label), AddMessages(key, messages)])


async def find(store: Store, query: str, *, prefix: str = "", limit: int = 30, tenant: str = TENANT) -> Sequence[str]:
    return [each.session for each in (await store.search_sessions(tenant, query, prefix=prefix, limit=limit)).matches]


async def test_search_finds_all_words_in_names_and_messages_latest_first(store: Store) -> None:
    await add_session(store, "a", "The fjord is deep.", "A lake, too: Łódź über_all 東京タワー")
    await add_session(store, "b", "the Fjords of Norway")
    await add_session(store, "c", label="My FJORD trip")
    assert await find(store, "fjord") == ["c", "b", "a"]
    assert await find(store, "the fjo") == ["b", "a"]
    assert await find(store, "lake deep") == []
    assert await find(store, "UBER deep") == await find(store, "京都") == []
    assert await find(store, "über all") == await find(store, "uber") == await find(store, "東京") == ["a"]
    assert await find(store, "' \" * & | ! ( : \\ %") == await find(store, "ord") == await find(store, "nowhere") == []


async def test_search_returns_the_latest_match_of_a_session(store: Store) -> None:
    await add_session(store, "a", "one walrus", "two walrus", "no match", label="walrus")
    (match,) = (await store.search_sessions(TENANT, "walrus")).matches
    assert match.seq == 2
    await store.commit(TENANT, [AddMessage("a", "x", said("another walrus"))])
    (match,) = (await store.search_sessions(TENANT, "walrus")).matches
    assert match.seq == 4


async def test_search_sees_only_the_tenant_and_the_sessions_of_the_user(store: Store) -> None:
    await add_session(store, "@ann/1", "a secret walrus")
    await add_session(store, "@anna/1", "a secret walrus")
    await add_session(store, "2", "a secret walrus")
    await add_session(store, "3", "a secret walrus", tenant="other")
    assert await find(store, "walrus") == ["2", "@anna/1", "@ann/1"]
    assert await find(store, "walrus", prefix="@ann/") == ["@ann/1"]
    assert await find(store, "walrus", tenant="other") == ["3"]
    assert await find(store, "walrus", tenant="third") == []


async def test_search_forgets_what_was_deleted_renamed_or_replaced(store: Store) -> None:
    await add_session(store, "a", "walrus", "seal", label="zoo")
    await add_session(store, "b", "walrus", label="zoo")
    assert await find(store, "walrus") == await find(store, "zoo") == ["b", "a"]
    await store.commit(TENANT, [PutSession("b", label="park"), ReplaceMessage("b", 1, said("otter"))])
    assert await find(store, "walrus") == await find(store, "zoo") == ["a"]
    assert await find(store, "otter") == await find(store, "park") == ["b"]
    await store.commit(TENANT, [DropMessages("a", 1)])
    assert await find(store, "seal") == []
    await store.commit(TENANT, [DropSession("a")])
    assert await find(store, "walrus") == await find(store, "zoo") == []
    await add_session(store, "a", "walrus again")
    assert await find(store, "walrus") == ["a"]


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b'{"role":"user","parts":3}', b'{"role":5}', said("x" * 300_000)]
)
async def test_unusual_message_does_not_keep_others_from_being_found(store: Store, body: bytes) -> None:
    messages = (("1", body), ("2", said("a walrus")), ("3", said("a result", "tool")))
    await store.commit(TENANT, [PutSession("s"), AddMessages("s", messages)])
    assert await find(store, "walrus") == ["s"]
    assert await find(store, "result") == []


async def test_search_finds_the_oldest_of_many_sessions_and_limits_common_words(store: Store) -> None:
    await add_session(store, "oldest", "the zymurgy")
    for number in range(150):
        await add_session(store, f"s{number:03}", f"the message {number}", "the reply")
    assert await find(store, "zymurgy") == ["oldest"]
    found = await store.search_sessions(TENANT, "the", limit=5)
    assert [each.session for each in found.matches] == ["s149", "s148", "s147", "s146", "s145"] and not found.complete
    assert (await store.search_sessions(TENANT, "reply", limit=200)).complete


async def test_long_session_is_indexed_in_several_batches(store: Store) -> None:
    await add_session(store, "long", *[f"word{number}" for number in range(1000)])
    assert (await store.commit(TENANT, [RefreshIndexes()]))[0] > 0
    assert await find(store, "word999") == await find(store, "word0") == ["long"]
    assert (await store.commit(TENANT, [RefreshIndexes()]))[0] == 0


@pytest.mark.durable
async def test_index_continues_after_a_restart(store: Store, make_store: Make) -> None:
    for number in range(100):
        await add_session(store, f"s{number}", f"word{number}")
    await store.commit(TENANT, [RefreshIndexes()])
    await store.close()
    again = await make_store()
    assert await find(again, "word0") == ["s0"] and await find(again, "word99") == ["s99"]


@pytest.mark.durable
async def test_search_finds_what_an_older_version_stored(old_database: Callable[[str], None], make_store: Make) -> None:
    old_database("v1")
    store = await make_store()
    tenant, expected = "", ""
    for tenant in ("default", "acme", TENANT):
        for session in await store.sessions(tenant):
            for row in await store.messages(tenant, session.key):
                expected = expected or row.message.text
        if expected:
            break
    assert expected and await find(store, expected, tenant=tenant)


async def test_search_answers_while_the_disk_is_full(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = SqliteStore(tmp_path_factory.mktemp("full") / "atlas.db", max_pages=200)
    await store.open()
    await add_session(store, "a", "walrus")
    assert await find(store, "walrus") == ["a"]
    await store.commit(TENANT, [PutSession("b")])
    with pytest.raises(Exception, match="free some disk space"):
        for number in range(1000):
            await store.commit(TENANT, [AddMessage("b", f"{number}", said("seal " * 200))])
    found = await store.search_sessions(TENANT, "walrus")
    assert [each.session for each in found.matches] == ["a"]
    await store.close()
