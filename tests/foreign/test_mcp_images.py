"""Images of MCP servers: passed on if models accept them and the result has space, described otherwise."""

import base64
from typing import Any

import mcp_types as types
import pytest
from mcp.server.mcpserver import Image as ServerImage
from mcp.server.mcpserver import MCPServer

from atlas_agents import Image
from atlas_agents.core.errors import ToolFailed
from atlas_agents.mcp.client import convert_call_result
from atlas_agents.tools.execute import MAX_RESULT, to_json_value

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
gallery = MCPServer("gallery")


@gallery.tool(structured_output=False)
def picture() -> list[Any]:
    """Return a picture and text."""
    return ["The logo:", ServerImage(data=PNG, format="png")]


def image(content: bytes, kind: str = "image/png") -> types.ImageContent:
    return types.ImageContent(type="image", data=base64.b64encode(content).decode(), mime_type=kind)


def convert(*blocks: Any, is_error: bool = False) -> Any:
    return convert_call_result(types.CallToolResult(content=list(blocks), is_error=is_error))


async def test_picture_of_the_official_server_is_an_image_of_ours() -> None:
    result = await gallery.call_tool("picture", {})
    assert isinstance(result, types.CallToolResult)
    assert convert_call_result(result) == ["The logo:", Image.of(PNG)]


def test_type_is_that_of_the_content_and_not_what_the_server_declares() -> None:
    assert convert(image(PNG, "image/gif")) == [Image.of(PNG, "image/png")]
    assert convert(image(SVG, "image/png")) == (
        f"(image/png, {len(SVG)} bytes, not passed on: expected a PNG, JPEG, GIF or WebP image)"
    )
    broken = types.ImageContent(type="image", data="%%%", mime_type="image/\u202epng")
    assert "U+202E" in convert(broken) and "not passed on: invalid Base64" in convert(broken)


def test_image_of_a_resource_is_an_image() -> None:
    blob = types.BlobResourceContents(
        uri="file:///logo.png", mime_type="image/png", blob=base64.b64encode(PNG).decode()
    )
    assert convert(types.EmbeddedResource(type="resource", resource=blob)) == [Image.of(PNG)]


def test_image_that_does_not_fit_is_described() -> None:
    large = PNG + bytes(MAX_RESULT // 2)
    text = types.TextContent(type="text", text="Two screenshots:")
    first, second, third = convert(text, image(large), image(large))
    assert (first, second) == ("Two screenshots:", Image.of(large))
    assert third == f"(image/png, {len(large):,} bytes, not passed on: too large for a result)"
    assert to_json_value([first, second, third])[1]["type"] == "image", "the result is not refused for its size"


def test_error_with_an_image_has_no_image_data() -> None:
    with pytest.raises(ToolFailed) as failed:
        convert(types.TextContent(type="text", text="Out of ink."), image(PNG), is_error=True)
    assert str(failed.value) == f"Out of ink.\n(image/png, {len(PNG)} bytes)"
