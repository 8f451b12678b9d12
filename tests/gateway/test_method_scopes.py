"""Scopes of all methods. The table is written by hand, so a method that is missing or has another scope fails."""

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, connect_client, main_token, open_socket, serve_gateway

from atlas_agents.gateway.protocol.methods import METHODS
from atlas_agents.gateway.server import all_methods

SCOPES = {
    "health.check": "read",
    "system.info": "read",
    "chat.send": "write",
    "chat.postResults": "write",
    "chat.abort": "write",
    "chat.history": "read",
    "chat.wait": "read",
    "sessions.create": "write",
    "sessions.list": "read",
    "sessions.get": "read",
    "sessions.update": "write",
    "sessions.delete": "write",
    "sessions.subscribe": "read",
    "sessions.unsubscribe": "read",
    "sessions.fork": "write",
    "sessions.branches": "read",
    "sessions.search": "read",
    "sessions.export": "read",
    "sessions.import": "write",
    "runs.list": "read",
    "runs.get": "read",
    "jobs.list": "read",
    "jobs.get": "read",
    "jobs.submit": "write",
    "jobs.cancel": "write",
    "jobs.retry": "write",
    "schedules.add": "write",
    "schedules.list": "read",
    "schedules.pause": "write",
    "schedules.run": "write",
    "schedules.remove": "write",
    "approvals.list": "read",
    "approvals.resolve": "approve",
    "approvals.resolveMany": "approve",
    "exec.approve": "approve",
    "exec.deny": "approve",
    "agents.list": "read",
    "agents.get": "read",
    "agents.put": "admin",
    "agents.remove": "admin",
    "agents.tryDraft": "admin",
    "policy.get": "read",
    "policy.simulate": "admin",
    "policy.put": "admin",
    "models.list": "read",
    "setup.status": "admin",
    "providers.list": "admin",
    "providers.test": "admin",
    "secrets.put": "admin",
    "secrets.remove": "admin",
    "models.select": "admin",
    "models.offer": "admin",
    "models.download": "admin",
    "models.pause": "admin",
    "tools.list": "read",
    "tools.matrix": "read",
    "tools.invoke": "write",
    "mcp.servers": "read",
    **dict.fromkeys(("mcp.catalog", "mcp.put", "mcp.remove", "mcp.inspect", "mcp.approve"), "admin"),
    **dict.fromkeys([f"channels.{name}" for name in ("list", "put", "test", "pair", "unpair")], "admin"),
    **dict.fromkeys(("mcp.login", "mcp.logout"), "admin"),
    "audit.list": "read",
    "audit.subscribe": "read",
    "audit.verify": "read",
    "usage.summary": "read",
    "usage.tools": "read",
    "limits.get": "read",
    "knowledge.list": "read",
    "knowledge.search": "read",
    "knowledge.add": "admin",
    "knowledge.refresh": "admin",
    "knowledge.remove": "admin",
    "memories.list": "read",
    "memory.search": "read",
    "memories.forget": "write",
    "memories.put": "write",
    "memories.clear": "write",
    "users.list": "read",
    "users.put": "admin",
    "users.invite": "admin",
    "users.remove": "admin",
    "plans.list": "read",
    "plans.put": "admin",
    "tenants.get": "read",
    "tenants.update": "admin",
    "tenants.list": "admin",
    **dict.fromkeys(("evaluations.list", "evaluations.get"), "admin"),
    **dict.fromkeys(("config.get", "ops.status", "ops.backup", "ops.doctor", "ops.logs"), "admin"),
    **dict.fromkeys(("tokens.rotate", "tokens.list", "tokens.create", "tokens.revoke"), "admin"),
    "devices.list": "read",
    "devices.revoke": "write",
}
TOKENS = {scope: f"{scope}-0123456789abcdefghijklmnopqrstuvwxyz" for scope in ("read", "write", "approve", "admin")}


def write_tokens(home: Path) -> None:
    lines = {scope: {"token": token, "scopes": [scope], "sessions": "all"} for scope, token in TOKENS.items()}
    (home / "tokens.json").write_text(json.dumps(lines))


def test_declared_scopes_match_the_table() -> None:
    assert {method.name: method.scope for method in METHODS.values()} == SCOPES


def test_every_method_has_a_handler() -> None:
    assert set(all_methods().names) == set(SCOPES)


@pytest.mark.parametrize("scope", TOKENS)
async def test_token_may_call_only_the_methods_of_its_scope(scope: str, tmp_path: Path) -> None:
    write_tokens(tmp_path)
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway, TOKENS[scope]) as client:
        assert client.frames[0]["principal"] == {"id": scope, "role": "guest", "scopes": [scope]}
        for name, needed in sorted(SCOPES.items(), key=lambda row: row[0] == "tokens.rotate"):
            answer = await client.request(name)
            forbidden = answer.get("error", {}).get("code") == -32001
            assert forbidden == (needed != scope), (name, answer)


async def test_no_method_is_called_without_authentication(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        for name in SCOPES:
            async with open_socket(gateway) as client:
                await client.send(id="1", method=name, params={})
                assert await client.closed() == (4400, "the first frame must be an auth frame")
                assert client.frames == []


async def test_main_token_may_call_every_method(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        for name in SCOPES:
            if name != "tokens.rotate":
                answer = await client.request(name)
                assert answer.get("error", {}).get("code") != -32001, (name, answer)


@pytest.mark.parametrize(
    "claim",
    [
        {"scopes": ["admin"]},
        {"role": "owner", "principal": {"id": "owner", "role": "owner", "scopes": ["admin"]}},
        {"client": {"name": "owner", "version": "1", "scopes": ["admin"]}},
    ],
)
async def test_claimed_scopes_are_ignored(claim: dict[str, Any], tmp_path: Path) -> None:
    write_tokens(tmp_path)
    headers = {"X-Atlas-Scopes": "admin", "X-Forwarded-User": "owner"}
    async with serve_gateway(tmp_path) as gateway, open_socket(gateway, additional_headers=headers) as client:
        await client.send(type="auth", token=TOKENS["read"], protocol=1, **claim)
        assert (await client.next())["principal"]["scopes"] == ["read"]
        assert (await client.request("config.get"))["error"]["data"]["kind"] == "FORBIDDEN"


async def authenticate(client: Client, token: str) -> dict[str, Any]:
    await client.send(type="auth", token=token)
    return await client.next()


async def test_plain_welcome_has_two_keys(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, open_socket(gateway) as client:
        assert await authenticate(client, main_token(gateway)) == {"type": "auth", "ok": True}
