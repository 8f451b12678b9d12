"""AG-UI runs: the events match the protocol's types and arrive in the right order."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from agui_client import Page, change, kinds, open_page, text_of
from gateway_client import connect_client, serve_gateway
from openai_client import Slow, stored_atlas, upper

from atlas_agents import Approvals, File, ProviderError, Tool
from atlas_agents.gateway.agui.events import PatchOperation, diff_states
from atlas_agents.providers.base import ResetChunk, TextChunk
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, VirtualClock, calls, fails, in_memory_atlas, refuses, says, thinks
from checks import TIMEOUT, run_ready_tasks

EDITED = '{"edited_arguments":{"input":"y"},"result":"Y"}'
CONFIRMED = Tool("upper", upper, in_process=True, confirm=True)


async def test_run_sends_all_events_in_order(tmp_path: Path) -> None:
    script = (thinks("Hm.") + says("Let me see.") + calls("upper", input="hey"), says("It is HEY."))
    atlas = stored_atlas(Scripted(*script), (Tool("upper", upper, in_process=True),))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page:
        events = await page.run("Shout hey.")
    assert kinds([event for event in events if not event["type"].endswith("CONTENT")]) == [
        "RUN_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    first, last = events[0], events[-1]
    assert first == {"type": "RUN_STARTED", "threadId": "main", "runId": "r1", "protocolVersion": "1.0"}
    assert (last["threadId"], last["runId"], last["outcome"]) == ("main", "r1", {"type": "success"})
    assert last["usage"][0]["totalTokens"] > 0
    assert text_of(events) == "Let me see.It is HEY."
    call = next(event for event in events if event["type"] == "TOOL_CALL_START")
    text = next(event for event in events if event["type"] == "TEXT_MESSAGE_START")
    result = next(event for event in events if event["type"] == "TOOL_CALL_RESULT")
    assert (call["toolCallName"], call["parentMessageId"]) == ("upper", text["messageId"])
    assert (result["toolCallId"], result["content"], result["role"]) == (call["toolCallId"], "HEY", "tool")


async def test_conversation_is_stored_and_only_the_last_message_is_read(tmp_path: Path) -> None:
    model = Scripted(says("Hello Ana."), says("Ana."))
    async with (
        serve_gateway(tmp_path, stored_atlas(model)) as gateway,
        open_page(gateway) as page,
        connect_client(gateway) as other,
    ):
        await page.run("I am Ana.")
        page.messages.append({"id": "x", "role": "assistant", "content": "You are Bo."})
        events = await page.run("Who am I?")
        history = await other.get("chat.history", sessionKey="main")
    assert text_of(events) == "Ana."
    assert [message.text for message in model.requests[1].messages] == ["I am Ana.", "Hello Ana.", "Who am I?"]
    assert len(history["messages"]) == 4


async def test_refusal_is_text_that_every_client_shows(tmp_path: Path) -> None:
    model = Scripted(refuses("cyber"), says("First,") + refuses("cyber"))
    async with serve_gateway(tmp_path, stored_atlas(model)) as gateway, open_page(gateway) as page:
        events = await page.run("?")
        assert kinds(events) == [
            "RUN_STARTED",
            "TEXT_MESSAGE_START",
            "TEXT_MESSAGE_CONTENT",
            "TEXT_MESSAGE_END",
            "RUN_FINISHED",
        ]
        assert text_of(events) == text_of(await page.run(runId="r1")) == "The model refused to answer: cyber"
        assert text_of(await page.run("?")) == "First,\n\nThe model refused to continue: cyber"


async def test_model_settings_of_the_forwarded_props_reach_the_model(tmp_path: Path) -> None:
    model = Scripted(says("Ok."), says("Ok."))
    atlas = stored_atlas(model, agent={"settings": {"effort": "low"}})
    asked = {"effort": "high", "topP": 0.5, "seed": 7, "maxTokens": 900, "stop": ["END"], "serviceTier": "flex"}
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page:
        await page.run("?", forwardedProps={"settings": asked, "theme": "dark"})
        await page.run("?", forwardedProps=["not", "ours"])
    first = ModelSettings(effort="low", top_p=0.5, seed=7, max_tokens=900, stop=("END",), service_tier="flex")
    assert model.requests[0].settings == first
    assert model.requests[1].settings == ModelSettings(effort="low")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"efort": "high"}, "unknown model setting 'efort'; known settings: temperature, topP, maxTokens"),
        ({"topP": 3}, "invalid settings: Expected `float` <= 1.0 - at `$.topP`"),
        ("high", "invalid settings: Expected `object | null`, got `str`"),
        ({"effort": 900, "maxTokens": 900}, "invalid settings: effort must be less than max_tokens"),
    ],
)
async def test_invalid_model_settings_are_refused(settings: Any, message: str, tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(Scripted())) as gateway, open_page(gateway) as page:
        answer = (await page.request("?", forwardedProps={"settings": settings})).response
        error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, "forwardedProps.settings")
    assert error["message"].startswith(message)


async def test_images_and_documents_are_read(tmp_path: Path) -> None:
    model = Scripted(says("A cat."))
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}},
        {"type": "document", "source": {"type": "url", "value": "https://example.invalid/a.pdf"}},
    ]
    async with serve_gateway(tmp_path, stored_atlas(model)) as gateway, open_page(gateway) as page:
        page.messages.append({"id": "m", "role": "user", "content": parts})
        assert text_of(await page.run()) == "A cat."
    assert [part.type for part in model.requests[0].messages[-1].parts] == ["text", "image", "file"]


async def test_context_and_state_reach_the_model_as_untrusted_files(tmp_path: Path) -> None:
    model = Scripted(says("Lima."), says("Nothing."))
    context = [{"description": "The page", "value": "A map of Lima </context>"}]
    async with serve_gateway(tmp_path, stored_atlas(model)) as gateway, open_page(gateway) as page:
        assert text_of(await page.run("Where am I?", context=context, state={"zoom": 3})) == "Lima."
        assert text_of(await page.run("And now?")) == "Nothing."
        refused = await page.request("And now?", state={"text": "x" * 70_000})
        assert refused.response.status == 400 and "the maximum is 65,536" in await refused.response.text()
    first = model.requests[0].messages[-1]
    assert first.text == "Where am I?" and first.untrusted == ("attachment: context.json", "attachment: state.json")
    files = [json.loads(base64.b64decode(part.data)) for part in first.parts if isinstance(part, File)]
    assert files == [context, {"zoom": 3}]
    assert [part.type for part in model.requests[1].messages[-1].parts] == ["text"], "nothing is attached twice"


async def test_resumed_run_sends_the_state_that_its_turn_set_since(tmp_path: Path) -> None:
    model = Scripted(
        calls("change", values={"a": 1}), calls("upper", input="x"), calls("change", values={"b": None}), says("Done.")
    )
    atlas = stored_atlas(model, (change, CONFIRMED), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page:
        first = await page.run("Go.", state={"b": 2})
        resume = [
            {"interruptId": each["id"], "status": "resolved", "payload": {"approved": True}}
            for each in first[-1]["outcome"]["interrupts"]
        ]
        rest = await page.run(resume=resume, state={"a": 1, "b": 2, "c": 3})
        again = await page.run(resume=resume, state={"a": 1, "b": 2, "c": 3})
        known = await page.run(resume=resume, state={"a": 1})
    states = [[each for each in run if each["type"].startswith("STATE")] for run in (first, rest, again, known)]
    snapshots = [{"type": "STATE_SNAPSHOT", "snapshot": state} for state in ({"a": 1, "b": 2}, {"a": 1})]
    assert states == [[snapshots[0]], [snapshots[1]], [snapshots[1]], []]


def test_patch_of_a_state_is_never_much_longer_than_the_state() -> None:
    """A long name above many values would repeat in each path, and deep values would exceed the recursion limit."""
    wide = [{"k" * 30_000: [value] * 16_000} for value in (0, 1)]
    assert diff_states(*wide) == [PatchOperation("replace", "", wide[1])]
    deep = [json.loads("[" * 900 + value + "]" * 900) for value in ("0", "1")]
    (operation,) = diff_states(*deep)
    assert (operation.op, operation.path) == ("replace", "/0" * 50)
    assert diff_states({"a/~": [1, 2], "b": True}, {"a/~": [1], "b": 1, "c": None}) == [
        PatchOperation("remove", "/a~1~0/1"),
        PatchOperation("replace", "/b", 1),
        PatchOperation("add", "/c", None),
    ]


async def test_repeated_run_id_returns_the_same_turn(tmp_path: Path) -> None:
    script = (says("Let me see.") + calls("upper", input="hey"), says("HEY."))
    model = Scripted(*script)
    atlas = stored_atlas(model, (Tool("upper", upper, in_process=True),))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page:
        first = await page.run("Shout hey.")
        again = await page.run(runId="r1")
    assert text_of(again) == text_of(first) == "Let me see.HEY."
    assert "TOOL_CALL_RESULT" in kinds(again) and again[-1]["outcome"] == {"type": "success"}
    assert len(model.requests) == 2


async def test_withdrawn_text_is_removed_by_a_snapshot(tmp_path: Path) -> None:
    again = Reply(TextChunk("It is 5."), ResetChunk(1), TextChunk("It is 4."))
    async with serve_gateway(tmp_path, stored_atlas(Scripted(again))) as gateway, open_page(gateway) as page:
        events = await page.run("2+2?")
    assert kinds(events) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "MESSAGES_SNAPSHOT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    assert events[4]["messages"] == page.messages
    assert events[5]["messageId"] != events[1]["messageId"]


async def test_failed_turn_ends_with_an_error(tmp_path: Path) -> None:
    atlas = stored_atlas(Scripted(fails(ProviderError("no key", "auth"))))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page:
        events = await page.run("Hi")
    assert events[1:] == [{"type": "RUN_ERROR", "message": "no key", "code": "auth"}]


async def test_cancelled_turn_ends_as_cancelled(tmp_path: Path) -> None:
    slow = Slow()
    atlas = stored_atlas(Scripted(calls("slow", input="x")), (slow.tool,))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page, connect_client(gateway) as other:
        task = asyncio.create_task(page.run("Go"))
        await asyncio.wait_for(slow.started.wait(), TIMEOUT)
        await other.get("chat.abort", sessionKey="main")
        events = await task
    assert events[-1]["outcome"] == {"type": "cancelled"}


@pytest.mark.parametrize("stops", [False, True])
async def test_disconnect_cancels_the_turn_only_if_requested(stops: bool, tmp_path: Path) -> None:
    slow = Slow()
    atlas = stored_atlas(Scripted(calls("slow", input="x"), says("Done.")), (slow.tool,))
    headers = {"X-Atlas-On-Disconnect": "cancel"} if stops else {}
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as other:
        await other.get("sessions.subscribe", sessionKey="main")
        async with open_page(gateway) as page:
            answer = await page.request("Go", headers=headers)
            await asyncio.wait_for(slow.started.wait(), TIMEOUT)
            answer.response.close()
            if not stops:
                await run_ready_tasks(200)  # the gateway notices that the client has disconnected
                slow.release.set()
            final = await other.until("chat.final")
    assert final.get("cancelled", False) is stops


async def _run_until_interrupt(page: Page, say: str = "Shout x") -> tuple[list[dict[str, Any]], dict[str, Any]]:
    events = await page.run(say)
    assert events[-1]["outcome"]["type"] == "interrupt"
    (interrupt,) = events[-1]["outcome"]["interrupts"]
    return events, interrupt


def _script(*more: Reply) -> Scripted:
    return Scripted(says("May I?") + calls("upper", input="x"), says("So be it."), *more)


async def test_questions_of_one_reply_are_interrupts_of_one_run(tmp_path: Path) -> None:
    script = (calls("upper", input="x") + calls("upper", input="y"), says("Done."))
    atlas = stored_atlas(Scripted(*script), (CONFIRMED,), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page:
        interrupts = (await page.run("Shout"))[-1]["outcome"]["interrupts"]
        assert [each["metadata"]["arguments"] for each in interrupts] == [{"input": "x"}, {"input": "y"}]
        answers = [{"interruptId": each["id"], "status": "resolved"} for each in interrupts]
        resume = [{**answers[1], "payload": {"approved": True}}, {**answers[0], "payload": {"approved": False}}]
        events = await page.run(resume=resume)
    results = [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert len(results) == 2 and "Y" in results and events[-1]["outcome"]["type"] == "success"


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, "X"),
        ({"status": "resolved", "payload": {"approved": True, "editedArgs": {"input": "y"}}}, EDITED),
        ({"status": "resolved", "payload": {"approved": False, "reason": "no"}}, '{"cancelled":true,"reason":"no"}'),
        ({"status": "cancelled"}, '{"cancelled":true,"reason":"cancelled by the user"}'),
    ],
)
async def test_approval_ends_the_run_and_the_next_run_resumes(
    answer: dict[str, Any], content: str, tmp_path: Path
) -> None:
    atlas = stored_atlas(_script(), (CONFIRMED,), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page:
        events, interrupt = await _run_until_interrupt(page)
        call = next(event for event in events if event["type"] == "TOOL_CALL_START")
        assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", call["toolCallId"])
        assert interrupt["message"] == "Confirm execution of upper: upper(input='x')"
        assert interrupt["metadata"]["arguments"] == {"input": "x"}
        assert "editedArgs" in interrupt["responseSchema"]["properties"] and interrupt["expiresAt"].endswith("Z")
        resume = [{"interruptId": interrupt["id"], **answer}]
        rest = await page.run(resume=resume)
        again = await page.run(resume=resume)  # repeated, as after a lost response
    for events in (rest, again):
        assert kinds(events)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
        assert (events[1]["toolCallId"], events[1]["content"]) == (call["toolCallId"], content)
        assert (text_of(events), events[-1]["outcome"]) == ("So be it.", {"type": "success"})


async def test_approval_resolved_elsewhere_lets_the_thread_continue(tmp_path: Path) -> None:
    atlas = stored_atlas(_script(says("Next.")), (CONFIRMED,), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page, connect_client(gateway) as other:
        _, interrupt = await _run_until_interrupt(page)
        blocked = await page.run("Hello?")
        assert (blocked[-1]["type"], blocked[-1]["code"]) == ("RUN_ERROR", "interrupt_pending")
        await other.get("sessions.subscribe", sessionKey="main")
        await other.get("exec.deny", approvalId=interrupt["id"])
        await other.until("chat.final")
        resume = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        late = await page.run(resume=[resume])
        assert (late[-1]["type"], late[-1]["code"]) == ("RUN_ERROR", "interrupt_over")
        rest = await page.run(resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
        assert (text_of(rest), rest[-1]["outcome"]) == ("So be it.", {"type": "success"})
        assert text_of(await page.run("And now?")) == "Next."


async def test_expired_approval_counts_as_denied(tmp_path: Path) -> None:
    clock = VirtualClock()
    atlas = stored_atlas(_script(), (CONFIRMED,), approve=Approvals(wait=True), clock=clock)
    async with serve_gateway(tmp_path, atlas) as gateway, open_page(gateway) as page, connect_client(gateway) as other:
        await other.get("sessions.subscribe", sessionKey="main")
        _, interrupt = await _run_until_interrupt(page)
        await clock.advance(301)
        await other.until("chat.final")
        resume = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        late = await page.run(resume=[resume])
        assert (late[-1]["type"], late[-1]["code"]) == ("RUN_ERROR", "interrupt_over")
        rest = await page.run(resume=[{"interruptId": interrupt["id"], "status": "cancelled"}])
    denied = '{"cancelled":true,"reason":"no answer within 300 s"}'
    assert (rest[1]["content"], text_of(rest)) == (denied, "So be it.")


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"interruptId": "missing", "status": "cancelled"}, "interrupt_not_found"),
        ({"status": "resolved", "payload": {"approved": "maybe"}}, "bad_payload"),
        ({"status": "resolved"}, "bad_payload"),
        ({"status": "resolved", "payload": {"approved": True, "approve": "all"}}, "bad_payload"),
    ],
)
async def test_invalid_answer_resolves_nothing(entry: dict[str, Any], code: str, tmp_path: Path) -> None:
    atlas = stored_atlas(_script(), (CONFIRMED,), approve=Approvals(wait=True))
    async with serve_gateway(tmp_path, atlas, grace=0.05) as gateway, open_page(gateway) as page:
        _, interrupt = await _run_until_interrupt(page)
        events = await page.run(resume=[{"interruptId": interrupt["id"], **entry}])
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", code)
        elsewhere = [{"interruptId": interrupt["id"], "status": "cancelled"}]
        other = await page.run(resume=elsewhere, thread="other")
        assert (other[-1]["type"], other[-1]["code"]) == ("RUN_ERROR", "interrupt_not_found")
        assert len(await atlas.pending()) == 1


@pytest.mark.parametrize(
    ("agent", "more", "status", "code"),
    [
        ("missing", {}, 404, "agent_not_found"),
        ("assistant", {"messages": []}, 400, "invalid_value"),
        ("assistant", {"messages": [{"id": "a", "role": "assistant", "content": "Hi"}]}, 400, "invalid_value"),
        ("assistant", {"threadId": ""}, 400, "invalid_value"),
    ],
)
async def test_invalid_run_is_refused_with_a_status(
    agent: str, more: dict[str, Any], status: int, code: str, tmp_path: Path
) -> None:
    async with serve_gateway(tmp_path, stored_atlas(Scripted())) as gateway, open_page(gateway, agent=agent) as page:
        answer = await page.request("Hi", **more)
        assert (answer.response.status, (await answer.response.json())["error"]["code"]) == (status, code)


async def test_gateway_that_shuts_down_refuses_runs(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(Scripted())) as gateway, open_page(gateway) as page:
        gateway.hub.stopping = True
        answer = await page.request("Hi")
        assert (answer.response.status, answer.response.headers["retry-after"]) == (503, "1")


def _frontend_tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"Change the {name}.", "parameters": {"type": "object", "properties": {}}}


def _add_results(page: Page, ids: list[str], *contents: str, **more: Any) -> None:
    for id, content in zip(ids, contents, strict=True):
        number = len(page.messages)
        page.messages.append({"id": f"m{number}", "role": "tool", "toolCallId": id, "content": content, **more})


async def test_frontend_runs_its_tools_and_the_next_run_goes_on(tmp_path: Path) -> None:
    both = says("One moment.") + calls("upper", input="x") + calls("colour") + calls("size")
    model, store = Scripted(both), MemoryStore()
    tools = [_frontend_tool("colour"), _frontend_tool("size")]
    own = (Tool("upper", upper, in_process=True),)
    async with serve_gateway(tmp_path, in_memory_atlas(model, own, store=store)) as gateway, open_page(gateway) as page:
        events = await page.run("Blue, please", tools=tools)
        started = [event for event in events if event["type"] == "TOOL_CALL_START"]
        assert [event["toolCallName"] for event in started] == ["upper", "colour", "size"]
        own_call, *ids = [event["toolCallId"] for event in started]
        assert len({event["parentMessageId"] for event in started[1:]}) == 1
        results = [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
        assert results == [own_call]
        assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ids}
        _add_results(page, ids[:1], "blue")
        assert (await page.run())[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ids[1:]}
        messages = page.messages
    model = Scripted(calls("colour"), says("Done."))
    async with serve_gateway(tmp_path, in_memory_atlas(model, own, store=store)) as gateway, open_page(gateway) as page:
        page.messages, page.runs = messages, 2
        _add_results(page, ids[1:], "", error="no such size")
        events = await page.run()  # the turn keeps its tools
        assert kinds(events) == ["RUN_STARTED", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "RUN_FINISHED"]
        _add_results(page, events[-1]["outcome"]["pendingToolCallIds"], "blue")
        for _ in range(2):
            assert text_of(await page.run()) == "Done."
        page.messages[-1]["content"] = "red"
        assert "already answered with another result" in (await page.run())[-1]["message"]
        page.messages[-1]["toolCallId"] = "call_0"
        assert (await page.run())[-1]["code"] == "call_not_found"
    found = [result.result for message in model.requests[0].messages for result in message.tool_results]
    assert found == ["X", "blue", "no such size"]


async def test_frontend_tool_with_an_invalid_name_is_refused(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, stored_atlas(Scripted())) as gateway, open_page(gateway) as page:
        refused = (await page.request("?", tools=[_frontend_tool("a b")])).response
        assert (refused.status, (await refused.json())["error"]["param"]) == (400, "tools")
