"""CallFinder: tool calls in the text of a small model are found; all other text is shown at once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas_agents import ToolCall
from atlas_agents.local.prompting import CallFinder

NAMES = {"add", "get_weather"}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
FOUND = ToolCall("", "get_weather", {"city": "Paris"})


def find_call(pieces: list[str], *, cut: bool = False, names: set[str] = NAMES) -> tuple[str, ToolCall | None]:
    """Return the text that was shown, and the call."""
    finder = CallFinder(names)
    shown = "".join(finder.add(piece) for piece in pieces)
    rest, call = finder.end(cut=cut)
    return shown + rest, call


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, ""),
        (f"  {CALL}\n", ""),
        (f"```json\n{CALL}\n```", ""),
        (f"```\n{CALL}\n```\n", ""),
        (f"I will look.\n{CALL}", "I will look.\n"),
        (f"I will look.\n\n```json\n{CALL}\n```", "I will look.\n\n"),
        (f"{CALL} and that is all", ""),
        ('{"arguments": {"city": "Paris"}, "name": "get_weather"}', ""),
        ('{\n  "name": "get_weather",\n  "parameters": {"city": "Paris"}\n}', None),
    ],
)
def test_call_is_found_in_any_form(text: str, expected: str | None) -> None:
    shown, call = find_call([text])
    assert call == FOUND
    if expected is not None:
        assert shown.strip(" ") == expected


@pytest.mark.parametrize(
    "text",
    [
        "Hello!",
        'In JSON that is {"name": "get_weather", "arguments": {}} as you see.',
        '{"name": "launch_rockets", "arguments": {}}',
        '{"city": "Paris"}',
        "```python\nprint({})\n```\nDone.",
        "{ is an opening brace",
        "",
        '{"name": 7, "arguments": {}}',
        "\n\n{\n",
    ],
)
def test_other_text_stays_text(text: str) -> None:
    assert find_call([text]) == (text, None)
    assert find_call(list(text)) == (text, None)


@given(st.data())
def test_chunk_boundaries_do_not_matter(data: st.DataObject) -> None:
    texts = st.lists(st.sampled_from(["Hi", " ", "\n", "{", "}", "`", "```", '"name"', ":", CALL, '{"name": "add"']))
    text = "".join(data.draw(texts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert find_call(pieces) == find_call([text])
    assert find_call(pieces, names=set()) == (text, None)


def test_text_is_shown_while_it_streams() -> None:
    finder = CallFinder(NAMES)
    assert [finder.add(piece) for piece in ["The ", "```", "\n", "{", "x"]] == ["The ", "```", "\n", "", "{x"]


def test_malformed_call_keeps_its_text() -> None:
    broken = '{"name": "add", "arguments": {"a": 1, "b": }}'
    assert find_call([broken]) == ("", ToolCall("", "add", {}, malformed=broken))
    strange = json.dumps({"name": "add", "arguments": [1, 2]})
    assert find_call([strange]) == ("", ToolCall("", "add", {}, malformed="[1, 2]"))


def test_truncated_call_never_runs() -> None:
    _, call = find_call(['{"name": "add", "arguments": {"a": 1'], cut=True)
    assert call is not None and call.malformed is not None
    assert find_call([CALL], cut=True) == (CALL, None)
