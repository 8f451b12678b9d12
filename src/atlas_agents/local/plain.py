"""A conversation with tools as one without: what any chat template can carry, whatever model it belongs to.

The tools stand in the system prompt, each a line of JSON; a call is a line that the assistant said, and its result
one that the user said. So a model needs no template that knows of tools, and what it reads is the same for all.
"""

import json
from collections.abc import Iterable

import msgspec

from atlas_agents.core.messages import Message, Text
from atlas_agents.core.names import wire_name
from atlas_agents.core.specs import ToolSpec
from atlas_agents.providers.base import Request, encoded, spoken

_PERSON = "You are a helpful assistant."
_TOOLS = """\
You do not know live facts yourself; only the functions do. If a function can do what is asked, do not guess: \
reply with only one line of JSON and nothing else:
{"name": <function-name>, "arguments": <args-json-object>}
Otherwise (greetings, jokes, history, books, code), reply with a short normal sentence and no JSON."""
_TOLD = "Now answer my question with this result, in one short sentence."


def plain(request: Request, tools: Iterable[ToolSpec]) -> Request:
    """The same request, its tools and their calls and results written out. A broken history is refused, as always."""
    encoded(request.messages, "plain_bytes", lambda message: b"")
    shown = [f"\n{_line(tool)}" for tool in tools]
    system = request.system or _PERSON
    if shown:
        system = f"{system}\n\n# Functions{''.join(shown)}\n\n{_TOOLS}"
    messages: list[Message] = []
    for message in map(_in_words, request.messages):
        if messages and messages[-1].role == message.role:  # some templates refuse two of one role in a row
            message = Message(message.role, (*messages.pop().parts, Text("\n"), *message.parts))
        messages.append(message)
    return msgspec.structs.replace(request, messages=messages, system=system, tools=(), tool_choice="auto")


def _line(tool: ToolSpec) -> str:
    return _json({"name": wire_name(tool.name), "description": tool.description, "parameters": tool.parameters})


def _in_words(message: Message) -> Message:
    match message.role:
        case "tool":
            results = [f"The result is: {spoken(result)}\n" for result in message.tool_results]
            return Message("user", (Text("".join([*results, _TOLD])),))
        case "assistant":
            calls = [
                call.malformed or _json({"name": wire_name(call.name), "arguments": call.arguments})
                for call in message.tool_calls
            ]
            return Message("assistant", (Text("\n".join([part for part in (message.text, *calls) if part])),))
        case _:
            return message


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
