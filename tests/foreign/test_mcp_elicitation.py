"""Elicitation: an MCP server asks for input during a call, and only the user of that turn is asked."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp_workspace import HERE, approve, build_registry, load_servers, write_config

from atlas_agents import Agent, Answer, Approvals, Atlas, Question
from atlas_agents.client import GatewayClient
from atlas_agents.core.approvals import Choice, Field
from atlas_agents.core.errors import ConfigError, GatewayError
from atlas_agents.gateway.protocol.events import ApprovalRequested, ApprovalResolved, ChatFinal, ToolSettled
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.mcp.callbacks import build_form
from atlas_agents.mcp.client import McpSession
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, says
from checks import TIMEOUT, wait_until

pytestmark = pytest.mark.slow
ANA = "ana-0123456789abcdefghijklmnopqrstuvwxyz"
BEN = "ben-0123456789abcdefghijklmnopqrstuvwxyz"
SCOPES = ["read", "write", "approve"]


def shop(protocol: str, **more: Any) -> dict[str, Any]:
    entry = {"command": sys.executable, "args": [str(HERE / "eliciting_server.py"), protocol]}
    return {**entry, "confirm": False, "timeout": 120, **more}


@asynccontextmanager
async def open_shop(
    workspace: Path, entry: dict[str, Any], model: Any = None, **more: Any
) -> AsyncGenerator[Atlas, None]:
    servers = load_servers(write_config(workspace, shop=entry))
    try:
        await approve(servers)
        agent = Agent("assistant", model=model or Scripted(), tools=list(build_registry(servers)))
        async with Atlas([agent], store=MemoryStore(), **more) as atlas:
            yield atlas
    finally:
        await servers.close()


@asynccontextmanager
async def gateway(
    workspace: Path, entry: dict[str, Any], model: Any = None, approvals: Approvals | None = None
) -> AsyncGenerator[Gateway, None]:
    tokens = {"ana": {"token": ANA, "scopes": SCOPES}, "ben": {"token": BEN, "scopes": SCOPES}}
    home = workspace / "home"
    home.mkdir()
    (home / "tokens.json").write_text(json.dumps(tokens))
    async with (
        open_shop(workspace, entry, model, approve=approvals or Approvals(wait=True)) as atlas,
        Gateway(atlas, GatewaySettings(home=home, port=0)).running() as running,
    ):
        yield running


def person(of: Gateway, token: str = ANA) -> GatewayClient:
    return GatewayClient(f"http://127.0.0.1:{of.port}", token)


async def pending_approval(client: GatewayClient) -> dict[str, Any]:
    """Return the only pending approval of this user."""

    async def waiting() -> list[dict[str, Any]]:
        return (await client.call("approvals.list"))["approvals"]

    (question,) = await wait_until(waiting, 0.05)
    return question


@pytest.mark.parametrize("protocol", ["new", "old"])
async def test_server_asks_the_user_of_the_turn_and_receives_the_values(protocol: str, tmp_path: Path) -> None:
    model = Scripted(calls("shop__order"), says("Done."))
    async with (
        gateway(tmp_path, shop(protocol, timeout=10), model) as running,
        person(running) as ana,
        person(running, BEN) as ben,
        ana.follow("s") as feed,
    ):
        sent = await feed.send("order something")
        events: list[Any] = []
        async for event in feed.run_events(sent.run_id):
            events.append(event)
            if not isinstance(event, ApprovalRequested):
                continue
            form = event.form
            assert form is not None and (form.asker, event.summary) == (
                "the MCP server shop",
                "The MCP server shop requests your input",
            )
            assert form.message == "Which \u202eone <b>shall</b> it be?" and event.tool_name == "shop/order"
            assert [(field.name, field.kind, field.required) for field in form.fields] == [
                ("size", "choice", True),
                ("count", "integer", False),
                ("email", "text", False),
                ("gift", "boolean", False),
            ]
            assert event.details == {"count": 2, "gift": False} and event.options == ("allow-once", "deny", "dismiss")
            assert (await ben.call("approvals.list"))["approvals"] == []
            await asyncio.sleep(10.2)  # longer than the timeout of the call, which is paused
            for values in ({"count": 3}, {"size": "small", "count": 99}, {"size": "small", "email": "no"}, {"x": 1}):
                with pytest.raises(GatewayError) as refused:
                    await answer(ana, event.approval_id, "allow-always", values)
                assert refused.value.kind == "INVALID_PARAMS"
            with pytest.raises(GatewayError):
                await answer(ben, event.approval_id, "allow-once", {"size": "large"})
            await answer(ana, event.approval_id, "allow-always", {"size": "large", "count": 3})
        (settled,) = [event for event in events if isinstance(event, ToolSettled)]
        assert (settled.status, settled.result) == ("ok", "ordered 3 large, gift: False")
        (resolved,) = [event for event in events if isinstance(event, ApprovalResolved)]
        assert (resolved.decision, resolved.by) == ("allow-once", "ana") and isinstance(events[-1], ChatFinal)
        (row,) = [json.loads(row.entry) for row in await running.hub.store.audit("default")]
        fields = ["size", "count", "email", "gift"]
        assert row["meta"]["asked"] == [
            {"asker": "the MCP server shop", "fields": fields, "answer": "accept", "by": "ana"}
        ]
        assert row["meta"]["duration_ms"] < 10_000


async def answer(client: GatewayClient, id: str, decision: str, values: dict[str, Any] | None = None) -> None:
    await client.call("approvals.resolve", approval_id=id, decision=decision, arguments=values)


async def test_deny_declines_and_dismiss_or_timeout_cancels(tmp_path: Path) -> None:
    approvals = Approvals(wait=True)
    async with gateway(tmp_path, shop("old"), approvals=approvals) as running, person(running) as ana:
        call = asyncio.create_task(ana.call("tools.invoke", name="shop/twice"))
        first = (await pending_approval(ana))["approvalId"]
        await answer(ana, first, "deny")
        second = (await wait_until(lambda: other(ana, first), 0.05))["approvalId"]
        await answer(ana, second, "dismiss")
        assert (await call)["result"] == "decline cancel"
        approvals.deadline = 1
        call = asyncio.create_task(ana.call("tools.invoke", name="shop/pay"))
        assert (await call)["result"] == "cancel" and (await ana.call("approvals.list"))["approvals"] == []


async def test_server_that_starts_slowly_and_knows_only_the_newer_protocol_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library waits ten seconds for the first answer; then only the old handshake was tried, which it refuses."""
    monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", 0.01)
    initialize = McpSession.initialize

    async def refused(session: McpSession) -> Any:
        monkeypatch.setattr("mcp.client.session.DISCOVER_TIMEOUT_SECONDS", TIMEOUT)
        return await initialize(session)

    monkeypatch.setattr(McpSession, "initialize", refused)
    async with open_shop(tmp_path, shop("new")) as atlas:
        assert "shop/order" in [tool.name for tool in atlas.agents[0].tools]


