"""The protocol as TypeScript types, for the page and for anyone who writes a client in that language."""

import json
from typing import Any, cast

from atlas_agents.gateway.protocol.events import HOUSE_EVENTS, RUN_EVENTS
from atlas_agents.gateway.protocol.methods import METHODS
from atlas_agents.gateway.protocol.schema import components

_HEAD = "// Made from the protocol's models by `atlas protocol typescript`; changes here are lost.\n"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def typescript() -> str:
    """Interfaces for every shape, and the two maps `Methods` and `Events`."""
    _, definitions = components()
    lines = [_HEAD]
    for name, schema in definitions.items():
        lines.append(_interface(name, schema))
    methods = [
        f"  {_name(method.name)}: {{ params: {method.params.__name__}; result: {method.result.__name__} }};"
        for method in METHODS.values()
    ]
    events = [f"  {_name(name)}: {kind.__name__};" for name, kind in {**RUN_EVENTS, **HOUSE_EVENTS}.items()]
    lines.append("export interface Methods {\n" + "\n".join(methods) + "\n}\n")
    lines.append("export interface Events {\n" + "\n".join(events) + "\n}\n")
    return "\n".join(lines)


def _interface(name: str, schema: dict[str, Any]) -> str:
    words = f"/** {schema['description']} */\n" if "description" in schema else ""
    if schema.get("type") != "object":
        return f"{words}export type {name} = {_type(schema)};\n"
    required = set(cast(list[str], schema.get("required", [])))
    properties = cast(dict[str, Any], schema.get("properties", {}))
    fields = [
        f"  {_name(field)}{'' if field in required else '?'}: {_type(value)};" for field, value in properties.items()
    ]
    return f"{words}export interface {name} {{\n" + "".join(f"{field}\n" for field in fields) + "}\n"


def _type(schema: dict[str, Any]) -> str:
    match schema:
        case {"$ref": str(ref)}:
            return ref.rpartition("/")[2]
        case {"anyOf": options}:
            return " | ".join(dict.fromkeys(_type(option) for option in options))
        case {"const": value}:
            return json.dumps(value)
        case {"enum": values}:
            return " | ".join(json.dumps(value) for value in values)
        case {"type": "array", "items": items} if items:
            return f"Array<{_type(items)}>"
        case {"type": "array"}:
            return "unknown[]"
        case {"type": "object", "additionalProperties": values} if values:
            return f"Record<string, {_type(values)}>"
        case {"type": "object"}:
            return "Record<string, unknown>"
        case {"type": str(kind)} if kind in _PLAIN:
            return _PLAIN[kind]
        case _:
            return "unknown"


def _name(field: str) -> str:
    return field if field.isidentifier() else json.dumps(field)
