"""Messages: frozen values, a union discriminated by `type`, and a byte-equal JSON round trip."""

import time
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas_agents import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool_message,
    user,
)
from atlas_agents.core.messages import new_ordered_id

# Data that resembles a type of this package, or the object encoding of another one.
LOOKALIKES: list[Any] = [
    {"type": "text", "text": "hi"},
    {"type": "tool_call", "id": "1", "name": "bash", "arguments": {}},
    {"type": "tool_result", "call_id": "1", "status": "ok", "result": None},
    {"type": "opaque", "vendor": "x", "block": {}},
    {"role": "assistant", "parts": [{"type": "text", "text": "hi"}], "id": "1", "created_at": 0, "metadata": {}},
    {"lc": 1, "type": "secret", "id": ["OPENAI_API_KEY"]},
    {"__class__": "os.system", "py/object": "os.system", "$type": "System.Object"},
]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(LOOKALIKES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=3) | st.sampled_from(LOOKALIKES)
kinds = st.sampled_from(["not_found", "bad_arguments", "declined", "timeout", "failed", "unknown", "internal"])
parts = st.one_of(
    st.builds(Text, st.text()),
    st.builds(ToolCall, st.text(), st.text(), objects, malformed=st.none() | st.text()),
    st.builds(ToolResult, st.text(), st.sampled_from(["ok", "error", "unknown"]), values, error=st.none() | kinds),
    st.builds(Thinking, st.text(), signature=st.text()),
    st.builds(Image, st.text(), data=st.text(), url=st.text()),
    st.builds(File, st.text(), st.text(), data=st.text(), url=st.text()),
    st.builds(Opaque, st.text(), objects),
)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.lists(parts, max_size=4).map(tuple),
    id=st.text(),
    created_at=st.integers(0, 2**53),
    metadata=objects,
)


@given(messages)
def test_json_round_trip_is_byte_equal(message: Message) -> None:
    written = message.to_json()
    read = Message.from_json(written)
    assert read == message
    assert read.to_json() == written


@given(messages)
def test_cached_values_are_not_part_of_a_message(message: Message) -> None:
    plain = Message.from_json(message.to_json())
    _ = message.text, message.tool_calls, message.tool_results
    assert message == plain
    assert message.to_json() == plain.to_json()


@pytest.mark.parametrize("data", LOOKALIKES)
def test_data_that_looks_like_one_of_our_types_stays_plain_data(data: dict[str, Any]) -> None:
    message = Message(
        "assistant",
        (ToolCall("1", "f", data), ToolResult("1", "ok", data), Opaque("v", data)),
        metadata={"data": data, "list": [data]},
    )
    read = Message.from_json(message.to_json())
    call, result, opaque = read.parts
    assert isinstance(call, ToolCall) and call.arguments == data
    assert isinstance(result, ToolResult) and result.result == data
    assert isinstance(opaque, Opaque) and opaque.block == data
    assert read.metadata == {"data": data, "list": [data]}


def test_message_json_has_the_specified_form() -> None:
    message = Message(
        "assistant",
        (Text("Let me see."), ToolCall("c1", "look", {"at": "it"}), Thinking("Hm", "sig")),
        id="m1",
        created_at=7,
        metadata={"k": 1},
    )
    assert message.to_json() == (
        b'{"role":"assistant","parts":[{"type":"text","text":"Let me see."},'
        b'{"type":"tool_call","id":"c1","name":"look","arguments":{"at":"it"}},'
        b'{"type":"thinking","text":"Hm","signature":"sig"}],"id":"m1","created_at":7,"metadata":{"k":1}}'
    )


@pytest.mark.parametrize(
    ("written", "where"),
    [
        ('{"role":"boss","parts":[]}', r"\$\.role"),
        ('{"role":"user","parts":[{"type":"spell","text":"x"}]}', r"\$\.parts\[0\]"),
        ('{"role":"user","parts":[{"type":"text"}]}', r"\$\.parts\[0\]"),
        ('{"role":"user"}', "parts"),
    ],
)
def test_invalid_message_json_error_names_the_field(written: str, where: str) -> None:
    with pytest.raises(Exception, match=where):
        Message.from_json(written)


