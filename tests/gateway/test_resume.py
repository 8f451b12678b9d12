"""Resuming: a client that was disconnected receives exactly the events that a connected one receives."""

import asyncio
import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, connect_client, main_token, serve_and_connect, serve_gateway
from paced_model import Paced
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from atlas_agents import Approvals, Atlas, Tool
from atlas_agents.core.store import AddEvents, ReserveEvents
from atlas_agents.gateway.server import Gateway
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT, wait_until

SHORT = "Pack my box with five dozen jugs."
LONG = "The quick brown fox jumps over the lazy dog. " * 6


async def echo(input: str) -> str:
    return input


def approval_atlas(words: str = LONG, **options: Any) -> Atlas:
    """Return an Atlas whose model sends text, a call, a call that requires approval, and text again."""
    tools = [Tool("echo", echo, effect="pure"), Tool("act", echo, confirm=True)]
    replies = (says(words) + calls("echo", input="a"), calls("act", input="b"), says(words))
    store = options.pop("store", None) or MemoryStore()
    return in_memory_atlas(Paced(*replies), tools, store=store, approve=Approvals(wait=True), **options)


async def receive_all(client: Client, run_id: str) -> list[dict[str, Any]]:
    """Receive a run to its end and approve what is approval."""
    while True:
        frame = await client.next()
        if frame.get("event") == "exec.approval_request":
            await client.send(id="yes", method="exec.approve", params={"approvalId": frame["data"]["approvalId"]})
        if frame.get("event") == "chat.final":
            return client.events(run_id)


async def receive_with_cuts(gateway: Gateway, run_id: str) -> tuple[list[dict[str, Any]], int]:
    """Receive the run over sockets that are cut after each frame."""
    received: list[dict[str, Any]] = []
    cuts_made = 0
    while True:
        async with connect_client(gateway) as client:
            last = received[-1]["data"]["seq"] if received else 0
            await client.get("sessions.subscribe", sessionKey="main", runs={run_id: last})
            received += client.events(run_id)
            if not (received and received[-1]["event"] == "chat.final"):
                frame = await client.next()
                if frame.get("data", {}).get("runId") == run_id:
                    received.append(frame)
            if received and received[-1]["event"] == "chat.final":
                return received, cuts_made
            client.socket.transport.abort()
            cuts_made += 1


@pytest.mark.slow
async def test_socket_cut_at_every_frame_receives_every_event_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    async with (
        serve_gateway(tmp_path, approval_atlas(store=store)) as gateway,
        connect_client(gateway) as client,
    ):
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        whole, (pieces, cuts_made) = await asyncio.gather(
            receive_all(client, run_id), receive_with_cuts(gateway, run_id)
        )
        assert cuts_made > 10
        assert pieces == whole
        assert [frame["data"]["seq"] for frame in whole] == list(range(1, len(whole) + 1))
    await store.close()


async def test_resuming_an_ended_run_after_any_number_sends_exactly_the_rest(tmp_path: Path) -> None:
    store = MemoryStore()
    await store.open()
    model = Scripted(says(LONG) + calls("echo", input="a"), says(LONG))
    atlas = in_memory_atlas(model, [Tool("echo", echo)], store=store)
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        whole = await receive_all(client, run_id)
        await wait_until(lambda: gateway.hub.runs.get(run_id) is None)
        stored = await store.events("default", run_id)
        assert len(stored) < len(whole) / 3
        for number in range(len(whole)):
            async with connect_client(gateway) as late:
                await late.get("sessions.subscribe", sessionKey="main", runs={run_id: number})
                while not late.events(run_id) or late.events(run_id)[-1]["event"] != "chat.final":
                    await late.next()
                assert late.events(run_id) == whole[number:]
    await store.close()


async def test_deltas_since_the_last_reset_equal_the_message(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, approval_atlas()) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        shown = ""
        for frame in await receive_all(client, run_id):
            if frame["event"] == "chat.delta":
                shown += frame["data"]["text"]
            elif frame["event"] == "chat.reset":
                shown = ""
            elif frame["event"] == "chat.message":
                message = frame["data"]["message"]
                if message["role"] == "assistant":
                    assert shown == "".join(p["text"] for p in message["parts"] if p["type"] == "text")
                    shown = ""


