"""The few pages over plain HTTP."""

import json
from pathlib import Path
from typing import Any

from gateway_client import http, opened

from atlas_agents.core.secret import Secret


def body(answer: str) -> str:
    return answer.partition("\r\n\r\n")[2]


async def test_health_and_readiness(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        for path in ("/health", "/healthz"):
            code, answer = await http(gateway, f"GET {path}")
            assert code == 200 and set(json.loads(body(answer))) == {"status", "uptime"}
        assert (await http(gateway, "GET /readyz"))[0] == 200
        gateway.readiness.stopping = True
        code, answer = await http(gateway, "GET /readyz")
        assert (code, json.loads(body(answer))) == (503, {"status": "stopping"})


async def test_the_metrics_are_counted(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        await http(gateway, "GET /", Origin="http://evil.example")
        code, answer = await http(gateway, "GET /metrics")
        assert code == 200
        assert 'atlas_refused_total{reason="another site\'s page may not come in"} 1.0' in answer


async def test_beyond_this_machine_the_metrics_need_a_token(tmp_path: Path) -> None:
    token = "k9Vd2mQ8xZ4tR7wB1nL5cH"
    settings: dict[str, Any] = {"host": "127.0.0.2", "hosts": ("127.0.0.2",), "token": Secret(token)}
    async with opened(tmp_path, **settings) as gateway:
        told = {"host": "127.0.0.2", "Host": "127.0.0.2"}
        assert (await http(gateway, "GET /metrics", **told))[0] == 401
        assert (await http(gateway, "GET /metrics", **told, Authorization=f"Bearer {token}"))[0] == 200
        assert (await http(gateway, "GET /health", **told))[0] == 200


async def test_the_page_asks_nobody_else_for_anything(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        code, answer = await http(gateway, "GET /")
        assert code == 200 and "atlas chat" in answer
        assert "://" not in body(answer).replace("ws://localhost:18789", "")
        head = answer.lower()
        assert "content-security-policy: default-src 'none'; script-src 'self';" in head
        for header in ("x-content-type-options: nosniff", "referrer-policy: no-referrer", "x-frame-options: deny"):
            assert header in head
        assert (await http(gateway, "GET /welcome.js"))[0] == 200


async def test_the_protocol_is_described_at_its_own_address(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        assert json.loads(body((await http(gateway, "GET /asyncapi.json"))[1]))["asyncapi"] == "3.0.0"
        assert "chat.send" in json.loads(body((await http(gateway, "GET /protocol.json"))[1]))["methods"]
