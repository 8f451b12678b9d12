"""HTTP pages: health, metrics, protocol documents and the web UI."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, http, serve_gateway

from atlas_agents.core.errors import StoreFull
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import AddMessage, PutSession
from atlas_agents.gateway import asgi as http_routes
from atlas_agents.gateway.asgi import WebUiFiles
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, in_memory_atlas, says


def body(answer: str) -> str:
    return answer.partition("\r\n\r\n")[2]


async def test_health_and_readiness_are_reported(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        for path in ("/health", "/healthz"):
            code, answer = await http(gateway, f"GET {path}")
            assert code == 200 and set(json.loads(body(answer))) == {"status", "uptime"}
        assert (await http(gateway, "GET /readyz"))[0] == 200
        gateway.readiness.stopping = True
        code, answer = await http(gateway, "GET /readyz")
        assert (code, json.loads(body(answer))) == (503, {"status": "draining"})


async def test_gateway_is_not_ready_while_its_store_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_routes, "CHECK_INTERVAL", 0.0)
    store = SqliteStore(tmp_path / "atlas.db", max_pages=400)
    await store.open()
    atlas = in_memory_atlas(Scripted(*[says("Hi.")] * 100), store=store)
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        assert (await http(gateway, "GET /readyz"))[0] == 200
        await store.commit("default", [PutSession("big")])
        for size in (50_000, 1_000, 1):
            with pytest.raises(StoreFull):
                for number in range(1000):
                    await store.commit("default", [AddMessage("big", f"{size} {number}", b"x" * size)])
        answered = await client.request("chat.send", sessionKey="main", message="x" * 10_000)
        assert answered["error"]["data"]["kind"] == "UNAVAILABLE"
        code, answer = await http(gateway, "GET /readyz")
        assert (code, json.loads(body(answer))) == (503, {"status": "the store is full"})
        assert (await http(gateway, "GET /health"))[0] == 200
        await client.get("sessions.delete", sessionKey="big")
        assert (await http(gateway, "GET /readyz"))[0] == 200
        await client.get("chat.send", sessionKey="small", message="Hi")
    await store.close()


async def test_many_readiness_requests_cause_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_routes, "CHECK_INTERVAL", 60.0)
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    async with serve_gateway(tmp_path, in_memory_atlas(Scripted(), store=store)) as gateway:
        before = store.transactions
        for _ in range(20):
            assert (await http(gateway, "GET /readyz"))[0] == 200
        assert store.transactions - before == 2
        assert await store.records("default", "probe") == []
    await store.close()


async def test_metrics_count_refused_requests(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        await http(gateway, "GET /", Origin="http://evil.example")
        code, answer = await http(gateway, "GET /metrics")
        assert code == 200
        assert 'atlas_refused_total{reason="origin not allowed"} 1.0' in answer


async def test_metrics_of_an_exposed_gateway_require_a_token(tmp_path: Path) -> None:
    token = "k9Vd2mQ8xZ4tR7wB1nL5cH"
    settings: dict[str, Any] = {"host": "127.0.0.2", "hosts": ("127.0.0.2",), "token": Secret(token)}
    async with serve_gateway(tmp_path, **settings) as gateway:
        sent = {"host": "127.0.0.2", "Host": "127.0.0.2"}
        assert (await http(gateway, "GET /metrics", **sent))[0] == 401
        assert (await http(gateway, "GET /metrics", **sent, Authorization=f"Bearer {token}"))[0] == 200
        assert (await http(gateway, "GET /health", **sent))[0] == 200


async def test_welcome_page_explains_how_to_build_the_web_ui(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_routes, "WebUiFiles", lambda: WebUiFiles(tmp_path / "nothing"))
    async with serve_gateway(tmp_path) as gateway:
        code, answer = await http(gateway, "GET /")
        assert code == 200 and "atlas chat" in answer and "make page" in answer
        assert "://" not in body(answer).replace("ws://localhost:18789", "")
        head = answer.lower()
        assert "content-security-policy: default-src 'none'; script-src 'self';" in head
        for header in ("x-content-type-options: nosniff", "referrer-policy: no-referrer", "x-frame-options: deny"):
            assert header in head
        assert (await http(gateway, "GET /welcome.js"))[0] == 200


async def test_web_ui_is_served_with_its_compressed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "built"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<title>page</title>")
    (folder / "assets" / "a-1.js").write_text("plain()")
    (folder / "assets" / "a-1.js.gz").write_text("packed()")
    monkeypatch.setattr(http_routes, "WebUiFiles", lambda: WebUiFiles(folder))
    async with serve_gateway(tmp_path) as gateway:
        code, answer = await http(gateway, "GET /")
        assert (code, body(answer)) == (200, "<title>page</title>") and "cache-control: no-cache" in answer.lower()
        assert "content-security-policy: default-src 'none'; script-src 'self';" in answer.lower()
        _, frame = await http(gateway, "GET /artifact-frame")
        policy = "content-security-policy: sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline';"
        assert policy in frame.lower() and "x-frame-options: sameorigin" in frame.lower()
        assert "connection-allowlist: ()" in frame.lower() and "frame-src 'self'" in answer.lower()
        _, script = await http(gateway, "GET /assets/a-1.js")
        assert body(script) == "plain()" and "max-age=31536000, immutable" in script
        assert "content-type: text/javascript" in script.lower()
        _, script = await http(gateway, "GET /assets/a-1.js", Accept_Encoding="br, gzip;q=0.9")
        assert body(script) == "packed()" and "content-encoding: gzip" in script.lower()
        assert body((await http(gateway, "GET /c/some-session", Accept="text/html"))[1]) == "<title>page</title>"
        for path in ("/c/some-session", "/assets/gone.js", "/assets/a-1.js.gz", "/assets/../index.html"):
            assert (await http(gateway, f"GET {path}"))[0] == 404, path
        assert (await http(gateway, "POST /", Accept="text/html"))[0] == 405
        assert json.loads(body((await http(gateway, "GET /health"))[1]))["status"] == "ok"


async def test_web_ui_is_read_once_with_the_first_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read hundreds of files took most of the time that a gateway needed to start."""
    page = tmp_path / "built" / "index.html"
    page.parent.mkdir()
    page.write_text("at the start")
    monkeypatch.setattr(http_routes, "WebUiFiles", lambda: WebUiFiles(page.parent))
    async with serve_gateway(tmp_path) as gateway:
        page.write_text("at the first request")
        answers = await asyncio.gather(*(http(gateway, "GET /") for _ in range(3)))
        page.write_text("later")
        answers.append(await http(gateway, "GET /"))
    assert {body(answer) for _, answer in answers} == {"at the first request"}


async def test_protocol_documents_are_served(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        assert json.loads(body((await http(gateway, "GET /asyncapi.json"))[1]))["asyncapi"] == "3.1.0"
        assert "chat.send" in json.loads(body((await http(gateway, "GET /protocol.json"))[1]))["methods"]