async def test_late_subscriber_gets_a_snapshot_and_then_the_rest(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, approval_atlas()) as gateway, connect_client(gateway) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        for _ in range(20):
            await client.next()
        async with connect_client(gateway) as late:
            found = await late.get("sessions.subscribe", sessionKey="main")
            assert found["session"]["running"] is True
            (run,) = found["runs"]
            assert (run["runId"], run["mode"]) == (run_id, "snapshot")
            whole, rest = await asyncio.gather(receive_all(client, run_id), receive_until_end(late, run_id))
            assert rest == whole[run["seq"] :]
            shown = "".join(f["data"]["text"] for f in whole[: run["seq"]] if f["event"] == "chat.delta")
            assert [part["text"] for part in run["parts"]] == [shown]
            assert [message["role"] for message in found["messages"]] == ["user"]


async def receive_until_end(client: Client, run_id: str) -> list[dict[str, Any]]:
    await client.until("chat.final")
    return client.events(run_id)


async def test_snapshot_contains_the_pending_approval(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, approval_atlas()) as gateway, connect_client(gateway) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        approval = await client.until("exec.approval_request")
        async with connect_client(gateway) as late:
            (run,) = (await late.get("sessions.subscribe", sessionKey="main"))["runs"]
            assert run["pendingApproval"]["approvalId"] == approval["approvalId"]
            assert await late.get("exec.approve", approvalId=approval["approvalId"]) == {"ok": True}
            await asyncio.gather(receive_until_end(client, run_id), receive_until_end(late, run_id))


async def test_run_that_ended_without_subscribers_is_replayed_completely(tmp_path: Path) -> None:
    atlas = in_memory_atlas(Scripted(says(LONG)), store=MemoryStore())
    async with serve_gateway(tmp_path, atlas) as gateway:
        async with connect_client(gateway) as client:
            run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
            client.socket.transport.abort()
        async with connect_client(gateway) as client:
            await client.get("chat.wait", runId=run_id)
            found = await client.get("sessions.subscribe", sessionKey="main", runs={run_id: 0})
            (run,) = found["runs"]
            await client.until("chat.final")
            frames = client.events(run_id)
            assert [frame["data"]["seq"] for frame in frames] == list(range(1, run["seq"] + 1))
            assert "".join(f["data"]["text"] for f in frames if f["event"] == "chat.delta") == LONG
            # a client that has all events receives none again
            again = await client.get("sessions.subscribe", sessionKey="main", runs={run_id: run["seq"]})
            assert again["runs"] == [{"runId": run_id, "mode": "replay", "seq": run["seq"]}]
            await client.get("health.check")
            assert client.events(run_id) == frames


async def test_missing_terminal_event_is_added_on_subscribe(tmp_path: Path) -> None:
    store = MemoryStore()
    stream = in_memory_atlas(Scripted(says("All of it.")), store=store).send("Go", session="main")
    await stream.reply()
    run_id = stream.stream_id
    lost = b'{"event":"chat.delta","data":{"runId":"%b","text":"All o"}}' % run_id.encode()
    await store.commit("default", [ReserveEvents(run_id, 512), AddEvents(run_id, ((1, lost),))])
    async with serve_gateway(tmp_path, in_memory_atlas(Scripted(), store=store)) as gateway:
        received: list[list[dict[str, Any]]] = []
        for _ in range(2):
            async with connect_client(gateway) as client:
                await client.get("sessions.subscribe", sessionKey="main", runs={run_id: 1})
                await client.until("chat.final")
                received.append(client.events(run_id))
        first, second = received
        assert first == second
        names = ["chat.reset", "chat.message", "chat.delta", "chat.message", "chat.final"]
        assert [frame["event"] for frame in first] == names
        assert first[2]["data"]["text"] == "All of it."
        assert first[0]["data"]["seq"] > 512


async def test_disconnect_cancels_the_run_only_if_requested(tmp_path: Path) -> None:
    for how, status in (("continue", "done"), ("cancel", "cancelled")):
        atlas = in_memory_atlas(Paced(says(LONG)), store=MemoryStore())
        async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as other:
            async with connect_client(gateway) as client:
                sent = await client.get("chat.send", sessionKey="main", message="Go", onDisconnect=how)
                await client.until("chat.delta")
                client.socket.transport.abort()
            assert (await other.get("chat.wait", runId=sent["runId"]))["status"] == status


