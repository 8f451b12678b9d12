"""HTTP API requests that are refused: other origins, unknown hosts, invalid tokens, missing scopes, invalid bodies."""

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import openai
import pytest
from agui_client import open_page
from gateway_client import connect_client, http, main_token, serve_gateway
from openai_client import MODEL, Slow, connect_openai, stored_atlas, user_messages

from atlas_agents import Approvals, Tool
from atlas_agents.gateway import http_api
from atlas_agents.gateway.server import Gateway
from atlas_agents.testing import Scripted, calls, says
from checks import TIMEOUT

PATHS = ["/v1/models", "/v1/models/x", "/v1/chat/completions", "/v1/nothing", "/ag-ui/assistant", "/ag-ui/"]
OTHER_ORIGINS = ["https://evil.example", "null", "http://localhost.evil.com", "http://127.0.0.1:1", "http://127.0.0.1"]
REQUEST = json.dumps({"model": MODEL, "messages": user_messages("Hi")})
RUN = json.dumps({"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "Hi"}]})


def auth_headers(gateway: Gateway, **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {main_token(gateway)}", "Content_Type": "application/json", **more}


def write_tokens(home: Path, **scopes: list[str]) -> dict[str, str]:
    """Write tokens with these scopes to `tokens.json` and return them by name."""
    tokens = {name: secrets.token_urlsafe(32) for name in scopes}
    lines = {name: {"token": tokens[name], "scopes": scopes[name]} for name in scopes}
    (home / "tokens.json").write_text(json.dumps(lines))
    return tokens


async def test_cross_origin_request_is_refused_despite_a_valid_token(tmp_path: Path) -> None:
    model = Scripted()
    async with serve_gateway(tmp_path, stored_atlas(model)) as gateway:
        for path, origin in zip(PATHS, [*OTHER_ORIGINS, OTHER_ORIGINS[0]], strict=True):
            headers = auth_headers(gateway, Origin=origin)
            for method in ("GET", "POST"):
                code, answer = await http(gateway, f"{method} {path}", body=REQUEST, **headers)
                assert code == 403 and "access-control" not in answer.lower(), (path, origin)
            preflight = {"Origin": origin, "Access_Control_Request_Method": "POST"}
            code, answer = await http(gateway, f"OPTIONS {path}", **preflight)
            assert code == 403 and "access-control" not in answer.lower(), (path, origin)
            for site in ("cross-site", "same-site"):
                headers = auth_headers(gateway, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")
                assert (await http(gateway, f"POST {path}", body=REQUEST, **headers))[0] == 403, (path, site)
    assert model.requests == []


async def test_unknown_host_is_refused(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        for path in PATHS:
            headers = auth_headers(gateway, Host=f"evil.example:{gateway.port}")
            assert (await http(gateway, f"POST {path}", body=REQUEST, **headers))[0] == 421, path


async def test_allowed_origin_gets_cors_headers_on_api_paths_only(tmp_path: Path) -> None:
    allowed = "https://chat.example.org"
    async with serve_gateway(tmp_path, stored_atlas(Scripted(says("Hi."))), origins=(allowed,)) as gateway:
        wanted = {
            "Access_Control_Request_Method": "POST",
            "Access_Control_Request_Headers": "authorization,content-type",
        }
        code, answer = await http(gateway, "OPTIONS /v1/chat/completions", Origin=allowed, **wanted)
        assert code == 204
        assert f"access-control-allow-origin: {allowed}\r\n" in answer
        assert "access-control-allow-headers: authorization,content-type\r\n" in answer
        assert "credentials" not in answer
        page = {"Origin": allowed, "Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"}
        code, answer = await http(gateway, "POST /v1/chat/completions", body=REQUEST, **auth_headers(gateway, **page))
        assert (code, f"access-control-allow-origin: {allowed}\r\n" in answer) == (200, True)
        code, answer = await http(gateway, "POST /v1/chat/completions", body=REQUEST, **page)
        assert (code, f"access-control-allow-origin: {allowed}\r\n" in answer) == (401, True)
        assert (await http(gateway, "OPTIONS /health", Origin=allowed, **wanted))[0] == 403
        assert (await http(gateway, "OPTIONS /v1/models", Origin="https://evil.example", **wanted))[0] == 403
        injected = {**wanted, "Access_Control_Request_Headers": "a: b; c"}
        assert "allow-headers" not in (await http(gateway, "OPTIONS /v1/models", Origin=allowed, **injected))[1]
        assert (await http(gateway, "GET /v1/models", **auth_headers(gateway, Host="evil.example", **page)))[0] == 421
        assert "access-control" not in (await http(gateway, "GET /health", Origin=allowed))[1]
        assert "access-control" not in (await http(gateway, "GET /v1/models", **auth_headers(gateway)))[1]


async def test_wildcard_origin_allows_no_one(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, origins=("*", "null")) as gateway:
        for origin in ("https://evil.example", "*", "null"):
            assert (await http(gateway, "GET /v1/models", **auth_headers(gateway, Origin=origin)))[0] == 403


@pytest.mark.parametrize("path", PATHS)
async def test_request_without_a_token_is_refused_before_its_body(path: str, tmp_path: Path) -> None:
    model = Scripted()
    async with serve_gateway(tmp_path, stored_atlas(model)) as gateway:
        method = "GET" if "models" in path else "POST"
        for token in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer ' OR 1=1;--"}):
            code, answer = await http(gateway, f"{method} {path}", Content_Length="9999999", **token)
            error = json.loads(answer.partition("\r\n\r\n")[2])["error"]
            assert (code, error["code"], error["type"]) == (401, "invalid_api_key", "authentication_error")
            assert "www-authenticate: bearer" in answer.lower()
    assert model.requests == []


async def test_openai_client_raises_the_matching_errors(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path, reader=["read"], writer=["write"])
    async with serve_gateway(tmp_path, stored_atlas(Scripted())) as gateway:
        async with connect_openai(gateway, tokens["reader"]) as client:
            assert [model.id for model in (await client.models.list()).data] == [MODEL]
            with pytest.raises(openai.PermissionDeniedError, match="lacks the scope write") as denied:
                claims = {"X-Atlas-Scopes": "admin,write", "X-Atlas-Role": "owner"}
                await client.chat.completions.create(model=MODEL, messages=user_messages("Hi"), extra_headers=claims)
            assert denied.value.code == "insufficient_scope"
        async with connect_openai(gateway, tokens["writer"]) as client:
            with pytest.raises(openai.PermissionDeniedError, match="lacks the scope read"):
                await client.chat.completions.create(model=MODEL, messages=user_messages("Hi"))
        async with connect_openai(gateway, "wrong") as client:
            for _ in range(10):
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()
            with pytest.raises(openai.RateLimitError) as locked:
                await client.models.list()
            assert int(locked.value.response.headers["retry-after"]) > 0


async def test_sessions_of_two_users_with_the_same_key_are_separate(tmp_path: Path) -> None:
    both = ["read", "write", "approve"]
    tokens = write_tokens(tmp_path, ana=both, bo=both)
    model = Scripted(says("Hello Ana."), says("Hello Bo."), calls("note", input="x"))

    async def note(input: str) -> str:
        return input

    atlas = stored_atlas(model, (Tool("note", note, confirm=True),), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas, grace=0.05) as gateway:
        for name in ("ana", "bo"):
            async with connect_openai(gateway, tokens[name]) as client:
                await client.chat.completions.create(model=MODEL, messages=user_messages(f"I am {name}."), user="main")
        assert [message.text for message in model.requests[1].messages] == ["I am bo."]
        async with open_page(gateway, tokens["ana"]) as page:
            (interrupt,) = (await page.run("Note x."))[-1]["outcome"]["interrupts"]
        async with open_page(gateway, tokens["bo"]) as page:
            for id in (interrupt["id"], "f" * 32):
                events = await page.run(resume=[{"interruptId": id, "status": "cancelled"}])
                assert events[-1] == {
                    "type": "RUN_ERROR",
                    "message": f"interrupt {id!r} not found in this thread",
                    "code": "interrupt_not_found",
                }
        async with connect_client(gateway) as owner:
            assert len((await owner.get("approvals.list"))["approvals"]) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_rotated_token_ends_its_streams(stream: bool, tmp_path: Path) -> None:
    slow = Slow()
    atlas = stored_atlas(Scripted(says("One moment.") + calls("slow", input="x")), (slow.tool,))
    async with serve_gateway(tmp_path, atlas) as gateway, connect_openai(gateway) as client:
        pending = asyncio.create_task(read_all(client, stream))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        gateway.hub.tokens.rotate()
        with pytest.raises(openai.APIError):
            await asyncio.wait_for(pending, TIMEOUT)
        await asyncio.wait_for(slow.cancelled.wait(), TIMEOUT)
        assert gateway.hub.connections == set()


async def read_all(client: openai.AsyncOpenAI, stream: bool) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=user_messages("Go"), stream=stream)
    if isinstance(answer, openai.AsyncStream):
        async for _ in answer:
            pass


async def test_interrupt_answer_requires_the_approve_scope(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path, ana=["read", "write"])
    async with serve_gateway(tmp_path, stored_atlas(Scripted())) as gateway, open_page(gateway, tokens["ana"]) as page:
        answer = await page.request(resume=[{"interruptId": "x", "status": "cancelled"}])
        assert answer.response.status == 403


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", REQUEST), ("/ag-ui/assistant", RUN)])
async def test_invalid_request_body_is_refused(path: str, body: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, max_frame=20_000) as gateway:
        wrong: list[tuple[int, str, dict[str, str]]] = [
            (415, body, {"Content_Type": "text/plain"}),
            (415, body, {"Content_Type": "application/x-www-form-urlencoded"}),
            (400, "{", {}),
            (400, "[1]", {}),
            (400, "[" * 10_000, {}),
            (400, '{"model": "\\ud800"}', {}),
            (413, json.dumps({"model": "x" * 30_000}), {}),
        ]
        for expected, content, headers in wrong:
            code, answer = await http(gateway, f"POST {path}", body=content, **auth_headers(gateway, **headers))
            assert (code, set(json.loads(answer.partition("\r\n\r\n")[2])["error"])) == (
                expected,
                {"message", "type", "param", "code"},
            )
        assert (await http(gateway, f"GET {path}", **auth_headers(gateway)))[0] in (404, 405)


async def test_incomplete_request_body_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "BODY_TIMEOUT", 0.1)
    async with serve_gateway(tmp_path) as gateway:
        more: dict[str, Any] = auth_headers(gateway, Content_Length="100")
        code, _ = await asyncio.wait_for(http(gateway, "POST /v1/chat/completions", **more), TIMEOUT)
        assert code == 408
