"""Tokens: how they are made, kept, refused and replaced."""

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
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, VirtualClock, in_memory_atlas, says

GOOD = "k9Vd2mQ8xZ4tR7wB1nL5cH"


def test_the_first_start_makes_a_strong_token_that_only_its_owner_can_read(tmp_path: Path) -> None:
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
def test_a_blank_token_is_no_token(token: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        TokenFile(tmp_path, Secret(token))
    (tmp_path / "token").write_text(token)
    with pytest.raises(ConfigError, match="is empty"):
        TokenFile(tmp_path)


def test_a_token_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    with pytest.raises(ConfigError, match="cannot read"):
        TokenFile(tmp_path)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * 5000, b"abc\x00def"])
def test_a_token_file_that_holds_no_token_stops_the_start(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(ConfigError):
        TokenFile(tmp_path)


def test_a_weak_token_is_accepted_on_this_machine_only_and_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert TokenFile(tmp_path, Secret("mysecrettoken")).find_grant("mysecrettoken") is not None
    assert "weak" in caplog.text and "mysecrettoken" not in caplog.text
    with pytest.raises(ConfigError, match="too weak"):
        TokenFile(tmp_path, Secret("mysecrettoken"), exposed=True)
    assert TokenFile(tmp_path, Secret(GOOD), exposed=True).find_grant(GOOD) is not None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "atlas.example"])
def test_a_gateway_beyond_this_machine_needs_a_strong_token(host: str, tmp_path: Path) -> None:
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
def test_how_strong_a_token_is(token: str, strong: bool) -> None:
    assert (strength(token) >= 128) is strong


@pytest.mark.parametrize("wrong", ["", " ", "' OR 1=1;--", "'; attach database 'x' as y;--", "\x00", "é", "\ud800"])
async def test_a_wrong_token_is_told_so_and_closed(wrong: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, open_socket(gateway) as client:
        await client.send(type="auth", token=wrong)
        code, _ = await client.closed()
        if wrong == "\ud800":
            assert (code, client.frames) == (4400, [])
        else:
            assert (code, client.frames) == (4401, [{"type": "auth", "ok": False, "error": "invalid token"}])


def test_a_named_token_may_be_kept_as_its_hash(tmp_path: Path) -> None:
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
def test_a_broken_list_of_tokens_stops_the_start_and_is_named(lines: str, tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text(lines)
    with pytest.raises(ConfigError, match=r"tokens\.json"):
        TokenFile(tmp_path)


async def test_a_new_token_ends_the_old_one_at_once_and_its_sockets_within_a_second(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        old = main_token(gateway)
        (tmp_path / "token").write_text(GOOD)
        async with open_socket(gateway) as other:
            await other.send(type="auth", token=old)
            assert (await other.closed())[0] == 4401
        assert await asyncio.wait_for(client.closed(), 1.0) == (4401, "the token was revoked or changed")
        async with connect_client(gateway, GOOD):
            pass


async def test_a_token_is_replaced_by_a_method_and_the_caller_hears_of_it(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client, connect_client(gateway) as other:
        old = main_token(gateway)
        assert await client.get("tokens.rotate") == {"path": str(tmp_path / "token")}
        assert (await client.closed())[0] == 4401
        assert (await other.closed())[0] == 4401
        assert main_token(gateway) != old
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


async def test_tokens_that_cannot_be_read_any_more_let_nobody_in(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        token = main_token(gateway)
        (tmp_path / "token").write_text("   ")
        assert (await asyncio.wait_for(client.closed(), 1.0))[0] == 4401
        for guess in (token, "", "   "):
            async with open_socket(gateway) as other:
                await other.send(type="auth", token=guess)
                assert (await other.closed())[0] == 4401


async def test_taking_a_scope_away_closes_the_sockets_that_had_it(tmp_path: Path) -> None:
    lines = {"ana": {"token": GOOD, "scopes": ["read", "write"]}}
    (tmp_path / "tokens.json").write_text(json.dumps(lines))
    async with (
        serve_gateway(tmp_path) as gateway,
        connect_client(gateway, GOOD) as ana,
        connect_client(gateway) as owner,
    ):
        lines["ana"]["scopes"] = ["read"]
        (tmp_path / "tokens.json").write_text(json.dumps(lines))
        assert (await asyncio.wait_for(ana.closed(), 1.0))[0] == 4401
        assert (await owner.get("health.check"))["status"] == "ok"


async def test_after_ten_wrong_tokens_in_a_minute_even_the_right_one_must_wait(tmp_path: Path) -> None:
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
            assert (await client.next())["ok"] is False


async def test_a_locked_address_may_try_again_after_a_minute_and_others_at_once() -> None:
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


def test_a_whole_network_of_the_new_kind_counts_as_one() -> None:
    lockout = Lockout()
    for number in range(10):
        lockout.record_failure(f"2001:db8::{number}")
    assert lockout.wait("2001:db8::ffff") > 0
    assert lockout.wait("2001:db8:0:1::1") == 0
