"""A call in what a small model said is found however it was dressed up; all other words are shown, and at once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas_agents import ToolCall
from atlas_agents.local.prompting import CallFinder

NAMES = {"add", "get_weather"}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
FOUND = ToolCall("", "get_weather", {"city": "Paris"})


def heard(pieces: list[str], *, cut: bool = False, names: set[str] = NAMES) -> tuple[str, ToolCall | None]:
    """All the words that were shown, and the call."""
    finder = CallFinder(names)
    words = "".join(finder.add(piece) for piece in pieces)
    rest, call = finder.end(cut=cut)
    return words + rest, call


@pytest.mark.parametrize(
    ("said", "words"),
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
def test_a_call_is_found_in_whatever_dress(said: str, words: str | None) -> None:
    shown, call = heard([said])
    assert call == FOUND
    if words is not None:
        assert shown.strip(" ") == words


@pytest.mark.parametrize(
    "said",
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
def test_other_words_stay_words(said: str) -> None:
    assert heard([said]) == (said, None)
    assert heard(list(said)) == (said, None)


@given(st.data())
def test_how_the_words_are_cut_up_does_not_matter(data: st.DataObject) -> None:
    texts = st.lists(st.sampled_from(["Hi", " ", "\n", "{", "}", "`", "```", '"name"', ":", CALL, '{"name": "add"']))
    said = "".join(data.draw(texts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)))))
    pieces = [said[start:end] for start, end in zip([0, *cuts], [*cuts, len(said)], strict=True)]
    assert heard(pieces) == heard([said])
    assert heard(pieces, names=set()) == (said, None)


def test_words_are_shown_while_they_come() -> None:
    finder = CallFinder(NAMES)
    assert [finder.add(piece) for piece in ["The ", "```", "\n", "{", "x"]] == ["The ", "```", "\n", "", "{x"]


def test_a_call_that_is_no_json_is_kept_as_it_came() -> None:
    broken = '{"name": "add", "arguments": {"a": 1, "b": }}'
    assert heard([broken]) == ("", ToolCall("", "add", {}, malformed=broken))
    strange = json.dumps({"name": "add", "arguments": [1, 2]})
    assert heard([strange]) == ("", ToolCall("", "add", {}, malformed="[1, 2]"))


def test_a_call_that_was_cut_off_is_never_a_call_to_run() -> None:
    _, call = heard(['{"name": "add", "arguments": {"a": 1'], cut=True)
    assert call is not None and call.malformed is not None
    assert heard([CALL], cut=True) == (CALL, None)
