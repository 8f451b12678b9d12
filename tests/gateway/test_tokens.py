"""Tokens: creation, storage, refusal and rotation."""

import asyncio
import hashlib
import json
import stat
from pathlib import Path

import pytest
from gateway_client import connect_client, main_token, open_socket, serve_gateway

from atlas_agents import ConfigError
from atlas_agents.core.paths import Secret
from atlas_agents.gateway.auth import Lockout, TokenFile, strength
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, VirtualClock, in_memory_atlas, says
from checks import TIMEOUT

GOOD = "k9Vd2mQ8xZ4tR7wB1nL5cH"


def test_first_start_creates_a_strong_private_token(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "new" / "home")
    made = tokens.path.read_text().strip()
    assert strength(made) >= 128
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in tokens.path.parent.iterdir()] == ["token"]
    found = tokens.find_grant(made)
    assert found is not None and found.principal.scopes == ("read", "write", "approve", "admin")
    assert TokenFile(tokens.path.parent).find_grant(made) == found


@pytest.mark.parametrize("token", ["", "  ", "\n\t\n"])
def test_blank_token_is_refused(token: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        TokenFile(tmp_path, Secret(token))
    (tmp_path / "token").write_text(token)
    with pytest.raises(ConfigError, match="is empty"):
        TokenFile(tmp_path)


def test_unreadable_token_file_prevents_the_start(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        TokenFile(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * 5000, b"abc\x00def"])
def test_invalid_token_file_prevents_the_start(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError):
        TokenFile(tmp_path)


def test_weak_token_is_accepted_only_on_loopback_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert TokenFile(tmp_path, Secret("mysecrettoken")).find_grant("mysecrettoken") is not None
    assert "weak" in caplog.text and "mysecrettoken" not in caplog.text
    with pytest.raises(ConfigError, match="too weak"):
        TokenFile(tmp_path, Secret("mysecrettoken"), exposed=True)
    assert TokenFile(tmp_path, Secret(GOOD), exposed=True).find_grant(GOOD) is not None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "atlas.example"])
def test_exposed_gateway_requires_a_strong_token(host: str, tmp_path: Path) -> None:
    settings = GatewaySettings(home=tmp_path, host=host, token=Secret("mysecrettoken"))
    with pytest.raises(ConfigError, match="too weak"):
        Gateway(in_memory_atlas(Scripted(says("hi")), store=MemoryStore()), settings)


@pytest.mark.parametrize(
    ("token", "strong"),
    [
        ("mysecrettoken", False),
        ("a" * 100, False),
        ("0123456789" * 3, False),
        ("610ea9f33066f46dddc52b5ffc652d4d", True),
        (GOOD, True),
    ],
)
def test_strength_of_tokens_is_estimated(token: str, strong: bool) -> None:
    assert (strength(token) >= 128) is strong


