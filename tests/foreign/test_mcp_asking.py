"""An MCP server that asks back in the middle of a call: the person of the turn is asked, and nobody else."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp_house import HERE, approve, registry_of, servers_of, written

from atlas_agents import Agent, Answer, Approvals, Atlas, Question
from atlas_agents.client import GatewayClient
from atlas_agents.core.approvals import Choice, Field
from atlas_agents.core.errors import ConfigError, GatewayError
from atlas_agents.gateway.protocol.events import ApprovalRequested, ApprovalResolved, ChatFinal, ToolSettled
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.mcp.callbacks import build_form
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, calls, says
from checks import until

pytestmark = pytest.mark.slow
ANA = "ana-0123456789abcdefghijklmnopqrstuvwxyz"
BEN = "ben-0123456789abcdefghijklmnopqrstuvwxyz"
SCOPES = ["read", "write", "approve"]


def shop(how: str, **more: Any) -> dict[str, Any]:
    entry = {"command": sys.executable, "args": [str(HERE / "asking_server.py"), how]}
    return {**entry, "confirm": False, "timeout": 20, **more}


@asynccontextmanager
async def house(workspace: Path, entry: dict[str, Any], model: Any = None, **more: Any) -> AsyncGenerator[Atlas, None]:
    servers = servers_of(written(workspace, shop=entry))
    try:
        await approve(servers)
        agent = Agent("assistant", model=model or Scripted(), tools=list(registry_of(servers)))
        async with Atlas([agent], store=MemoryStore(), **more) as atlas:
            yield atlas
    finally:
        await servers.close()


@asynccontextmanager
async def gateway(
    workspace: Path, entry: dict[str, Any], model: Any = None, deadline: float = 20
) -> AsyncGenerator[Gateway, None]:
    tokens = {"ana": {"token": ANA, "scopes": SCOPES}, "ben": {"token": BEN, "scopes": SCOPES}}
    home = workspace / "home"
    home.mkdir()
    (home / "tokens.json").write_text(json.dumps(tokens))
    async with (
        house(workspace, entry, model, approve=Approvals(wait=True, deadline=deadline)) as atlas,
        Gateway(atlas, GatewaySettings(home=home, port=0)).running() as running,
    ):
        yield running


def person(of: Gateway, token: str = ANA) -> GatewayClient:
    return GatewayClient(f"http://127.0.0.1:{of.port}", token)


async def asked(client: GatewayClient) -> dict[str, Any]:
    """The question that this person is asked."""

    async def waiting() -> list[dict[str, Any]]:
        return (await client.call("approvals.list"))["approvals"]

    (question,) = await until(waiting, 0.05)
    return question


@pytest.mark.parametrize("how", ["new", "old"])
async def test_a_server_asks_the_person_of_the_turn_and_goes_on_with_the_values(how: str, tmp_path: Path) -> None:
    model = Scripted(calls("shop__order"), says("Done."))
    async with (
        gateway(tmp_path, shop(how, timeout=1), model) as running,
        person(running) as ana,
        person(running, BEN) as ben,
        ana.follow("s") as feed,
    ):
        sent = await feed.send("order something")
        told: list[Any] = []
        async for event in feed.run_events(sent.run_id):
            told.append(event)
            if not isinstance(event, ApprovalRequested):
                continue
            form = event.form
            assert form is not None and (form.asker, event.summary) == (
                "the MCP server shop",
                "The MCP server shop asks you",
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
            await asyncio.sleep(1.2)  # longer than the call may take: its time stands still
            for values in ({"count": 3}, {"size": "small", "count": 99}, {"size": "small", "email": "no"}, {"x": 1}):
                with pytest.raises(GatewayError) as refused:
                    await answer(ana, event.approval_id, "allow-always", values)
                assert refused.value.kind == "INVALID_PARAMS"
            with pytest.raises(GatewayError):
                await answer(ben, event.approval_id, "allow-once", {"size": "large"})
            await answer(ana, event.approval_id, "allow-always", {"size": "large", "count": 3})
        (settled,) = [event for event in told if isinstance(event, ToolSettled)]
        assert (settled.status, settled.result) == ("ok", "ordered 3 large, gift: False")
        (resolved,) = [event for event in told if isinstance(event, ApprovalResolved)]
        assert (resolved.decision, resolved.by) == ("allow-once", "ana") and isinstance(told[-1], ChatFinal)
        (row,) = [json.loads(row.entry) for row in await running.hub.store.audit("default")]
        fields = ["size", "count", "email", "gift"]
        assert row["meta"]["asked"] == [
            {"asker": "the MCP server shop", "fields": fields, "answer": "accept", "by": "ana"}
        ]
        assert row["meta"]["duration_ms"] < 1000


async def answer(client: GatewayClient, id: str, decision: str, values: dict[str, Any] | None = None) -> None:
    await client.call("approvals.resolve", approval_id=id, decision=decision, arguments=values)


async def test_a_no_is_a_decline_and_to_dismiss_or_not_to_answer_a_cancel(tmp_path: Path) -> None:
    async with gateway(tmp_path, shop("old"), deadline=2) as running, person(running) as ana:
        call = asyncio.create_task(ana.call("tools.invoke", name="shop/twice"))
        first = (await asked(ana))["approvalId"]
        await answer(ana, first, "deny")
        second = (await until(lambda: other(ana, first), 0.05))["approvalId"]
        await answer(ana, second, "dismiss")
        assert (await call)["result"] == "decline cancel"
        call = asyncio.create_task(ana.call("tools.invoke", name="shop/pay"))
        assert (await call)["result"] == "cancel" and (await ana.call("approvals.list"))["approvals"] == []


async def other(client: GatewayClient, than: str) -> dict[str, Any] | None:
    found = (await client.call("approvals.list"))["approvals"]
    return next((each for each in found if each["approvalId"] != than), None)


async def test_an_address_is_shown_and_opened_by_the_person_alone(tmp_path: Path) -> None:
    async with gateway(tmp_path, shop("old")) as running, person(running) as ana:
        call = asyncio.create_task(ana.call("tools.invoke", name="shop/pay"))
        question = await asked(ana)
        assert question["form"] == {
            "asker": "the MCP server shop",
            "message": "Please pay.",
            "url": "https://pay.example.org/bill?id=7",
        }
        await answer(ana, question["approvalId"], "allow-once")
        assert (await call)["result"] == "accept"


@pytest.mark.parametrize(("tool", "status"), [("haste", "ok"), ("end", "unknown")])
async def test_what_is_asked_no_more_is_taken_back(tool: str, status: str, tmp_path: Path) -> None:
    model = Scripted(calls(f"shop__{tool}"), calls("shop__order"), says("Well."))
    async with gateway(tmp_path, shop("old"), model) as running, person(running) as ana, ana.follow("s") as feed:
        sent = await feed.send("go")
        told: list[Any] = []
        questions: list[str] = []
        async for event in feed.run_events(sent.run_id):
            told.append(event)
            if isinstance(event, ApprovalRequested):
                questions.append(event.approval_id)
                if len(questions) == 2:  # the first is not asked any more, while the turn is still under way
                    assert (await asked(ana))["approvalId"] == event.approval_id
                    with pytest.raises(GatewayError, match="already resolved"):
                        await answer(ana, questions[0], "allow-once", {"size": "small"})
                    await answer(ana, event.approval_id, "allow-once", {"size": "small"})
        resolved = [event for event in told if isinstance(event, ApprovalResolved)]
        assert [(event.approval_id, event.decision) for event in resolved] == [
            (questions[0], "dismiss"),
            (questions[1], "allow-once"),
        ]
        assert [event.status for event in told if isinstance(event, ToolSettled)] == [status, "ok"]


async def test_what_cannot_be_asked_is_refused_and_where_nobody_can_be_asked_it_is_a_cancel(tmp_path: Path) -> None:
    async with house(tmp_path, shop("old")) as atlas:
        nested = await atlas.invoke("shop/nested", {})
        assert nested.status == "error" and "only text, numbers, booleans and choices" in nested.result
        assert (await atlas.invoke("shop/twice", {})).result == "cancel cancel"


async def test_who_is_asked_in_a_program_answers_with_values_and_misfits_are_no_answer(tmp_path: Path) -> None:
    seen: list[Question] = []

    def ask(question: Question) -> Answer:
        seen.append(question)
        return Answer("once", {"size": "large"} if len(seen) == 1 else {"size": "huge"}, by="ana")

    async with house(tmp_path, shop("old"), approve=ask) as atlas:
        assert (await atlas.invoke("shop/twice", {})).result == "accept cancel"
        assert "size (small | large, required) Size: How large it is" in seen[0].preview
        assert seen[0].preview.endswith("Your answer is sent to the MCP server shop.")


async def test_over_pipes_calls_of_two_people_make_it_unclear_who_is_meant_so_nobody_is_asked(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, shop("old"), deadline=5) as running,
        person(running) as ana,
        person(running, BEN) as ben,
    ):
        first = asyncio.create_task(ana.call("tools.invoke", name="shop/twice"))
        question = await asked(ana)
        assert (await ben.call("tools.invoke", name="shop/twice"))["result"] == "decline decline"
        await answer(ana, question["approvalId"], "allow-once", {"size": "small"})
        assert (await asked(ana))["approvalId"] != question["approvalId"]
        await answer(ana, (await asked(ana))["approvalId"], "allow-once", {"size": "small"})
        assert (await first)["result"] == "accept accept"


async def test_over_http_each_is_asked_what_their_own_call_needs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    script = str(HERE / "asking_server.py")
    process = await asyncio.create_subprocess_exec(sys.executable, script, str(port), stdout=-3, stderr=-3)
    try:
        await until(lambda: answers(port), 0.1)
        entry = {"url": f"http://127.0.0.1:{port}/mcp", "confirm": False, "timeout": 20}
        async with (
            gateway(tmp_path, entry) as running,
            person(running) as ana,
            person(running, BEN) as ben,
        ):
            clients = {"small": ana, "large": ben}
            under_way = [asyncio.create_task(each.call("tools.invoke", name="shop/order")) for each in clients.values()]
            for size, each in clients.items():
                await answer(each, (await asked(each))["approvalId"], "allow-once", {"size": size})
            assert [(await call)["result"] for call in under_way] == [
                "ordered 2 small, gift: False",
                "ordered 2 large, gift: False",
            ]
    finally:
        process.kill()
        await process.wait()


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def asking(**properties: Any) -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message="?", requested_schema={"type": "object", "properties": properties})


def test_all_kinds_of_values_that_the_protocol_knows_are_read() -> None:
    titled = [{"const": "a", "title": "One"}, {"const": "b", "title": "Two"}]
    form = build_form(
        "s",
        asking(
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
    "wrong",
    [
        asking(deep={"type": "object"}),
        asking(free={"type": "array", "items": {"type": "string"}}),
        asking(none={"type": "string", "enum": []}),
        asking(odd=7),
        asking(long={"type": "string", "description": "x" * 2000}),
        asking(**{f"f{number}": {"type": "string"} for number in range(51)}),
        types.ElicitRequestFormParams(message="x" * 9000, requested_schema={}),
        types.ElicitRequestURLParams(message="go", url="javascript:alert(1)", elicitation_id="1"),
        types.ElicitRequestURLParams(message="go", url="file:///etc/passwd", elicitation_id="1"),
    ],
)
def test_what_is_not_flat_too_much_or_no_address_is_not_asked(wrong: types.ElicitRequestParams) -> None:
    with pytest.raises(ConfigError):
        build_form("s", wrong)
