"""Chat over the WebSocket: the exact frames of the plain profile, and what the full profile adds."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, open_socket, serve_and_connect, serve_gateway

from atlas_agents import Approvals, Atlas, Chunk, DoneChunk, ProviderError, Request, TextChunk, Tool, Usage
from atlas_agents.core.paths import Secret
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, fails, in_memory_atlas, refuses, says, thinks


def stored_atlas(*replies: Any, tools: tuple[Tool, ...] = (), **options: Any) -> Atlas:
    """Return an Atlas with a store."""
    return in_memory_atlas(Scripted(*replies), tools, store=MemoryStore(), **options)


async def test_plain_profile_matches_the_documented_frames(tmp_path: Path) -> None:
    atlas, token = stored_atlas(says("2+2 is 4.")), Secret("mysecrettoken")
    async with serve_gateway(tmp_path, atlas, token=token) as gateway, open_socket(gateway) as client:
        await client.socket.send('{"type":"auth","token":"mysecrettoken"}')
        assert await client.next() == {"type": "auth", "ok": True}
        await client.socket.send(
            '{"id":"2","method":"chat.send","params":{"sessionKey":"test","message":"What is 2+2?"}}'
        )
        answer = await client.next()
        run_id = answer["result"]["runId"]
        assert answer == {"id": "2", "result": {"runId": run_id}}
        assert str(uuid.UUID(run_id)) == run_id
        await client.until("chat.final")
        *deltas, final = client.frames[2:]
        assert len(deltas) > 1
        words = [delta["data"]["text"] for delta in deltas]
        assert deltas == [{"event": "chat.delta", "data": {"runId": run_id, "text": text}} for text in words]
        assert "".join(words) == "2+2 is 4."
        usage = final["data"]["usage"]
        assert final == {"event": "chat.final", "data": {"runId": run_id, "usage": usage}}
        assert set(usage) == {"inputTokens", "outputTokens"}
        assert all(isinstance(count, int) and count > 0 for count in usage.values())


class TextsModel(Scripted):
    """Answers with texts of the given lengths."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self._lengths = lengths

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        for length in self._lengths:
            yield TextChunk("x" * length)
        yield DoneChunk(Usage(1, 1))


async def test_frames_of_all_lengths_arrive_complete(tmp_path: Path) -> None:
    lengths = [*range(20, 60), *range(65_430, 65_470)]  # the length of a frame has one, three or nine bytes
    atlas = in_memory_atlas(TextsModel(lengths), store=MemoryStore())
    async with serve_and_connect(tmp_path, atlas, full=False) as client:
        sent: list[int] = []
        await client.get("chat.send", sessionKey="test", message="Hi")
        await client.until("chat.final")
        for frame in client.events():
            if frame["event"] == "chat.delta":
                sent.append(len(frame["data"]["text"]))
        assert sent == lengths


async def test_refusal_is_a_sentence_of_the_message_and_text_of_the_plain_profile(tmp_path: Path) -> None:
    replies = (refuses("cyber"), says("First,") + refuses("cyber"), says("I cannot help.") + refuses())
    refusals = ["The model refused to answer: cyber", "The model refused to continue: cyber", ""]
    texts = [refusals[0], f"First,\n\n{refusals[1]}", "I cannot help."]
    async with (
        serve_gateway(tmp_path, stored_atlas(*replies)) as gateway,
        connect_client(gateway) as client,
        connect_client(gateway, full=False) as plain,
    ):
        await client.get("sessions.subscribe", sessionKey="main")
        for refusal, text in zip(refusals, texts, strict=True):
            run_id = (await plain.get("chat.send", sessionKey="main", message="?"))["runId"]
            await plain.until("chat.final")
            deltas = [each["data"]["text"] for each in plain.events(run_id) if each["event"] == "chat.delta"]
            assert "".join(deltas) == text
            assert (await client.until("chat.final"))["message"].get("refusal", "") == refusal
        history = (await client.get("chat.history", sessionKey="main"))["messages"]
        assert [each.get("refusal", "") for each in history if each["role"] == "assistant"] == refusals