@pytest.mark.parametrize("wrong", ["", " ", "' OR 1=1;--", "'; attach database 'x' as y;--", "\x00", "é", "\ud800"])
async def test_invalid_token_gets_an_error_and_is_closed(wrong: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, open_socket(gateway) as client:
        await client.send(type="auth", token=wrong)
        code, _ = await client.closed()
        if wrong == "\ud800":
            assert (code, client.frames) == (4400, [])
        else:
            assert (code, client.frames) == (4401, [{"type": "auth", "ok": False, "error": "invalid token"}])


def test_named_token_may_be_stored_as_a_hash(tmp_path: Path) -> None:
    digest = hashlib.sha256(GOOD.encode()).hexdigest()
    (tmp_path / "tokens.json").write_text(json.dumps({"ana": {"sha256": digest, "scopes": ["write", "read"]}}))
    found = TokenFile(tmp_path).find_grant(GOOD)
    assert found is not None
    assert (found.principal.id, found.principal.scopes, found.prefix) == ("ana", ("read", "write"), "@ana/")
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "lines",
    [
        "{",
        '{"ana": {"scopes": ["read"]}}',
        '{"ana": {"token": "", "scopes": ["read"]}}',
        '{"ana": {"token": " ", "scopes": ["read"]}}',
        '{"ana": {"token": "x", "scopes": ["everything"]}}',
        '{"owner": {"token": "x", "scopes": ["read"]}}',
        '{"../x": {"token": "x", "scopes": ["read"]}}',
        '{"ana": {"token": "x", "scope": ["read"]}}',
    ],
)
def test_invalid_tokens_json_prevents_the_start(lines: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(lines)
    with pytest.raises(ConfigError, match=r"tokens\.json"):
        TokenFile(tmp_path)


async def test_new_token_file_revokes_the_old_token_and_closes_its_sockets(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        old = main_token(gateway)
        (tmp_path / "token").write_text(GOOD)
        async with open_socket(gateway) as other:
            await other.send(type="auth", token=old)
            assert (await other.closed())[0] == 4401
        assert await asyncio.wait_for(client.closed(), TIMEOUT) == (4401, "the token was revoked or changed")
        async with connect_client(gateway, GOOD):
            pass


async def test_tokens_rotate_closes_all_sockets_of_the_old_token(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client, connect_client(gateway) as other:
        old = main_token(gateway)
        assert await client.get("tokens.rotate") == {"path": str(tmp_path / "token")}
        assert (await client.closed())[0] == 4401
        assert (await other.closed())[0] == 4401
        assert main_token(gateway) != old
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


async def test_unreadable_token_file_refuses_every_token(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        token = main_token(gateway)
        (tmp_path / "token").write_text("   ")
        assert (await asyncio.wait_for(client.closed(), TIMEOUT))[0] == 4401
        for guess in (token, "", "   "):
            async with open_socket(gateway) as other:
                await other.send(type="auth", token=guess)
                assert (await other.closed())[0] == 4401


async def test_removed_scope_closes_the_sockets_of_the_token(tmp_path: Path) -> None:
    lines = {"ana": {"token": GOOD, "scopes": ["read", "write"]}}
    (tmp_path / "tokens.json").write_text(json.dumps(lines))
    async with (
        serve_gateway(tmp_path) as gateway,
        connect_client(gateway, GOOD) as ana,
        connect_client(gateway) as owner,
    ):
        lines["ana"]["scopes"] = ["read"]
        (tmp_path / "tokens.json").write_text(json.dumps(lines))
        assert (await asyncio.wait_for(ana.closed(), TIMEOUT))[0] == 4401
        assert (await owner.get("health.check"))["status"] == "ok"


async def test_ten_invalid_tokens_lock_out_further_invalid_ones_of_the_address(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        messages: list[str] = []
        for number in range(15):
            async with open_socket(gateway) as client:
                await client.send(type="auth", token=f"guess {number}")
                assert (await client.closed())[0] == 4401
                messages.append(client.frames[0]["error"])
        assert messages[:10] == ["invalid token"] * 10
        assert all(words.startswith("too many invalid tokens") for words in messages[10:])
        async with open_socket(gateway) as client:
            await client.send(type="auth", token=main_token(gateway))
            assert (await client.next())["ok"] is True


async def test_lockout_ends_after_a_minute_and_affects_one_address() -> None:
    clock = VirtualClock()
    lockout = Lockout(clock)
    for _ in range(10):
        assert lockout.wait("192.0.2.1") == 0
        lockout.record_failure("192.0.2.1")
    assert lockout.wait("192.0.2.1") == 60
    assert lockout.wait("192.0.2.2") == 0
    await clock.advance(59)
    assert lockout.wait("192.0.2.1") == 1
    await clock.advance(2)
    assert lockout.wait("192.0.2.1") == 0


def test_lockout_counts_similar_tokens_from_many_addresses() -> None:
    lockout = Lockout()
    for number in range(10):
        lockout.record_failure(f"192.0.2.{number}", f"prefix-1{number}")
    assert lockout.wait("198.51.100.1", "prefix-1xyz") > 0
    assert lockout.wait("198.51.100.1", "other") == 0
    assert lockout.wait("192.0.2.1", "other") == 0


def test_lockout_counts_an_ipv6_network_as_one_address() -> None:
    lockout = Lockout()
    for number in range(10):
        lockout.record_failure(f"2001:db8::{number}")
    assert lockout.wait("2001:db8::ffff") > 0
    assert lockout.wait("2001:db8:0:1::1") == 0
