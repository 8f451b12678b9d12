"""Turns that another process runs, as whoever sent them, or comes later, hears of them."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cluster_members import members
from members import member

from atlas_agents import Cancelled, ProviderError, QuotaExceeded
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.approvals import Choice, Field, Form, Question
from atlas_agents.core.errors import AtlasError, failure_kind, rebuild_failure
from atlas_agents.core.events import ApprovalAsked, Event, MessageKept, StreamChunk, StreamReset
from atlas_agents.core.messages import Message, Text
from atlas_agents.gateway.cluster import EventDecoder
from atlas_agents.gateway.convert import approval_event
from atlas_agents.testing import Scripted, calls, fails, says
from atlas_agents.tools.tool import tool
from checks import PATIENCE
from gateway.agui_client import kinds, open_page, text_of
from gateway.processes import connect_process
from stores.postgres_server import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
SHAPE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def test_a_failure_elsewhere_is_of_its_kind_and_a_value_is_read(server: PostgresServer, schema: str) -> None:
    model = Scripted(fails(ProviderError("no money left", "quota")), says('{"n": 7}'))
    async with (
        asyncio.timeout(PATIENCE),
        member(server.url, schema, Scripted(), works=False) as front,
        member(server.url, schema, model),
    ):
        with pytest.raises(ProviderError, match="no money left") as failed:
            await front.atlas.ask("go", session="s")
        assert failed.value.kind == "quota"
        stream = front.atlas.send("count", session="s", output=SHAPE)
        await stream.reply()
        assert stream.output == {"n": 7}


async def test_a_turn_is_followed_and_stopped_by_who_did_not_send_it(server: PostgresServer, schema: str) -> None:
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    model = Scripted(calls("forever"), says("Next."))
    async with (
        asyncio.timeout(PATIENCE),
        member(server.url, schema, Scripted(), [forever], works=False) as front,
        member(server.url, schema, Scripted(), [forever], works=False) as another,
        member(server.url, schema, model, [forever]),
    ):
        sent = front.atlas.send("go", session="s")
        await running.wait()
        heard = await another.atlas.follow(sent.stream_id)
        assert heard is not None and (await heard.accepted()).status == "in_flight"
        heard.cancel()
        for stream in (heard, sent):
            with pytest.raises(Cancelled):
                await stream.reply()
        assert await another.atlas.follow(sent.stream_id) is None
        assert (await front.atlas.ask("on", session="s")).text == "Next."


async def test_a_page_answers_at_another_gateway_and_hears_the_rest_there(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as up:
        front, other, _ = await members(up, server, tmp_path, "gateway", "gateway", "worker")
        token = (tmp_path / "token").read_text().strip()
        first, second = [await up.enter_async_context(open_page(each, token)) for each in (front, other)]
        (interrupt,) = (await first.run("?pay"))[-1]["outcome"]["interrupts"]
        answer = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        rest = await second.run(resume=answer, runId="rest")
        assert kinds(rest)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
        assert rest[1]["content"] == "noted"
        assert len(rest[-1]["outcome"]["interrupts"]) == 1  # its next call, which needs a yes of its own
        assert text_of(rest) == ""


async def test_a_session_that_is_removed_at_one_gateway_leaves_the_lists_of_all(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as up:
        front, other, _ = await members(up, server, tmp_path, "gateway", "gateway", "worker")
        client, watcher = [await up.enter_async_context(connect_process(each)) for each in (front, other)]
        await watcher.get("sessions.list")
        await client.get("chat.send", sessionKey="doomed", message="go")
        await client.until("chat.final")
        await client.get("sessions.delete", sessionKey="doomed")
        while not (told := await watcher.until("session.updated")).get("deleted"):
            assert told["session"]["sessionKey"] == "doomed"
        assert told["session"]["sessionKey"] == "doomed"


def test_the_form_of_a_question_elsewhere_is_told_whole() -> None:
    fields = (Field("size", "choice", "Size", required=True, choices=(Choice("l", "Large"),)), Field("n", "integer"))
    question = Question(
        "t", "m", "order", {}, "b", "c", "r", "a", "s", "", 9.0, "", form=Form("the shop", "Which?", fields)
    )
    heard: list[Event] = []
    EventDecoder("s", heard.append).decode(approval_event(question))
    (event,) = heard
    assert isinstance(event, ApprovalAsked) and event.question.form == question.form


@pytest.mark.parametrize("failure", [ProviderError("busy", "rate_limit"), QuotaExceeded("spent"), AtlasError("so")])
def test_an_error_that_was_written_down_is_itself_again(failure: AtlasError) -> None:
    again = rebuild_failure(failure_kind(failure), str(failure))
    assert (type(again), str(again), failure_kind(again)) == (type(failure), str(failure), failure_kind(failure))


@pytest.mark.parametrize("kind", ["Exception", "no such kind", "", "Fenced", "__init__"])
def test_an_error_of_unknown_kind_keeps_its_words(kind: str) -> None:
    assert (
        type(rebuild_failure(kind, "it broke")) is AtlasError and str(rebuild_failure(kind, "it broke")) == "it broke"
    )


def test_the_text_of_a_turn_elsewhere_is_what_was_heard_and_not_withdrawn() -> None:
    stream = AtlasStream("r")
    kept = Message("assistant", (Text("One. "),))
    events: list[Event] = [
        StreamChunk("r", "One. "),
        MessageKept("r", kept),
        StreamChunk("r", "Tw"),
        StreamReset("r", 2),
    ]
    for event in [*events, StreamChunk("r", "Two.")]:
        stream.push(event)
    assert stream.text == "One. Two."