async def test_full_profile_adds_session_key_and_seq_to_every_event(tmp_path: Path) -> None:
    async with (
        serve_gateway(tmp_path, stored_atlas(thinks("Hm.") + says("Hi."))) as gateway,
        connect_client(gateway) as client,
    ):
        sent = await client.get("chat.send", sessionKey="main", message="Hello?")
        assert sent == {"runId": sent["runId"], "status": "started"}
        final = await client.until("chat.final")
        events = client.events(sent["runId"])
        assert [event["data"]["seq"] for event in events] == list(range(1, len(events) + 1))
        assert {event["data"]["sessionKey"] for event in events} == {"main"}
        names = [event["event"] for event in events]
        assert names[:2] == ["chat.message", "chat.started"] and names[-1] == "chat.final"
        assert {"chat.reasoning", "chat.delta"} <= set(names)
        assert [part["text"] for part in final["message"]["parts"] if part["type"] == "text"] == ["Hi."]


async def test_plan_mode_sends_plan_updates(tmp_path: Path) -> None:
    atlas = stored_atlas(
        calls("make_plan", steps=["Think", "Say it"]), says("Thought."), says("Spoken."), says("There you are.")
    )
    async with serve_and_connect(tmp_path, atlas) as client:
        sent = await client.get("chat.send", sessionKey="main", message="Well?", mode="plan")
        await client.until("chat.final")
        plans_sent = [
            event["data"]["steps"] for event in client.events(sent["runId"]) if event["event"] == "plan.updated"
        ]
        assert [step["text"] for step in plans_sent[0]] == ["Think", "Say it"]
        assert [[step["status"] for step in steps] for steps in (plans_sent[0], plans_sent[-1])] == [
            ["pending"] * 2,
            ["done"] * 2,
        ]
        history = await client.get("chat.history", sessionKey="main")
        plans = [plan for message in history["messages"] if (plan := message.get("metadata", {}).get("plan"))]
        assert plans[-1] == plans_sent[-1]