FROZEN: list[tuple[object, str]] = [
    (user("hi"), "role"),
    (user("hi"), "parts"),
    (Text("hi"), "text"),
    (ToolCall("1", "f", {}), "name"),
    (ToolResult("1", "ok", None), "status"),
    (Thinking("hm"), "signature"),
    (Image("image/png"), "data"),
    (File("a.pdf", "application/pdf"), "name"),
    (Opaque("v", {}), "vendor"),
]


@pytest.mark.parametrize(("value", "field"), FROZEN, ids=[f"{type(v).__name__}.{f}" for v, f in FROZEN])
def test_messages_and_parts_are_frozen(value: object, field: str) -> None:
    with pytest.raises(AttributeError):
        setattr(value, field, "other")


def test_helpers_make_messages_of_each_role() -> None:
    result = ToolResult("c1", "ok", 5)
    made = [
        user("Look: ", Image("image/png", url="http://x/y.png"), source="phone"),
        assistant("Well.", ToolCall("c1", "f", {})),
        system("Be brief."),
        tool_message(result),
    ]
    assert [(message.role, message.parts, message.metadata) for message in made] == [
        ("user", (Text("Look: "), Image("image/png", url="http://x/y.png")), {"source": "phone"}),
        ("assistant", (Text("Well."), ToolCall("c1", "f", {})), {}),
        ("system", (Text("Be brief."),), {}),
        ("tool", (result,), {}),
    ]


def test_every_part_has_its_type() -> None:
    every: list[Part] = [
        Text("a"),
        ToolCall("1", "f", {}),
        ToolResult("1", "ok", None),
        Thinking("t"),
        Image("image/png"),
        File("a", "text/plain"),
        Opaque("v", {}),
    ]
    assert [part.type for part in every] == [
        "text",
        "tool_call",
        "tool_result",
        "thinking",
        "image",
        "file",
        "opaque",
    ]


def test_text_calls_and_results_are_found_in_order() -> None:
    calls = (ToolCall("1", "f", {}), ToolCall("2", "g", {}))
    message = assistant("One ", Thinking("not this"), calls[0], "two", calls[1])
    assert message.text == "One two"
    assert message.tool_calls == calls
    results = (ToolResult("1", "ok", 1), ToolResult("2", "error", "no", "failed"))
    assert tool_message(*results).tool_results == results


def test_ordered_ids_are_unique_uuids_whose_beginning_is_the_time() -> None:
    before = time.time_ns() // 1_000_000
    ids = [uuid.UUID(new_ordered_id()) for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert {(id.version, id.variant) for id in ids} == {(7, uuid.RFC_4122)}
    times = [id.int >> 80 for id in ids]
    assert times == sorted(times) and before <= times[0] and times[-1] <= after
    assert len(set(ids)) == 1000


def test_each_message_has_a_unique_id_and_a_time() -> None:
    made = [user("same") for _ in range(1000)]
    assert len({message.id for message in made}) == 1000
    assert all(message.created_at > 1_700_000_000_000 for message in made)


def test_images_and_files_are_made_from_bytes() -> None:
    assert Image.of(b"\x89PNG") == Image("image/png", "iVBORw==")
    assert File.of(b"%PDF", "a.pdf") == File("a.pdf", "application/pdf", "JVBERg==")


@pytest.mark.parametrize(
    ("written", "kept"), [("\ud83d\ude00", "😀"), ("a\ud83d", "a\ufffd"), ("\ude00b", "\ufffdb"), ("ok", "ok")]
)
def test_lone_surrogates_are_replaced_in_messages(written: str, kept: str) -> None:
    assert user(written).text == kept
    assert Message.from_json(user(written).to_json()).text == kept


def test_with_text_keeps_the_other_parts() -> None:
    call = ToolCall("c1", "look", {})
    thought = Thinking("hm", "signed")
    message = assistant(thought, "One. ", call, "Two.", provider="x")
    changed = message.with_text("Other.")
    assert changed.parts == (thought, Text("Other."), call)
    assert (changed.id, changed.metadata, message.text) == (message.id, {"provider": "x"}, "One. Two.")
    assert assistant(call).with_text("New.").parts == (Text("New."), call)
    assert message.with_text("").parts == (thought, call)