async def other(client: GatewayClient, id: str) -> dict[str, Any] | None:
    found = (await client.call("approvals.list"))["approvals"]
    return next((each for each in found if each["approvalId"] != id), None)


async def test_url_is_shown_and_not_opened(tmp_path: Path) -> None:
    async with gateway(tmp_path, shop("old")) as running, person(running) as ana:
        call = asyncio.create_task(ana.call("tools.invoke", name="shop/pay"))
        question = await pending_approval(ana)
        assert question["form"] == {
            "asker": "the MCP server shop",
            "message": "Please pay.",
            "url": "https://pay.example.org/bill?id=7",
        }
        await answer(ana, question["approvalId"], "allow-once")
        assert (await call)["result"] == "accept"


@pytest.mark.parametrize(("tool", "status"), [("haste", "ok"), ("end", "unknown")])
async def test_request_that_the_server_abandons_is_withdrawn(tool: str, status: str, tmp_path: Path) -> None:
    model = Scripted(calls(f"shop__{tool}"), calls("shop__order"), says("Well."))
    async with gateway(tmp_path, shop("old"), model) as running, person(running) as ana, ana.follow("s") as feed:
        sent = await feed.send("go")
        events: list[Any] = []
        questions: list[str] = []
        async for event in feed.run_events(sent.run_id):
            events.append(event)
            if isinstance(event, ApprovalRequested):
                questions.append(event.approval_id)
                if len(questions) == 2:  # the first one is withdrawn while the turn still runs
                    assert (await pending_approval(ana))["approvalId"] == event.approval_id
                    with pytest.raises(GatewayError, match="already resolved"):
                        await answer(ana, questions[0], "allow-once", {"size": "small"})
                    await answer(ana, event.approval_id, "allow-once", {"size": "small"})
        resolved = [event for event in events if isinstance(event, ApprovalResolved)]
        assert [(event.approval_id, event.decision) for event in resolved] == [
            (questions[0], "dismiss"),
            (questions[1], "allow-once"),
        ]
        assert [event.status for event in events if isinstance(event, ToolSettled)] == [status, "ok"]


async def test_unsupported_schema_is_rejected_and_without_an_approver_it_cancels(tmp_path: Path) -> None:
    async with open_shop(tmp_path, shop("old")) as atlas:
        nested = await atlas.invoke("shop/nested", {})
        assert nested.status == "error" and "only text, numbers, booleans and choices" in nested.result
        assert (await atlas.invoke("shop/twice", {})).result == "cancel cancel"


