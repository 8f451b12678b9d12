"""The protocol as JSON Schema: every params, result and event under its name."""

from typing import Any

import msgspec

from atlas_agents.gateway.protocol.events import HOUSE_EVENTS, RUN_EVENTS
from atlas_agents.gateway.protocol.faults import FaultShape
from atlas_agents.gateway.protocol.frames import PROTOCOL, Auth, Failure, Unwelcome, Welcome
from atlas_agents.gateway.protocol.methods import METHODS

_RUN_KEYS: dict[str, Any] = {"sessionKey": {"type": "string"}, "seq": {"type": "integer", "minimum": 1}}


def components(template: str = "#/$defs/{name}") -> tuple[dict[str, Any], dict[str, Any]]:
    """({type of ours: its schema}, {name: definition}), with references as the template says."""
    types: list[Any] = [Auth, Welcome, Unwelcome, Failure, FaultShape]
    types += [each for method in METHODS.values() for each in (method.params, method.result)]
    types += [*RUN_EVENTS.values(), *HOUSE_EVENTS.values()]
    unique = list(dict.fromkeys(types))
    schemas, definitions = msgspec.json.schema_components(unique, ref_template=template)
    for kind in RUN_EVENTS.values():
        definitions[kind.__name__]["properties"].update(_RUN_KEYS)
    return dict(zip([kind.__name__ for kind in unique], schemas, strict=True)), definitions


def json_schema() -> dict[str, Any]:
    """One document: `methods` with scope, params and result, `events` with their data, and all definitions."""
    schemas, definitions = components()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Atlas gateway protocol {PROTOCOL}",
        "methods": {
            method.name: {
                "purpose": method.purpose,
                "scope": method.scope,
                "params": schemas[method.params.__name__],
                "result": schemas[method.result.__name__],
            }
            for method in METHODS.values()
        },
        "events": {name: schemas[kind.__name__] for name, kind in {**RUN_EVENTS, **HOUSE_EVENTS}.items()},
        "$defs": definitions,
    }
