"""The Python client: methods by name, errors with a kind, and feeds that survive broken connections."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gateway_client import main_token, serve_gateway
from paced_model import Paced
from processes import run_gateway

from atlas_agents import Approvals, Atlas, Tool
from atlas_agents.client import (
    GatewayAddress,
    GatewayClient,
    GatewayError,
    SessionEvent,
    SessionFeed,
    Unauthorized,
    Unreachable,
)
from atlas_agents.gateway.protocol.events import (
    ApprovalRequested,
    AuditAdded,
    ChatDelta,
    ChatError,
    ChatFinal,
    ChatMessage,
    ChatReset,
    ServerShutdown,
    SessionUpdated,
    ToolsPending,
)
from atlas_agents.gateway.protocol.sessions import RunPosition
from atlas_agents.gateway.protocol.types import MessageShape, TextPart
from atlas_agents.gateway.server import Gateway
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT

LONG = "The quick brown fox jumps over the lazy dog. " * 8


@asynccontextmanager
async def connected(gateway: Gateway, **options: Any) -> AsyncGenerator[GatewayClient, None]:
    url = f"http://127.0.0.1:{gateway.port}"
    async with asyncio.timeout(TIMEOUT), GatewayClient(url, main_token(gateway), **options) as client:
        yield client


def stored_atlas(*replies: Any, tools: tuple[Tool, ...] = (), pause: float = 0.0) -> Atlas:
    model = Paced(*replies, pause=pause) if pause else Scripted(*replies)
    return in_memory_atlas(model, tools, store=MemoryStore(), approve=Approvals(wait=True))


def shown_text(events: list[SessionEvent]) -> str:
    """Return the text a user sees: everything since the last reset."""
    shown = ""
    for event in events:
        match event:
            case ChatDelta(_, text):
                shown += text
            case RunPosition():
                shown = "".join(part.text for part in event.parts or () if isinstance(part, TextPart))
            case ChatReset():
                shown = ""
            case _:
                pass
    return shown


async def find_last(processes: list[Any], home: Path) -> GatewayAddress:
    """Return the address of the gateway that was started last."""
    return GatewayAddress(f"http://127.0.0.1:{processes[-1].port}", (home / "token").read_text().strip())


def text_of(message: MessageShape | None) -> str:
    return "".join(part.text for part in (message.parts if message else ()) if isinstance(part, TextPart))


async def collect(feed: SessionFeed, run_id: str) -> list[SessionEvent]:
    return [event async for event in feed.run_events(run_id)]


# Methods and errors


async def test_message_has_its_own_budget_and_can_be_pinned(tmp_path: Path) -> None:
    tools = (Tool("look", lambda: "nothing", description="Look."),)
    atlas = stored_atlas(calls("look"), says("Never."), tools=tools)
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as client, client.follow("s") as feed:
        sent = await feed.send("Never use tabs.", budget={"requests": 1}, pinned=True)
        *_, last = [event async for event in feed.run_events(sent.run_id)]
        assert isinstance(last, ChatError) and "1 model requests is used up" in last.message
        first = (await atlas.sessions.history("s"))[0]
        assert first.metadata["pinned"]


async def test_params_may_be_snake_case_or_camel_case(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas()) as gateway, connected(gateway) as client:
        key = (await client.call("sessions.create", label="Rain"))["sessionKey"]
        for params in ({"session_key": key}, {"sessionKey": key}):
            assert (await client.call("sessions.get", **params))["session"]["label"] == "Rain"
        assert await client.call("usage.summary", from_="2026-01-01", group_by="day") == {"rows": []}


async def test_welcome_contains_the_principal_and_the_methods(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas()) as gateway, connected(gateway) as client:
        welcome = await client.connect()
        assert welcome.principal is not None and welcome.principal.id == "owner"
        assert welcome.features is not None and "chat.send" in welcome.features.methods


async def test_error_has_a_kind_and_says_whether_it_is_retryable(tmp_path: Path) -> None:
    slow = asyncio.Event()

    async def wait(input: str) -> str:
        await slow.wait()
        return input

    atlas = stored_atlas(calls("wait", input="x"), says("Done."), tools=(Tool("wait", wait),))
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as client:
        with pytest.raises(GatewayError) as missing:
            await client.call("sessions.get", session_key="missing")
        assert (missing.value.kind, missing.value.retryable) == ("SESSION_NOT_FOUND", False)
        await client.call("chat.send", session_key="main", message="Go")
        with pytest.raises(GatewayError) as busy:
            await client.call("chat.send", session_key="main", message="And?", when_busy="reject")
        assert (busy.value.kind, busy.value.retryable, busy.value.retry_after) == ("BUSY", True, 1.0)
        slow.set()


async def test_events_of_a_steering_message_continue_with_the_turn_it_enters(tmp_path: Path) -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def wait(input: str) -> str:
        reached.set()
        await release.wait()
        return input

    atlas = stored_atlas(calls("wait", input="x"), says("Both."), tools=(Tool("wait", wait),))
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as client, client.follow("main") as feed:
        await feed.send("1")
        await reached.wait()
        sent = await feed.send("2", when_busy="steer")
        release.set()
        found = [event async for event in feed.run_events(sent.run_id)]
        assert [type(event) for event in found] == [ChatMessage, ChatDelta, ChatMessage, ChatFinal]
        assert shown_text(found) == "Both."


async def test_too_large_request_is_not_sent(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas()) as gateway, connected(gateway) as client:
        with pytest.raises(GatewayError, match="the gateway accepts at most") as error:
            await client.call("chat.send", session_key="main", message="x" * 2_000_000)
        assert error.value.kind == "TOO_LARGE"
        assert (await client.call("health.check"))["status"] == "ok"


async def test_invalid_token_raises_unauthorized(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas()) as gateway:
        with pytest.raises(Unauthorized, match="rejected the token: invalid token"):
            async with GatewayClient(f"http://127.0.0.1:{gateway.port}", "wrong"):
                pass


async def test_unused_port_raises_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"cannot connect to a gateway at {url}"):
            async with GatewayClient(url, "x"):
                pass


async def test_another_server_at_the_address_raises_unreachable() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unreachable, match="rejected the WebSocket connection: HTTP 200") as error:
            async with GatewayClient(url, "x"):
                pass
        assert not error.value.retryable


# Events of a session


async def test_feed_yields_a_turn_from_first_to_terminal_event(tmp_path: Path) -> None:
    async with (
        serve_gateway(tmp_path, stored_atlas(says("Hello there."))) as gateway,
        connected(gateway) as client,
        client.follow("main") as feed,
    ):
        sent = await feed.send("Hi")
        events = await collect(feed, sent.run_id)
    assert sent.status == "started"
    assert [event.event for event in events if not isinstance(event, RunPosition)][:2] == [
        "chat.message",
        "chat.started",
    ]
    assert shown_text(events) == "Hello there."
    final = events[-1]
    assert isinstance(final, ChatFinal) and text_of(final.message) == "Hello there."


async def test_approval_can_be_resolved_while_the_feed_is_read(tmp_path: Path) -> None:
    async def act(input: str) -> str:
        return f"did {input}"

    atlas = stored_atlas(calls("act", input="it"), says("Done."), tools=(Tool("act", act, confirm=True),))
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as client, client.follow("main") as feed:
        sent = await feed.send("Act")
        events: list[SessionEvent] = []
        async for event in feed.run_events(sent.run_id):
            events.append(event)
            if isinstance(event, ApprovalRequested):
                await client.call("approvals.resolve", approval_id=event.approval_id, decision="allow-once")
        assert shown_text(events) == "Done."


async def test_client_runs_tools_and_posts_the_results(tmp_path: Path) -> None:
    atlas = stored_atlas(calls("clock"), calls("clock"), says("Noon."))
    offer = {"tools": [{"name": "clock", "description": "The time."}]}
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as client, client.follow("main") as feed:
        wrong_offers: tuple[dict[str, Any], ...] = (
            {"runs": ["bash"]},
            {"tools": [{"name": "a b"}]},
            {"deadline": 0},
            {"tool": []},
        )
        for wrong in wrong_offers:
            with pytest.raises(GatewayError, match=r"chat\.send: .*clientTools") as refused:
                await feed.send("When?", client_tools=wrong)
            assert refused.value.kind == "INVALID_PARAMS"
        sent = await feed.send("When?", client_tools=offer)
        pending = await next_pending(feed)
        async with connected(gateway) as other, other.follow("main") as late:
            position = await anext(late)
            assert isinstance(position, RunPosition) and position.pending_calls == pending.calls
        (call,) = pending.calls
        assert (call.name, call.arguments, call.file) == ("clock", {}, "")
        with pytest.raises(GatewayError, match="not found: tool call 'call_0'"):
            await client.post_result("call_0", "noon")
        await client.post_result(call.id, "no battery", error=True)
        await client.post_result(call.id, "no battery", error=True)
        with pytest.raises(GatewayError, match="already answered") as refused:
            await client.post_result(call.id, "noon")
        assert refused.value.kind == "CONFLICT"
        (call,) = (await next_pending(feed)).calls
        await client.post_result(call.id, "noon")
        *_, final = await collect(feed, sent.run_id)
        assert isinstance(final, ChatFinal) and text_of(final.message) == "Noon."
        results = [part.result for each in await atlas.sessions.history("main") for part in each.tool_results]
        assert results == ["no battery", "noon"]


async def next_pending(feed: SessionFeed) -> ToolsPending:
    async for event in feed:
        if isinstance(event, ToolsPending):
            return event
    raise AssertionError("the feed ended")


async def test_late_feed_gets_the_messages_and_the_running_turn(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(says("First."), says(LONG), pause=0.005)) as gateway:
        async with connected(gateway) as client, client.follow("main") as feed:
            await collect(feed, (await feed.send("One")).run_id)
            sent = await feed.send("Two")
            while not isinstance(await anext(feed), ChatDelta):
                pass
            async with connected(gateway) as other, other.follow("main") as late:
                assert [text_of(message) for message in late.messages] == ["One", "First.", "Two"]
                events = await collect(late, sent.run_id)
        assert isinstance(events[0], RunPosition)
        assert shown_text(events) == LONG.rstrip() or shown_text(events) == LONG


# Broken connections


class Relay:
    """TCP relay between a client and a gateway that can cut the connection after a number of bytes."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self.cuts = 0
        self.budget: int | None = None
        """Bytes the gateway may still send before the connection is cut."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[str, None]:
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.cut()

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gateway_reader, gateway_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, gateway_writer}
        await asyncio.gather(self._pump(reader, gateway_writer, None), self._pump(gateway_reader, writer, self.budget))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, budget: int | None) -> None:
        sent = 0
        try:
            while data := await source.read(256):
                sink.write(data)
                await sink.drain()
                sent += len(data)
                if budget is not None and sent > budget:
                    self.cuts += 1
                    self.cut()
        except OSError:
            pass
        finally:
            sink.transport.abort()


async def test_feed_over_a_breaking_connection_yields_each_event_once(tmp_path: Path) -> None:
    async def echo(input: str) -> str:
        return input

    tool = Tool("echo", echo, effect="pure")
    atlas = stored_atlas(says(LONG) + calls("echo", input="a"), says(LONG), tools=(tool,), pause=0.002)
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as steady:
        relay = Relay(gateway.port)
        relay.budget = 6000
        async with (
            relay.running() as url,
            steady.follow("main") as whole,
            GatewayClient(url, main_token(gateway)) as client,
            client.follow("main") as feed,
        ):
            sent = await feed.send("Go")
            expected, events = await asyncio.gather(collect(whole, sent.run_id), collect(feed, sent.run_id))
    assert relay.cuts >= 3
    assert events == expected


async def test_message_is_sent_once_though_its_response_was_lost(tmp_path: Path) -> None:
    atlas = stored_atlas(says("Once."), says("Twice!"))
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as steady:
        relay = Relay(gateway.port)
        async with (
            relay.running() as url,
            steady.follow("main") as whole,
            GatewayClient(url, main_token(gateway)) as client,
            client.follow("main") as feed,
        ):
            sending = asyncio.create_task(feed.send("Go"))
            seen = await anext(whole)  # the gateway has received it: cut the connection, maybe before the response
            relay.cut()
            sent = await sending
            events = await collect(feed, sent.run_id)
        assert seen.run_id == sent.run_id
        assert shown_text(events) == "Once."
        history = await steady.call("chat.history", session_key="main")
        assert [message["role"] for message in history["messages"]] == ["user", "assistant"]


async def test_request_with_a_lost_response_is_not_repeated(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas()) as gateway:
        relay = Relay(gateway.port)
        async with relay.running() as url, GatewayClient(url, main_token(gateway)) as client:
            relay.cut()
            await asyncio.sleep(0)
            try:
                await client.call("sessions.create")
            except Unreachable as error:
                assert error.unclear and error.retryable
            assert len((await client.call("sessions.list"))["sessions"]) <= 1


async def test_missed_messages_arrive_after_reconnecting(tmp_path: Path) -> None:
    async with (
        serve_gateway(tmp_path, stored_atlas(says("One."), says("Two."))) as gateway,
        connected(gateway) as steady,
    ):
        relay = Relay(gateway.port)
        async with (
            relay.running() as url,
            GatewayClient(url, main_token(gateway)) as client,
            client.follow("main") as feed,
            steady.follow("main") as other,
        ):
            await collect(feed, (await feed.send("First")).run_id)
            relay.cut()
            await collect(other, (await other.send("Second")).run_id)
            received = [await anext(feed), await anext(feed)]
    assert [text_of(event.message) for event in received if isinstance(event, ChatMessage)] == ["Second", "Two."]


async def test_connection_that_stays_broken_raises_an_error(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(says("Hi."))) as gateway:
        relay = Relay(gateway.port)
        statuses: list[str] = []
        async with relay.running() as url:
            options: dict[str, Any] = {"reconnect_timeout": 0.3, "on_connection_change": statuses.append}
            client = await GatewayClient(url, main_token(gateway), **options).__aenter__()
            feed = client.follow("main")
            await feed.subscribe()
        with pytest.raises(Unreachable):
            await anext(feed)
        assert statuses == ["the connection to the gateway was lost"]
        await client.close()


async def test_gateway_at_a_new_address_is_found(tmp_path: Path) -> None:
    here: list[Gateway] = []

    async def find() -> GatewayAddress:
        return GatewayAddress(f"http://127.0.0.1:{here[-1].port}", main_token(here[-1]))

    store = MemoryStore()
    async with serve_gateway(tmp_path, in_memory_atlas(Scripted(says("One.")), store=store)) as first:
        here.append(first)
        client = await GatewayClient(find=find).__aenter__()
        feed = client.follow("main")
        assert shown_text(await collect(feed, (await feed.send("Hi")).run_id)) == "One."
    async with serve_gateway(tmp_path, in_memory_atlas(Scripted(says("Two.")), store=store)) as second:
        here.append(second)
        assert shown_text(await collect(feed, (await feed.send("Again")).run_id)) == "Two."
        await client.close()


@pytest.mark.slow
async def test_feed_continues_after_the_gateway_was_killed(tmp_path: Path) -> None:
    processes: list[Any] = []
    find = partial(find_last, processes, tmp_path)
    async with run_gateway(tmp_path, LONG, pause=0.02) as first:
        processes.append(first)
        async with asyncio.timeout(TIMEOUT), GatewayClient(find=find) as client, client.follow("main") as feed:
            sent = await feed.send("Go")
            events: list[SessionEvent] = []
            async for event in feed.run_events(sent.run_id):
                events.append(event)
                if sum(isinstance(each, ChatDelta) for each in events) == 10:
                    break
            await first.kill()
            async with run_gateway(tmp_path, LONG) as second:
                processes.append(second)
                events += await collect(feed, sent.run_id)
    final = events[-1]
    assert isinstance(final, ChatFinal) and not any(isinstance(event, ChatError) for event in events)
    assert sum(isinstance(event, ChatReset) for event in events) == 1
    assert shown_text(events) == text_of(final.message)


@pytest.mark.slow
async def test_message_that_is_refused_during_shutdown_is_sent_to_the_next_gateway(tmp_path: Path) -> None:
    processes: list[Any] = []
    find = partial(find_last, processes, tmp_path)
    async with run_gateway(tmp_path, LONG, pause=0.02) as first:
        processes.append(first)
        async with asyncio.timeout(TIMEOUT), GatewayClient(find=find) as client, client.follow("main") as feed:
            await feed.send("Go")
            stopping = asyncio.create_task(first.stop())
            async for event in client.server_events():
                if isinstance(event, ServerShutdown):
                    break
            refused = client.follow("other")
            sending = asyncio.create_task(refused.send("Me too"))
            await stopping
            async with run_gateway(tmp_path, LONG, LONG) as second:
                processes.append(second)
                assert shown_text(await collect(refused, (await sending).run_id)) == LONG


async def test_slow_reader_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas_agents.client._MAX_PENDING", 5)
    async with (
        serve_gateway(tmp_path, stored_atlas(says(LONG))) as gateway,
        connected(gateway) as client,
        client.follow("main") as feed,
    ):
        sent = await feed.send("Go")
        await client.call("chat.wait", run_id=sent.run_id)
        assert shown_text(await collect(feed, sent.run_id)) == LONG


# Unsolicited events


async def test_session_and_audit_updates_are_received(tmp_path: Path) -> None:
    async def echo(input: str) -> str:
        return input

    atlas = stored_atlas(calls("echo", input="x"), says("x"), tools=(Tool("echo", echo),))
    async with serve_gateway(tmp_path, atlas) as gateway, connected(gateway) as client:
        await client.call("audit.subscribe")
        updates = client.server_events()
        first = asyncio.ensure_future(anext(updates))
        await asyncio.sleep(0)
        await client.call("chat.send", session_key="main", message="Go")
        received = [await first]
        while not any(isinstance(event, AuditAdded) for event in received):
            received.append(await anext(updates))
        assert any(isinstance(event, SessionUpdated) and event.session.session_key == "main" for event in received)
        await updates.aclose()
