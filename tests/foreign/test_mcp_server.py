"""Atlas as an MCP server, with the official client over HTTP: the same rules as for every other caller."""

import asyncio
import io
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

import aiohttp
import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from atlas_agents import Agent, Answer, Approvals, Atlas, File, Image, Policy, Tool, ToolContext, ToolFailed, tool
from atlas_agents.core.approvals import Choice, Field, Form
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Environment, Registry, Scripted, refuses, says
from atlas_agents.workspace.skills import Prompt, read_prompts
from checks import TIMEOUT, wait_until

READER = "reader-0123456789abcdefghijklmnopqrstuvwxyz"
WRITER = "writer-0123456789abcdefghijklmnopqrstuvwxyz"
APPROVER = "approver-0123456789abcdefghijklmnopqrstuvwxyz"
TOKENS = {
    "reader": {"token": READER, "scopes": ["read"]},
    "writer": {"token": WRITER, "scopes": ["read", "write"]},
    "approver": {"token": APPROVER, "scopes": ["read", "write", "approve"]},
}
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran_yet() -> None:
    ran.clear()


@tool(effect="pure")
async def add(a: int, b: int, context: ToolContext) -> int:
    """Add two numbers."""
    context.progress("adding")
    return a + b


@tool(confirm=True)
async def wipe(path: str) -> dict[str, str]:
    """Wipe a path."""
    ran.append(path)
    return {"wiped": path}


@tool
async def forbidden() -> None:
    """Not permitted to anyone."""
    ran.append("forbidden")


@tool(effect="pure", timeout=600)
async def slow() -> None:
    """Take long."""
    ran.append("slow")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ran.append("cancelled")
        raise


@tool(effect="pure", timeout=600)
async def survey(context: ToolContext) -> str:
    """Ask for a size."""
    choices = (Choice("s", "Small"), Choice("l", "Large"))
    fields = (Field("size", "choice", required=True, choices=choices), Field("count", "integer", default=1, most=9))
    filled = await context.ask(Form("the shop", "Which one?", fields))
    return f"{filled.action} {json.dumps(filled.values, sort_keys=True)} {filled.by}".strip()


@asynccontextmanager
async def serve(home: Path, services: GatewayServices | None = None, **more: Any) -> AsyncGenerator[Gateway, None]:
    policy = Policy(tools={"wipe": {"*": "yes"}, "forbidden": {"*": "no"}})
    agents = [
        Agent("assistant", model=Scripted(says("Hello there.")), tools=[add, wipe, forbidden, slow, survey]),
        Agent(
            "poet",
            model=Scripted(says("Roses."), refuses("cyber"), says("Roses are", stop="pause")),
            description="Rhymes",
            max_rounds=1,
        ),
    ]
    more = {"approve": Approvals(wait=True, deadline=TIMEOUT), "store": MemoryStore(), **more}
    atlas = Atlas(agents, policy=policy, registry=Registry(Environment({}, dotenv=None)), **more)
    (home / "tokens.json").write_text(json.dumps(TOKENS))
    async with Gateway(atlas, GatewaySettings(home=home, port=0, grace=0), services=services).running() as gateway:
        yield gateway


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def main_token(gateway: Gateway) -> str:
    return gateway.hub.tokens.main.reveal()


@asynccontextmanager
async def client(
    gateway: Gateway, token: str = WRITER, path: str = "/mcp", mode: str = "auto", **options: Any
) -> AsyncGenerator[Client, None]:
    url, headers = f"http://127.0.0.1:{gateway.port}{path}", {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=TIMEOUT) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as found,
    ):
        yield found


