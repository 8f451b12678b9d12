"""People: tokens are created once and revoked at once, edits have versions, and guests see only themselves."""

import json
from pathlib import Path

from gateway_client import connect_client, serve_gateway

GUEST = "guest-0123456789abcdefghijklmnopqrstuvwxyz"


def write_guest(home: Path, *scopes: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "tokens.json").write_text(json.dumps({"ann": {"token": GUEST, "scopes": scopes, "sessions": "own"}}))


async def test_token_is_created_once_limited_and_revoked_at_once(tmp_path: Path) -> None:
    write_guest(tmp_path, "read", "admin")
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        made = await owner.get("tokens.create", name="laptop", scopes=["write", "read"], user="mara")
        assert made["token"] == {"name": "laptop", "user": "mara", "scopes": ["read", "write"], "sessions": "own"}
        secret = made["secret"]
        assert secret not in (tmp_path / "tokens.json").read_text()
        listed = await owner.get("tokens.list")
        assert [each["name"] for each in listed["tokens"]] == ["owner", "ann", "laptop"]
        assert secret not in json.dumps(listed) and GUEST not in json.dumps(listed)
        again = await owner.request("tokens.create", name="laptop", scopes=["read"])
        assert "already exists" in again["error"]["message"]
        assert (
            "invalid token name"
            in (await owner.request("tokens.create", name="owner", scopes=["read"]))["error"]["message"]
        )
        async with connect_client(gateway, secret) as laptop, connect_client(gateway, GUEST) as ann:
            for params in ({"scopes": ["write"]}, {"scopes": ["read"], "sessions": "all"}):
                assert (await ann.request("tokens.create", name="more", **params))["error"]["code"] == -32001
            assert (await laptop.get("health.check"))["status"] == "ok"
            await owner.get("tokens.revoke", name="laptop")
            assert (await laptop.closed())[0] == 4401
        assert "not found" in (await owner.request("tokens.revoke", name="laptop"))["error"]["message"]
        rows = [each["entry"] for each in (await owner.get("audit.list"))["entries"]]
        assert [row["meta"]["outcome"] for row in rows if row["success"]] == ["removed", "created"]
        assert secret not in json.dumps(rows)


async def test_edits_of_users_and_plans_have_versions(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        added = (await owner.get("users.put", name="mara", expectedVersion=None))["user"]
        exists = await owner.request("users.put", name="mara", role="boss", expectedVersion=None)
        assert exists["error"]["code"] == -32005
        changed = (await owner.get("users.put", name="mara", role="boss", expectedVersion=added["version"]))["user"]
        assert (changed["role"], changed["changedBy"]) == ("boss", "owner")
        late = await owner.request("users.put", name="mara", role="guest", expectedVersion=added["version"])
        assert late["error"]["data"]["current"]["value"]["role"] == "boss"
        await owner.get("users.put", name="mara", role="member")
        plan = (await owner.get("plans.put", name="team", seats=5, expectedVersion=None))["plan"]
        await owner.get("plans.put", name="team", seats=6, expectedVersion=plan["version"])
        late = await owner.request("plans.put", name="team", seats=7, expectedVersion=plan["version"])
        assert late["error"]["data"]["current"]["value"]["seats"] == 6
        await owner.get("tenants.update", plan="team")
        await owner.get("users.remove", name="mara")
        rows = [each["entry"] for each in (await owner.get("audit.list"))["entries"]]
        assert {row["entityType"] for row in rows} == {"user", "plan", "tenant"} and len(rows) == 7


async def test_guest_sees_only_itself(tmp_path: Path) -> None:
    write_guest(tmp_path, "read", "write")
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        for name in ("ann", "bob"):
            await owner.get("users.put", name=name)
        async with connect_client(gateway, GUEST) as ann:
            assert [each["name"] for each in (await ann.get("users.list"))["users"]] == ["ann"]
            for method in ("plans.list", "tenants.get", "tokens.list", "users.put"):
                answer = await ann.request(method, **({"name": "ann"} if method == "users.put" else {}))
                assert answer["error"]["code"] == -32001, method
