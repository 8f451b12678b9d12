"""Knowledge and memory methods: documents are ingested, searched and removed; memories belong to the caller."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_client import Client, connect_client, main_token, open_socket, serve_gateway
from pypdf import PdfWriter

from atlas_agents import Agent
from atlas_agents.core.json import encode
from atlas_agents.core.store import Document, Passage, PutDocument
from atlas_agents.gateway import http_api
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.server import Gateway
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.library import DocumentDetails
from atlas_agents.knowledge.memories import MemoryOrigin, MemoryOwner
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, in_memory_atlas
from checks import TIMEOUT, cpu_factor, repeat_for_block

TOKENS = {name: f"{name}-0123456789abcdefghijklmnopqrstuvwxyz" for name in ("ann", "bob")}


def blank_pdf() -> bytes:
    """Return a PDF with a page that has no text, as a scan has."""
    writer, file = PdfWriter(), io.BytesIO()
    writer.add_blank_page(width=99, height=99)
    writer.write(file)
    return file.getvalue()


@asynccontextmanager
async def serve_with_knowledge(
    home: Path, store: MemoryStore | SqliteStore | None = None
) -> AsyncGenerator[tuple[Gateway, KnowledgeBase]]:
    (home / "home").mkdir()
    lines = {name: {"token": token, "scopes": ["read", "write"], "sessions": "own"} for name, token in TOKENS.items()}
    (home / "home" / "tokens.json").write_text(json.dumps(lines))
    store = store or MemoryStore()
    await store.open()
    atlas = in_memory_atlas(Scripted(), store=store)
    knowledge_base = KnowledgeBase(store)
    async with serve_gateway(home / "home", atlas, services=GatewayServices(knowledge_base)) as gateway:
        yield gateway, knowledge_base
        await knowledge_base.close()
    await store.close()


async def call(client: Client, method: str, **params: Any) -> Any:
    answer = await client.request(method, **params)
    return answer.get("result", answer.get("error"))


async def test_folder_is_ingested_searched_and_removed(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "sea.md").write_text("# Sea\n\n## Walrus\n\nA walrus has tusks.\n")
    (docs / "bad.pdf").write_bytes(b"no pdf")
    async with serve_with_knowledge(tmp_path) as (gateway, _), connect_client(gateway) as client:
        report = await call(client, "knowledge.add", source=str(docs), category="animals")
        assert report["added"] == report["passages"] == 1
        assert [each["source"] for each in report["skipped"]] == ["docs/bad.pdf"]
        progress = [frame["data"] for frame in client.frames if frame.get("event") == "knowledge.progress"]
        assert [(each["done"], each["total"]) for each in progress] == [(0, 2), (1, 2), (2, 2)]
        (document,) = (await call(client, "knowledge.list"))["documents"]
        assert (document["name"], document["category"], document["addedBy"]) == ("docs/sea.md", "animals", "owner")
        (found,) = (await call(client, "knowledge.search", query="walrus"))["results"]
        assert (found["heading"], found["position"], found["name"]) == ("Sea > Walrus", "line 5", "docs/sea.md")
        assert (await call(client, "knowledge.search", query="walrus", category="cars"))["results"] == []
        (docs / "sea.md").write_text("# Sea\n\nnarwhals only\n")
        assert (await call(client, "knowledge.refresh"))["changed"] == 1
        assert (await call(client, "knowledge.remove", source=document["id"])) == {"removed": 1}
        for which in (document["id"], "d" + "0" * 20):
            error = await call(client, "knowledge.remove", source=which)
            assert (error["data"]["kind"], error["message"]) == ("INVALID_PARAMS", "not found")
        error = await call(client, "knowledge.add", source=str(tmp_path / "none"))
        assert error["data"]["kind"] == "INVALID_PARAMS" and "cannot read" in error["message"]


async def test_memories_belong_to_the_caller(tmp_path: Path) -> None:
    """S11: the id of another user's memory gives the same error as an unknown id."""
    async with serve_with_knowledge(tmp_path) as (gateway, knowledge_base):
        tenant, agent = gateway.hub.atlas.tenant, gateway.hub.atlas.agents[0].id
        memory = await knowledge_base.memories.remember(
            MemoryOwner(tenant, agent, "ann"), "She likes tea.", ["taste"], MemoryOrigin("k", "r")
        )
        async with (
            connect_client(gateway, TOKENS["ann"]) as ann,
            connect_client(gateway, TOKENS["bob"]) as bob,
            connect_client(gateway) as owner,
        ):
            (mine,) = (await call(ann, "memories.list", agentId=agent))["memories"]
            assert (mine["id"], mine["text"], mine["tags"], mine["runId"]) == (memory.id, memory.text, ["taste"], "r")
            assert (await call(ann, "memories.list", agentId=agent, query="tea"))["memories"] == [mine]
            (match,) = (await call(ann, "memory.search", agentId=agent, query="tea", k=1))["results"]
            assert match["memory"] == mine and match["score"] > 0
            for other in (bob, owner):
                assert (await call(other, "memories.list", agentId=agent))["memories"] == []
                assert (await call(other, "memories.list", agentId=agent, query="tea"))["memories"] == []
                assert (await call(other, "memory.search", agentId=agent, query="tea"))["results"] == []
                errors = [
                    await call(other, "memories.forget", agentId=agent, id=id) for id in (memory.id, "m" + "0" * 20)
                ]
                assert errors[0] == errors[1] and errors[0]["message"] == "not found"
            assert await call(ann, "memories.forget", agentId=agent, id=memory.id) == {"ok": True}
            assert (await call(ann, "memories.list", agentId=agent))["memories"] == []