def text(result: Any) -> str:
    return result.content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_are_listed_called_and_audited_for_the_token_owner(mode: str, tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, client(gateway, mode=mode) as mcp:
        found = await mcp.list_tools()
        assert [each.name for each in found.tools] == ["add", "wipe", "slow", "survey", "ask_assistant", "ask_poet"]
        messages: list[str] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            messages.append(message or "")

        assert text(await mcp.call_tool("add", {"a": 1, "b": 2}, progress_callback=on_progress)) == "3"
        assert messages == ["calling add", "add: adding"]
        wrong = await mcp.call_tool("add", {"a": 1})
        assert wrong.is_error and text(wrong) == '"b" is a required property'
        rows = [json.loads(row.entry) for row in await gateway.hub.store.audit("default")]
        assert [(row["entityId"], row["meta"]["user"], row["success"]) for row in rows] == [
            ("add", "writer", True),
            ("add", "writer", False),
        ]


class Report(TypedDict):
    title: str
    pages: int


async def test_tools_have_titles_annotations_and_output_schemas(tmp_path: Path) -> None:
    results: list[Any] = [{"title": "Sales", "pages": 2}, {"title": "Sales"}, ToolFailed("no paper")]

    @tool(effect="pure", untrusted="web")
    async def print_report() -> Report:
        """Print a report."""
        if isinstance(result := results.pop(0), Exception):
            raise result
        return result

    async def repeat(input: str) -> str:
        return input

    bare = Tool("shop/a-long name", repeat)
    atlas = Atlas([Agent("assistant", model=Scripted(), tools=[print_report, bare])], store=MemoryStore())
    async with (
        Gateway(atlas, GatewaySettings(home=tmp_path, port=0)).running() as gateway,
        client(gateway, main_token(gateway)) as mcp,
    ):
        printing, plain, ask = (await mcp.list_tools()).tools
        assert (printing.title, plain.title, ask.title) == ("Print report", "A long name (shop)", "Ask assistant")
        assert plain.description == plain.title and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", plain.name)
        hints = [
            (each.annotations.read_only_hint, each.annotations.destructive_hint, each.annotations.open_world_hint)
            for each in (printing, plain, ask)
            if each.annotations is not None
        ]
        assert hints == [(True, False, True), (False, True, None), (False, True, True)]
        assert printing.output_schema is not None and printing.output_schema["required"] == ["title", "pages"]
        assert plain.output_schema is None and ask.output_schema is None
        good = await mcp.call_tool("print_report", {})
        assert good.structured_content == json.loads(text(good)) == {"title": "Sales", "pages": 2}
        for expected in ("does not match the tool's output schema", "no paper"):
            failed = await mcp.call_tool("print_report", {})
            assert failed.is_error and failed.structured_content is None and expected in text(failed)


async def test_tool_without_permission_is_neither_listed_nor_run(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, client(gateway, main_token(gateway)) as mcp:
        refused = await mcp.call_tool("forbidden", {})
        assert refused.is_error and "not permitted" in text(refused)
        unknown = await mcp.call_tool("nothing", {})
        assert unknown.is_error and "Unknown tool 'nothing'" in text(unknown)
        assert ran == []


@pytest.mark.parametrize(("decision", "expected"), [("once", '{"wiped":"x"}'), ("no", "The call was denied")])
async def test_call_that_needs_approval_waits_and_reports_it(decision: Any, expected: str, tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, client(gateway) as mcp:
        messages: list[str] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            messages.append(message or "")
            if "waiting for approval" in messages[-1]:
                (question,) = await gateway.atlas.pending()
                await gateway.atlas.answer(question.id, decision)

        result = await mcp.call_tool("wipe", {"path": "x"}, progress_callback=on_progress)
        assert text(result).startswith(expected)
        assert result.is_error == (decision == "no") and ran == (["x"] if decision == "once" else [])


class Person:
    """The user of a client: gives prepared answers to what the server asks, and never answers after the last one."""

    def __init__(self, *answers: types.ElicitResult) -> None:
        self._answers = list(answers)
        self.asked: list[types.ElicitRequestFormParams] = []
        self.interrupted = False

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.asked.append(params)
        try:
            return self._answers.pop(0) if self._answers else await asyncio.Event().wait()  # type: ignore
        except asyncio.CancelledError:
            self.interrupted = True
            raise


ALLOWED = types.ElicitResult(action="accept", content={"decision": "once"})
DECLINED = types.ElicitResult(action="decline")
FORM = types.ElicitResult(action="accept", content={"size": "l", "count": 3})
INVALID = types.ElicitResult(action="accept", content={"size": "l", "count": 12})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(("answer", "result"), [(ALLOWED, '{"wiped":"x"}'), (DECLINED, "The call was denied")])
async def test_approval_is_asked_from_a_client_that_can_ask(
    mode: str, answer: types.ElicitResult, result: str, tmp_path: Path
) -> None:
    person = Person(answer)
    async with serve(tmp_path) as gateway, client(gateway, APPROVER, mode=mode, elicitation_callback=person) as mcp:
        outcome = await mcp.call_tool("wipe", {"path": "x"})
        assert text(outcome).startswith(result) and ran == (["x"] if answer is ALLOWED else [])
        (asked,) = person.asked
        assert "wipe" in asked.message and '{"path":"x"}' in asked.message
        decision = asked.requested_schema["properties"]["decision"]
        assert [each["const"] for each in decision["oneOf"]] == ["once", "session", "always", "no"]
        (row,) = [json.loads(row.entry) for row in await gateway.hub.store.audit("default")]
        assert row["meta"]["user"] == "approver" and row["success"] == (answer is ALLOWED)
        assert await gateway.atlas.pending() == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_form_of_a_tool_is_filled_in_by_the_client(mode: str, tmp_path: Path) -> None:
    person = Person(INVALID, FORM, DECLINED)
    async with serve(tmp_path) as gateway, client(gateway, APPROVER, mode=mode, elicitation_callback=person) as mcp:
        assert text(await mcp.call_tool("survey", {})) == 'accept {"count": 3, "size": "l"} approver'
        first, again = person.asked
        assert first.message == "Which one?" and first.requested_schema["properties"]["count"]["default"] == 1
        sizes = first.requested_schema["properties"]["size"]["oneOf"]
        assert sizes == [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]
        assert "The last answer was invalid: count" in again.message
        assert text(await mcp.call_tool("survey", {})) == "decline {} approver"


async def test_question_answered_elsewhere_is_withdrawn_from_the_client(tmp_path: Path) -> None:
    person = Person()
    async with (
        serve(tmp_path) as gateway,
        client(gateway, APPROVER, mode="legacy", elicitation_callback=person) as mcp,
    ):
        call = asyncio.create_task(mcp.call_tool("wipe", {"path": "x"}))
        await wait_until(lambda: person.asked)
        (question,) = await gateway.atlas.pending()
        await gateway.atlas.answer(question.id, "once")
        assert text(await call) == '{"wiped":"x"}'
        await wait_until(lambda: person.interrupted)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("two_person", [False, True])
async def test_client_that_may_not_approve_is_not_asked(mode: str, two_person: bool, tmp_path: Path) -> None:
    person, token = Person(ALLOWED), APPROVER if two_person else WRITER
    rule = Approvals(wait=True, deadline=TIMEOUT, two_person=two_person)
    async with (
        serve(tmp_path, approve=rule) as gateway,
        client(gateway, token, mode=mode, elicitation_callback=person) as mcp,
    ):
        call = asyncio.create_task(mcp.call_tool("wipe", {"path": "x"}))
        (question,) = await wait_until(gateway.atlas.pending)
        assert gateway.atlas.can_approve(question, "colleague")
        await gateway.atlas.answer(question.id, Answer("once", by="colleague"))
        assert text(await call) == '{"wiped":"x"}' and person.asked == []


async def test_call_without_an_approver_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, approve=None) as gateway, client(gateway) as mcp:
        result = await mcp.call_tool("wipe", {"path": "x"})
        assert result.is_error and ran == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_client_timeout_cancels_the_call(mode: str, tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway:
        async with client(gateway, mode=mode) as mcp:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(TIMEOUT) as limit:
                    call = asyncio.create_task(mcp.call_tool("slow", {}))
                    await wait_until(lambda: ran == ["slow"])
                    limit.reschedule(0)
                    await call

        async def cancelled() -> bool:
            return ran == ["slow", "cancelled"]

        await wait_until(cancelled)


async def request(mcp: Client, method: str, **params: Any) -> dict[str, Any]:
    """Send a request that the client library does not know, and return its whole result."""
    return await mcp.session._dispatcher.send_raw_request(method, params)


async def test_task_outlives_the_gateway_and_its_questions_are_asked_later(tmp_path: Path) -> None:
    store, person = SqliteStore(tmp_path / "atlas.db"), Person(ALLOWED)
    await store.open()
    async with (
        serve(tmp_path, store=store) as gateway,
        client(gateway, APPROVER, mode="legacy") as mcp,
    ):
        tools = (await mcp.list_tools()).tools
        assert {each.execution.task_support for each in tools if each.execution} == {"optional"}
        asked = {"name": "wipe", "arguments": {"path": "x"}, "task": {"ttl": 60_000}}
        task = (await request(mcp, "tools/call", **asked))["task"]
        assert task["ttl"] is None and task["status"] in ("working", "input_required")
    async with serve(tmp_path, store=store) as gateway:
        async with client(gateway, APPROVER, mode="legacy", elicitation_callback=person) as mcp:

            async def waits() -> bool:
                return (await request(mcp, "tasks/get", taskId=task["taskId"]))["status"] == "input_required"

            await wait_until(waits)
            for _ in range(2):
                result = await request(mcp, "tasks/result", taskId=task["taskId"])
                assert result["structuredContent"] == {"wiped": "x"} and ran == ["x"]
                assert result["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": task["taskId"]}
            assert len(person.asked) == 1
            assert (await request(mcp, "tasks/get", taskId=task["taskId"]))["status"] == "completed"
        async with client(gateway, WRITER, mode="legacy") as mcp:
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                with pytest.raises(MCPError, match="not found: task"):
                    await request(mcp, method, taskId=task["taskId"])


async def test_task_can_be_cancelled_and_agents_answer_as_tasks(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, client(gateway, mode="legacy") as mcp:
        task = (await request(mcp, "tools/call", name="slow", arguments={}, task={"ttl": 1}))["task"]
        await wait_until(lambda: ran == ["slow"])
        stopped = await request(mcp, "tasks/cancel", taskId=task["taskId"])
        assert stopped["status"] == "cancelled"
        await wait_until(lambda: ran[-1] == "cancelled")
        result = await request(mcp, "tasks/result", taskId=task["taskId"])
        assert result["isError"] and result["content"][0]["text"] == "the call was cancelled"
        with pytest.raises(MCPError, match="has already ended"):
            await request(mcp, "tasks/cancel", taskId=task["taskId"])
        ask = {"name": "ask_poet", "arguments": {"message": "Rhyme!"}, "task": {}}
        poem = (await request(mcp, "tools/call", **ask))["task"]
        answer = await request(mcp, "tasks/result", taskId=poem["taskId"])
        assert answer["content"][0]["text"] == "Roses."


async def test_agent_tool_continues_a_session(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, client(gateway, path="/mcp/poet") as mcp:
        assert [each.name for each in (await mcp.list_tools()).tools] == ["ask_assistant", "ask_poet"]
        assert text(await mcp.call_tool("ask_poet", {"message": "Rhyme!", "session": "rhymes"})) == "Roses."
        refused = await mcp.call_tool("ask_poet", {"message": "Attack!"})
        assert (text(refused), refused.is_error) == ("The model refused to answer: cyber", True)
        unfinished = await mcp.call_tool("ask_poet", {"message": "Rhyme more!"})
        assert text(unfinished).startswith(
            "Roses are\n\n(The answer is incomplete: the turn reached its limit of rounds"
        )
        assert unfinished.is_error
        key = gateway.hub.tokens.find_grant(WRITER).prefix + "rhymes"  # type: ignore
        assert [message.role for message in await gateway.atlas.sessions.history(key)] == ["user", "assistant"]
        assert (await mcp.call_tool("ask_poet", {"message": ""})).is_error


async def test_prompts_of_the_workspace_are_offered(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "review.md").write_text("# Review a change\n\nReview {what}, and {what} only: {how}")
    services = GatewayServices(prompts=lambda: read_prompts(tmp_path))
    async with serve(tmp_path, services) as gateway, client(gateway) as mcp:
        (prompt,) = (await mcp.list_prompts()).prompts
        assert (prompt.name, prompt.description) == ("review", "Review a change")
        assert [each.name for each in prompt.arguments or []] == ["what", "how"]
        filled_prompt = await mcp.get_prompt("review", {"what": "{how}", "how": "well"})
        assert filled_prompt.messages[0].content.text == "Review {how}, and {how} only: well"  # type: ignore
        with pytest.raises(MCPError, match="missing values for how"):
            await mcp.get_prompt("review", {"what": "it"})


def test_filled_promptlists_its_placeholders() -> None:
    assert Prompt("p", "{a} {b} {a} {not-one} {{c}}").placeholders == ("a", "b", "c")


async def test_token_without_write_scope_only_lists(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, client(gateway, READER) as mcp:
        assert (await mcp.list_tools()).tools
        for name, arguments in (("add", {"a": 1, "b": 2}), ("ask_poet", {"message": "hi"})):
            with pytest.raises(MCPError, match="lacks the scope write"):
                await mcp.call_tool(name, arguments)


BODY = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer of-another-gateway-0123456789"}, 401),
        ({"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJhdWQiOiJodHRwczovL290aGVyIn0."}, 401),
        ({"Mcp-Session-Id": "0123456789abcdef0123456789abcdef"}, 401),
        ({"Authorization": f"Bearer {WRITER}", "Host": "evil.example:18789"}, 421),
        ({"Authorization": f"Bearer {WRITER}", "Origin": "https://evil.example"}, 403),
        ({"Authorization": f"Bearer {WRITER}", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
    ids=["no token", "a wrong token", "a token for another audience", "a guessed session", "host", "origin", "site"],
)
async def test_unauthorized_request_is_rejected(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, aiohttp.ClientSession() as http:
        for method in ("GET", "POST", "DELETE"):
            url = f"http://127.0.0.1:{gateway.port}/mcp"
            async with http.request(method, url, json=BODY, headers={**ACCEPT, **headers}) as answer:
                assert answer.status == status, (method, await answer.text())
        assert ran == [] and not await gateway.hub.store.audit("default")


async def test_refusals_name_the_metadata_of_the_resource(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, aiohttp.ClientSession() as http:
        base = f"http://127.0.0.1:{gateway.port}"
        for headers, status in (({}, 401), ({"Authorization": "Bearer wrong-0123456789"}, 401), (bearer(READER), 403)):
            for path in ("/mcp", "/mcp/poet"):
                async with http.post(base + path, json=BODY, headers={**ACCEPT, **headers}) as answer:
                    challenge = answer.headers["WWW-Authenticate"]
                assert answer.status == status and 'scope="read write"' in challenge
                assert ('error="insufficient_scope"' in challenge) == (status == 403)
                (address,) = re.findall('resource_metadata="(.*?)"', challenge)
                async with http.get(address) as answer:
                    metadata = await answer.json()
                assert metadata["resource"] == base + path and "write" in metadata["scopes_supported"]
        proxied = {"X-Forwarded-Proto": "https"}
        async with http.get(f"{base}/.well-known/oauth-protected-resource", headers=proxied) as answer:
            assert (await answer.json())["resource"] == f"https://127.0.0.1:{gateway.port}/mcp"


async def test_session_header_grants_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{gateway.port}/mcp"
        headers = {**ACCEPT, "Authorization": f"Bearer {READER}", "Mcp-Session-Id": "0" * 32}
        async with http.post(url, json=BODY, headers=headers) as answer:
            assert "mcp-session-id" not in answer.headers
            assert "lacks the scope write" in await answer.text()


async def test_session_belongs_to_the_user_who_opened_it(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    async with serve(tmp_path) as gateway, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{gateway.port}/mcp"
        async with http.post(url, json=opening, headers={**ACCEPT, **bearer(WRITER)}) as answer:
            session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        for token, status in ((WRITER, 200), (APPROVER, 404)):
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            async with http.post(url, json=ping, headers={**ACCEPT, **bearer(token), **session}) as answer:
                assert answer.status == status


async def test_revoked_token_is_rejected(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, client(gateway) as mcp:
        assert (await mcp.list_tools()).tools
        (tmp_path / "tokens.json").write_text("{}")
        with pytest.raises(Exception):  # noqa: B017 - whatever the library makes of a 401
            await mcp.call_tool("add", {"a": 1, "b": 2})


async def test_oversized_request_is_rejected(tmp_path: Path) -> None:
    async with serve(tmp_path) as gateway, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{gateway.port}/mcp"
        headers = {**ACCEPT, "Authorization": f"Bearer {WRITER}"}
        async with http.post(url, data=io.BytesIO(b" " * 2_000_000), headers=headers) as answer:
            assert answer.status == 413
        async with http.post(f"{url}/unknown", json=BODY, headers=headers) as answer:
            assert answer.status == 404


async def test_gateway_works_without_the_mcp_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas_agents.gateway.mcp.mount._SERVER_MODULE", "atlas_agents_without_mcp")
    async with serve(tmp_path) as gateway, aiohttp.ClientSession() as http:
        headers = {**ACCEPT, "Authorization": f"Bearer {WRITER}"}
        async with http.post(f"http://127.0.0.1:{gateway.port}/mcp", json=BODY, headers=headers) as answer:
            assert answer.status == 501 and "atlas-agents[mcp]" in await answer.text()
        async with http.get(f"http://127.0.0.1:{gateway.port}/health") as answer:
            assert answer.status == 200


async def test_images_audio_and_files_are_returned_as_content(tmp_path: Path) -> None:
    @tool(effect="pure")
    async def draw() -> dict[str, Any]:
        """Draw something."""
        return {"title": "Sales", "plot": Image.of(b"\x89PNG\r\n\x1a\n")}

    @tool(effect="pure")
    async def record() -> list[Any]:
        """Record something."""
        table = File.of(b"a,b", "a table.csv", "text/csv")
        return [File.of(b"RIFF", "x.wav", "audio/wav"), table, File.of(b"%PDF", "shop://1/bill")]

    atlas = Atlas([Agent("assistant", model=Scripted(), tools=[draw, record])], store=MemoryStore())
    async with (
        Gateway(atlas, GatewaySettings(home=tmp_path, port=0)).running() as gateway,
        client(gateway, main_token(gateway)) as mcp,
    ):
        messages, picture = (await mcp.call_tool("draw", {})).content
        assert messages.text == '{"title":"Sales","plot":"(image/png, 9 bytes)"}'  # type: ignore
        assert (picture.type, picture.mime_type, picture.data) == ("image", "image/png", "iVBORw0KGgo=")  # type: ignore
        note, *media = (await mcp.call_tool("record", {})).model_dump(by_alias=True, exclude_none=True)["content"]
        assert note["text"].startswith('["(x.wav, audio/wav, 6 bytes)","(a table.csv')
        assert media == [
            {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
            {
                "type": "resource",
                "resource": {"uri": "file:///a%20table.csv", "mimeType": "text/csv", "text": "a,b"},
            },
            {
                "type": "resource",
                "resource": {"uri": "shop://1/bill", "mimeType": "application/pdf", "blob": "JVBERg=="},
            },
        ]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_log_messages_have_the_level_that_the_client_sets(mode: str, tmp_path: Path) -> None:
    messages: list[tuple[str, str | None, Any]] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        messages.append((params.level, params.logger, params.data))

    options: dict[str, Any] = {"log_level": "info"} if mode == "auto" else {}
    async with serve(tmp_path) as gateway, client(gateway, mode=mode, logging_callback=on_log, **options) as mcp:
        if mode == "legacy":
            await mcp.call_tool("add", {"a": 1, "b": 2})
            assert messages == []
            request = types.SetLevelRequest(params=types.SetLevelRequestParams(level="info"))
            await mcp.session.send_request(request, types.EmptyResult)
        await mcp.call_tool("add", {"a": 1, "b": 2})
        await wait_until(lambda: messages)
        assert messages == [("info", "add", "add: adding")]
