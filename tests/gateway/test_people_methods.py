"""People: tokens are created once and revoked at once, edits have versions, and guests see only themselves."""

import json
from pathlib import Path
from typing import Any

import aiohttp
from gateway_client import connect_client, serve_gateway

from atlas_agents.storage.sql.tables import Query, Row
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas

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


class CountingStore(MemoryStore):
    queries = 0

    async def fetch(self, query: Query) -> list[Row]:
        self.queries += 1
        return await super().fetch(query)


async def test_list_of_users_takes_the_same_queries_however_many_there_are(tmp_path: Path) -> None:
    store = CountingStore()
    atlas = in_memory_atlas(Scripted(), store=store)
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as owner:
        queries, users = list[int](), list[dict[str, Any]]()
        for number in range(12):
            await owner.get("users.put", name=f"user{number}", role="boss")
            if number in (0, 11):
                store.queries = 0
                users = (await owner.get("users.list"))["users"]
                queries.append(store.queries)
        assert queries[0] == queries[1]
        assert [each["changedBy"] for each in users if each["name"] != "owner"] == ["owner"] * 12


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


async def accept(gateway: Any, code: str) -> tuple[int, dict[str, Any]]:
    """Accept an invitation as the page does."""
    url = f"http://127.0.0.1:{gateway.port}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/api/invitation", json={"code": code}, headers={"Origin": url}) as response,
    ):
        return response.status, await response.json()


async def test_invitation_makes_one_token_and_expires(tmp_path: Path) -> None:
    write_guest(tmp_path, "read", "admin")
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        preview = await owner.get("users.invite", name="mara", dryRun=True)
        assert "+scopes: read, write" in preview["diff"] and "code" not in preview
        assert [each["name"] for each in (await owner.get("users.list"))["users"]] == ["owner"]
        first = await owner.get("users.invite", name="mara", role="boss")
        assert first["path"] == f"/#invite={first['code']}"
        again = await owner.get("users.invite", name="mara", role="boss", days=2)
        assert again["warnings"] == ["the earlier invitation becomes invalid"]
        assert (await accept(gateway, first["code"]))[0] == 401
        (mara,) = [each for each in (await owner.get("users.list"))["users"] if each["name"] == "mara"]
        assert (mara["status"], mara["invitedUntil"]) == ("invited", again["user"]["invitedUntil"])
        status, made = await accept(gateway, again["code"])
        assert (status, made["user"]) == (200, "mara")
        async with connect_client(gateway, made["token"]) as guest:
            assert (await guest.get("system.info"))["principal"]["id"] == "mara"
        assert (await accept(gateway, again["code"]))[0] == 401, "a code is valid once"
        users = {each["name"]: each["status"] for each in (await owner.get("users.list"))["users"]}
        assert users["mara"] == "active"
        refused = await owner.request("users.invite", name="mara")
        assert "mara is a user already" in refused["error"]["message"]
        async with connect_client(gateway, GUEST) as ann:
            wider = await ann.request("users.invite", name="bob", scopes=["write"])
            assert "lacks the scope 'write'" in wider["error"]["message"]
        stored = json.dumps([await owner.get("audit.list"), (tmp_path / "invitations.json").read_text()])
        assert again["code"] not in stored and made["token"] not in stored


async def test_inviting_again_keeps_the_role_and_the_rights_that_are_not_given(tmp_path: Path) -> None:
    write_guest(tmp_path, "read", "write", "admin")
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        await owner.get("users.put", name="anna", role="reviewer", status="invited")
        assert (await owner.get("users.invite", name="anna"))["user"]["role"] == "reviewer"
        rights = {"scopes": ["read", "approve"], "sessions": "all"}
        first = await owner.get("users.invite", name="ben", role="editor", days=30, **rights)
        shown = {each["name"]: each.get("invitedScopes") for each in (await owner.get("users.list"))["users"]}
        assert shown == {"owner": None, "anna": ["read", "write"], "ben": ["read", "approve"]}
        again = await owner.get("users.invite", name="ben")
        for expected in ("role: editor", "scopes: read, approve", "sessions: all", "valid for days: 30"):
            assert f"+{expected}" in again["diff"]
        assert again["user"]["invitedUntil"] >= first["user"]["invitedUntil"]
        async with connect_client(gateway, GUEST) as ann:
            wider = await ann.request("users.invite", name="ben")
            assert "lacks the scope 'approve'" in wider["error"]["message"]
        changed = await owner.get("users.invite", name="ben", sessions="own", days=2)
        assert changed["user"]["invitedUntil"] < first["user"]["invitedUntil"]
        changed = await owner.get("users.invite", name="ben")
        assert "+valid for days: 2" in changed["diff"], "not prolonged"
        made = (await accept(gateway, changed["code"]))[1]
        async with connect_client(gateway, made["token"]) as ben:
            principal = (await ben.get("system.info"))["principal"]
            assert principal == {"id": "ben", "role": "editor", "scopes": ["read", "approve"], "sessions": "own"}


async def test_expired_and_withdrawn_invitations_are_refused(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        code = (await owner.get("users.invite", name="mara"))["code"]
        path = tmp_path / "invitations.json"
        open_until = json.loads(path.read_text())
        open_until["mara"]["expires_at"] = 1
        path.write_text(json.dumps(open_until))
        assert (await accept(gateway, code))[0] == 401
        code = (await owner.get("users.invite", name="mara"))["code"]
        await owner.get("users.remove", name="mara")
        assert (await accept(gateway, code))[0] == 401
        assert not (tmp_path / "tokens.json").exists()


async def test_dry_runs_tell_what_changes_and_change_nothing(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as owner:
        await owner.get("tokens.create", name="laptop", scopes=["read"], user="mara")
        await owner.get("users.put", name="mara")
        await owner.get("plans.put", name="small", seats=1)

        async def state() -> list[Any]:
            methods = ("users.list", "tokens.list", "plans.list", "tenants.get")
            return [await owner.get(method) for method in methods]

        before, rows = await state(), len((await owner.get("audit.list"))["entries"])
        suspended = await owner.get("users.put", name="mara", status="suspended", dryRun=True)
        assert "-status: active\n+status: suspended" in suspended["diff"]
        assert suspended["warnings"] == ["tokens that stop working: laptop"]
        removed = await owner.get("users.remove", name="mara", dryRun=True)
        assert removed["warnings"] == ["tokens that keep working until you revoke them: laptop"]
        created = await owner.get("tokens.create", name="phone", scopes=["read"], dryRun=True)
        assert "+scopes: read" in created["diff"] and created["secret"] == ""
        again = await owner.request("tokens.create", name="laptop", scopes=["read"], dryRun=True)
        assert "already exists" in again["error"]["message"]
        assert "-user: mara" in (await owner.get("tokens.revoke", name="laptop", dryRun=True))["diff"]
        assert "+seats: 2" in (await owner.get("plans.put", name="small", seats=2, dryRun=True))["diff"]
        for method in ("users.put", "users.remove", "users.invite"):
            kept = await owner.request(method, name="owner", dryRun=True)
            assert "owner" in kept["error"]["message"], method
        reserved = await owner.request("plans.put", name="unlimited", dryRun=True)
        assert "reserved" in reserved["error"]["message"]
        switched = await owner.get("tenants.update", plan="small", dryRun=True)
        assert "+plan: small" in switched["diff"]
        assert (await owner.request("tenants.update", plan="huge", dryRun=True))["error"]["message"]
        assert await state() == before
        assert len((await owner.get("audit.list"))["entries"]) == rows
