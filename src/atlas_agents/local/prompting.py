"""Tool calls of small models: select and describe tools, constrain replies with a grammar, and find calls in text."""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import Message, Text, ToolCall, ToolSpec
from atlas_agents.core.text import wire_name
from atlas_agents.local.models import PromptStyle
from atlas_agents.providers.base import Request, encode_messages, render_result_text

Form: TypeAlias = Literal["call", "text", "either"]

_MAX_TOOLS = 4
_CALL_OPENING = '{"'
_TEXT_PATTERN = r"/[^{`\s](.|\n)*/"
_SHORT_TEXT_PATTERN = r"/[^{`\s][^\n]{0,300}/"
_BRIEF_STOPS = [". ", "\n"]
_DETERMINISTIC = {"temperature": 0.0, "repeat_penalty": 1.0}  # so that it repeats words of the prompt exactly
_STRICT_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
_STOP_WORDS = frozenset(
    ("the", "and", "for", "with", "that", "this", "from", "are", "you", "what", "who", "tell", "get", "two")
)
_DEFAULT_SYSTEM = "You are a helpful assistant."
_TOOL_INSTRUCTIONS = """\
You do not know live facts yourself; only the functions do. If a function can do what is asked, do not guess: \
reply with only one line of JSON and nothing else:
{"name": <function-name>, "arguments": <args-json-object>}
Otherwise (greetings, jokes, history, books, code), reply with a short normal sentence and no JSON."""
_RESULT_INSTRUCTIONS = "Now answer my question with this result, in one short sentence."
_OPENINGS = tuple(fence + brace for fence in ("", "```", "```json") for brace in ('{"name":', '{"arguments":'))
_FENCE = re.compile(r"\A\s*```(?:json)?\s*|\s*```\s*\Z")
_TOOL_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
_LINE_START = re.compile(r"(?:\A|\n)[ \t]*(?=[{`])")


def callable_tools(request: Request) -> tuple[ToolSpec, ...]:
    """Return the tools that this reply may call."""
    if request.tool_choice == "none":
        return ()
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if request.tool_choice in (tool.name, wire_name(tool.name)))


def select_tools(request: Request, style: PromptStyle) -> Request:
    """Limit the tools of a `brief` model to the few that share most words with the last user message.

    Such a model cannot tell more tools apart, and reading them would take many seconds.
    """
    if not style.brief or len(request.tools) <= _MAX_TOOLS or request.tool_choice != "auto":
        return request
    stems = _stems(next((each.text for each in reversed(request.messages) if each.role == "user"), ""))
    scores = [len(stems & _stems(f"{tool.name} {tool.description}")) for tool in request.tools]
    best = sorted([index for index, count in enumerate(scores) if count], key=lambda index: -scores[index])[:_MAX_TOOLS]
    return msgspec.structs.replace(request, tools=tuple(request.tools[index] for index in sorted(best)))


def choose_form(request: Request, style: PromptStyle) -> Form:
    """Choose the form of the reply. A `brief` model must answer a tool result with text, or it repeats the call."""
    if request.tool_choice != "auto":
        return "call"
    return "text" if style.brief and request.messages[-1].role == "tool" else "either"


def decoding_options(request: Request, style: PromptStyle, form: Form) -> dict[str, Any]:
    """Return the server options for a reply: the grammar, and the sampling options that fit it."""
    options: dict[str, Any] = {"grammar": grammar(request, form, brief=style.brief)}
    if form == "call" or request.messages[-1].role == "tool":
        options |= _DETERMINISTIC
    if form == "text" and style.brief:
        options["stop"] = _BRIEF_STOPS
    return options


def first_token_options(request: Request, style: PromptStyle) -> dict[str, Any]:
    """Return the options for asking the model for one token, with a bias towards opening a call.

    The request for the answer itself has no bias, which would affect every token.
    """
    call_bias = style.call_bias if _mentions_tool(request) else style.call_bias / 3
    return decoding_options(request, style, "either") | _DETERMINISTIC | {"logit_bias": [[_CALL_OPENING, call_bias]]}


