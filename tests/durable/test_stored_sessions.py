"""Stored sessions: list, rename, fork, export, import and delete."""

from pathlib import Path

import pytest

from atlas_agents import Atlas, BrokenHistory, ConfigError, Conflict, NotFound, tool
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool
async def act(n: int) -> str:
    """Act."""
    return f"did {n}"


async def fill_session(*, text: str = "go") -> tuple[Atlas, MemoryStore]:
    store = MemoryStore()
    await store.open()
    model = Scripted(calls("act", n=1), says("Done."), says("Again."), says("Forked."))
    atlas = in_memory_atlas(model, [act], store=store)
    await atlas.ask(text, session="s")
    await atlas.ask("and?", session="s")
    return atlas, store


async def export_lines(atlas: Atlas, key: str) -> list[str]:
    return [line async for line in atlas.sessions.export(key)]


async def test_sessions_are_listed_named_and_archived() -> None:
    atlas, _ = await fill_session()
    async with atlas:
        await atlas.sessions.put("t", label="Trip", agent_id="assistant", metadata={"colour": "red"})
        assert [session.key for session in await atlas.sessions.list()] == ["t", "s"]
        await atlas.sessions.put("t", archived=True)
        found = await atlas.sessions.get("t")
        assert (found.label, found.archived, found.metadata) == ("Trip", True, {"colour": "red"})
        made = await atlas.sessions.put(label="New")
        assert (await atlas.sessions.get(made.key)).label == "New"
        with pytest.raises(NotFound, match="not found: session 'x'"):
            await atlas.sessions.get("x")


async def test_fork_is_independent_of_its_origin() -> None:
    atlas, _ = await fill_session()
    async with atlas:
        before = await atlas.sessions.history("s")
        fork = await atlas.sessions.fork("s", at=before[3].id, to="f")
        assert (fork.key, fork.metadata["forked_from"]) == ("f", "s")
        assert await atlas.sessions.history("f") == before[:4]
        assert (await atlas.ask("else?", session="f")).text == "Forked."
        assert await atlas.sessions.history("s") == before
        whole = await atlas.sessions.fork("s")
        assert await atlas.sessions.history(whole.key) == before


async def test_fork_at_a_call_includes_its_result() -> None:
    atlas, _ = await fill_session()
    async with atlas:
        before = await atlas.sessions.history("s")
        assert before[1].tool_calls
        await atlas.sessions.fork("s", at=before[1].id, to="f")
        assert await atlas.sessions.history("f") == before[:3]


async def test_invalid_fork_is_rejected() -> None:
    atlas, _ = await fill_session()
    async with atlas:
        with pytest.raises(NotFound, match="not found: message 'x'"):
            await atlas.sessions.fork("s", at="x")
        with pytest.raises(NotFound):
            await atlas.sessions.fork("nowhere")
        with pytest.raises(Conflict, match="already"):
            await atlas.sessions.fork("s", to="s")


async def test_export_and_import_preserve_every_byte(tmp_path: Path) -> None:
    atlas, store = await fill_session(text="Grüße, \u2028 and a line\nbreak")
    async with atlas:
        exported = await export_lines(atlas, "s")
        assert all("\n" not in line for line in exported)
        other = SqliteStore(tmp_path / "other.db")
        await other.open()
        async with in_memory_atlas(Scripted(says("Here.")), [act], store=other) as elsewhere:
            await elsewhere.sessions.load(exported)
            bodies = [row.body for row in await store.messages("default", "s")]
            assert [row.body for row in await other.messages("default", "s")] == bodies
            assert (await export_lines(elsewhere, "s"))[1:] == exported[1:]
            await elsewhere.sessions.load(exported, key="again")
            assert (await elsewhere.ask("still there?", session="again")).text == "Here."
            with pytest.raises(Conflict, match="already"):
                await elsewhere.sessions.load(exported)
        await other.close()


BAD: list[tuple[list[str], type[Exception], str]] = [
    ([], ConfigError, "nothing to import"),
    (["{}"], ConfigError, "line 1: expected the header of an exported session"),
    (["not json"], ConfigError, "line 1"),
    (['{"atlas_session": 99, "key": "s"}'], ConfigError, "unsupported format 99"),
    (['{"atlas_session": 1, "key": "s"}', "{"], ConfigError, "line 2: expected a message"),
    (['{"atlas_session": 1, "key": "s"}', "[]"], ConfigError, "line 2"),
]


@pytest.mark.parametrize(("given", "error", "words"), BAD)
async def test_invalid_import_is_rejected_with_its_line(given: list[str], error: type[Exception], words: str) -> None:
    atlas, store = await fill_session()
    async with atlas:
        with pytest.raises(error, match=words):
            await atlas.sessions.load(given, key="new")
        assert await store.session("default", "new") is None


async def test_call_without_result_is_not_imported() -> None:
    atlas, store = await fill_session()
    async with atlas:
        exported = await export_lines(atlas, "s")
        with pytest.raises(BrokenHistory, match="line 4"):
            await atlas.sessions.load([*exported[:3], *exported[4:]], key="new")
        assert await store.session("default", "new") is None


async def test_session_is_removed_with_all_its_messages() -> None:
    atlas, store = await fill_session()
    async with atlas:
        await atlas.sessions.delete("s")
        with pytest.raises(NotFound):
            await atlas.sessions.get("s")
        assert await store.messages("default", "s") == []
        assert len(list(await atlas.audit.records("default"))) == 1


async def test_session_recreated_under_a_deleted_key_is_empty() -> None:
    model = Scripted(says("one"), says("two"))
    async with in_memory_atlas(model, store=MemoryStore()) as atlas:
        await atlas.ask("first", session="s")
        await atlas.sessions.delete("s")
        await atlas.ask("second", session="s")
        assert [message.text for message in model.requests[-1].messages] == ["second"]


async def test_sessions_require_a_store() -> None:
    async with in_memory_atlas(Scripted(says("x"))) as atlas:
        with pytest.raises(ConfigError, match=r"Atlas\(store=…\)"):
            await atlas.sessions.list()
        with pytest.raises(ConfigError, match="store"):
            await atlas.usage()
