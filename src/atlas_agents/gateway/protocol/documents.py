"""Generated protocol documents: JSON Schema, AsyncAPI and TypeScript types.

As a program it prints one of them: `python -m atlas_agents.gateway.protocol.documents schema|asyncapi|typescript`.
"""

import inspect
import json
import sys
from typing import Any, cast

import msgspec

from atlas_agents.core import package_version
from atlas_agents.gateway.protocol import frames
from atlas_agents.gateway.protocol.events import RUN_EVENTS, SERVER_EVENTS
from atlas_agents.gateway.protocol.methods import METHODS, Method

FORMS = ("schema", "asyncapi", "typescript")
_RUN_KEYS: dict[str, Any] = {"sessionKey": {"type": "string"}, "seq": {"type": "integer", "minimum": 1}}
_CHANNEL = "#/channels/gateway"
_ID: dict[str, Any] = {"type": ["string", "number"]}
_HEAD = "// Generated from the protocol models by `atlas protocol typescript`. Do not edit.\n"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def components(template: str = "#/$defs/{name}") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schema of each type and all definitions by name, with references that follow the template."""
    types: list[Any] = [
        frames.AuthFrame,
        frames.WelcomeFrame,
        frames.AuthErrorFrame,
        frames.ErrorFrame,
        frames.ErrorPayload,
    ]
    types += [each for method in METHODS.values() for each in (method.params, method.result)]
    types += [*RUN_EVENTS.values(), *SERVER_EVENTS.values()]
    unique = list(dict.fromkeys(types))
    schemas, definitions = msgspec.json.schema_components(unique, ref_template=template)
    for definition in definitions.values():
        if "description" in definition:  # Python 3.13 removes the indentation of docstrings, older versions do not
            definition["description"] = inspect.cleandoc(definition["description"])
    _drop_discriminators(definitions)
    for kind in RUN_EVENTS.values():
        definitions[kind.__name__]["properties"].update(_RUN_KEYS)
    return dict(zip([kind.__name__ for kind in unique], schemas, strict=True)), definitions


def _drop_discriminators(schema: Any) -> None:
    """Remove the keyword that only OpenAPI knows; each member of such a union names its kind by a constant anyway."""
    if isinstance(schema, dict):
        found = cast(dict[str, Any], schema)
        if isinstance(found.get("discriminator"), dict):
            del found["discriminator"]
        for each in found.values():
            _drop_discriminators(each)
    elif isinstance(schema, list):
        for each in cast(list[Any], schema):
            _drop_discriminators(each)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema document: methods with scope, params and result, events, and all definitions."""
    schemas, definitions = components()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Atlas gateway protocol {frames.PROTOCOL}",
        "methods": {
            method.name: {
                "purpose": method.purpose,
                "scope": method.scope,
                "params": schemas[method.params.__name__],
                "result": schemas[method.result.__name__],
            }
            for method in METHODS.values()
        },
        "events": {name: schemas[kind.__name__] for name, kind in {**RUN_EVENTS, **SERVER_EVENTS}.items()},
        "$defs": definitions,
    }


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI document."""
    _, definitions = components("#/components/schemas/{name}")
    messages = {
        "auth": _message("The first frame: authentication.", _ref(frames.AuthFrame.__name__)),
        "welcome": _message("The token was accepted.", _ref(frames.WelcomeFrame.__name__)),
        "unwelcome": _message("The token was rejected; the socket is closed.", _ref(frames.AuthErrorFrame.__name__)),
        "failure": _message("A request failed.", _ref(frames.ErrorFrame.__name__)),
    }
    operations: dict[str, Any] = {
        "auth": _operation("receive", "auth", replies=("welcome", "unwelcome")),
    }
    for method in METHODS.values():
        messages |= _messages_of(method)
        operations[method.name] = _operation(
            "receive", f"{method.name}.request", replies=(f"{method.name}.answer", "failure")
        )
    for name, kind in {**RUN_EVENTS, **SERVER_EVENTS}.items():
        frame = _object(event={"const": name}, data=_ref(kind.__name__))
        messages[name] = _message(inspect.getdoc(kind) or "", frame)
        operations[name] = _operation("send", name)
    return {
        "asyncapi": "3.1.0",
        "info": {
            "title": "Atlas gateway",
            "version": package_version(),
            "description": "JSON text frames over one WebSocket. The first frame is `auth`, within 10 seconds.",
        },
        "servers": {"local": {"host": "127.0.0.1:18789", "protocol": "ws"}},
        "defaultContentType": "application/json",
        "channels": {"gateway": {"address": "/", "messages": messages}},
        "operations": operations,
        "components": {"schemas": definitions},
    }


def _messages_of(method: Method) -> dict[str, Any]:
    ask = _object(id=_ID, method={"const": method.name}, params=_ref(method.params.__name__))
    answer = _object(id=_ID, result=_ref(method.result.__name__))
    return {
        f"{method.name}.request": _message(f"{method.purpose} Requires the scope {method.scope}.", ask),
        f"{method.name}.answer": _message(f"The result of {method.name}.", answer),
    }


def _operation(action: str, message: str, replies: tuple[str, ...] = ()) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "action": action,
        "channel": {"$ref": _CHANNEL},
        "messages": [{"$ref": f"{_CHANNEL}/messages/{message}"}],
    }
    if replies:
        operation["reply"] = {
            "channel": {"$ref": _CHANNEL},
            "messages": [{"$ref": f"{_CHANNEL}/messages/{reply}"} for reply in replies],
        }
    return operation


def _message(summary: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "payload": payload}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def typescript() -> str:
    """Return TypeScript interfaces for every type, and the maps `Methods` and `Events`."""
    _, definitions = components()
    lines = [_HEAD]
    for name, schema in definitions.items():
        lines.append(_interface(name, schema))
    methods = [
        f"  {_name(method.name)}: {{ params: {method.params.__name__}; result: {method.result.__name__} }};"
        for method in METHODS.values()
    ]
    events = [f"  {_name(name)}: {kind.__name__};" for name, kind in {**RUN_EVENTS, **SERVER_EVENTS}.items()]
    lines.append("export interface Methods {\n" + "\n".join(methods) + "\n}\n")
    lines.append("export interface Events {\n" + "\n".join(events) + "\n}\n")
    return "\n".join(lines)


def _interface(name: str, schema: dict[str, Any]) -> str:
    description = f"/** {schema['description']} */\n" if "description" in schema else ""
    if schema.get("type") != "object":
        return f"{description}export type {name} = {_type(schema)};\n"
    required = set(cast(list[str], schema.get("required", [])))
    properties = cast(dict[str, Any], schema.get("properties", {}))
    fields = [
        f"  {_name(field)}{'' if field in required else '?'}: {_type(value)};" for field, value in properties.items()
    ]
    return f"{description}export interface {name} {{\n" + "".join(f"{field}\n" for field in fields) + "}\n"


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


def document(form: str) -> str:
    """Return the protocol in one of the three formats."""
    if form == "typescript":
        return typescript()
    made = json_schema() if form == "schema" else asyncapi()
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in FORMS:
        sys.stderr.write(f"usage: expected one of: {', '.join(FORMS)}\n")
        return 2
    sys.stdout.write(document(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
