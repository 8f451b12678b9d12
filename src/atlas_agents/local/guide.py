"""What holds a small model to its form: a grammar in which an answer is words or one call that fits its schema.

The grammar is llguidance's, which takes a JSON schema as it is. One line, `{"name": …, "arguments": …}`, is a call.
"""

import json
import re
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.core.names import wire_name
from atlas_agents.core.specs import ToolSpec
from atlas_agents.local.models import Manner
from atlas_agents.providers.base import Request

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
