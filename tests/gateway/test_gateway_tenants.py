"""Users, their tokens, and plans."""

import json
from pathlib import Path

from gateway_client import connect_client, open_socket, serve_gateway

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
        assert phone.frames[0]["principal"] == {"id": "ann", "role": "guest", "scopes": ["read"]}
        await ann.get("chat.send", sessionKey="s", message="hi")
        await ann.until("chat.final")
        assert [each["sessionKey"] for each in (await phone.get("sessions.list"))["sessions"]] == ["s"]
        assert (await owner.get("users.list"))["users"][0]["name"] == "owner"
        await owner.get("users.put", name="ann", role="admin")
        (user,) = (await owner.get("users.list"))["users"]
        assert (user["role"], user["status"]) == ("admin", "active") and user["lastActive"] > 0
        await owner.get("users.put", name="ann", status="suspended")
        for socket in (ann, phone):
            assert (await socket.closed())[0] == 4401
        async with open_socket(gateway) as again:
            await again.send(type="auth", token="ann" + STRONG)
            assert (await again.closed())[0] == 4401
        async with connect_client(gateway, "bob" + STRONG) as bob:
            assert (await bob.request("users.put", name="bob", role="owner"))["error"]["code"] == -32001
        await owner.get("users.remove", name="ann")
        async with connect_client(gateway, "ann" + STRONG) as back:
            await back.get("health.check")


async def test_exceeded_plan_refuses_turns(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        assert (await owner.get("tenants.get"))["plan"] == {"name": "unlimited"}
        await owner.get("plans.put", name="tiny", tokens=1)
        assert (await owner.request("tenants.update", plan="huge"))["error"]["code"] == -32602
        await owner.get("tenants.update", plan="tiny")
        await owner.get("chat.send", sessionKey="s", message="hi")
        await owner.until("chat.final")
        refused = (await owner.request("chat.send", sessionKey="s", message="again"))["error"]
        assert refused["data"]["kind"] == "LIMIT_EXCEEDED" and "is used up" in refused["message"]
        found = await owner.get("tenants.get")
        assert found["plan"] == {"name": "tiny", "tokens": 1} and found["tokens"] > 0 and found["tenant"] == "default"
        assert (await owner.get("tenants.list"))["tenants"] == ["default"]
