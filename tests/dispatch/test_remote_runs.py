"""Runs that another process executes, as their sender and later clients see them."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agui_client import kinds, open_page, text_of
from in_process_members import member
from member_processes import members
from processes import connect_process

from atlas_agents import Cancelled, ClientResult, ClientTool, PromptFailed, ProviderError, QuotaExceeded, WhenBusy
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.approvals import Choice, Field, Form, Question
from atlas_agents.core.errors import AtlasError, StoreLost, failure_kind, to_failure
from atlas_agents.core.events import (
    ApprovalAsked,
    ClientToolsCalled,
    Event,
    MessageStored,
    StateChanged,
    StreamChunk,
    StreamEnd,
    StreamReset,
)
from atlas_agents.core.messages import Message, Text
from atlas_agents.gateway.cluster import EventDecoder
from atlas_agents.gateway.convert import Translator, approval_event
from atlas_agents.gateway.protocol.events import StateUpdated, ToolsPending
from atlas_agents.testing import Scripted, calls, fails, says
from atlas_agents.tools.tool import tool
from checks import TIMEOUT, wait_until
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_remote_failure_keeps_its_type_and_output_is_parsed(server: PostgresServer, schema: str) -> None:
    model = Scripted(fails(ProviderError("no money left", "quota")), says('{"n": 7}'))
    async with (
        asyncio.timeout(TIMEOUT),
        member(server.url, schema, Scripted(), executes_runs=False) as front,
        member(server.url, schema, model),
    ):
        with pytest.raises(ProviderError, match="no money left") as failed:
            await front.atlas.ask("go", session="s")
        assert failed.value.kind == "quota"
        stream = front.atlas.send("count", session="s", output=SCHEMA)
        await stream.reply()
        assert stream.output == {"n": 7}


async def test_process_that_did_not_send_a_turn_follows_and_cancels_it(server: PostgresServer, schema: str) -> None:
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    model = Scripted(calls("forever"), says("Next."))
    async with (
        asyncio.timeout(TIMEOUT),
        member(server.url, schema, Scripted(), [forever], executes_runs=False) as front,
        member(server.url, schema, Scripted(), [forever], executes_runs=False) as another,
        member(server.url, schema, model, [forever]),
    ):
        sent = front.atlas.send("go", session="s")
        await running.wait()
        received = await another.atlas.follow(sent.stream_id)
        assert received is not None and (await received.accepted()).status == "in_flight"
        received.cancel()
        for stream in (received, sent):
            with pytest.raises(Cancelled):
                await stream.reply()
        assert await another.atlas.follow(sent.stream_id) is None
        assert (await front.atlas.ask("on", session="s")).text == "Next."


@pytest.mark.parametrize("how", ["sender", "follower", "before it is accepted"])
async def test_stream_of_a_cancelled_remote_turn_has_its_end(server: PostgresServer, schema: str, how: str) -> None:
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(TIMEOUT),
        member(server.url, schema, Scripted(), [forever], executes_runs=False, has_events=True) as front,
        member(server.url, schema, Scripted(), [forever], executes_runs=False, has_events=True) as another,
        member(server.url, schema, Scripted(calls("forever")), [forever], has_events=True),
    ):
        stream = front.atlas.send("go", session="s")
        if how == "before it is accepted":
            await asyncio.sleep(0)
        else:
            await running.wait()
        if how == "follower":
            followed = await another.atlas.follow(stream.stream_id)
            assert followed is not None
            stream = followed
        stream.cancel()
        events = [event async for event in stream]
        assert isinstance(events[-1], StreamEnd) and events[-1].cancelled
        if how != "before it is accepted":
            assert stream.usage.input_tokens == 1  # of the worker
        with pytest.raises(Cancelled):
            await stream.reply()


@pytest.mark.parametrize("when_busy", ["queue", "interrupt"])
async def test_remote_turn_that_is_cancelled_while_it_is_accepted_is_stopped(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, when_busy: WhenBusy
) -> None:
    committing = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(TIMEOUT),
        member(server.url, schema, Scripted(), [forever], executes_runs=False, has_events=True) as front,
        member(server.url, schema, Scripted(calls("forever")), [forever], has_events=True),
    ):
        commit = front.store.commit

        async def report_commit(*values: Any, **more: Any) -> Any:
            committing.set()
            return await commit(*values, **more)

        monkeypatch.setattr(front.store, "commit", report_commit)
        stream = front.atlas.send("go", session="s", when_busy=when_busy)
        await committing.wait()
        stream.cancel()
        events = [event async for event in stream]
        assert isinstance(events[-1], StreamEnd) and events[-1].cancelled
        (row,) = await front.store.runs(front.atlas.tenant, "s")
        assert row.stop


async def test_sender_waits_for_its_turn_while_postgres_is_unreachable(
    schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    running, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Waits."""
        running.set()
        await may_end.wait()
        return "over"

    async def has_retried() -> bool:
        return caplog.text.count("waiting for the database to follow a turn") > 1

    with PostgresServer() as own:
        async with (
            asyncio.timeout(TIMEOUT),
            member(own.url, schema, Scripted(), [slow], executes_runs=False) as front,
            member(own.url, schema, Scripted(calls("slow"), says("Done.")), [slow]),
        ):
            front.store._retry_timeout = 0.1
            stream = front.atlas.send("go", session="s")
            await running.wait()
            async with own.gone():
                front.cluster._handle_reconnect()  # as it does every 15 seconds
                waiting = asyncio.create_task(wait_until(has_retried))
                await asyncio.wait([waiting, asyncio.create_task(stream.wait_ended())], return_when="FIRST_COMPLETED")
            may_end.set()
            assert (await stream.reply()).text == "Done."
            await waiting


