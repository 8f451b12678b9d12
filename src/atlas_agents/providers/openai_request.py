"""A request as the bytes of a chat completion. A message is encoded once, however many requests carry it."""

from collections.abc import Mapping
from typing import Any

from atlas_agents.core.json import encode
from atlas_agents.core.memo import memo
from atlas_agents.core.messages import File, Image, Message, Text, ToolCall
from atlas_agents.core.names import wire_name
from atlas_agents.core.specs import ToolSpec
from atlas_agents.providers.base import Request, encoded, spoken
from atlas_agents.providers.far import LEFT_OUT, may_be_fetched

_CACHE = "openai_bytes"


def encode_request(request: Request, model: str, *, official: bool, extra: Mapping[str, Any] | None = None) -> bytes:
    """The body. Refuses (BrokenHistory) a history in which a call and its result are apart.

    `extra` is for a server that takes more than OpenAI does; what the request says goes before it.
    """
    messages = encoded(request.messages, _CACHE, _encode)
    if request.system:
        messages.insert(0, encode({"role": "system", "content": request.system}))
    parts = [
        b'{"model":',
        encode(model),
        b',"stream":true,"stream_options":{"include_usage":true},"messages":[',
        b",".join(messages),
        b"]",
    ]
    if request.tools:
        parts += [b',"tools":[', b",".join([_cached_tool(tool) for tool in request.tools]), b"]"]
    if settings := {**(extra or {}), **_settings(request, official)}:
        parts += [b",", encode(settings)[1:-1]]
    parts.append(b"}")
    return b"".join(parts)


def _settings(request: Request, official: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if request.temperature is not None:
        found["temperature"] = request.temperature
    if request.max_tokens is not None:
        found["max_completion_tokens" if official else "max_tokens"] = request.max_tokens
    if request.stop:
        found["stop"] = list(request.stop)
    if request.tools and request.tool_choice != "auto":
        named = {"type": "function", "function": {"name": wire_name(request.tool_choice)}}
        found["tool_choice"] = request.tool_choice if request.tool_choice in ("none", "required") else named
    if request.output:
        schema = {"name": request.output.name, "schema": request.output.schema}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    return found


def _cached_tool(tool: ToolSpec) -> bytes:
    found: bytes | None = getattr(tool, _CACHE, None)
    if found is None:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        found = memo(tool)[_CACHE] = encode({"type": "function", "function": function})
    return found


def _encode(message: Message) -> bytes:
    return b",".join([encode(shape) for shape in _shapes(message)])


def _shapes(message: Message) -> list[dict[str, Any]]:
    """One message of ours as none, one or (tool results) several of theirs."""
    match message.role:
        case "tool":
            return [
                {"role": "tool", "tool_call_id": wire_name(result.call_id), "content": spoken(result)}
                for result in message.tool_results
            ]
        case "assistant":
            shape: dict[str, Any] = {"role": "assistant", "content": message.text or None}
            if message.tool_calls:
                shape["tool_calls"] = [_call(call) for call in message.tool_calls]
            return [shape] if message.text or message.tool_calls else []
        case role:
            return [{"role": role, "content": _content(message)}]


def _call(call: ToolCall) -> dict[str, Any]:
    written = {"malformed": call.malformed} if call.malformed is not None else call.arguments
    function = {"name": wire_name(call.name), "arguments": encode(written).decode()}
    return {"id": wire_name(call.id), "type": "function", "function": function}


def _content(message: Message) -> str | list[dict[str, Any]]:
    if all(isinstance(part, Text) for part in message.parts):
        return message.text
    found: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text(text):
                found.append({"type": "text", "text": text})
            case Image(url=url) if url and not may_be_fetched(url):
                found.append({"type": "text", "text": LEFT_OUT})
            case Image(media_type, data, url):
                found.append({"type": "image_url", "image_url": {"url": url or f"data:{media_type};base64,{data}"}})
            case File(name, media_type, data, _):
                file = {"filename": name, "file_data": f"data:{media_type};base64,{data}"}
                found.append({"type": "file", "file": file})
            case _:
                pass
    return found
