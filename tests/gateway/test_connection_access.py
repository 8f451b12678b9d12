"""Requests and sockets that are refused: other origins, unknown hosts, invalid tokens, limits and timeouts."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from gateway_client import UPGRADE, connect_client, http, main_token, open_socket, serve_gateway
from websockets.exceptions import InvalidStatus

from atlas_agents import ConfigError
from atlas_agents.gateway import websocket
from atlas_agents.gateway.auth import TrustedProxies
from atlas_agents.gateway.telemetry import JsonLines
from checks import TIMEOUT

PATHS = ["/", "/ws", "/health", "/healthz", "/readyz", "/metrics", "/asyncapi.json", "/nowhere"]
OTHER_ORIGINS = [
    "https://evil.example",
    "null",
    "",
    "http://localhost.evil.com",
    "http://127.0.0.1.evil.com:{port}",
    "http://127.0.0.1:1",
    "http://127.0.0.1",
    "https://127.0.0.1",
    "http://localhost:{port}",
    "http://[::1]:{port}",
    "http://127.0.0.1:{port}@evil.example",
    "http://evil.example#127.0.0.1:{port}",
    "http://evil.example/127.0.0.1:{port}",
    "file://",
    "chrome-extension://abc",
    "http://127.0.0.1:{port}/",
    "HTTP://127.0.0.1 :{port}",
]
UNKNOWN_HOSTS = [
    *("evil.example:{port}", "localhost.evil.com", "127.0.0.1.evil.com:{port}", "0.0.0.0:{port}", "127.0.0.2"),
    *("localhost.", "", "localhost@evil", "[::ffff:127.0.0.1]"),
]


def covering(first: list[str], second: list[str]) -> list[tuple[str, str]]:
    """Return each value of both lists with at least one of the other, and each with the first of the other."""
    pairs = [(each, second[index % len(second)]) for index, each in enumerate(first)]
    return list(dict.fromkeys([*pairs, *((each, second[0]) for each in first), *((first[0], each) for each in second)]))


async def test_cross_origin_request_is_refused_before_the_upgrade(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        for origin, path in covering(OTHER_ORIGINS, PATHS):
            sent = origin.format(port=gateway.port)
            code, answer = await http(gateway, f"GET {path}", **UPGRADE, Origin=sent)
            assert code == 403, (origin, path, answer)
            code, _ = await http(gateway, f"POST {path}", Origin=sent, Content_Type="text/plain", Content_Length="0")
            assert code == 403, (origin, path)


async def test_same_origin_request_is_accepted(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        for name in ("127.0.0.1", "localhost", "LOCALHOST"):
            host = f"{name}:{gateway.port}"
            code, _ = await http(gateway, "GET /", Host=host, Origin=f"http://{host.lower()}")
            assert code == 200
            code, _ = await http(gateway, "GET /ws", **UPGRADE, Host=host, Origin=f"http://{host}")
            assert code == 101


async def test_ipv6_loopback_is_served(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        code, _ = await http(gateway, "GET /health", host="::1", Host=f"[::1]:{gateway.port}")
        assert code == 200


async def test_unknown_host_is_refused_despite_a_valid_token(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        token = {"Authorization": f"Bearer {main_token(gateway)}"}
        for host, path in covering(UNKNOWN_HOSTS, PATHS):
            sent: dict[str, Any] = {"Host": host.format(port=gateway.port), **token}
            assert (await http(gateway, f"GET {path}", **sent))[0] == 421, (host, path)
            assert (await http(gateway, f"GET {path}", **UPGRADE, **sent))[0] == 421, (host, path)


async def test_configured_host_is_accepted(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, hosts=("atlas.lan",)) as gateway:
        assert (await http(gateway, "GET /health", Host="Atlas.lan:80"))[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_cross_site_request_without_origin_is_refused(site: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        for path in PATHS:
            fetch_metadata = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "no-cors"}
            assert (await http(gateway, f"GET {path}", **fetch_metadata))[0] == 403
            post = {"Content_Type": "text/plain", "Content_Length": "0"}
            assert (await http(gateway, f"POST {path}", **fetch_metadata, **post))[0] == 403
        link = {"Sec_Fetch_Site": site, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
        assert (await http(gateway, "GET /", **link))[0] == 200
        assert (await http(gateway, "GET /", **UPGRADE, **link))[0] == 403


async def test_post_is_refused_on_every_path(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        for path in PATHS:
            code, _ = await http(gateway, f"POST {path}", Content_Type="text/plain", Content_Length="0")
            assert code in (404, 405)


@pytest.mark.parametrize("header", ["Bearer ", "Bearer ' OR 1=1;--", "Bearer wrong", "Basic b3duZXI6", "Bearer"])
async def test_invalid_bearer_token_is_refused_on_every_path(header: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        assert (await http(gateway, "GET /metrics", Authorization=header))[0] == 401
        assert (await http(gateway, "GET /health", Authorization=header))[0] == 401
        assert (await http(gateway, "GET /metrics", Authorization=f"Bearer {main_token(gateway)}"))[0] == 200


async def test_invalid_bearer_tokens_lead_to_a_lockout(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        codes = [(await http(gateway, "GET /health", Authorization=f"Bearer {n}"))[0] for n in range(12)]
        assert codes == [401] * 10 + [429] * 2


async def test_invalid_tokens_do_not_lock_out_a_valid_one(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        right = main_token(gateway)
        for wrong in (*[f"wrong-{n}" for n in range(15)], *[f"{right[:-2]}{n:02}" for n in range(15)], *[""] * 15):
            await http(gateway, "GET /health", Authorization=f"Bearer {wrong}")
        assert (await http(gateway, "GET /health", Authorization="Bearer other"))[0] == 429
        assert (await http(gateway, "GET /health", Authorization=f"Bearer {right}"))[0] == 200
        async with connect_client(gateway) as client:
            assert (await client.get("health.check"))["status"] == "ok"


@pytest.mark.parametrize("proxies", [(), ("127.0.0.1",), ("127.0.0.0/8", "10.0.0.0/8")])
async def test_address_behind_a_trusted_proxy_is_that_of_the_client(proxies: tuple[str, ...], tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, trusted_proxies=proxies) as gateway:

        async def status(path: str, **headers: str) -> int:
            return (await http(gateway, f"GET {path}", **headers))[0]

        for n in range(12):
            forwarded = {"X_Forwarded_For": "203.0.113.9", "Authorization": f"Bearer {n}"}
            assert await status("/health", **forwarded) == (401 if n < 10 else 429)
        forwarded = {"X_Forwarded_For": "198.51.100.7", "Authorization": "Bearer another"}
        assert await status("/health", **forwarded) == (401 if proxies else 429)
        assert await status("/metrics", X_Forwarded_For="198.51.100.7") == 401
        assert await status("/metrics") == 200


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("198.51.100.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("203.0.113.9:4711", "203.0.113.9"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("unknown", "10.0.0.1"),
        ("203.0.113.9, '; drop table tokens", "10.0.0.1"),
        ("", "10.0.0.1"),
    ],
)
def test_client_is_the_last_address_that_is_not_a_proxy(header: str, address: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    headers = [(b"x-forwarded-for", header.encode())]
    assert proxies.client_address({"client": ("10.0.0.1", 1), "headers": headers}) == address
    assert proxies.client_address({"client": ("192.0.2.1", 1), "headers": headers}) == "192.0.2.1"
    split = [(b"x-forwarded-for", each.encode()) for each in header.split(",")]
    assert proxies.client_address({"client": ("10.0.0.1", 1), "headers": split}) == address


@pytest.mark.parametrize("network", ["proxy", "", "0.0.0.0/0", "::/0", "10.0.0.0/33"])
def test_invalid_trusted_proxies_are_refused(network: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        TrustedProxies([network])


async def test_websocket_on_another_path_is_not_found(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        with pytest.raises(InvalidStatus, match="404"):
            async with open_socket(gateway, "/other"):
                pass


@pytest.mark.parametrize(
    "frame",
    ["", "hello", "{}", "[]", '{"type":"hello"}', '{"type":"auth","token":7}', "[" * 50_000, '{"id":1,"method":"x"}'],
)
async def test_first_frame_without_auth_closes_the_socket(frame: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, open_socket(gateway) as client:
        await client.socket.send(frame)
        assert (await client.closed(), client.frames) == ((4400, "the first frame must be an auth frame"), [])


async def test_socket_without_auth_frame_is_closed_in_time(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, auth_timeout=0.2) as gateway, open_socket(gateway) as client:
        assert await client.closed() == (4400, "no auth frame received in time")


async def test_connection_without_headers_is_closed_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "HEADER_TIMEOUT", 0.2)
    async with serve_gateway(tmp_path) as gateway:
        for data in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(data)
            assert await asyncio.wait_for(_rest(reader), TIMEOUT) == b""
            writer.close()


async def test_slow_request_on_a_kept_alive_connection_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HEADER_TIMEOUT", 0.2)
    async with serve_gateway(tmp_path) as gateway:
        request = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n\r\n".encode()
        for start in (b"G", b"GET / HTTP/1.1\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            for _ in range(2):
                writer.write(request)
                assert b'"status":"ok"' in await asyncio.wait_for(reader.readuntil(b"}"), TIMEOUT)
            writer.write(start)
            assert await asyncio.wait_for(_rest(reader), TIMEOUT) == b""
            writer.close()


async def test_slow_second_request_in_the_same_packet_is_ended_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HEADER_TIMEOUT", 0.2)
    async with serve_gateway(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{gateway.port}\r\n\r\nGET / HT".encode())
        assert b'"status":"ok"' in await asyncio.wait_for(reader.readuntil(b"}"), TIMEOUT)
        assert await asyncio.wait_for(_rest(reader), TIMEOUT) == b""
        writer.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *[(path, "Content-Length: 100") for path in ("/mcp", "/v1/chat/completions", "/")],
        *[(path, "Transfer-Encoding: chunked") for path in ("/mcp/assistant", "/ag-ui/assistant", "/health")],
    ],
)
async def test_slow_body_is_ended_in_time(
    path: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "BODY_TIMEOUT", 0.3)
    async with serve_gateway(tmp_path) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        lines = ["Content-Type: application/json", "Accept: application/json, text/event-stream", kind]
        lines += [f"Host: 127.0.0.1:{gateway.port}", f"Authorization: Bearer {main_token(gateway)}"]
        head = "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""])
        writer.write(head.encode() + (b"1\r\n{\r\n" if "chunked" in kind else b"{"))
        await asyncio.wait_for(_rest(reader), TIMEOUT)
        writer.close()


async def test_upgraded_connection_outlives_the_limits_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HEADER_TIMEOUT", 0.1)
    monkeypatch.setattr(websocket, "BODY_TIMEOUT", 0.1)
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        for _ in range(3):
            assert "error" in await client.request("chat.wait", runId="none", timeoutMs=100)
            await client.get("chat.send", sessionKey="main", message="Hi")
        run_id = (await client.get("chat.send", sessionKey="main", message="Hi"))["runId"]
        await client.get("chat.wait", runId=run_id)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_frame_limit_is_smaller_before_authentication(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        async with open_socket(gateway) as client:
            await client.send(type="auth", token="x" * 70_000)
            assert (await client.closed())[0] == 1009
        async with connect_client(gateway) as client:
            await client.send(id="1", method="health.check", params={"padding": "x" * 900_000})
            assert (await client.next())["result"]["status"] == "ok"
            await client.send(id="2", method="health.check", params={"padding": "x" * 1_100_000})
            assert (await client.closed())[0] == 1009


async def test_compression_is_not_negotiated(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        _, answer = await http(gateway, "GET /ws", **UPGRADE, Sec_WebSocket_Extensions="permessage-deflate")
        assert "101" in answer and "deflate" not in answer


async def test_refused_request_is_one_short_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_gateway(tmp_path) as gateway:
        user_agent = "x\x1b[2K [INFO] approved " + "A" * 15_000
        await http(gateway, "GET /", Origin="http://evil.example", User_Agent=user_agent, Cookie="token=hunter2secret")
    lines = [JsonLines().format(record) for record in caplog.records if "refused" in record.message]
    (line,) = [json.loads(each) for each in lines]
    assert len(line["user-agent"]) <= 256
    assert "\x1b" not in line["user-agent"] and line["user-agent"].startswith("x\\u001b[2K")
    assert "hunter2secret" not in "".join(lines)


def test_log_record_is_always_one_line() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "x\r\n[INFO] approved\u202e", (), None)
    record.fields = {"agent": "y\n" * 500}
    formatted = JsonLines(lambda text: text.replace("approved", "…")).format(record)
    assert "\n" not in formatted and "approved" not in formatted
    line = json.loads(formatted)
    assert line["message"] == "x\\u000d\\u000a[INFO] …\\u202e"
    assert len(line["agent"]) <= 256