async def upload(gateway: Gateway, name: str, content: bytes, token: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {token or main_token(gateway)}", "Content-Type": "application/octet-stream"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{gateway.port}", headers=headers) as client:
        return await client.post("/api/uploads", params={"name": name}, content=content)


async def test_upload_becomes_a_document_is_replaced_and_removed(tmp_path: Path) -> None:
    async with serve_with_knowledge(tmp_path) as (gateway, _), connect_client(gateway) as client:

        async def add(name: str, content: bytes, category: str = "general") -> Any:
            uploaded = (await upload(gateway, name, content)).json()
            assert (uploaded["name"], uploaded["bytes"]) == (name, len(content))
            return await call(client, "knowledge.add", uploadId=uploaded["uploadId"], category=category)

        long = "".join(f"## Rule {number}\n\n{'Refunds take days. ' * 30}\n\n" for number in range(40)).encode()
        report = await add("policy.md", long)
        assert report["added"] == 1 and report["passages"] >= 40
        progress = [frame["data"] for frame in client.frames if frame.get("event") == "knowledge.progress"]
        pieces = [(each["stored"], each["pieces"]) for each in progress if each.get("stored")]
        assert pieces[0][0] < pieces[-1][0] == pieces[-1][1] == report["passages"]
        assert len({each["source"] for each in progress}) == 1, "the id of the upload"
        (document,) = (await call(client, "knowledge.list"))["documents"]
        assert (document["name"], document["uploaded"], document["addedBy"]) == ("policy.md", True, "owner")
        kept = tmp_path / document["source"]
        assert kept.read_bytes() == long and kept.stat().st_mode & 0o077 == 0

        for name in ("policy.md", "copy.md"):
            copies = (await add(name, long))["copies"]
            assert copies == [{"source": name, "original": "policy.md"}]
        assert len((await call(client, "knowledge.list"))["documents"]) == 1 and kept.exists()

        (skipped,) = (await add("scan.pdf", blank_pdf()))["skipped"]
        assert skipped["reason"] == "no text found in this PDF"
        changed = await add("policy.md", b"# Policy\n\nReturns within 30 days.\n")
        assert (changed["added"], changed["removed"]) == (1, 1) and not kept.exists()
        (found,) = (await call(client, "knowledge.search", query="returns"))["results"]
        assert found["text"] == "Returns within 30 days."
        (document,) = (await call(client, "knowledge.list"))["documents"]
        assert await call(client, "knowledge.remove", source=document["id"]) == {"removed": 1}
        assert list((tmp_path / "home" / "documents").rglob("*.*")) == []
        entries = (await call(client, "audit.list"))["entries"]
        edits = [(each["entry"]["entityId"], each["entry"]["meta"]["outcome"]) for each in entries]
        assert edits[0] == ("policy.md", "removed") and ("scan.pdf", "created") in edits


async def test_upload_requires_admin_and_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "MAX_SIZE", 1000)
    async with serve_with_knowledge(tmp_path) as (gateway, _), connect_client(gateway) as client:
        assert (await upload(gateway, "a.md", b"text", TOKENS["ann"])).status_code == 403
        assert (await upload(gateway, "a.md", b"text", "invalid")).status_code == 401
        large = await upload(gateway, "a.md", bytes(1001))
        assert large.status_code == 413 and "larger than" in large.json()["error"]["message"]
        for name in ("", "../x.md", ".hidden", "a\u202eb.md", "x" * 300):
            assert (await upload(gateway, name, b"text")).status_code == 400, name
        assert list((tmp_path / "home").glob("uploads/*")) == []
        error = await call(client, "knowledge.add", uploadId="0" * 32)
        assert "upload not found" in error["message"]
        assert (await call(client, "knowledge.add"))["data"]["kind"] == "INVALID_PARAMS"
        program = (await upload(gateway, "program.exe", b"MZ")).json()
        assert "unsupported file type" in (await call(client, "knowledge.add", uploadId=program["uploadId"]))["message"]
        assert list((tmp_path / "home" / "documents").rglob("*.*")) == []


