"""A conversation with tools as one in plain text, in the form that the model is to keep to."""

import json

import msgspec

from atlas_agents.core.memo import memo
from atlas_agents.core.messages import File, Image, Message, Part, Text, Thinking, ToolCall, ToolResult
from atlas_agents.core.names import wire_name
from atlas_agents.core.specs import ToolSpec
from atlas_agents.providers.base import Request, encoded, spoken
from atlas_agents.providers.react.shape import shape

_FORM = """\
You can use tools. Work in steps, and write each step in exactly this form:

Thought: what you think should be done next
Action: the name of one of the tools
Action Input: the tool's input, as a JSON object

Then stop. You are given the result as a line that begins with `Observation:`. Never write an observation yourself.
Go on in this way until you know enough, or at once if you need no tool. Then write:

Thought: why this is enough
Final Answer: your answer to the user

Tools:
{tools}"""
_ONE = "\n\nIn your next step you must use the tool {name}."
_ANY = "\n\nIn your next step you must use a tool."
_REPAIR = (
    "You wrote neither an Action nor a Final Answer. Go on with a line `Action:` and a line `Action Input:`, or with a "
    "line `Final Answer:` and your answer."
)
_STOP = "\nObservation:"
_MOST_STOPS = 4


def offered(request: Request) -> tuple[ToolSpec, ...]:
    """The tools that may be called in this reply."""
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if request.tool_choice in (tool.name, wire_name(tool.name)))


def as_text(request: Request) -> Request:
    """The same request without tools: they stand in the instructions, their calls and results in the messages."""
    encoded(request.messages, "react_checked", lambda message: b"")
    tools = offered(request)
    system, stop = request.system, request.stop
    if tools:
        form = _FORM.format(tools="\n".join(map(_described, tools)))
        if request.tool_choice != "auto":
            form += _ANY if request.tool_choice == "required" else _ONE.format(name=tools[0].name)
        system = f"{system}\n\n{form}" if system else form
        stop = (*stop[: _MOST_STOPS - 1], _STOP)
    messages = [_in_words(message) for message in request.messages]
    return msgspec.structs.replace(
        request, messages=messages, system=system, tools=(), tool_choice="auto", stop=stop, output=None
    )


def mended(request: Request, written: str) -> Request:
    """The request once more, after a reply that was neither an action nor an answer."""
    said = Message("assistant", (Text(written.strip() or "Thought:"),))
    return msgspec.structs.replace(
        request, messages=[*request.messages, said, Message("user", (Text(_REPAIR),))], stop=request.stop
    )


def _described(tool: ToolSpec) -> str:
    return f"- {tool.name}: {tool.description.strip()}\n  Action Input: {shape(tool.parameters)}"


def _in_words(message: Message) -> Message:
    """Worked out once per message, however many requests carry it."""
    if message.role in ("user", "system"):
        return message
    known: Message | None = memo(message).get("react_words")
    if known is None:
        role = "user" if message.role == "tool" else "assistant"
        known = memo(message)["react_words"] = msgspec.structs.replace(message, role=role, parts=_parts(message))
    return known


def _parts(message: Message) -> tuple[Part, ...]:
    lines: list[str] = []
    shown: list[Part] = []
    last = "" if message.tool_calls else "Final Answer: "
    for part in message.parts:
        match part:
            case Thinking(text) if text.strip():
                lines.append(f"Thought: {text.strip()}")
            case Text(text) if text.strip():
                lines.append(f"{last or 'Thought: '}{text.strip()}")
                last = last and "\n"
            case ToolCall():
                lines.append(f"Action: {part.name}\nAction Input: {_input(part)}")
            case ToolResult():
                lines.append(f"Observation: {spoken(part)}")
            case Image() | File():
                shown.append(part)
            case _:
                pass
    return (Text("\n".join(lines)), *shown)


def _input(call: ToolCall) -> str:
    return json.dumps(call.arguments, ensure_ascii=False) if call.malformed is None else call.malformed
