"""Users, their tokens, and plans."""

import json
from pathlib import Path
from typing import Any

from gateway_client import connect_client, http, open_socket, serve_gateway

from atlas_agents import Price, tool
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool(effect="pure")
async def look() -> str:
    """Look around."""
    return "nothing"


STRONG = "-0123456789abcdefghijklmnopqrstuvwxyz"


async def test_tokens_of_one_user_share_sessions_and_suspension(tmp_path: Path) -> None:
    lines = {
        "ann": {"token": "ann" + STRONG, "scopes": ["read", "write"]},
        "ann-phone": {"token": "phone" + STRONG, "scopes": ["read"], "user": "ann"},
        "bob": {"token": "bob" + STRONG, "scopes": ["read"]},
    }
    (tmp_path / "tokens.json").write_text(json.dumps(lines))
    async with (
        serve_gateway(tmp_path) as gateway,
        connect_client(gateway) as owner,
        connect_client(gateway, "ann" + STRONG) as ann,
        connect_client(gateway, "phone" + STRONG) as phone,
    ):
        assert phone.frames[0]["principal"] == {"id": "ann", "role": "guest", "scopes": ["read"], "sessions": "own"}
        await ann.get("chat.send", sessionKey="s", message="hi")
        await ann.until("chat.final")
        assert [each["sessionKey"] for each in (await phone.get("sessions.list"))["sessions"]] == ["s"]
        assert (await owner.get("users.list"))["users"][0]["name"] == "owner"
        await owner.get("users.put", name="ann", role="admin")
        user, other = (await owner.get("users.list"))["users"]
        assert other["name"] == "owner"
        assert (user["role"], user["status"]) == ("admin", "active") and user["lastActive"] > 0
        await owner.get("users.put", name="ann", status="suspended")
        for socket in (ann, phone):
            assert (await socket.closed())[0] == 4401
        async with open_socket(gateway) as again:
            await again.send(type="auth", token="ann" + STRONG)
            assert (await again.closed())[0] == 4401
        async with connect_client(gateway, "bob" + STRONG) as bob:
            assert (await bob.request("users.put", name="bob", role="owner"))["error"]["code"] == -32001
        preview = await owner.get("users.remove", name="ann", dryRun=True)
        removed = await owner.get("users.remove", name="ann")
        for found in (preview, removed):
            assert found["warnings"] == ["tokens that are revoked: ann, ann-phone"]
            assert found["diff"].endswith("-token ann\n-token ann-phone")
        for token in ("ann" + STRONG, "phone" + STRONG):
            async with open_socket(gateway) as again:
                await again.send(type="auth", token=token)
                assert (await again.closed())[0] == 4401
        assert [each["name"] for each in (await owner.get("tokens.list"))["tokens"]] == ["owner", "bob"]


async def test_exceeded_plan_refuses_turns(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        assert (await owner.get("tenants.get"))["plan"] == {"name": "unlimited"}
        await owner.get("chat.send", sessionKey="s", message="hi")
        await owner.until("chat.final")
        await owner.get("plans.put", name="tiny", tokens=1)
        assert (await owner.request("tenants.update", plan="huge"))["error"]["code"] == -32602
        await owner.get("tenants.update", plan="tiny")
        refused = (await owner.request("chat.send", sessionKey="s", message="again"))["error"]
        assert refused["data"]["kind"] == "LIMIT_EXCEEDED" and "is used up" in refused["message"]
        found = await owner.get("tenants.get")
        assert found["plan"] == {"name": "tiny", "tokens": 1} and found["tokens"] > 0 and found["tenant"] == "default"
        assert (await owner.get("tenants.list"))["tenants"] == ["default"]


async def test_budget_of_a_message_lowers_other_budgets_but_does_not_raise_them(tmp_path: Path) -> None:
    model = Scripted(*[says("Let me look.") + calls("look"), says("Nothing.")] * 2)
    atlas = in_memory_atlas(model, [look], store=MemoryStore(), budgets="turn requests=2")
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as owner:

        async def send(**budget: float) -> dict[str, Any]:
            await owner.get("chat.send", sessionKey="s", message="hi", budget=budget)
            return await owner.until("chat.final", "chat.error")

        assert "message" in await send(requests=9, toolCalls=5, tokens=10**6, seconds=600)
        error = await send(requests=1)
        assert error["kind"] == "BudgetExceeded" and "1 model requests is used up (1 used)" in error["message"]
        history = await owner.get("chat.history", sessionKey="s")
        assert history["messages"][-2]["parts"][0]["text"] == "Let me look."
        assert history["outcomes"][-1]["error"] == error["message"]
        for bad, words in (({"tokens": 0}, "tokens"), ({}, "at least one of"), ({"scope": "user"}, "scope")):
            refused = (await owner.request("chat.send", sessionKey="s", message="hi", budget=bad))["error"]
            assert refused["code"] == -32602 and words in refused["message"], refused


async def test_budgets_are_shown_counted_and_end_turns(tmp_path: Path) -> None:
    budgets = ["user requests=1 dollars=5 per=day", "turn seconds=600"]
    model = Scripted(calls("look"), says("never"))
    atlas = in_memory_atlas(model, [look], store=MemoryStore(), budgets=budgets, prices={"scripted": Price(1, 1)})
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as owner:
        await owner.get("chat.send", sessionKey="s", message="hi")
        error = await owner.until("chat.error")
        assert error["kind"] == "BudgetExceeded" and "1 model requests per day is used up (1 used)" in error["message"]
        refused = (await owner.request("chat.send", sessionKey="s", message="again"))["error"]
        assert refused["data"]["kind"] == "LIMIT_EXCEEDED" and "it resets at" in refused["message"]
        shown = (await owner.get("limits.get"))["budgets"]
        assert [(each["scope"], each["measure"], each["limit"], each["per"]) for each in shown] == [
            ("user", "requests", 1, "day"),
            ("user", "dollars", 5, "day"),
        ]
        assert (shown[0]["used"], shown[0]["reserved"]) == (1, 0) and shown[0]["resetsAt"] > 0
        _, metrics = await http(gateway, "GET /metrics")
        assert 'atlas_budgets_exceeded_total{measure="requests",scope="user"} 2.0' in metrics
