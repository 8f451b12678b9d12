"""A request as the bytes of Anthropic's Messages. A message is encoded once, however many requests carry it."""

from typing import Any

from atlas_agents.core.json import encode
from atlas_agents.core.memo import memo
from atlas_agents.core.messages import File, Image, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from atlas_agents.core.names import wire_name
from atlas_agents.core.specs import ToolSpec
from atlas_agents.providers.base import Request, encoded, spoken
from atlas_agents.providers.far import LEFT_OUT, may_be_fetched

_CACHE = "anthropic_bytes"
_MAX_TOKENS = 8192


def encode_request(request: Request, model: str) -> bytes:
    """The body. Refuses (BrokenHistory) a history in which a call and its result are apart."""
    messages = encoded(request.messages, _CACHE, _encode)
    parts = [
        b'{"model":',
        encode(model),
        b',"stream":true,"messages":[',
        b",".join(messages),
        b"],",
        encode(_settings(request))[1:-1],
    ]
    if request.tools:
        parts += [b',"tools":[', b",".join([_cached_tool(tool) for tool in request.tools]), b"]"]
    parts.append(b"}")
    return b"".join(parts)


def _settings(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = {"max_tokens": request.max_tokens or _MAX_TOKENS}
    if request.system:
        found["system"] = request.system
    if request.temperature is not None:
        found["temperature"] = request.temperature
    if request.stop:
        found["stop_sequences"] = list(request.stop)
    if request.tools and request.tool_choice != "auto":
        found["tool_choice"] = _choice(request.tool_choice)
    if request.output:
        found["output_config"] = {"format": {"type": "json_schema", "schema": request.output.schema}}
    return found


def _choice(choice: str) -> dict[str, str]:
    match choice:
        case "none":
            return {"type": "none"}
        case "required":
            return {"type": "any"}
        case name:
            return {"type": "tool", "name": wire_name(name)}


def _cached_tool(tool: ToolSpec) -> bytes:
    found: bytes | None = getattr(tool, _CACHE, None)
    if found is None:
        shape = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        found = memo(tool)[_CACHE] = encode(shape)
    return found


def _encode(message: Message) -> bytes:
    blocks = [block for part in message.parts if (block := _block(part)) is not None]
    if message.role == "system":  # in mid-conversation they know no system message
        blocks = [{"type": "text", "text": f"<system>\n{message.text}\n</system>"}]
    role = "assistant" if message.role == "assistant" else "user"
    return encode({"role": role, "content": blocks}) if blocks else b""


def _block(part: Part) -> dict[str, Any] | None:
    """One part as a block; None for what this vendor must not see (again)."""
    match part:
        case Text(text):
            return {"type": "text", "text": text} if text.strip() else None
        case ToolCall(id, name, arguments, malformed):
            written = arguments if malformed is None else {"malformed": malformed}
            return {"type": "tool_use", "id": wire_name(id), "name": wire_name(name), "input": written}
        case ToolResult(call_id, status, _):
            block = {"type": "tool_result", "tool_use_id": wire_name(call_id), "content": spoken(part)}
            return block if status == "ok" else {**block, "is_error": True}
        case Thinking(text, signature):  # an unsigned thought would be refused
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case Image(url=url) | File(url=url) if url and not may_be_fetched(url):
            return {"type": "text", "text": LEFT_OUT}
        case Image(media_type, data, url):
            source = {"type": "url", "url": url} if url else _base64(media_type, data)
            return {"type": "image", "source": source}
        case File(name, media_type, data, url):
            source = {"type": "url", "url": url} if url else _base64(media_type, data)
            return {"type": "document", "source": source, "title": name}
        case Opaque(vendor, block):
            return block if vendor == "anthropic" else None


def _base64(media_type: str, data: str) -> dict[str, str]:
    return {"type": "base64", "media_type": media_type, "data": data}
