"""Knowledge and memory methods: documents are ingested, searched and removed; memories belong to the caller."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_client import Client, connect_client, serve_gateway

from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.server import Gateway
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.memories import MemoryOrigin, MemoryOwner
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas

TOKENS = {name: f"{name}-0123456789abcdefghijklmnopqrstuvwxyz" for name in ("ann", "bob")}


@asynccontextmanager
async def serve_with_knowledge(home: Path) -> AsyncGenerator[tuple[Gateway, KnowledgeBase]]:
    (home / "home").mkdir()
    lines = {name: {"token": token, "scopes": ["read", "write"], "sessions": "own"} for name, token in TOKENS.items()}
    (home / "home" / "tokens.json").write_text(json.dumps(lines))
    atlas = in_memory_atlas(Scripted(), store=(store := MemoryStore()))
    knowledge_base = KnowledgeBase(store)
    async with serve_gateway(home / "home", atlas, services=GatewayServices(knowledge_base)) as gateway:
        yield gateway, knowledge_base
        await knowledge_base.close()


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
            for other in (bob, owner):
                assert (await call(other, "memories.list", agentId=agent))["memories"] == []
                assert (await call(other, "memories.list", agentId=agent, query="tea"))["memories"] == []
                errors = [
                    await call(other, "memories.forget", agentId=agent, id=id) for id in (memory.id, "m" + "0" * 20)
                ]
                assert errors[0] == errors[1] and errors[0]["message"] == "not found"
            assert await call(ann, "memories.forget", agentId=agent, id=memory.id) == {"ok": True}
            assert (await call(ann, "memories.list", agentId=agent))["memories"] == []


async def test_knowledge_methods_are_unavailable_without_a_knowledge_base(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client, asyncio.timeout(20):
        assert (await call(client, "knowledge.list"))["data"]["kind"] == "UNAVAILABLE"