@pytest.mark.parametrize("read", ["messages", "runs"])
async def test_sender_receives_an_answer_that_is_read_after_a_lost_connection(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        member(server.url, schema, Scripted(), executes_runs=False, has_events=True) as front,
        member(server.url, schema, Scripted(says("Done.")), has_events=True),
    ):
        original, failed = getattr(front.store, read), asyncio.Event()

        async def fail_once(*values: Any, **more: Any) -> Any:
            if not failed.is_set():
                failed.set()
                raise StoreLost("the server closed the connection")
            return await original(*values, **more)

        if read == "runs":  # which an interrupting turn reads as soon as it is accepted
            monkeypatch.setattr(front.store, read, fail_once)
        stream = front.atlas.send("go", session="s", when_busy="interrupt")
        await stream.accepted()
        monkeypatch.setattr(front.store, read, fail_once)
        assert (await stream.reply()).text == "Done." and failed.is_set()


async def test_client_posts_a_result_in_another_process(server: PostgresServer, schema: str) -> None:
    model = Scripted(calls("colour"), calls("colour"), says("Hello."), says("Blue."))
    async with (
        asyncio.timeout(TIMEOUT),
        member(server.url, schema, Scripted(), executes_runs=False) as front,
        member(server.url, schema, Scripted(), executes_runs=False) as another,
        member(server.url, schema, model),
    ):
        stream = front.atlas.send("go", session="s", user="ana", client_tools=[ClientTool("colour")])
        (call,) = await wait_until(lambda: another.atlas.pending_client_calls("s"))
        await another.atlas.post_results([ClientResult(call.id, "blue")], user="ana")
        (again,) = await wait_until(lambda: another.atlas.pending_client_calls("s"))
        assert again.run_id == call.run_id and again.id != call.id
        assert (await another.atlas.ask("hi", session="s", user="ana")).text == "Blue."  # it ends the wait
        assert (await stream.reply()).text == "Hello."


def test_pending_calls_survive_the_wire() -> None:
    call = Question(
        "t", "", "colour", {"to": 1}, "", "c", "r", "", "s", "", 9.0, "", options=(), id="x", kind="client_tool"
    )
    received: list[Event] = []
    sent = Translator("", str).convert(ClientToolsCalled("r", (call,)))
    assert isinstance(sent, ToolsPending)
    EventDecoder("s", received.append).decode(sent)
    (event,) = received
    assert isinstance(event, ClientToolsCalled)
    assert event.calls == (msgspec.structs.replace(call, title="Run colour in the client"),)


def test_changed_state_survives_the_wire() -> None:
    received: list[Event] = []
    sent = Translator("", str).convert(StateChanged("r", {"a": None}))
    assert isinstance(sent, StateUpdated)
    EventDecoder("s", received.append).decode(sent)
    assert received == [StateChanged("r", {"a": None})]


