"""What holds a small model to its form: a grammar in which an answer is words or one call that fits its schema.

The grammar is llguidance's, which takes a JSON schema as it is. One line, `{"name": …, "arguments": …}`, is a call.
"""

import json
from typing import Any

from atlas_agents.core.names import wire_name
from atlas_agents.core.specs import ToolSpec
from atlas_agents.providers.base import Request

_OPENING = '{"'
_STEADY = {"temperature": 0.0, "repeat_penalty": 1.0}  # a call repeats words of the prompt, and should
_WORDS = r"/[^{`\s]([^{]|\{[^\x22])*/"
_STRICT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}


def offered(request: Request) -> tuple[ToolSpec, ...]:
    """The tools that may be called in this reply."""
    if request.tool_choice == "none":
        return ()
    if request.tool_choice in ("auto", "required"):
        return request.tools
    return tuple(tool for tool in request.tools if request.tool_choice in (tool.name, wire_name(tool.name)))


def grammar_of(request: Request) -> str | None:
    """The form of the reply; None where it is free."""
    tools = offered(request)
    if not tools:
        return None
    forms = ["call"]
    rules = ["call: " + " | ".join(f"call_{place}" for place in range(len(tools)))]
    for place, tool in enumerate(tools):
        opening = f'{{"name": "{tool.name}", "arguments": '
        rules.append(f'call_{place}: {json.dumps(opening)} arguments_{place} "}}"')
        rules.append(f"arguments_{place}: {_schema(tool.parameters)}")
    if request.tool_choice == "auto":
        forms.append("answer")
        rules.append(f"answer: {_schema(request.output.schema) if request.output else _WORDS}")
    return "\n".join(["%llguidance {}", f"start: {' | '.join(forms)}", *rules])


def guidance(request: Request, lean: float) -> dict[str, Any]:
    """What is said to the server beside the messages: the tools for the template, the grammar, and the lean.

    Once a result is there, words are due: a model that leans to calls would call for ever.
    """
    grammar = grammar_of(request)
    if grammar is None:
        return {}
    found: dict[str, Any] = {
        "grammar": grammar,
        "chat_template_kwargs": {
            "functions": [
                {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
                for tool in offered(request)
            ]
        },
    }
    if request.messages[-1].role != "tool":
        found |= _STEADY
        if lean and request.tool_choice == "auto":
            found["logit_bias"] = [[_OPENING, lean]]
    return found


def _schema(schema: dict[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _STRICT})