async def test_approver_function_answers_with_values_and_invalid_ones_cancel(tmp_path: Path) -> None:
    questions: list[Question] = []

    def ask(question: Question) -> Answer:
        questions.append(question)
        return Answer("once", {"size": "large"} if len(questions) == 1 else {"size": "huge"}, by="ana")

    async with open_shop(tmp_path, shop("old"), approve=ask) as atlas:
        assert (await atlas.invoke("shop/twice", {})).result == "accept cancel"
        assert "size (small | large, required) Size: How large it is" in questions[0].preview
        assert questions[0].preview.endswith("Your answer is sent to the MCP server shop.")


async def test_stdio_elicitation_is_declined_while_two_users_have_calls(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, shop("old")) as running,
        person(running) as ana,
        person(running, BEN) as ben,
    ):
        first = asyncio.create_task(ana.call("tools.invoke", name="shop/twice"))
        question = await pending_approval(ana)
        assert (await ben.call("tools.invoke", name="shop/twice"))["result"] == "decline decline"
        await answer(ana, question["approvalId"], "allow-once", {"size": "small"})
        assert (await pending_approval(ana))["approvalId"] != question["approvalId"]
        await answer(ana, (await pending_approval(ana))["approvalId"], "allow-once", {"size": "small"})
        assert (await first)["result"] == "accept accept"


async def test_http_elicitation_reaches_the_user_of_each_call(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    script = str(HERE / "eliciting_server.py")
    process = await asyncio.create_subprocess_exec(sys.executable, script, str(port), stdout=-3, stderr=-3)
    try:
        await wait_until(lambda: is_listening(port), 0.1)
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "confirm": False, "timeout": 120}
        async with (
            gateway(tmp_path, entry) as running,
            person(running) as ana,
            person(running, BEN) as ben,
        ):
            clients = {"small": ana, "large": ben}
            running_calls = [
                asyncio.create_task(each.call("tools.invoke", name="shop/order")) for each in clients.values()
            ]
            for size, each in clients.items():
                await answer(each, (await pending_approval(each))["approvalId"], "allow-once", {"size": size})
            assert [(await call)["result"] for call in running_calls] == [
                "ordered 2 small, gift: False",
                "ordered 2 large, gift: False",
            ]
            process.kill()
            await process.wait()
            refused = await ana.call("tools.invoke", name="shop/order")
            assert refused["status"] == "error" and "the MCP server shop is unreachable" in refused["result"], refused
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def form_request(**properties: Any) -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": properties})


def test_all_field_types_of_the_protocol_are_converted() -> None:
    titled = [{"const": "a", "title": "One"}, {"const": "b", "title": "Two"}]
    form = build_form(
        "s",
        form_request(
            text={"type": "string", "title": "T", "minLength": 1, "maxLength": 5, "pattern": "^x", "default": "x"},
            day={"type": "string", "format": "date"},
            part={"type": "number", "minimum": 0.5},
            one={"type": "string", "enum": ["a", "b"], "enumNames": ["One"]},
            named={"type": "string", "oneOf": titled},
            many={"type": "array", "items": {"anyOf": titled}, "maxItems": 2},
        ),
    )
    choices = (Choice("a", "One"), Choice("b", "Two"))
    assert form.fields == (
        Field("text", title="T", default="x", pattern="^x", least=1, most=5),
        Field("day", format="date"),
        Field("part", "number", least=0.5),
        Field("one", "choice", choices=(Choice("a", "One"), Choice("b"))),
        Field("named", "choice", choices=choices),
        Field("many", "choices", choices=choices, most=2),
    )
    assert form.suggested == {"text": "x"}


@pytest.mark.parametrize(
    "params",
    [
        form_request(deep={"type": "object"}),
        form_request(free={"type": "array", "items": {"type": "string"}}),
        form_request(none={"type": "string", "enum": []}),
        form_request(odd=7),
        form_request(long={"type": "string", "description": "x" * 2000}),
        form_request(**{f"f{number}": {"type": "string"} for number in range(51)}),
        types.ElicitRequestFormParams(message="x" * 9000, requested_schema={}),
        types.ElicitRequestURLParams(message="go", url="javascript:alert(1)", elicitation_id="1"),
        types.ElicitRequestURLParams(message="go", url="file:///etc/passwd", elicitation_id="1"),
    ],
)
def test_nested_oversized_or_unsafe_request_is_rejected(params: types.ElicitRequestParams) -> None:
    with pytest.raises(ConfigError):
        build_form("s", params)