async def test_page_answers_an_approval_at_another_gateway(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        front, other, _ = await members(stack, server, tmp_path, "gateway", "gateway", "worker")
        token = (tmp_path / "token").read_text().strip()
        first, second = [await stack.enter_async_context(open_page(each, token)) for each in (front, other)]
        (interrupt,) = (await first.run("?pay"))[-1]["outcome"]["interrupts"]
        answer = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        rest = await second.run(resume=answer, runId="rest")
        assert kinds(rest)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
        assert rest[1]["content"] == "noted"
        assert len(rest[-1]["outcome"]["interrupts"]) == 1  # its next call, which needs its own approval
        assert text_of(rest) == ""


async def test_steering_message_waits_for_an_approval_and_is_seen_at_every_gateway(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        front, other, _ = await members(stack, server, tmp_path, "gateway", "gateway", "worker")
        client, person = [await stack.enter_async_context(connect_process(each)) for each in (front, other)]
        first = await client.get("chat.send", sessionKey="s", message="?pay")
        approval = await client.until("exec.approval_request")
        steering = await person.get("chat.send", sessionKey="s", message="also", whenBusy="steer")
        assert steering["status"] == "queued"
        await person.get("approvals.resolve", approvalId=approval["approvalId"], decision="allow-once")
        for each in (client, person):
            finals = {(final := await each.until("chat.final"))["runId"]: final for _ in range(2)}
            assert finals[steering["runId"]]["enteredRunId"] == first["runId"]
            assert finals[first["runId"]]["message"]["parts"] == [{"type": "text", "text": "All 3 of also."}]
        waited = await client.get("chat.wait", runId=steering["runId"], timeoutMs=120_000)
        assert waited["message"]["id"] == finals[first["runId"]]["message"]["id"]
        history = (await person.get("chat.history", sessionKey="s"))["messages"]
        assert [message["role"] for message in history[:4]] == ["user", "assistant", "tool", "user"]
        assert {message["runId"] for message in history} == {first["runId"]}


async def test_deleted_session_disappears_from_the_lists_of_all_gateways(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        front, other, _ = await members(stack, server, tmp_path, "gateway", "gateway", "worker")
        client, watcher = [await stack.enter_async_context(connect_process(each)) for each in (front, other)]
        await watcher.get("sessions.list")
        await client.get("chat.send", sessionKey="doomed", message="go")
        await client.until("chat.final")
        await client.get("sessions.delete", sessionKey="doomed")
        while not (update := await watcher.until("session.updated")).get("deleted"):
            assert update["session"]["sessionKey"] == "doomed"
        assert update["session"]["sessionKey"] == "doomed"


def test_form_of_a_remote_approval_is_decoded_completely() -> None:
    fields = (Field("size", "choice", "Size", required=True, choices=(Choice("l", "Large"),)), Field("n", "integer"))
    question = Question(
        "t", "m", "order", {}, "b", "c", "r", "a", "s", "", 9.0, "", form=Form("the shop", "Which?", fields)
    )
    received: list[Event] = []
    EventDecoder("s", received.append).decode(approval_event(question))
    (event,) = received
    assert isinstance(event, ApprovalAsked) and event.question.form == question.form


@pytest.mark.parametrize(
    "failure",
    [ProviderError("busy", "rate_limit"), QuotaExceeded("spent"), PromptFailed("no prompt"), AtlasError("so")],
)
def test_stored_error_is_rebuilt_with_its_type(failure: AtlasError) -> None:
    rebuilt = to_failure(failure_kind(failure), str(failure))
    assert (type(rebuilt), str(rebuilt), failure_kind(rebuilt)) == (type(failure), str(failure), failure_kind(failure))


@pytest.mark.parametrize("kind", ["Exception", "no such kind", "", "Fenced", "__init__"])
def test_error_of_unknown_kind_keeps_its_message(kind: str) -> None:
    assert type(to_failure(kind, "it broke")) is AtlasError and str(to_failure(kind, "it broke")) == "it broke"


def test_text_of_a_remote_turn_excludes_withdrawn_output() -> None:
    stream = AtlasStream("r")
    message = Message("assistant", (Text("One. "),))
    events: list[Event] = [
        StreamChunk("r", "One. "),
        MessageStored("r", message),
        StreamChunk("r", "Tw"),
        StreamReset("r", 2),
    ]
    for event in [*events, StreamChunk("r", "Two.")]:
        stream.push(event)
    assert stream.text == "One. Two."
