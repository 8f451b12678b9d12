"""What a server answered, as a tool's result: words where there are words, and never raw bytes."""

import base64
from collections.abc import Sequence
from typing import Any

import mcp_types as types

from atlas_agents.core.errors import ToolFailed


def of_call(result: types.CallToolResult) -> Any:
    """The result of a call; ToolFailed with the server's words if it says that it failed."""
    pieces = [_piece(block) for block in result.content]
    words = "\n".join(piece if isinstance(piece, str) else str(piece) for piece in pieces)
    if result.is_error:
        raise ToolFailed(words or "the server says that it failed, and not why")
    if not pieces and result.structured_content is not None:
        return result.structured_content
    return words if all(isinstance(piece, str) for piece in pieces) else pieces


def of_resource(result: types.ReadResourceResult) -> Any:
    pieces = [_content(each) for each in result.contents]
    return pieces[0] if len(pieces) == 1 else pieces


def of_prompt(result: types.GetPromptResult) -> Any:
    return [{"role": each.role, "content": _piece(each.content)} for each in result.messages]


def plain(values: Sequence[Any], *names: str) -> list[dict[str, Any]]:
    """The fields of these names, of things that a server lists."""
    found: list[dict[str, Any]] = []
    for value in values:
        given = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        found.append({name: given[name] for name in names if name in given})
    return found


def _piece(block: Any) -> Any:
    match block:
        case types.TextContent(text=text):
            return text
        case types.ImageContent(data=data, mime_type=kind) | types.AudioContent(data=data, mime_type=kind):
            return {"type": block.type, "mimeType": kind, "bytes": _size(data)}
        case types.EmbeddedResource(resource=resource):
            return _content(resource)
        case types.ResourceLink(uri=uri, name=name):
            return {"type": "resource_link", "uri": str(uri), "name": name}
        case _:
            return {"type": str(getattr(block, "type", "unknown"))}


def _content(resource: Any) -> Any:
    if isinstance(resource, types.TextResourceContents):
        return {"uri": str(resource.uri), "text": resource.text}
    return {"uri": str(resource.uri), "mimeType": resource.mime_type, "bytes": _size(resource.blob)}


def _size(data: str) -> int:
    try:
        return len(base64.b64decode(data))
    except ValueError:
        return len(data)
