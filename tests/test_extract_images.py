"""Images in tool results are sent as images to models with vision, and never as text."""

from typing import Any

import msgspec
import pytest

from atlas_agents import Image, Request, ToolCall, ToolResult, assistant, user
from atlas_agents.core.messages import extract_images
from atlas_agents.core.messages import tool as answered
from atlas_agents.providers import anthropic, openai

PLOT = msgspec.to_builtins(Image("image/png", "aGk="))
RESULT = {"printed": "x", "plots": [PLOT, {"type": "image", "mimeType": "image/webp", "data": "aGk="}]}
NOTED = {"printed": "x", "plots": ["(image/png, 3 bytes)", "(image/webp, 3 bytes)"]}


def request(result: Any) -> Request:
    call = ToolCall("c1", "plot", {})
    return Request(messages=[user("plot"), assistant(call), answered(ToolResult("c1", "ok", result))])


def test_images_are_found_anywhere_in_a_result() -> None:
    assert extract_images(RESULT) == (NOTED, [Image("image/png", "aGk="), Image("image/webp", "aGk=")])
    assert extract_images(PLOT) == ("(image/png, 3 bytes)", [Image("image/png", "aGk=")])


@pytest.mark.parametrize(
    "value", [None, 1, "x", [1], {"type": "image"}, {"type": "image", "media_type": 3, "data": "x"}]
)
def test_other_values_are_unchanged(value: Any) -> None:
    assert extract_images(value) == (value, [])


def test_anthropic_gets_the_images_after_the_text() -> None:
    body = msgspec.json.decode(anthropic.encode_request(request(RESULT), "m"))
    words, *shown = body["messages"][-1]["content"][0]["content"]
    assert (words["type"], msgspec.json.decode(words["text"])) == ("text", NOTED)
    assert [each["source"] for each in shown] == [
        {"type": "base64", "media_type": "image/png", "data": "aGk="},
        {"type": "base64", "media_type": "image/webp", "data": "aGk="},
    ]


def test_openai_gets_a_note_for_each_image_and_the_images_in_a_user_message() -> None:
    body = msgspec.json.decode(openai.encode_request(request(RESULT), "m"))
    *_, results, images = body["messages"]
    assert msgspec.json.decode(results["content"]) == NOTED
    assert [part["type"] for part in images["content"]] == ["text", "image_url", "image_url"]
