"""Requests and responses: ids are repeated, and errors say what is wrong without details."""

import socket
from pathlib import Path

from gateway_client import connect_client, serve_gateway

from atlas_agents.gateway.server import bind_sockets
from atlas_agents.gateway.settings import GatewaySettings


def test_small_frames_are_sent_without_waiting_for_an_acknowledgement(tmp_path: Path) -> None:
    """asyncio sets TCP_NODELAY only on connections of a listener that names its protocol."""
    listeners = bind_sockets(GatewaySettings(home=tmp_path, port=0))
    protocols = {each.proto for each in listeners}
    for each in listeners:
        each.close()
    assert protocols == {socket.IPPROTO_TCP}


async def test_response_repeats_the_request_id(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        for id in ("2", "", "é\n", 7, -1, 2.5, 2**53):
            await client.send(id=id, method="health.check")
            answer = await client.next()
            assert set(answer) == {"id", "result"} and answer["id"] == id


async def test_invalid_request_gets_an_error(tmp_path: Path) -> None:
    cases: list[tuple[str, str | None, int, str]] = [
        ("garbage", None, -32700, "PARSE_ERROR"),
        ('{"id":1,"method":"x","params":' + "[" * 100_000, None, -32700, "PARSE_ERROR"),
        ('{"id":1,"method":"health.check","params":NaN}', None, -32700, "PARSE_ERROR"),
        ("[]", None, -32600, "BAD_FRAME"),
        ('{"method":"health.check"}', None, -32600, "BAD_FRAME"),
        ('{"id":null,"method":"health.check"}', None, -32600, "BAD_FRAME"),
        ('{"id":true,"method":"health.check"}', None, -32600, "BAD_FRAME"),
        ('{"id":{},"method":"health.check"}', None, -32600, "BAD_FRAME"),
        ('{"id":"7"}', "7", -32600, "BAD_FRAME"),
        ('{"id":"7","method":5}', "7", -32600, "BAD_FRAME"),
        ('{"id":"7","method":"nope"}', "7", -32601, "METHOD_NOT_FOUND"),
        ('{"id":"7","method":"nothing.list"}', "7", -32601, "METHOD_NOT_FOUND"),
        ('{"id":"7","method":"chat.send","params":[]}', "7", -32602, "INVALID_PARAMS"),
        ('{"id":"7","method":"chat.send","params":{"message":"x"}}', "7", -32602, "INVALID_PARAMS"),
        ('{"id":"7","method":"chat.send","params":{"sessionKey":"","message":"x"}}', "7", -32602, "INVALID_PARAMS"),
        ('{"id":"7","method":"chat.history","params":{"sessionKey":"a","limit":501}}', "7", -32602, "INVALID_PARAMS"),
    ]
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        for frame, id, code, kind in cases:
            await client.socket.send(frame)
            answer = await client.next()
            assert set(answer) == {"id", "error"} and answer["id"] == id, frame[:80]
            assert (answer["error"]["code"], answer["error"]["data"]) == (code, {"kind": kind, "retryable": False})
            assert (await client.get("health.check"))["status"] == "ok"


async def test_binary_frame_is_read_like_a_text_frame(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        await client.socket.send(b'{"id":"1","method":"health.check","params":null}')
        assert (await client.next())["result"]["status"] == "ok"
        await client.socket.send(b"\xff\xfe")
        assert (await client.next())["error"]["code"] == -32700


async def test_error_names_the_missing_field(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway, connect_client(gateway) as client:
        answer = await client.request("chat.send", sessionKey="a")
        assert "`message`" in answer["error"]["message"]