def grammar(request: Request, form: Form, *, brief: bool = False) -> str:
    """Return the llguidance grammar of the reply."""
    rules: list[str] = []
    alternatives: list[str] = []
    if form != "text":
        alternatives.append("call")
        rules += _call_rules(callable_tools(request))
    if form != "call":
        alternatives.append("answer")
        pattern = _SHORT_TEXT_PATTERN if brief else _TEXT_PATTERN
        rules.append(f"answer: {_json_rule(request.output.schema) if request.output else pattern}")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(alternatives)}", *rules])


def _call_rules(tools: tuple[ToolSpec, ...]) -> list[str]:
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        opening = f'{{"name": "{wire_name(tool.name)}", "arguments": '
        rules.append(f'call_{index}: {json.dumps(opening)} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: {_json_rule({**tool.parameters, 'type': 'object'})}")
    return rules


def _json_rule(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _STRICT_JSON})


def _mentions_tool(request: Request) -> bool:
    """Return whether the last message shares a word with a tool: a greeting gets less bias than a question."""
    stems = _stems(request.messages[-1].text)
    return any(stems & _stems(f"{tool.name} {tool.description}") for tool in request.tools)


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z]{3,}", text.lower().replace("_", " "))} - _STOP_WORDS


def flatten_tools(request: Request, tools: Iterable[ToolSpec]) -> Request:
    """Return the request with tools, calls and results as text. An invalid history raises an error, as in any
    provider."""
    encode_messages(request.messages, "plain_bytes", lambda message: b"")
    shown = [f"\n{_describe_tool(tool)}" for tool in tools]
    system = request.system or _DEFAULT_SYSTEM
    if shown:
        system = f"{system}\n\n# Functions{''.join(shown)}\n\n{_TOOL_INSTRUCTIONS}"
    messages: list[Message] = []
    for message in map(_flatten_message, request.messages):
        if messages and messages[-1].role == message.role:  # some templates reject two messages of one role in a row
            message = Message(message.role, (*messages.pop().parts, Text("\n"), *message.parts))
        messages.append(message)
    return msgspec.structs.replace(request, messages=messages, system=system, tools=(), tool_choice="auto")


def _describe_tool(tool: ToolSpec) -> str:
    return _json({"name": wire_name(tool.name), "description": tool.description, "parameters": tool.parameters})


def _flatten_message(message: Message) -> Message:
    match message.role:
        case "tool":
            results = [f"The result is: {render_result_text(result)}\n" for result in message.tool_results]
            return Message("user", (Text("".join([*results, _RESULT_INSTRUCTIONS])),))
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


class CallFinder:
    """Passes text through as it streams, and holds back text that may be a tool call until that is certain."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._line = "\n"  # the part of the current line that was passed on; a call starts a line
        self._held = ""

    def add(self, text: str) -> str:
        """Add streamed text and return the text that can be shown now."""
        if not self._names:
            return text
        self._held += text
        shown = ""
        while self._held:
            found = _LINE_START.search(self._line + self._held)
            start = max(0, found.end() - len(self._line)) if found else len(self._held)
            shown += self._release(start)
            if not self._held or _may_be_call(self._held):
                break
            shown += self._release(1)
        return shown

    def end(self, *, cut: bool) -> tuple[str, ToolCall | None]:
        """Return the held-back text, as text or as a call. A truncated call never runs."""
        call = _parse_call(self._held, self._names, cut) if self._held else None
        return ("" if call else self._held), call

    def _release(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        self._line = (self._line + shown)[(self._line + shown).rfind("\n") :] if shown else self._line
        return shown


def _may_be_call(held: str) -> bool:
    start = "".join(held[:200].split())
    return any(start.startswith(opening) or opening.startswith(start) for opening in _OPENINGS)


def _parse_call(held: str, names: Collection[str], cut: bool) -> ToolCall | None:
    text = _FENCE.sub("", held)
    try:
        _, end = json.JSONDecoder().raw_decode(text)
        value = parse_object(text[:end])
    except ValueError:
        name_match = _TOOL_NAME.search(text)
        return ToolCall("", name_match[1], {}, malformed=text) if name_match and name_match[1] in names else None
    name = value.get("name")
    arguments: Any = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or name not in names or cut:
        return None
    if not isinstance(arguments, dict):
        return ToolCall("", name, {}, malformed=json.dumps(arguments))
    return ToolCall("", name, cast(dict[str, Any], arguments))
