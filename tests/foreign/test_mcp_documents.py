"""Documents as MCP resources, read with the official client: listing, reading, searching and permissions."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.subscriptions import ResourceUpdated

from atlas_agents.app.serve import ServedGateway, private_gateway
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from atlas_agents.gateway.mcp import resources, server
from checks import TIMEOUT

ANA = "ana-0123456789abcdefghijklmnopqrstuvwxyz"
AGENTS = "## assistant\n\nModel: http/rules\n\n## poet\n\nModel: http/rules\nTools: current_time\n"
SEARCH = "search_knowledge"
POLICY = f'[tools."{SEARCH}"]\nask = ["*"]\n'


@asynccontextmanager
async def serve(folder: Path, policy: str = "") -> AsyncGenerator[ServedGateway, None]:
    """Run a gateway with two documents of its tenant and one of another."""
    home = folder / "home"
    (home / "workspace").mkdir(parents=True)
    (home / "workspace" / "AGENTS.md").write_text(AGENTS)
    (home / "tokens.json").write_text(json.dumps({"ana": {"token": ANA, "scopes": ["read", "write"]}}))
    docs = folder / "docs"
    docs.mkdir()
    (docs / "sea.md").write_text("# Sea\n\nIt is wet.\n\n## Walrus\n\nA walrus has tusks.\n")
    (docs / "land.md").write_text("# Land\n\nIt is dry.\n")
    (folder / "secret.md").write_text("# Secret\n\nOf another organisation.\n")
    values = {"ATLAS_HOME": str(home), "HOME": str(folder), "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    if policy:
        (folder / "policy.toml").write_text(policy)
        values["ATLAS_POLICY"] = str(folder / "policy.toml")
    environment = Environment({**values, "ATLAS_EMBEDDINGS": "none"}, dotenv=None)
    async with private_gateway(load({}, environment, folder), environment=environment) as gateway:
        knowledge = gateway.runtime.knowledge.knowledge
        await knowledge.add(gateway.runtime.atlas.tenant, str(docs))
        await knowledge.add("another", str(folder / "secret.md"))
        yield gateway


@asynccontextmanager
async def client(
    gateway: ServedGateway, token: str, path: str = "/mcp", mode: str = "auto", **options: Any
) -> AsyncGenerator[Client, None]:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT) as http,
        Client(streamable_http_client(f"{gateway.url}{path}", http_client=http), mode=mode, **options) as found,
    ):
        yield found


async def audit_rows(gateway: ServedGateway) -> list[tuple[Any, ...]]:
    rows = [record.entry for record in await gateway.runtime.atlas.audit.records(gateway.runtime.atlas.tenant)]
    return [(row.action, row.entity_type, row.success, row.meta["user"]) for row in rows]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_documents_are_listed_read_searched_and_audited(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PAGE", 1)
    async with serve(tmp_path) as gateway, client(gateway, gateway.token.reveal(), mode=mode) as mcp:
        first = await mcp.list_resources()
        second = await mcp.list_resources(cursor=first.next_cursor)
        last = await mcp.list_resources(cursor=second.next_cursor)
        found = {each.name: each for each in (*first.resources, *second.resources)}
        assert set(found) == {"docs/sea.md", "docs/land.md"} and (last.resources, last.next_cursor) == ([], None)
        sea = found["docs/sea.md"]
        assert (sea.description, sea.mime_type, sea.size) == ("Sea (general)", "text/markdown", 50)
        assert str(tmp_path) not in repr(found)
        (content,) = (await mcp.read_resource(str(sea.uri))).contents
        assert content.text == "# Sea\n\nIt is wet.\n\n## Sea > Walrus\n\nA walrus has tusks."  # type: ignore
        assert SEARCH in [each.name for each in (await mcp.list_tools()).tools]
        answer = await mcp.call_tool(SEARCH, {"query": "walrus"})
        assert answer.structured_content is not None
        assert [each["source"] for each in answer.structured_content["results"]] == ["docs/sea.md"]
        (template,) = (await mcp.list_resource_templates()).resource_templates
        reference = types.ResourceTemplateReference(uri=template.uri_template)
        completed = (await mcp.complete(reference, {"name": "id", "value": "SEA"})).completion
        assert [template.uri_template.replace("{id}", each) for each in completed.values] == [str(sea.uri)]
        with pytest.raises(MCPError, match="resource template not found"):
            await mcp.complete(types.ResourceTemplateReference(uri="file:///{x}"), {"name": "x", "value": ""})
        theirs = await gateway.runtime.knowledge.knowledge.documents("another")
        for uri in (f"knowledge://documents/{theirs[0].id}", "knowledge://documents/x", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="resource not found"):
                await mcp.read_resource(uri)
        with pytest.raises(MCPError, match="invalid cursor"):
            await mcp.list_resources(cursor="'; DROP TABLE")
        assert await audit_rows(gateway) == [
            ("DOCUMENT_READ", "document", True, "owner"),
            ("TOOL_CALL", "tool", True, "owner"),
            ("DOCUMENT_READ", "document", False, "owner"),
        ]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_client_is_notified_of_a_changed_document(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_WATCH_INTERVAL", 0.05)
    updated: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            updated.put_nowait(str(message.params.uri))

    async def listen(mcp: Client, uri: str, ready: asyncio.Event) -> None:
        async with mcp.listen(resource_subscriptions=[uri]) as events:
            ready.set()
            async for event in events:
                assert isinstance(event, ResourceUpdated)
                updated.put_nowait(event.uri)

    async with (
        serve(tmp_path) as gateway,
        client(gateway, gateway.token.reveal(), mode=mode, message_handler=on_message) as mcp,
        asyncio.timeout(TIMEOUT),
        asyncio.TaskGroup() as tasks,
    ):
        (sea,) = [str(each.uri) for each in (await mcp.list_resources()).resources if each.name == "docs/sea.md"]
        listening, ready = None, asyncio.Event()
        if mode == "legacy":
            subscribe = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=sea))
            await mcp.session.send_request(subscribe, types.EmptyResult)
        else:
            listening = tasks.create_task(listen(mcp, sea, ready))
            await ready.wait()
        (tmp_path / "docs" / "sea.md").write_text("# Sea\n\nIt is deep.\n")
        await gateway.runtime.knowledge.knowledge.refresh(gateway.runtime.atlas.tenant)
        assert await updated.get() == sea
        if listening is not None:
            listening.cancel()
        else:
            unsubscribe = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=sea))
            await mcp.session.send_request(unsubscribe, types.EmptyResult)


async def test_agent_without_the_search_tool_reads_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway:
        async with client(gateway, gateway.token.reveal()) as mcp:
            uri = str((await mcp.list_resources()).resources[0].uri)
        async with client(gateway, gateway.token.reveal(), "/mcp/poet") as mcp:
            assert (await mcp.list_resources()).resources == []
            with pytest.raises(MCPError, match="resource not found"):
                await mcp.read_resource(uri)
            assert SEARCH not in [each.name for each in (await mcp.list_tools()).tools]
        assert await audit_rows(gateway) == [("DOCUMENT_READ", "document", False, "owner")]


async def test_documents_are_hidden_if_the_search_needs_approval(tmp_path: Path) -> None:
    async with serve(tmp_path, POLICY) as gateway, client(gateway, ANA) as mcp:
        assert (await mcp.list_resources()).resources == []
        (document, _) = await gateway.runtime.knowledge.knowledge.documents(gateway.runtime.atlas.tenant)
        with pytest.raises(MCPError, match="resource not found"):
            await mcp.read_resource(f"knowledge://documents/{document.id}")
        assert await audit_rows(gateway) == [("DOCUMENT_READ", "document", False, "ana")]
