"""The protocol as an AsyncAPI 3 document: one channel, an operation per method, a message per event."""

from importlib.metadata import version
from typing import Any

from atlas_agents.gateway.protocol.events import HOUSE_EVENTS, RUN_EVENTS
from atlas_agents.gateway.protocol.methods import METHODS, Method
from atlas_agents.gateway.protocol.schema import components

_CHANNEL = "#/channels/gateway"
_ID: dict[str, Any] = {"type": ["string", "number"]}


def asyncapi() -> dict[str, Any]:
    """The whole document."""
    _, definitions = components("#/components/schemas/{name}")
    messages = {
        "auth": _message("The first frame.", _ref("Auth")),
        "welcome": _message("The token is right.", _ref("Welcome")),
        "unwelcome": _message("The token is wrong; the socket is closed.", _ref("Unwelcome")),
        "failure": _message("A request that has no result.", _ref("Failure")),
    }
    operations: dict[str, Any] = {
        "auth": _operation("receive", "auth", replies=("welcome", "unwelcome")),
    }
    for method in METHODS.values():
        messages |= _messages_of(method)
        operations[method.name] = _operation(
            "receive", f"{method.name}.request", replies=(f"{method.name}.answer", "failure")
        )
    for name, kind in {**RUN_EVENTS, **HOUSE_EVENTS}.items():
        frame = _object(event={"const": name}, data=_ref(kind.__name__))
        messages[name] = _message((kind.__doc__ or "").strip(), frame)
        operations[name] = _operation("send", name)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Atlas gateway",
            "version": version("atlas-agents"),
            "description": "JSON text frames over one WebSocket. The first frame is `auth`; within 10 seconds.",
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
        f"{method.name}.request": _message(f"{method.purpose} Needs the scope {method.scope}.", ask),
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