async def test_two_subscribers_receive_the_same_events_in_the_same_order(tmp_path: Path) -> None:
    replies = [says(f"Answer {n}. " * 4) for n in range(12)]
    atlas = in_memory_atlas(Paced(*replies, pause=0), store=MemoryStore())
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway) as one,
        connect_client(gateway) as two,
    ):
        for client in (one, two):
            await client.get("sessions.subscribe", sessionKey="main")
        sends = [
            client.send(id=n, method="chat.send", params={"sessionKey": "main", "message": f"m{n}"})
            for n in range(6)
            for client in (one, two)
        ]
        random.Random(1).shuffle(sends)
        await asyncio.gather(*sends)
        for client in (one, two):
            for _ in range(12):
                await client.until("chat.final")
        assert [frame for frame in one.events() if "seq" in frame["data"]] == [
            frame for frame in two.events() if "seq" in frame["data"]
        ]
        history = (await one.get("chat.history", sessionKey="main"))["messages"]
        assert [message["role"] for message in history] == ["user", "assistant"] * 12


class NeverReads:
    """A client that authenticates, subscribes, and then does not read for a while."""

    async def open(self, gateway: Gateway, session: str) -> None:
        loop = asyncio.get_running_loop()
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await loop.sock_connect(raw, ("127.0.0.1", gateway.port))
        self.socket = await connect(f"ws://127.0.0.1:{gateway.port}/", sock=raw, max_queue=1, ping_interval=None)
        await self.socket.send(json.dumps({"type": "auth", "token": main_token(gateway), "protocol": 1}))
        await self.socket.recv()
        await self.socket.send(json.dumps({"id": 1, "method": "sessions.subscribe", "params": {"sessionKey": session}}))
        await self.socket.recv()

    async def read_rest(self) -> tuple[list[dict[str, Any]], int]:
        """Return the frames that were in transit, and the close code."""
        received: list[dict[str, Any]] = []
        try:
            while True:
                received.append(json.loads(await asyncio.wait_for(self.socket.recv(), TIMEOUT)))
        except ConnectionClosed as end:
            return received, end.rcvd.code if end.rcvd else 1006


@pytest.mark.slow
async def test_slow_consumer_is_closed_and_can_replay_the_rest(tmp_path: Path) -> None:
    answer = ("0123456789abcdef" * 256 + " ") * 25
    atlas = in_memory_atlas(Scripted(*[says(answer)] * 100), store=MemoryStore())
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        await client.get("sessions.subscribe", sessionKey="main")
        sleeper = NeverReads()
        await sleeper.open(gateway, "main")
        while len(gateway.hub.connections) == 2:
            await client.get("chat.send", sessionKey="main", message="Go")
            await client.until("chat.final")
        received, code = await sleeper.read_rest()
        assert code == 4008
        missed = [frame for frame in received if "seq" in frame.get("data", {})]
        delivered = [frame for frame in client.events() if "seq" in frame["data"]]
        assert 0 < len(missed) < len(delivered)
        last = missed[-1]["data"]
        async with connect_client(gateway) as back:
            await back.get("sessions.subscribe", sessionKey="main", runs={last["runId"]: last["seq"]})
            await back.until("chat.final")
            assert missed + back.events(last["runId"]) == delivered[: len(missed) + len(back.events(last["runId"]))]


async def test_turn_left_by_one_gateway_is_finished_by_the_next(tmp_path: Path) -> None:
    store = MemoryStore()
    first = in_memory_atlas(Paced(says(LONG)), store=store)
    async with serve_gateway(tmp_path, first, grace=0.0) as gateway, connect_client(gateway) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        for _ in range(10):
            await client.until("chat.delta")
        before = client.events(run_id)
        client.socket.transport.abort()
    async with (
        serve_gateway(tmp_path, in_memory_atlas(Paced(says(LONG)), store=store)) as gateway,
        connect_client(gateway) as client,
    ):
        last = before[-1]["data"]["seq"]
        await client.get("sessions.subscribe", sessionKey="main", runs={run_id: last})
        await client.until("chat.final")
        after = client.events(run_id)
        reset = next(place for place, frame in enumerate(after) if frame["event"] == "chat.reset")
        assert [frame["data"]["seq"] for frame in after[:reset]] == list(range(last + 1, last + 1 + reset))
        assert [frame["data"]["seq"] for frame in after[reset:]] == list(range(513, 513 + len(after) - reset))
        assert "".join(f["data"]["text"] for f in after[reset:] if f["event"] == "chat.delta") == LONG


async def test_number_that_was_never_sent_does_not_silence_a_client(tmp_path: Path) -> None:
    atlas = in_memory_atlas(Paced(says(LONG)), store=MemoryStore())
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        await client.until("chat.delta")
        async with connect_client(gateway) as other:
            await other.get("sessions.subscribe", sessionKey="main", runs={run_id: 10**9})
            await asyncio.gather(client.until("chat.final"), other.until("chat.final"))
