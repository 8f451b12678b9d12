"""From what a model wrote as an action to a call, with as much good will as is safe: a guess is never a value."""

import re
from collections.abc import Sequence
from typing import Any, cast

from atlas_agents.core.messages import ToolCall
from atlas_agents.core.specs import ToolSpec
from atlas_agents.core.text import clean
from atlas_agents.providers.react.forgiving import read_object
from atlas_agents.providers.react.reader import NONE, Action

_FINISH = frozenset(("final answer", "finish", "answer", "final", "respond", "done"))
_INLINE = re.compile(r"([\w./-]+)\s*(?:\((.*)\)|\[(.*)\]|(\{.*\}))\s*\Z", re.DOTALL)
_FENCED = re.compile(r"\A\s*```[\w-]*\s*\n?(.*?)\n?\s*```.*\Z", re.DOTALL)
_OF_A_SCHEMA = frozenset(("type", "properties", "required", "additionalProperties", "title", "description", "$schema"))
_QUOTES = " \t\r\n`'\"*.:,<>"


def as_calls(actions: Sequence[Action], tools: Sequence[ToolSpec]) -> tuple[list[ToolCall], str | None]:
    """The calls that the model asks for; and, where an action is called `Final Answer`, that answer."""
    calls: list[ToolCall] = []
    for action in actions:
        name, written = _taken_apart(action, tools)
        known = name if any(tool.name == name for tool in tools) else ""
        if not known and action.is_none:
            continue
        if not known and name.lower().replace("_", " ") in _FINISH:
            return calls, None if calls else written.strip()
        calls.append(_call(name, written, tools))
    return calls, None


def _taken_apart(action: Action, tools: Sequence[ToolSpec]) -> tuple[str, str]:
    """Name and input; `search("cats")` and `search[cats]` have both in one."""
    line, _, below = action.name.strip().partition("\n")
    written = action.input if action.input.strip() else below
    if not written.strip() and (inline := _INLINE.match(line.strip("`* "))):
        line, written = inline[1], next(part for part in inline.groups()[1:] if part is not None)
    name = line.strip(_QUOTES).removeprefix("functions.")
    return _known_as(name, tools), _FENCED.sub(r"\1", written).strip()


def _known_as(name: str, tools: Sequence[ToolSpec]) -> str:
    """The tool's own spelling of a name that differs from it only in case, blanks and hyphens."""
    folded = {re.sub(r"[\s_-]+", "_", tool.name).lower(): tool.name for tool in tools}
    return folded.get(re.sub(r"[\s_-]+", "_", name).lower(), clean(name[:64]))


def _call(name: str, written: str, tools: Sequence[ToolSpec]) -> ToolCall:
    written = clean(written)
    if not written or written.lower() in NONE:
        return ToolCall("", name, {})
    tool = next((tool for tool in tools if tool.name == name), None)
    try:
        return ToolCall("", name, _unwrapped(read_object(written), tool))
    except ValueError:
        pass
    only = tool and _only_text(tool)
    if only and not written.lstrip().startswith(("{", "[")):
        return ToolCall("", name, {only: _unquoted(written)})
    return ToolCall("", name, {}, malformed=written)


def _unwrapped(given: dict[str, Any], tool: ToolSpec | None) -> dict[str, Any]:
    """The values out of an input that was written in the form of a schema, `{"type": "object", "properties": {…}}`."""
    inner = given.get("properties")
    if tool is None or not isinstance(inner, dict) or not given.keys() <= _OF_A_SCHEMA:
        return given
    if given.keys() & (tool.parameters.get("properties") or {}).keys():
        return given
    values = cast(dict[str, Any], inner)
    return given if any(isinstance(value, dict) for value in values.values()) else values


def _only_text(tool: ToolSpec) -> str | None:
    """The parameter that bare words can only be meant for."""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    wanted: list[str] = list(tool.parameters.get("required") or ()) or list(properties)
    if len(wanted) != 1 or not isinstance(properties.get(wanted[0]), dict):
        return None
    return wanted[0] if cast(dict[str, Any], properties[wanted[0]]).get("type") == "string" else None


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
