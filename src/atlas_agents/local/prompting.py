"""Finding the call in what a model said: bare or fenced JSON that names a known tool. All other words are shown."""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import Message, Text, ToolCall, ToolSpec
from atlas_agents.core.text import wire_name
from atlas_agents.local.models import Manner
from atlas_agents.providers.base import Request, encode_messages, render_result_text

Form: TypeAlias = Literal["call", "words", "either"]

_FEW = 4
_OPENING = '{"'
_WORDS = r"/[^{`\s](.|\n)*/"
_FEW_WORDS = r"/[^{`\s][^\n]{0,300}/"
_ENOUGH = [". ", "\n"]
_STEADY = {"temperature": 0.0, "repeat_penalty": 1.0}  # it is to repeat words of the prompt
_STRICT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
_COMMON = frozenset(
    ("the", "and", "for", "with", "that", "this", "from", "are", "you", "what", "who", "tell", "get", "two")
)


def offered(request: Request) -> tuple[ToolSpec, ...]:
    """The tools that may be called in this reply."""
    if request.tool_choice == "none":
        return ()
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if request.tool_choice in (tool.name, wire_name(tool.name)))


def fitted(request: Request, manner: Manner) -> Request:
    """The request with as many tools as such a model can tell apart: a `brief` one is shown the few that share the most
    words with what was said last. All of them would also take it many seconds to read."""
    if not manner.brief or len(request.tools) <= _FEW or request.tool_choice != "auto":
        return request
    said = _stems(next((each.text for each in reversed(request.messages) if each.role == "user"), ""))
    shared = [len(said & _stems(f"{tool.name} {tool.description}")) for tool in request.tools]
    best = sorted([place for place, count in enumerate(shared) if count], key=lambda place: -shared[place])[:_FEW]
    return msgspec.structs.replace(request, tools=tuple(request.tools[place] for place in sorted(best)))


def form_of(request: Request, manner: Manner) -> Form:
    """What may come. A `brief` model that has a result must put it into words: else it makes the same call for ever."""
    if request.tool_choice != "auto":
        return "call"
    return "words" if manner.brief and request.messages[-1].role == "tool" else "either"


def guidance(request: Request, manner: Manner, form: Form) -> dict[str, Any]:
    """What is said to the server beside the messages: the grammar, and how to choose among the words it allows."""
    found: dict[str, Any] = {"grammar": grammar(request, form, brief=manner.brief)}
    if form == "call" or request.messages[-1].role == "tool":
        found |= _STEADY
    if form == "words" and manner.brief:
        found["stop"] = _ENOUGH
    return found


def first_word(request: Request, manner: Manner) -> dict[str, Any]:
    """How to ask such a model whether it would call: for one token, leaning towards that which opens a call.

    Not in the request for the answer itself: there the lean would act on every word.
    """
    lean = manner.lean if _touches_a_tool(request) else manner.lean / 3
    return guidance(request, manner, "either") | _STEADY | {"logit_bias": [[_OPENING, lean]]}


def grammar(request: Request, form: Form, *, brief: bool = False) -> str:
    """The form of the reply."""
    rules: list[str] = []
    forms: list[str] = []
    if form != "words":
        forms.append("call")
        rules += _calls(offered(request))
    if form != "call":
        forms.append("answer")
        words = _FEW_WORDS if brief else _WORDS
        rules.append(f"answer: {_schema(request.output.schema) if request.output else words}")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(forms)}", *rules])


def _calls(tools: tuple[ToolSpec, ...]) -> list[str]:
    rules = ["call: " + " | ".join(f"call_{place}" for place in range(len(tools)))]
    for place, tool in enumerate(tools):
        opening = f'{{"name": "{wire_name(tool.name)}", "arguments": '
        rules.append(f'call_{place}: {json.dumps(opening)} arguments_{place} "}}"')
        rules.append(f"arguments_{place}: {_schema({**tool.parameters, 'type': 'object'})}")
    return rules


def _schema(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _STRICT})


def _touches_a_tool(request: Request) -> bool:
    """Whether what was said last shares a word with a tool: a greeting is not leant on as hard as a question."""
    said = _stems(request.messages[-1].text)
    return any(said & _stems(f"{tool.name} {tool.description}") for tool in request.tools)


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z]{3,}", text.lower().replace("_", " "))} - _COMMON


_PERSON = "You are a helpful assistant."
_TOOLS = """\
You do not know live facts yourself; only the functions do. If a function can do what is asked, do not guess: \
reply with only one line of JSON and nothing else:
{"name": <function-name>, "arguments": <args-json-object>}
Otherwise (greetings, jokes, history, books, code), reply with a short normal sentence and no JSON."""
_TOLD = "Now answer my question with this result, in one short sentence."


def plain(request: Request, tools: Iterable[ToolSpec]) -> Request:
    """The same request, its tools and their calls and results written out. A broken history is refused, as always."""
    encode_messages(request.messages, "plain_bytes", lambda message: b"")
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
            results = [f"The result is: {render_result_text(result)}\n" for result in message.tool_results]
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


_OPENINGS = tuple(fence + brace for fence in ("", "```", "```json") for brace in ('{"name":', '{"arguments":'))
_FENCE = re.compile(r"\A\s*```(?:json)?\s*|\s*```\s*\Z")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
_AT_LINE = re.compile(r"(?:\A|\n)[ \t]*(?=[{`])")


class CallFinder:
    """Lets words through as they come, and holds back what may become a call, until that is certain."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._line = "\n"  # what was shown of the line under way; a call begins one
        self._held = ""

    def add(self, text: str) -> str:
        """The words that can be shown now."""
        if not self._names:
            return text
        self._held += text
        shown = ""
        while self._held:
            found = _AT_LINE.search(self._line + self._held)
            start = max(0, found.end() - len(self._line)) if found else len(self._held)
            shown += self._let(start)
            if not self._held or _may_be_call(self._held):
                break
            shown += self._let(1)
        return shown

    def end(self, *, cut: bool) -> tuple[str, ToolCall | None]:
        """What was held back: as words, or as the call that it is. One that was cut off is never run."""
        call = _call(self._held, self._names, cut) if self._held else None
        return ("" if call else self._held), call

    def _let(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        self._line = (self._line + shown)[(self._line + shown).rfind("\n") :] if shown else self._line
        return shown


def _may_be_call(held: str) -> bool:
    start = "".join(held[:200].split())
    return any(start.startswith(opening) or opening.startswith(start) for opening in _OPENINGS)


def _call(held: str, names: Collection[str], cut: bool) -> ToolCall | None:
    text = _FENCE.sub("", held)
    try:
        _, end = json.JSONDecoder().raw_decode(text)
        value = parse_object(text[:end])
    except ValueError:
        named = _NAME.search(text)
        return ToolCall("", named[1], {}, malformed=text) if named and named[1] in names else None
    name = value.get("name")
    arguments: Any = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or name not in names or cut:
        return None
    if not isinstance(arguments, dict):
        return ToolCall("", name, {}, malformed=json.dumps(arguments))
    return ToolCall("", name, cast(dict[str, Any], arguments))
