"""Signed-in browsers: the cookie, where it counts, the list of devices, sign-out and expiry."""

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gateway_client import Client, connect_client, http, main_token, open_socket, serve_gateway

from atlas_agents.gateway.auth import LOCKOUT_SECONDS, MAX_INVALID_TOKENS, Authenticator
from atlas_agents.gateway.devices import MAX_DEVICES, REMEMBERED_SECONDS, Devices, describe_browser
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas, says

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def own_origin(gateway: Gateway, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{gateway.port}"


async def sign_in(gateway: Gateway, token: str | None = None, *, remember: bool = True, **headers: str) -> str:
    """Sign in like the page does and return the header that sets the cookie."""
    body = json.dumps({"token": token or main_token(gateway), "remember": remember})
    sent = {"Origin": own_origin(gateway), "Content_Type": "application/json", "User_Agent": FIREFOX, **headers}
    code, answer = await http(gateway, "POST /api/session", body=body, **sent)
    assert code == 200, answer
    found = re.search(r"set-cookie: (.*)\r\n", answer, re.IGNORECASE)
    assert found is not None, answer
    return found[1]


def cookie_of(header: str) -> str:
    return header.partition(";")[0]


@asynccontextmanager
async def open_page(gateway: Gateway, cookie: str) -> AsyncGenerator[Client, None]:
    """Connect like the page does: with a cookie and without a token."""
    headers = {"Cookie": cookie, "Origin": own_origin(gateway)}
    async with open_socket(gateway, "/ws", additional_headers=headers) as client:
        await client.send(type="auth", token="", protocol=1)
        yield client


async def is_accepted(gateway: Gateway, cookie: str) -> bool:
    async with open_page(gateway, cookie) as client:
        return bool((await client.next())["ok"])


async def test_cookie_signs_a_browser_in_without_its_token(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        header = await sign_in(gateway)
        parts = header.split("; ")
        assert parts[1:] == ["Path=/", "HttpOnly", "SameSite=Strict", f"Max-Age={REMEMBERED_SECONDS}"]
        assert parts[0].startswith(f"atlas_{gateway.port}=") and main_token(gateway) not in header
        async with open_page(gateway, cookie_of(header)) as client:
            assert (await client.next())["principal"]["id"] == "owner"
            [device] = (await client.get("devices.list"))["devices"]
            assert device["name"] == "Firefox on Linux" and device["current"] is True
        stored = [row.body for row in await gateway.hub.store.records("default", "device")]
        assert len(stored) == 1 and cookie_of(header).partition(".")[2].encode() not in stored[0]
        assert "Max-Age" not in await sign_in(gateway, remember=False)
        assert (await sign_in(gateway, Origin=own_origin(gateway, "https"))).endswith("; Secure")


async def test_cookie_survives_a_restart_and_ends_with_its_token(tmp_path: Path) -> None:
    store = MemoryStore()
    atlas = in_memory_atlas(Scripted(says("Hello.")), store=store)
    async with serve_gateway(tmp_path, atlas) as gateway:
        cookie, port = cookie_of(await sign_in(gateway)), gateway.port
    atlas = in_memory_atlas(Scripted(says("Hello.")), store=store)
    async with serve_gateway(tmp_path, atlas) as gateway:
        cookie = cookie.replace(str(port), str(gateway.port), 1)
        assert await is_accepted(gateway, cookie)
        async with connect_client(gateway) as owner, open_page(gateway, cookie) as client:
            await client.next()
            await owner.get("tokens.rotate")
            assert (await client.closed())[0] == 4401
        assert not await is_accepted(gateway, cookie)


async def test_revoked_device_is_disconnected_and_refused(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        first, second = [cookie_of(await sign_in(gateway)) for _ in range(2)]
        async with open_page(gateway, first) as client, open_page(gateway, second) as other:
            await client.next()
            await other.next()
            devices = (await client.get("devices.list"))["devices"]
            assert sorted(each["current"] for each in devices) == [False, True]
            [id] = [each["id"] for each in devices if not each["current"]]
            await client.get("devices.revoke", id=id)
            assert await other.closed() == (4401, "this device was signed out")
            assert len((await client.get("devices.list"))["devices"]) == 1
            assert "error" in await client.request("devices.revoke", id=id)
            entry = (await client.get("audit.list", limit=1))["entries"][0]["entry"]
            assert entry["entityType"] == "device" and entry["actorExternalId"] == "owner"
        assert not await is_accepted(gateway, second)
        assert await is_accepted(gateway, first)


async def test_device_that_another_process_signed_out_is_disconnected(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, open_page(gateway, cookie_of(await sign_in(gateway))) as client:
        await client.next()
        [device] = await gateway.hub.devices.list()
        await gateway.hub.devices.remove(device)
        await gateway.hub.close_signed_out()
        assert (await client.closed())[0] == 4401


async def test_sign_out_ends_the_session_and_clears_the_cookie(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        cookie = cookie_of(await sign_in(gateway))
        async with open_page(gateway, cookie) as client:
            await client.next()
            headers = {"Origin": own_origin(gateway), "Cookie": cookie}
            code, answer = await http(gateway, "DELETE /api/session", **headers)
            assert code == 204 and f"atlas_{gateway.port}=;" in answer and "Max-Age=0" in answer
            assert (await client.closed())[0] == 4401
        assert not await is_accepted(gateway, cookie)


async def test_second_sign_in_of_a_browser_keeps_its_cookie_unless_the_token_differs(tmp_path: Path) -> None:
    guest = "k9Vd2mQ8xZ4tR7wB1nL5cH"
    (tmp_path / "tokens.json").write_text(json.dumps({"mara": {"token": guest, "scopes": ["read"]}}))
    async with serve_gateway(tmp_path) as gateway:
        first = cookie_of(await sign_in(gateway))
        async with open_page(gateway, first) as client:
            await client.next()
            assert cookie_of(await sign_in(gateway, Cookie=f"other=1; {first}")) == first
            assert len((await client.get("devices.list"))["devices"]) == 1
            second = cookie_of(await sign_in(gateway, guest, Cookie=first))
            assert (await client.closed())[0] == 4401
        assert not await is_accepted(gateway, first)
        async with open_page(gateway, second) as client:
            principal = (await client.next())["principal"]
            assert (principal["id"], principal["sessions"]) == ("mara", "own")
            [device] = (await client.get("devices.list"))["devices"]
            assert device["current"] is True


@pytest.mark.parametrize("change", ["", "x", "1234567890abcdef.{secret}", "{id}.", "{id}.{other}"])
async def test_forged_cookie_is_refused(change: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        name, _, value = cookie_of(await sign_in(gateway)).partition("=")
        id, _, secret = value.partition(".")
        other = secret[:-1] + ("A" if secret[-1] != "A" else "B")
        forged = change.format(id=id, secret=secret, other=other)
        assert not await is_accepted(gateway, f"{name}={forged}")


async def test_cookie_counts_only_for_pages_of_the_gateway_itself(tmp_path: Path) -> None:
    allowed = "https://chat.example.org"
    async with serve_gateway(tmp_path, origins=(allowed,)) as gateway:
        cookie = cookie_of(await sign_in(gateway))
        for headers in ({}, {"Origin": allowed}):
            async with open_socket(gateway, "/ws", additional_headers={"Cookie": cookie, **headers}) as client:
                await client.send(type="auth", token="", protocol=1)
                assert (await client.next())["ok"] is False, headers
        for path in ("GET /v1/models", "POST /v1/chat/completions", "POST /ag-ui/assistant", "POST /mcp"):
            sent = {"Cookie": cookie, "Origin": own_origin(gateway), "Content_Type": "application/json"}
            code, answer = await http(gateway, path, body="{}", **sent)
            assert code == 401, answer
        for origin in (allowed, "http://127.0.0.1:1", "null"):
            body = json.dumps({"token": main_token(gateway)})
            sent = {"Origin": origin, "Content_Type": "application/json"}
            code, answer = await http(gateway, "POST /api/session", body=body, **sent)
            assert code == 403 and "set-cookie" not in answer.lower(), origin
            code, _ = await http(gateway, "DELETE /api/session", Cookie=cookie, Origin=origin)
            assert code == 403, origin
        body = json.dumps({"token": main_token(gateway)})
        assert (await http(gateway, "POST /api/session", body=body, Content_Type="application/json"))[0] == 403
        form = {"Origin": own_origin(gateway), "Content_Type": "text/plain"}
        assert (await http(gateway, "POST /api/session", body=body, **form))[0] == 415
        assert await is_accepted(gateway, cookie)


async def test_guessing_tokens_is_limited(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        sent = {"Origin": own_origin(gateway), "Content_Type": "application/json"}
        codes: list[int] = []
        answer = ""
        for number in range(MAX_INVALID_TOKENS + 1):
            code, answer = await http(
                gateway, "POST /api/session", body=json.dumps({"token": f"guess{number}"}), **sent
            )
            codes.append(code)
        assert codes == [401] * MAX_INVALID_TOKENS + [429]
        wait = re.search(r"retry-after: ([0-9]+)", answer, re.IGNORECASE)
        assert wait is not None and 1 <= int(wait[1]) <= LOCKOUT_SECONDS
        await sign_in(gateway)  # a valid token is always accepted


async def test_devices_expire_and_their_number_is_limited(tmp_path: Path) -> None:
    now = 1_000.0
    authenticator = Authenticator(GatewaySettings(home=tmp_path))
    devices = Devices(MemoryStore(), "default", authenticator, lambda: now)
    grant = authenticator.tokens.find_grant(authenticator.tokens.main.reveal())
    assert grant is not None
    _, first = await devices.sign_in(grant, "Firefox", remember=True)
    last = first
    for _ in range(MAX_DEVICES):
        now += 1
        _, last = await devices.sign_in(grant, "Firefox", remember=True)
    assert await devices.find(first) is None and await devices.find(last) is not None
    assert len(await devices.list("owner")) == MAX_DEVICES and await devices.list("mara") == []
    now += REMEMBERED_SECONDS - 1
    found = await devices.find(last)
    assert found is not None and found[0].seen_at == int(now * 1000)
    now += 1
    assert await devices.find(last) is None and await devices.list() == []


def test_browsers_are_named() -> None:
    chrome = "Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Mobile Safari/537.36"
    safari = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1 Version/18.0 Safari/604.1"
    edge = "Mozilla/5.0 (Windows NT 10.0; Win64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0"
    assert [describe_browser(each) for each in (FIREFOX, chrome, safari, edge, "")] == [
        "Firefox on Linux",
        "Chrome on Android",
        "Safari on iPhone",
        "Edge on Windows",
        "Browser",
    ]
