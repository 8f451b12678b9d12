"""ReAct: tool calls as text, parsed leniently but without guessing."""

import json
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, tool
from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import StreamChunk, StreamReset, StreamThinking
from atlas_agents.core.messages import ToolCall, ToolResult, ToolSpec, assistant, user
from atlas_agents.core.messages import tool as results
from atlas_agents.providers.base import (
    Capabilities,
    DoneChunk,
    Request,
    ResetChunk,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    complete,
)
from atlas_agents.providers.react import React, describe_schema, parse_lenient_object
from atlas_agents.testing import Reply, Scripted, fails, says

SEARCH = ToolSpec(
    "web_search",
    "Search the web.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "max_results": {"type": "integer"}},
        "required": ["query"],
    },
)
CLOCK = ToolSpec("clock", "Tell the time.", {"type": "object", "properties": {}})
ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]},
)
ASK = Request([user("What is new?")], tools=(SEARCH, CLOCK, ADD))


async def decode(*replies: Reply, request: Request = ASK) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return thoughts, text and calls of one reply after all resets."""
    chunks = await complete(React(Scripted(*replies)), request)
    assert isinstance(chunks[-1], DoneChunk)
    thoughts = "".join(chunk.text for chunk in chunks if isinstance(chunk, ThinkingChunk))
    words = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))
    calls = [
        (chunk.call.name, chunk.call.malformed or chunk.call.arguments)
        for chunk in chunks
        if isinstance(chunk, ToolCallChunk)
    ]
    assert (chunks[-1].stop_reason == "tool_calls") == bool(calls)
    return thoughts, words, calls


def letters(text: str) -> Reply:
    """Stream one character per chunk."""
    return Reply(*map(TextChunk, text))


CATS = ("web_search", {"query": "cats"})
TWO_CATS = ("web_search", {"query": "cats", "max_results": 2})
IN_A_LINE = 'I look. Action: web_search Action Input: {"query": "cats"}'
WRITTEN: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    # the form itself
    ('Thought: I look.\nAction: web_search\nAction Input: {"query": "cats"}', "I look.", "", [CATS]),
    ("Thought: Easy.\nFinal Answer: Forty-two.", "Easy.", "Forty-two.", []),
    ("Final Answer: One\n\nTwo: three\nAction: none of it", "", "One\n\nTwo: three\nAction: none of it", []),
    # labels as models write them
    ('**Thought:** I look.\n**Action:** web_search\n**Action Input:** {"query": "cats"}', "I look.", "", [CATS]),
    ('THOUGHT: I look.\naction: web_search\nAction_Input: {"query": "cats"}', "I look.", "", [CATS]),
    ('Thought 1: I look.\nAction 1: web_search\nAction Input 1: {"query": "cats"}', "I look.", "", [CATS]),
    ('> Thought: I look.\n- Action: web_search\n- Action Input: {"query": "cats"}', "I look.", "", [CATS]),
    ("### Final Answer:\nYes.", "", "Yes.", []),
    ("Thought: a\n\n\nFinal Answer:   Yes.  \n\n", "a", "Yes.", []),
    # names
    ('Action: `web_search`\nAction Input: {"query": "cats"}', "", "", [CATS]),
    ('Action: "Web Search".\nAction Input: {"query": "cats"}', "", "", [CATS]),
    ('Action: functions.web_search\nAction Input: {"query": "cats"}', "", "", [CATS]),
    ("Action: dig\nAction Input: {}", "", "", [("dig", {})]),
    # inputs
    ('Action: web_search\n{"query": "cats"}', "", "", [CATS]),
    ('Action: web_search({"query": "cats"})', "", "", [CATS]),
    ("Action: web_search[cats]", "", "", [CATS]),
    ("Action: web_search\nAction Input: cats", "", "", [CATS]),
    ('Action: web_search\nAction Input: "cats"', "", "", [CATS]),
    ('Action: web_search\nAction Input:\n```json\n{"query": "cats"}\n```\nI wait.', "", "", [CATS]),
    ("Action: web_search\nAction Input: {'query': 'cats',} // sure", "", "", [CATS]),
    ("Action: web_search\nAction Input: {query: 'cats', max_results: 0x2}", "", "", [TWO_CATS]),
    ('Action: web_search\nAction Input: {\n  "query": "cats"\n}\n\nThat will do.', "", "", [CATS]),
    ("Action: clock", "", "", [("clock", {})]),
    ("Action: clock\nAction Input:", "", "", [("clock", {})]),
    ("Action: clock\nAction Input: None", "", "", [("clock", {})]),
    ("Action: add\nAction Input: 1 and 2", "", "", [("add", "1 and 2")]),
    ('Action: add\nAction Input: {"a": 1, "a": 2}', "", "", [("add", '{"a": 1, "a": 2}')]),
    ('Action: add\nAction Input: {"a": 1, "b": ', "", "", [("add", '{"a": 1, "b":')]),
    # several actions, and stray text
    ('Action: clock\nAction: web_search\nAction Input: {"query": "cats"}', "", "", [("clock", {}), CATS]),
    ('Action: clock\nObservation: noon\nThought: So.\nFinal Answer: Noon.', "", "", [("clock", {})]),
    ("Thought: I look.\nAction: clock\nFinal Answer: It is noon.", "I look.", "", [("clock", {})]),
    ("Thought: No tool.\nAction: None\nFinal Answer: Yes.", "No tool.", "Yes.", []),
    ("Thought: Done.\nAction: Final Answer\nAction Input: Yes.", "Done.", "Yes.", []),
    ('Action: web_search\nActionInput: {"query": "cats"}', "", "", [CATS]),
    ("Thought: I know.\nFinalAnswer: Noon.", "I know.", "Noon.", []),
    # no label, or a late one
    ("Hello, how are you?", "", "Hello, how are you?", []),
    ("```python\nprint(1)\n```", "", "```python\nprint(1)\n```", []),
    ("Actions speak louder\nthan words.", "", "Actions speak louder\nthan words.", []),
    ("I will look.\nAction: clock", "I will look.\n", "", [("clock", {})]),
    ("I know it.\nFinal Answer: Noon.", "I know it.\n", "Noon.", []),
    (f"Thought: {IN_A_LINE}", IN_A_LINE, "", [CATS]),
    ("I know. Final Answer: Noon.", "I know. Final Answer: Noon.\n", "Noon.", []),
    ("```\nThought: So.\nFinal Answer: Noon.\n```", "So.", "Noon.", []),
    ("Final Answer:\n```python\nprint(1)\n```", "", "```python\nprint(1)\n```", []),
]  # fmt: skip


@pytest.mark.parametrize(("written", "thoughts", "words", "calls"), WRITTEN)
async def test_reply_is_parsed_as_intended(
    written: str, thoughts: str, words: str, calls: list[tuple[str, Any]]
) -> None:
    assert await decode(says(written)) == (thoughts, words, calls)


@pytest.mark.parametrize(("written", "thoughts", "words", "calls"), WRITTEN)
async def test_chunk_boundaries_do_not_change_the_result(
    written: str, thoughts: str, words: str, calls: list[tuple[str, Any]]
) -> None:
    assert await decode(letters(written)) == (thoughts, words, calls)
    for place in range(1, len(written)):
        halves = Reply(TextChunk(written[:place]), TextChunk(written[place:]))
        assert await decode(halves) == (thoughts, words, calls), place


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("{'it''s': 1}", None),
        ("{\"a\": 'say \"hi\"', b: 'it\\'s'}", {"a": 'say "hi"', "b": "it's"}),
        ("{a: .5, b: +1, c: -0x10, d: 1., e: 1e3}", {"a": 0.5, "b": 1, "c": -16, "d": 1.0, "e": 1000.0}),
        ("{a: True, b: None, c: [1, 2,], /* so */ d: {}}", {"a": True, "b": None, "c": [1, 2], "d": {}}),
        ("{'a': 'two\nlines\\q'}", {"a": "two\nlinesq"}),
        ("{a: NaN}", None),
        ("{a: Infinity}", None),
        ("{a: yes}", None),
        ("{a: 1, a: 2}", None),
        ("{" * 500, None),
        ("{a: 1", None),
        ("[1]", None),
        ("{a: 1} and more", {"a": 1}),
        ("{'" + "\\" * 9999, None),
    ],
)
def test_lenient_parser_reads_json_of_models(written: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ValueError, match=r"."):
            parse_lenient_object(written)
    else:
        assert parse_lenient_object(written) == value


def test_valid_json_is_parsed_as_json() -> None:
    value = {"a": [1, 2.5, "\"'\\\n", {"b": None, "c": "ü😀"}], "d": True}
    assert parse_lenient_object(json.dumps(value)) == value
    assert parse_lenient_object(f"```json\n{json.dumps(value, indent=2)}\n```") == value


async def test_thoughts_and_answer_are_streamed() -> None:
    atlas = Atlas([Agent("a", model=Scripted(letters("Thought: ab\nFinal Answer: cd")), mode="react", tools=[clock])])
    stream = atlas.send("Hm?")
    seen = [event async for event in stream]
    assert [event.text for event in seen if isinstance(event, StreamThinking)] == ["a", "b"]
    assert [event.text for event in seen if isinstance(event, StreamChunk)] == ["c", "d"]


async def test_thought_streamed_as_answer_is_withdrawn() -> None:
    model = Scripted(letters("Hm.\nAction: clock"), says("Final Answer: Noon."))
    stream = Atlas([Agent("a", model=model, mode="react", tools=[clock])]).send("When?")
    seen = [event async for event in stream]
    assert any(isinstance(event, StreamReset) for event in seen)
    assert stream.text == "Noon."


@tool(effect="pure")
async def clock() -> str:
    """Tell the time."""
    return "noon"


async def test_complete_turn_uses_text_only() -> None:
    model = Scripted(says("Thought: I look.\nAction: clock"), says("Thought: So.\nFinal Answer: Noon."))
    atlas = Atlas([Agent("a", model=model, mode="react", tools=[clock], system_prompt="Be brief.")])
    result = await atlas.run("When?")
    assert result.answer == "Noon."
    assert [(step.tool, step.output) for step in result.steps] == [("clock", "noon")]
    first, second = model.requests
    assert first.tools == () and "Be brief." in first.system and "- clock: Tell the time." in first.system
    assert first.settings.stop[-1] == "\nObservation:"
    contents = [(message.role, message.text) for message in second.messages]
    assert contents == [
        ("user", "When?"),
        ("assistant", "Thought: I look.\nAction: clock\nAction Input: {}"),
        ("user", "Observation: noon"),
    ]


async def test_provider_without_tools_uses_react() -> None:
    class Plain(Scripted):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(tools=False)

    model = Plain(says("Action: clock"), says("Final Answer: Noon."))
    result = await Atlas([Agent("a", model=model, tools=[clock])]).run("When?")
    assert result.answer == "Noon."


async def test_reply_without_action_and_answer_is_repaired_at_most_twice() -> None:
    model = Scripted(says("Thought: Hm."), says("Thought: Hm hm."), says("Final Answer: Yes."))
    chunks = await complete(React(model), ASK)
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextChunk)] == ["Yes."]
    assert "neither an Action nor a Final Answer" in model.requests[1].messages[-1].text
    assert chunks[-1] == DoneChunk(chunks[-1].usage, "stop") and chunks[-1].usage.input_tokens == 1 + 3 + 5  # type: ignore[union-attr]

    stubborn = Scripted(*[says("Thought: Hm.")] * 4)
    with pytest.raises(ProviderError, match="even after two corrections"):
        await complete(React(stubborn), ASK)
    assert len(stubborn.requests) == 3


async def test_invented_observation_ends_the_reply() -> None:
    closed: list[bool] = []

    class TalkativeModel(Scripted):
        async def stream(self, request: Request):  # type: ignore[override]
            try:
                yield TextChunk("Action: clock\nObservation: it is")
                raise AssertionError("the stream was read further")
            finally:
                closed.append(True)

    chunks = await complete(React(TalkativeModel()), ASK)
    assert [chunk.call.name for chunk in chunks if isinstance(chunk, ToolCallChunk)] == ["clock"]
    assert closed == [True]


async def test_truncated_action_never_runs() -> None:
    thoughts, words, calls = await decode(says('Thought: I look.\nAction: add\nAction Input: {"a": 1', stop="length"))
    assert (thoughts, words, calls) == ("I look.", "", [])
    chunks = await complete(React(Scripted(says("Action: clock", stop="length"))), ASK)
    assert chunks[-1].stop_reason == "length" and not any(isinstance(chunk, ToolCallChunk) for chunk in chunks)  # type: ignore[union-attr]


async def test_broken_stream_is_reported_and_not_repaired() -> None:
    with pytest.raises(ProviderError, match="gone"):
        await complete(React(Scripted(says("Thought: I") + fails("gone"))), ASK)


async def test_reset_of_the_inner_provider_restarts_the_reply() -> None:
    again = Reply(TextChunk("Action: add\n"), ResetChunk(1), TextChunk("Final Answer: Yes."))
    assert await decode(again) == ("", "Yes.", [])


async def test_history_is_text_without_tools() -> None:
    history = [
        user("When?"),
        assistant(ToolCall("c", "clock", {})),
        results(ToolResult("c", "ok", "noon")),
        assistant("Noon."),
        user("Thanks."),
    ]
    model = Scripted(says("Thought: you are welcome"))
    chunks = await complete(React(model), Request(history, tools=(CLOCK,), tool_choice="none"))
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == "Thought: you are welcome"
    (asked,) = model.requests
    assert "Tools:" not in asked.system and asked.settings.stop == ()
    assert [message.text for message in asked.messages][1:4] == [
        "Action: clock\nAction Input: {}",
        "Observation: noon",
        "Final Answer: Noon.",
    ]


async def test_tool_choice_becomes_an_instruction() -> None:
    model = Scripted(says("Action: clock"), says("Action: clock"))
    await complete(React(model), Request([user("Go.")], tools=(CLOCK, ADD), tool_choice="clock"))
    await complete(React(model), Request([user("Go.")], tools=(CLOCK, ADD), tool_choice="required"))
    assert "must use the tool clock" in model.requests[0].system and "- add" not in model.requests[0].system
    assert "must use a tool" in model.requests[1].system


async def test_message_is_converted_to_text_once() -> None:
    history = [user("When?"), assistant("Noon."), user("And now?")]
    model = Scripted(says("Final Answer: a"), says("Final Answer: b"))
    react = React(model)
    for _ in range(2):
        await complete(react, Request(history, tools=(CLOCK,)))
    assert model.requests[0].messages[1] is model.requests[1].messages[1]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"type": "object", "properties": {"query": "cats"}, "required": ["query"]}, {"query": "cats"}),
        ({"properties": {"query": "cats"}, "other": 1}, {"properties": {"query": "cats"}, "other": 1}),
        ({"type": "object", "properties": {"query": {"type": "string"}}}, None),
    ],
)
async def test_input_in_the_form_of_a_schema_is_unwrapped(
    written: dict[str, Any], meant: dict[str, Any] | None
) -> None:
    *_, calls = await decode(says(f"Action: web_search\nAction Input: {json.dumps(written)}"))
    assert calls == [("web_search", meant or written)]


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "object", "properties": {}, "additionalProperties": False}, "{}"),
        (
            {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Which one."},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9, "default": 3},
                    "unit": {"enum": ["C", "F"]},
                },
                "required": ["city", "unit"],
            },
            '{"city": "…" (Which one), "days": 0 (at least 1; at most 9; by default 3; optional), "unit": "C" or "F"}',
        ),
        ({"type": "object", "properties": {"tags": {"type": "array"}}}, None),
        ({"type": "object"}, None),
    ],
)
def test_schema_is_described_by_example(schema: dict[str, Any], shown: str | None) -> None:
    assert describe_schema(schema) == (shown or json.dumps(schema))
