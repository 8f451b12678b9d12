"""Images in tool results: sent to models with vision, replaced by a note for others."""

import base64
import io
import json
from typing import Any

import msgspec
from PIL import Image as pillow

from atlas_agents import File, Image, ToolCall, ToolResult, assistant, tool_message, user
from atlas_agents.core.messages import extract_images
from atlas_agents.providers import anthropic, openai
from atlas_agents.providers.adaptation import IMAGES
from atlas_agents.providers.base import Request, render_result_text
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

PICTURE = {"type": "image", "name": "plot.png", "media_type": "image/png", "data": "aGVsbG8h"}
RESULT = ToolResult("call_1", "ok", {"value": "42", "images": [PICTURE]})
TALK = [user("plot"), assistant(ToolCall("call_1", "draw", {})), tool_message(RESULT)]


def _sent(body: Any) -> dict[str, Any]:
    return json.loads(body)["messages"][-1]


def test_anthropic_gets_images_of_results() -> None:
    (block,) = _sent(anthropic.encode_request(Request(TALK), "claude"))["content"]
    assert block["content"] == [
        {"type": "text", "text": '{"value":"42","images":["(plot.png, image/png, 6 bytes)"]}'},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8h"}},
    ]


def test_openai_gets_images_of_results_in_a_user_message() -> None:
    message = _sent(openai.encode_request(Request(TALK), "gpt"))
    assert message["role"] == "user"
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8h"}}


def test_note_replaces_an_image_that_cannot_be_sent() -> None:
    request = Request(TALK, without=frozenset((IMAGES,)))
    sent = str(_sent(openai.encode_request(request, "gpt")))
    assert "aGVsbG8h" not in sent and "[not attached: the image in this result; the model does not accept" in sent
    assert render_result_text(RESULT) == '{"value":"42","images":["(plot.png, image/png, 6 bytes)"]}'


def test_result_can_be_an_image() -> None:
    found = {"type": "image", "media_type": "image/jpeg", "data": "aGVsbG8h"}
    assert extract_images(found) == ("(image/jpeg, 6 bytes)", [Image("image/jpeg", "aGVsbG8h")])


def test_images_are_found_anywhere_and_also_as_mcp_writes_them() -> None:
    theirs = {"type": "image", "mimeType": "image/webp", "data": "aGk="}
    noted = {"printed": "x", "plots": ["(plot.png, image/png, 6 bytes)", "(image/webp, 3 bytes)"]}
    rest, found = extract_images({"printed": "x", "plots": [PICTURE, theirs]})
    assert rest == noted and [(each.media_type, each.data) for each in found] == [
        ("image/png", "aGVsbG8h"),
        ("image/webp", "aGk="),
    ]


async def test_image_of_pillow_as_a_result_reaches_a_model_with_vision() -> None:
    def draw(color: str) -> pillow.Image:
        """Draw a small square."""
        return pillow.new("RGB", (4, 3), color)

    model = Scripted(calls("draw", color="red"), says("A red square."))
    async with in_memory_atlas(model, tools=[draw]) as atlas:
        await atlas.ask("Draw a red square.")
    (block,) = _sent(anthropic.encode_request(Request(model.requests[-1].messages), "claude"))["content"]
    (shown,) = [each for each in block["content"] if each["type"] == "image"]
    with pillow.open(io.BytesIO(base64.b64decode(shown["source"]["data"]))) as found:
        assert (found.size, found.getpixel((0, 0)), shown["source"]["media_type"]) == ((4, 3), (255, 0, 0), "image/png")


def test_model_reads_text_files_and_a_note_for_others() -> None:
    files = [File.of("ü".encode(), "a.txt", "text/plain"), File.of(b"hello!", "a.pdf")]
    result = ToolResult("call_1", "ok", [msgspec.to_builtins(file) for file in files])
    assert render_result_text(result) == (
        '[{"type":"file","name":"a.txt","media_type":"text/plain","data":"ü"},"(a.pdf, application/pdf, 6 bytes)"]'
    )


def test_value_that_only_resembles_an_image_is_unchanged() -> None:
    for given in (
        None,
        1,
        "x",
        {"type": "image"},
        {"type": "image", "media_type": 3, "data": "x"},
        {"type": "image", "media_type": "text/html", "data": "aGVsbG8h"},
        {"type": "image", "media_type": "image/png", "data": ""},
        {"type": "picture", "media_type": "image/png", "data": "aGVsbG8h"},
        ["image", 5, None, {"a": ["b"]}],
    ):
        assert extract_images(given) == (given, [])


def test_images_are_limited_in_number_and_depth() -> None:
    rest, pictures = extract_images([PICTURE] * 20)
    assert len(pictures) == 12 and rest == ["(plot.png, image/png, 6 bytes)"] * 20
    deep: Any = PICTURE
    for _ in range(10):  # pyrefly: ignore[non-convergent-recursion] - deeper each time
        deep = [deep]
    assert extract_images(deep) == (deep, [])
