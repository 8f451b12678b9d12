"""From OpenAI's words to ours: the messages of a request, and what it asks of the turn."""

import re
from typing import Any

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import File, Image, Message, Part, Text, ToolCall, ToolResult, assistant, system, tool
from atlas_agents.core.messages import user as said_by_user
from atlas_agents.core.text import clean
from atlas_agents.engine.output import Output
from atlas_agents.engine.run import Wishes
from atlas_agents.gateway.openai.shapes import Asked, Call, ChatMessage, ContentPart
from atlas_agents.gateway.trouble import bad

_INLINE = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=\s]*)")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


def check(asked: Asked) -> None:
    """Refuse what would be answered otherwise than it was meant."""
    if asked.n is not None and asked.n != 1:
        raise bad("there is one answer: n must be 1", "n", "unsupported_value")
    for name, given in (("tools", asked.tools), ("functions", asked.functions)):
        if given:
            raise bad(
                f"an agent has tools of its own, which run here; it takes no others: leave {name} out",
                name,
                "unsupported_parameter",
            )
    if asked.messages[-1].role != "user":
        raise bad("the last message must be the user's", "messages")


def wishes_of(asked: Asked) -> Wishes:
    return Wishes(asked.temperature, asked.max_completion_tokens or asked.max_tokens)


def output_of(asked: Asked) -> dict[str, Any] | None:
    """The JSON schema that the answer must fit; None for free words."""
    wanted = asked.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return _ANY_OBJECT
    schema = wanted.json_schema.schema if wanted.json_schema else None
    if schema is None:
        raise bad("response_format needs json_schema with a schema", "response_format")
    try:
        Output(schema)
    except ConfigError as error:
        raise bad(str(error), "response_format") from error
    return schema


def conversation(messages: list[ChatMessage]) -> list[Message]:
    """The messages as ours; results that follow each other are one message."""
    found: list[Message] = []
    results: list[ToolResult] = []
    for place, message in enumerate(messages):
        if message.role == "tool":
            words = "".join([part.text for part in _parts(message, place) if isinstance(part, Text)])
            results.append(ToolResult(message.tool_call_id, "ok", words))
            continue
        if results:
            found.append(tool(*results))
            results = []
        found.append(read(message, place))
    return [*found, tool(*results)] if results else found


def read(message: ChatMessage, place: int) -> Message:
    """One message that is not a tool's."""
    parts = _parts(message, place)
    match message.role:
        case "assistant":
            return assistant(*parts, *[_call(call) for call in message.tool_calls or ()])
        case "user":
            if not parts:
                raise bad(f"messages[{place}] is empty", f"messages[{place}].content")
            return said_by_user(*parts)
        case _:
            return system(*parts)


def _parts(message: ChatMessage, place: int) -> list[Part]:
    if message.content is None or isinstance(message.content, str):
        return [Text(clean(message.content))] if message.content else []
    return [_part(part, f"messages[{place}].content[{at}]") for at, part in enumerate(message.content)]


def _part(part: ContentPart, where: str) -> Part:
    match part.type:
        case "text" | "refusal":
            return Text(clean(part.text or part.refusal))
        case "image_url" if part.image_url is not None:
            url = part.image_url.url
            inline = _INLINE.fullmatch(url)
            if inline is None and not url.startswith(("https://", "http://")):
                raise bad("an image is a data: or an https: address", where)
            return Image(inline[1], inline[2]) if inline else Image("", url=url)
        case "file" if part.file is not None and (inline := _INLINE.fullmatch(part.file.file_data)):
            return File(part.file.filename, inline[1], inline[2])
        case _:
            raise bad(f"content of the type {part.type!r} is not taken here", where, "unsupported_value")


def _call(call: Call) -> ToolCall:
    try:
        return ToolCall(call.id, call.function.name, parse_object(call.function.arguments or "{}"))
    except ValueError:
        return ToolCall(call.id, call.function.name, {}, malformed=call.function.arguments)
