"""`tools.invoke`: a tool call without a model, for the owner of the token, with the permissions of the agent."""

import asyncio
import json
from pathlib import Path
from typing import Any

from gateway_client import connect_client, serve_gateway

from atlas_agents import Approvals, tool
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas
from checks import TIMEOUT, wait_until

TOKEN = "writer-0123456789abcdefghijklmnopqrstuvwxyz"
ran: list[str] = []


@tool
async def note(text: str) -> dict[str, str]:
    """Note something."""
    ran.append(text)
    return {"noted": text}


@tool(confirm=True)
async def risk(text: str) -> str:
    """Do something risky."""
    ran.append(text)
    return text


async def test_tools_invoke_returns_the_result(tmp_path: Path) -> None:
    ran.clear()
    atlas = in_memory_atlas(Scripted(), [note], store=MemoryStore())
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        params = {"name": "note", "arguments": {"text": "x"}, "idempotencyKey": "k"}
        first = await client.get("tools.invoke", **params)
        assert (first["status"], first["result"]) == ("ok", {"noted": "x"})
        assert (await client.get("tools.invoke", **params)) == first and ran == ["x"]
        wrong = await client.get("tools.invoke", name="note", arguments={})
        assert (wrong["status"], wrong["error"]) == ("error", "bad_arguments")
        unknown = await client.request("tools.invoke", name="note", agentId="missing")
        assert unknown["error"]["data"]["kind"] == "AGENT_NOT_FOUND"
        assert (await client.get("sessions.list"))["sessions"] == []
        run = (await client.get("runs.get", runId=first["runId"]))["run"]
        assert run["status"] == "done" and run["user"] == "owner"


async def test_tools_invoke_waits_for_approval(tmp_path: Path) -> None:
    ran.clear()
    (tmp_path / "tokens.json").write_text(
        json.dumps({"writer": {"token": TOKEN, "scopes": ["read", "write", "approve"], "sessions": "own"}})
    )
    atlas = in_memory_atlas(Scripted(), [risk], store=MemoryStore(), approve=Approvals(wait=True))
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway, TOKEN) as client,
        asyncio.timeout(TIMEOUT),
    ):
        await client.send(id="call", method="tools.invoke", params={"name": "risk", "arguments": {"text": "x"}})

        async def pending_approvals() -> Any:
            return (await client.get("approvals.list"))["approvals"]

        found = await wait_until(pending_approvals)
        assert ran == []
        await client.get("approvals.resolve", approvalId=found[0]["approvalId"], decision="allow-once")
        while not (answers := [frame for frame in client.frames if frame.get("id") == "call"]):
            await client.next()
        assert answers[0]["result"]["result"] == "x"
