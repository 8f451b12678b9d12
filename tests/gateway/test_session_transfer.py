"""Sessions are exported from one gateway and imported into another, whatever their size, and never partially."""

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, connect_client, serve_and_connect, serve_gateway

from atlas_agents import Atlas
from atlas_agents.core.messages import assistant, user
from atlas_agents.core.store import AddMessage, PutSession, Write
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas, says

BOB = "bob-0123456789abcdefghijklmnop"


def stored_atlas(*replies: Any) -> Atlas:
    return in_memory_atlas(Scripted(*replies), store=MemoryStore())


async def exported(client: Client, key: str) -> list[str]:
    lines: list[str] = []
    after: int | None = 0
    while after is not None:
        page = await client.get("sessions.export", sessionKey=key, after=after)
        lines += page["lines"]
        after = page.get("next")
    return lines


async def imported(client: Client, text: str, size: int = 100_000, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for number, start in enumerate(range(0, len(text), size)):
        rest = start + size < len(text)
        answer = await client.request(
            "sessions.import", text=text[start : start + size], piece=number, more=rest, **more
        )
    return answer


async def test_long_session_is_exported_and_imported_in_parts(tmp_path: Path) -> None:
    store = MemoryStore()
    writes: list[Write] = [PutSession("long", label="Long")]
    for number in range(600):
        message = (user if number % 2 == 0 else assistant)(f"{number} ü\u2028 " + "x" * 4000)
        writes.append(AddMessage("long", message.id, message.to_json()))
    async with serve_and_connect(tmp_path, in_memory_atlas(Scripted(says("Hi.")), store=store)) as client:
        await store.commit("default", writes)
        lines = await exported(client, "long")
        assert len(lines) == 601 and sum(map(len, lines)) > 2_000_000
        assert json.loads(lines[0])["key"] == "long"
    (tmp_path / "other").mkdir()
    async with serve_and_connect(tmp_path / "other", stored_atlas(says("Hi."))) as client:
        assert (await imported(client, "\n".join(lines) + "\n"))["result"] == {"sessionKey": "long"}
        assert (await exported(client, "long"))[1:] == lines[1:]
        (session,) = (await client.get("sessions.list"))["sessions"]
        assert session["label"] == "Long"
        again = await imported(client, "\n".join(lines))
        assert again["error"]["data"]["kind"] == "CONFLICT"
        assert "result" in await imported(client, "\n".join(lines), sessionKey="copy")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "line 1: not an exported session"),
        ("", "line 1: not an exported session"),
        ('{"atlas_session":1,"key":"a\\nb"}', "line 1: not an exported session"),
        ('{"atlas_session":2,"key":"k"}', "line 1: unsupported format 2"),
        ('{"atlas_session":1,"key":"k"}\n{"role":"user"}', "line 2: expected a message"),
    ],
)
async def test_invalid_import_is_refused_and_creates_nothing(text: str, words: str, tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, stored_atlas()) as client:
        error = (await client.request("sessions.import", text=text))["error"]
        assert error["data"]["kind"] == "INVALID_PARAMS" and words in error["message"]
        assert (await client.get("sessions.list"))["sessions"] == []


async def test_missing_part_of_an_import_is_refused(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, stored_atlas()) as client:
        assert await client.get("sessions.import", text='{"atlas_session":1,', more=True) == {}
        wrong = await client.request("sessions.import", text='"key":"k"}', piece=2)
        assert wrong["error"]["message"] == "sessions.import: a part is missing; start again with the first one"
        assert (await client.request("sessions.import", text='"key":"k"}', piece=1))["error"]


async def test_user_exports_and_imports_only_own_sessions(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(json.dumps({"bob": {"token": BOB, "scopes": ["read", "write"]}}))
    atlas = stored_atlas(says("Hi."), says("Ho."))
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway) as owner,
        connect_client(gateway, BOB) as bob,
    ):
        await owner.get("chat.send", sessionKey="mine", message="hello")
        await owner.until("chat.final")
        hidden = await bob.request("sessions.export", sessionKey="mine")
        assert hidden["error"]["data"]["kind"] == "SESSION_NOT_FOUND"
        lines = await exported(owner, "mine")
        assert (await imported(bob, "\n".join(lines)))["result"] == {"sessionKey": "mine"}
        assert json.loads((await exported(bob, "mine"))[0])["key"] == "mine"
        assert len((await bob.get("sessions.list"))["sessions"]) == 1
