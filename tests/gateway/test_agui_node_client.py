"""AG-UI's own client in Node accepts a gateway as an agent: it validates every event and their order."""

from pathlib import Path

import pytest
from agui_client import change, kinds
from agui_node import run_page
from gateway_client import serve_gateway
from openai_client import stored_atlas, upper

from atlas_agents import Approvals, File, Tool
from atlas_agents.testing import Scripted, calls, says, thinks

pytestmark = pytest.mark.slow


async def test_page_receives_the_messages_of_the_conversation(tmp_path: Path) -> None:
    script = (thinks("Hm.") + says("Let me see.") + calls("upper", input="hey"), says("It is HEY."), says("Bye."))
    model = Scripted(*script)
    atlas = stored_atlas(model, (Tool("upper", upper, in_process=True),))
    known = {"context": [{"description": "The page", "value": "A letter"}], "state": {"font": "large"}}
    async with serve_gateway(tmp_path, atlas) as gateway:
        first, second = await run_page(gateway, {"say": "Shout hey.", **known}, {"say": "Thanks."})
    assert (first["failure"], second["failure"]) == (None, None)
    prompt, thought, call, result, answer = first["messages"]
    assert (prompt["content"], thought["role"], thought["content"]) == ("Shout hey.", "reasoning", "Hm.")
    assert (call["content"], call["toolCalls"][0]["function"]) == (
        "Let me see.",
        {"name": "upper", "arguments": '{"input":"hey"}'},
    )
    assert (result["role"], result["content"], answer["content"]) == ("tool", "HEY", "It is HEY.")
    assert [message["content"] for message in second["messages"][-2:]] == ["Thanks.", "Bye."]
    assert first["events"][-1]["outcome"] == {"type": "success"}
    files = [part.name for part in model.requests[0].messages[-1].parts if isinstance(part, File)]
    assert files == ["context.json", "state.json"], "the model knows what the page knows"


async def test_page_answers_interrupts_and_resumes(tmp_path: Path) -> None:
    model = Scripted(calls("upper", input="x"), says("Done."), calls("upper", input="y"), says("Not done."))
    tool = Tool("upper", upper, in_process=True, confirm=True)
    atlas = stored_atlas(model, (tool,), approve=Approvals(wait=True))
    yes, no = ({"status": "resolved", "payload": {"approved": approved}} for approved in (True, False))
    async with serve_gateway(tmp_path, atlas) as gateway:
        asked, done, unanswered, again, refused = await run_page(
            gateway, {"say": "Shout x."}, {"resume": [yes]}, {"say": "Shout y."}, {"say": "Well?"}, {"resume": [no]}
        )
    (interrupt,) = asked["interrupts"]
    assert interrupt["toolCallId"] == asked["messages"][1]["toolCalls"][0]["id"]
    assert (done["failure"], done["interrupts"]) == (None, [])
    assert [message.get("content") for message in done["messages"][2:]] == ["X", "Done."]
    assert len(unanswered["interrupts"]) == 1 and "pending interrupt" in again["failure"]
    assert (refused["failure"], refused["interrupts"]) == (None, [])
    assert refused["messages"][-1]["content"] == "Not done."


async def test_page_has_the_state_that_the_agent_set(tmp_path: Path) -> None:
    model = Scripted(
        calls("change", values={"steps": ["flour", {"a/b": 1}], "font": "small"}),
        calls("change", values={"steps": ["flour", {"a/b": True, "~": 2}, "milk"], "draft": None}),
        says("Done."),
        says("Nothing to do."),
        calls("change", values={"steps": ["milk"]}),
        says("Less."),
    )
    atlas = stored_atlas(model, (change,))
    async with serve_gateway(tmp_path, atlas) as gateway:
        first, again, idle, less = await run_page(
            gateway,
            {"say": "Bake.", "state": {"font": "large", "draft": "x"}},
            {"say": "Bake.", "state": {"font": "large", "draft": "x"}, "runId": "run-0"},
            {"say": "And?"},
            {"say": "Less.", "state": {"font": "huge"}},
        )
        stored = (await atlas.sessions.get("main")).metadata["shared_state"]
    changed = {"font": "small", "steps": ["flour", {"a/b": True, "~": 2}, "milk"]}
    assert [each["failure"] for each in (first, again, idle, less)] == [None] * 4
    assert first["state"] == again["state"] == idle["state"] == changed and len(model.requests) == 6
    assert less["state"] == stored == {"font": "huge", "steps": ["milk"]}
    sent = [[kind for kind in kinds(each["events"]) if kind.startswith("STATE")] for each in (first, again, idle, less)]
    assert sent == [["STATE_SNAPSHOT", "STATE_DELTA"], ["STATE_SNAPSHOT"], [], ["STATE_SNAPSHOT"]]


async def test_page_runs_its_own_tools(tmp_path: Path) -> None:
    model = Scripted(
        calls("upper", input="x") + calls("colour", to="blue") + calls("size"), calls("size"), says("Done.")
    )
    tools = [
        {"name": name, "description": "Change it.", "parameters": {"type": "object"}} for name in ("colour", "size")
    ]
    async with serve_gateway(tmp_path, stored_atlas(model, (Tool("upper", upper, in_process=True),))) as gateway:
        asked, again, done = await run_page(
            gateway,
            {"say": "Blue!", "tools": tools},
            {"answers": ["it is blue", "it is big"]},
            {"answers": ["it is bigger"]},
        )
    assert (asked["failure"], again["failure"], done["failure"]) == (None, None, None)
    assert [[call["function"]["name"] for call in each.get("toolCalls", ())] for each in asked["messages"]] == [
        [],
        ["upper"],
        [],
        ["colour", "size"],
    ]
    assert done["messages"][-1]["content"] == "Done."
    results = [result.result for message in model.requests[-1].messages for result in message.tool_results]
    assert results == ["X", "it is blue", "it is big", "it is bigger"]