async def test_tool_call_and_result_are_sent(tmp_path: Path) -> None:
    def shout(input: str) -> str:
        return input.upper()

    tool = Tool("shout", shout, in_process=True)
    async with serve_and_connect(
        tmp_path, stored_atlas(calls("shout", input="hey"), says("HEY!"), tools=(tool,))
    ) as client:
        await client.get("chat.send", sessionKey="main", message="Shout hey.")
        call, result = await client.until("tool.call"), await client.until("tool.result")
        assert (call["name"], call["arguments"]) == ("shout", {"input": "hey"})
        assert (result["toolCallId"], result["status"], result["result"]) == (call["toolCallId"], "ok", "HEY")
        assert result["durationMs"] >= 0
        await client.until("chat.final")
        history = await client.get("chat.history", sessionKey="main")
        assert [message["role"] for message in history["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert history["hasMore"] is False


async def test_failed_turn_ends_with_one_error(tmp_path: Path) -> None:
    broken = fails(ProviderError("the key is wrong", "auth"))
    async with serve_gateway(tmp_path, stored_atlas(broken)) as gateway, connect_client(gateway, full=False) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Hi"))["runId"]
        await client.until("chat.error")
        assert client.events() == [
            {"event": "chat.error", "data": {"runId": run_id, "message": "the key is wrong", "kind": "auth"}}
        ]


class Slow:
    """A tool that waits until it is released."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()

    async def run(self, input: str) -> str:
        self.started.set()
        await self.release.wait()
        return f"did {input}"

    @property
    def tool(self) -> Tool:
        return Tool("slow", self.run)


@pytest.mark.parametrize("full", [True, False])
async def test_aborted_turn_ends_with_a_cancelled_final(full: bool, tmp_path: Path) -> None:
    slow = Slow()
    async with serve_and_connect(
        tmp_path, stored_atlas(calls("slow", input="x"), tools=(slow.tool,)), full=full
    ) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        await slow.started.wait()
        assert await client.get("chat.abort", runId=run_id) == {"aborted": [run_id]}
        final = await client.until("chat.final")
        assert final["cancelled"] is True
        assert await client.get("chat.abort", runId=run_id) == {"aborted": []}
        if not full:
            assert set(final) == {"runId", "usage", "cancelled"}


async def test_second_message_is_queued_or_rejected(tmp_path: Path) -> None:
    slow = Slow()
    replies = (calls("slow", input="x"), says("first"), says("second"), says("third"))
    async with (
        serve_gateway(tmp_path, stored_atlas(*replies, tools=(slow.tool,))) as gateway,
        connect_client(gateway) as client,
    ):
        first = await client.get("chat.send", sessionKey="main", message="1")
        await slow.started.wait()
        second = await client.get("chat.send", sessionKey="main", message="2")
        assert (first["status"], second["status"]) == ("started", "queued")
        refused = await client.request("chat.send", sessionKey="main", message="3", whenBusy="reject")
        assert refused["error"]["code"] == -32002
        assert refused["error"]["data"]["kind"] == "BUSY" and refused["error"]["data"]["retryable"] is True
        slow.release.set()
        assert (await client.until("chat.final"))["runId"] == first["runId"]
        assert (await client.until("chat.final"))["runId"] == second["runId"]
        history = (await client.get("chat.history", sessionKey="main"))["messages"]
        assert [message["parts"][0]["text"] for message in history if message["role"] == "user"] == ["1", "2"]


async def test_steering_message_is_shown_in_the_turn_that_it_enters(tmp_path: Path) -> None:
    slow = Slow()
    replies = (calls("slow", input="x"), says("both"))
    async with (
        serve_gateway(tmp_path, stored_atlas(*replies, tools=(slow.tool,))) as gateway,
        connect_client(gateway) as client,
    ):
        first = await client.get("chat.send", sessionKey="main", message="1")
        await slow.started.wait()
        steering = {"sessionKey": "main", "message": "2", "whenBusy": "steer", "idempotencyKey": "k"}
        second = await client.get("chat.send", **steering)
        assert second["status"] == "queued"
        slow.release.set()
        finals = {(final := await client.until("chat.final"))["runId"]: final for _ in range(2)}
        assert finals[second["runId"]]["enteredRunId"] == first["runId"]
        assert finals[first["runId"]]["message"]["parts"] == [{"type": "text", "text": "both"}]
        messages = [event["data"] for event in client.events() if event["event"] == "chat.message"]
        assert [each["message"]["role"] for each in messages] == ["user", "assistant", "tool", "user", "assistant"]
        assert {each["runId"] for each in messages} == {first["runId"]}
        assert messages[3]["message"]["metadata"] == {"steering_run": second["runId"]}
        waited = await client.get("chat.wait", runId=second["runId"], timeoutMs=120_000)
        assert (waited["status"], waited["message"]["parts"][0]["text"]) == ("done", "both")
        steps = (await client.get("runs.get", runId=first["runId"]))["steps"]
        assert [step["name"] for step in steps if step["kind"] == "steer"] == [second["runId"]]
        async with connect_client(gateway) as other:
            assert await other.get("chat.send", **steering) == {"runId": second["runId"], "status": "done"}
            assert (await other.until("chat.final"))["enteredRunId"] == first["runId"]


async def test_repeated_idempotency_key_returns_the_same_turn_or_conflicts(tmp_path: Path) -> None:
    async with (
        serve_gateway(tmp_path, stored_atlas(says("once"), says("never"))) as gateway,
        connect_client(gateway) as client,
    ):
        wanted = {"sessionKey": "main", "message": "Hi", "idempotencyKey": "k"}
        first = await client.get("chat.send", **wanted)
        await client.until("chat.final")
        assert await client.get("chat.send", **wanted) == {"runId": first["runId"], "status": "done"}
        other = await client.request("chat.send", **{**wanted, "message": "Ho"})
        assert (other["error"]["code"], other["error"]["data"]["kind"]) == (-32005, "CONFLICT")
        assert len([event for event in client.events() if event["event"] == "chat.final"]) == 1


async def test_wait_returns_the_answer_or_the_status(tmp_path: Path) -> None:
    slow = Slow()
    async with serve_and_connect(
        tmp_path, stored_atlas(calls("slow", input="x"), says("Done."), tools=(slow.tool,))
    ) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        assert (await client.get("chat.wait", runId=run_id, timeoutMs=20))["status"] == "running"
        await client.send(id="w", method="chat.wait", params={"runId": run_id})
        assert (await client.get("health.check"))["status"] == "ok"  # a waiting request does not block others
        slow.release.set()
        while (frame := await client.next()).get("id") != "w":
            pass
        assert frame["result"]["status"] == "done"
        assert frame["result"]["message"]["parts"] == [{"type": "text", "text": "Done."}]
        missing = await client.request("chat.wait", runId="0" * 32)
        assert missing["error"]["data"]["kind"] == "RUN_NOT_FOUND"


@pytest.mark.parametrize(
    ("method", "params", "decision", "ran"),
    [
        ("exec.approve", {}, "allow-once", True),
        ("exec.deny", {"reason": "too loud"}, "deny", False),
        ("approvals.resolve", {"decision": "allow-session"}, "allow-session", True),
        ("approvals.resolve", {"decision": "deny"}, "deny", False),
    ],
)
async def test_approval_decides_whether_the_tool_runs(
    method: str, params: dict[str, Any], decision: str, ran: bool, tmp_path: Path
) -> None:
    done: list[str] = []

    async def bash(command: str) -> str:
        done.append(command)
        return "ok"

    tool = Tool("bash", bash, parameters={"command": str}, confirm=True)
    atlas = stored_atlas(calls("bash", command="df -h"), says("So be it."), tools=(tool,), approve=Approvals(wait=True))
    async with (
        serve_gateway(tmp_path, atlas) as gateway,
        connect_client(gateway) as client,
        connect_client(gateway, full=False) as plain,
    ):
        await plain.get("chat.send", sessionKey="main", message="Look")
        request = await plain.until("exec.approval_request")
        assert set(request) == {"approvalId", "command", "workingDir"}
        assert request["command"] == "df -h"
        (listed,) = (await client.get("approvals.list"))["approvals"]
        assert (listed["approvalId"], listed["toolName"]) == (request["approvalId"], "bash")
        assert listed["details"] == {"command": "df -h"}
        await client.get("sessions.subscribe", sessionKey="main")
        assert await client.get(method, approvalId=request["approvalId"], **params) == {"ok": True}
        resolved = await client.until("approval.resolved")
        assert resolved["decision"] == decision
        await client.until("chat.final")
        assert done == (["df -h"] if ran else [])
        again = await client.request(method, approvalId=request["approvalId"], **params)
        assert again["error"]["data"]["kind"] == "APPROVAL_NOT_FOUND"
        assert again["error"]["message"].startswith("already resolved")


async def test_calls_of_one_reply_are_asked_about_together_and_resolved_by_what_was_seen(tmp_path: Path) -> None:
    done: list[str] = []

    async def bash(command: str) -> str:
        done.append(command)
        return "ok"

    tool = Tool("bash", bash, parameters={"command": str}, confirm=True)
    asked = calls("bash", command="a") + calls("bash", command="b") + calls("bash", command="c")
    atlas = stored_atlas(asked, says("So be it."), tools=(tool,), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Look"))["runId"]
        requests = [await client.until("exec.approval_request") for _ in range(3)]
        listed = (await client.get("approvals.list"))["approvals"]
        assert [each["digest"] for each in listed] == [each["digest"] for each in requests]
        assert len({each["digest"] for each in listed}) == 3
        async with connect_client(gateway) as late:
            (position,) = (await late.get("sessions.subscribe", sessionKey="main"))["runs"]
        assert [each["approvalId"] for each in position["pendingApprovals"]] == [each["approvalId"] for each in listed]
        a, b, c = [{"approvalId": each["approvalId"], "digest": each["digest"]} for each in listed]
        swapped = {"approvalId": c["approvalId"], "digest": a["digest"]}
        unknown = {"approvalId": "0" * 32, "digest": a["digest"]}
        result = await client.get("approvals.resolveMany", approvals=[a, swapped, unknown, a], decision="allow-once")
        assert [(each["ok"], each.get("kind")) for each in result["outcomes"]] == [
            (True, None),
            (False, "CONFLICT"),
            (False, "APPROVAL_NOT_FOUND"),
            (False, "APPROVAL_NOT_FOUND"),
        ]
        assert result["outcomes"][3]["error"].endswith("is already answered: allowed by owner")
        waiting = [each["approvalId"] for each in (await client.get("approvals.list"))["approvals"]]
        assert waiting == [b["approvalId"], c["approvalId"]] and done == []
        assert (await client.get("runs.get", runId=run_id))["run"]["status"] == "waiting"
        await client.get("approvals.resolveMany", approvals=[c, b], decision="deny", reason="not now")
        await client.until("chat.final")
        entries = [each["entry"] for each in (await client.get("audit.list"))["entries"]]
    assert done == ["a"]
    denied = [entry for entry in entries if not entry["success"]]
    assert len(entries) == 3 and len(denied) == 2


async def test_standing_approval_covers_the_same_calls_that_wait(tmp_path: Path) -> None:
    def run(command: str) -> str:
        return "ok"

    tool = Tool("bash", run, parameters={"command": str}, confirm=True, in_process=True)
    asked = calls("bash", command="a") + calls("bash", command="a") + calls("bash", command="b")
    atlas = stored_atlas(asked, says("So be it."), tools=(tool,), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        await client.get("chat.send", sessionKey="main", message="Look")
        first, _, last = [(await client.until("exec.approval_request"))["approvalId"] for _ in range(3)]
        await client.get("approvals.resolve", approvalId=first, decision="allow-session")
        assert [(await client.until("approval.resolved"))["decision"] for _ in range(2)] == ["allow-session"] * 2
        assert [each["approvalId"] for each in (await client.get("approvals.list"))["approvals"]] == [last]
        await client.get("approvals.resolve", approvalId=last, decision="deny")
        await client.until("chat.final")


async def test_message_may_have_parts_and_attachments(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(says("Seen."))) as gateway, connect_client(gateway) as client:
        parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
        image = {"type": "image", "mediaType": "image/png", "data": "iVBORw0KGgo="}
        await client.get("chat.send", sessionKey="main", message=parts, attachments=[image])
        stored_message = (await client.until("chat.message"))["message"]
        assert stored_message["parts"] == [*parts, image]
        empty = await client.request("chat.send", sessionKey="main", message=[])
        assert empty["error"]["code"] == -32602


async def test_history_is_paginated(tmp_path: Path) -> None:
    async with (
        serve_gateway(tmp_path, stored_atlas(*[says(str(n)) for n in range(3)])) as gateway,
        connect_client(gateway) as client,
    ):
        for n in range(3):
            await client.get("chat.send", sessionKey="main", message=f"q{n}")
            await client.until("chat.final")
        whole = (await client.get("chat.history", sessionKey="main"))["messages"]
        assert len(whole) == 6
        page = await client.get("chat.history", sessionKey="main", limit=4)
        assert (page["messages"], page["hasMore"]) == (whole[2:], True)
        for before in (whole[2]["id"], whole[2]["seq"]):
            rest = await client.get("chat.history", sessionKey="main", before=before)
            assert (rest["messages"], rest["hasMore"]) == (whole[:2], False)
        missing = await client.request("chat.history", sessionKey="nowhere")
        assert missing["error"]["data"]["kind"] == "SESSION_NOT_FOUND"