async def test_guest_reads_documents_only_if_an_agent_searches_them(tmp_path: Path) -> None:
    (tmp_path / "sea.md").write_text("# Sea\n\nA walrus has tusks.\n")
    async with (
        serve_with_knowledge(tmp_path) as (gateway, knowledge_base),
        connect_client(gateway) as owner,
        connect_client(gateway, TOKENS["ann"]) as ann,
    ):
        await call(owner, "knowledge.add", source=str(tmp_path / "sea.md"))
        assert (await call(ann, "knowledge.list"))["data"]["kind"] == "FORBIDDEN"
        assert (await call(ann, "knowledge.search", query="walrus"))["data"]["kind"] == "FORBIDDEN"
        gateway.hub.atlas.set_agents([Agent("reader", model=Scripted(), tools=knowledge_base.tools)])
        (document,) = (await call(ann, "knowledge.list"))["documents"]
        assert document["source"] == document["name"] == "sea.md" and "addedBy" not in document
        (found,) = (await call(ann, "knowledge.search", query="walrus"))["results"]
        assert found["source"] == "sea.md"


async def test_memory_is_edited_with_a_version_and_cleared(tmp_path: Path) -> None:
    async with serve_with_knowledge(tmp_path) as (gateway, knowledge_base):
        tenant, agent = gateway.hub.atlas.tenant, gateway.hub.atlas.agents[0].id
        for number in range(3):
            owner = MemoryOwner(tenant, agent, "ann")
            await knowledge_base.memories.remember(owner, f"Fact {number}.", [], MemoryOrigin(f"k{number}", "r"))
        async with connect_client(gateway, TOKENS["ann"]) as ann, connect_client(gateway, TOKENS["bob"]) as bob:
            first = (await call(ann, "memories.list", agentId=agent))["memories"][0]
            edit = {"agentId": agent, "id": first["id"], "text": "She moved to Oslo."}
            assert (await call(bob, "memories.put", **edit, expectedVersion=first["version"]))["message"] == "not found"
            saved = (await call(ann, "memories.put", **edit, expectedVersion=first["version"]))["memory"]
            assert saved["text"] == "She moved to Oslo." and saved["version"] != first["version"]
            conflict = await call(ann, "memories.put", **edit, expectedVersion=first["version"])
            assert conflict["code"] == -32005 and conflict["data"]["current"]["value"] == "She moved to Oslo."
            (found,) = (await call(ann, "memories.list", agentId=agent, query="Oslo", limit=1))["memories"]
            assert found["id"] == first["id"]
            assert await call(bob, "memories.clear", agentId=agent) == {"removed": 0}
            assert await call(ann, "memories.clear", agentId=agent) == {"removed": 3}
            assert (await call(ann, "memories.list", agentId=agent))["memories"] == []
        rows = [row.entry.decode() for row in await gateway.hub.store.audit(tenant)]
        assert len(rows) == 4 and not any("Oslo" in row for row in rows), "audited without the text"


async def test_listing_many_documents_does_not_block_other_requests(tmp_path: Path) -> None:
    details = encode(DocumentDetails("a name", "/docs", "ann", 100))
    passage = Passage("A heading", "A text")
    async with serve_with_knowledge(tmp_path, SqliteStore(tmp_path / "atlas.db")) as (gateway, _):
        store, tenant = gateway.hub.store, gateway.hub.atlas.tenant
        for first in range(0, 3000, 500):
            documents = [
                Document("knowledge", f"d{n:05}", f"c{n % 50}", f"/docs/{n}.md", "Title", "hash", "", details)
                for n in range(first, first + 500)
            ]
            await store.commit(tenant, [PutDocument(each, (passage,)) for each in documents])
        async with open_socket(gateway, compression=None, max_size=None) as client:
            await client.send(type="auth", token=main_token(gateway), protocol=1)
            await client.next()
            listed = await read_pages(client, limit=500)
            assert len(listed) == 3000 and len({each["id"] for each in listed}) == 3000
            of_category = await read_pages(client, category="c7", limit=50)
            assert [each["id"] for each in of_category] == [
                each["id"] for each in listed if each["category"] == "c7"
            ], "latest first"

            async def list_most() -> bytes:
                await client.send(id=1, method="knowledge.list", params={"limit": 500})
                return await client.socket.recv(decode=False)

            frame, longest = await repeat_for_block(list_most, times=2)
        assert frame.count(b'"source"') == 500
        assert longest < 0.02 * cpu_factor()


async def read_pages(client: Client, **params: Any) -> list[dict[str, Any]]:
    page = await call(client, "knowledge.list", **params)
    found = page["documents"]
    assert len(page["categories"]) == 50
    while page.get("nextCursor"):
        assert len(page["documents"]) == params["limit"]
        page = await call(client, "knowledge.list", **params, cursor=page["nextCursor"])
        assert not page.get("categories"), "sent with the first page only"
        found += page["documents"]
    return found


async def test_knowledge_methods_are_unavailable_without_a_knowledge_base(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client, asyncio.timeout(TIMEOUT):
        assert (await call(client, "knowledge.list"))["data"]["kind"] == "UNAVAILABLE"
