"""What a model wrote as a call's arguments, made into a call."""

import json

from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import ToolCall
from atlas_agents.core.text import clean


def as_written(value: object) -> str:
    """Arguments that came as a value, as the text they would have been: what is no JSON in it stays visible."""
    return json.dumps(value)


def finished_call(id: str, name: str, written: str, *, cut: bool) -> ToolCall:
    """The call, its arguments parsed once and strictly; what is no JSON object, or was cut off, is kept as it came."""
    written = clean(written)
    if cut:
        return ToolCall(id, name, {}, malformed=written)
    try:
        return ToolCall(id, name, parse_object(written) if written.strip() else {})
    except ValueError:
        return ToolCall(id, name, {}, malformed=written)
