"""Documents generated from the protocol: complete, and valid for every method and event."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest
from gateway_client import http, serve_gateway
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.routing import Route

from atlas_agents.gateway.asgi import ApiRoute
from atlas_agents.gateway.protocol.documents import asyncapi, json_schema, typescript
from atlas_agents.gateway.protocol.events import (
    PLAIN,
    RUN_EVENTS,
    SERVER_EVENTS,
    ChatDelta,
    ChatReset,
    encode_event,
    full_frame,
    plain_frames,
    read_event_name,
)
from atlas_agents.gateway.protocol.methods import METHODS
from atlas_agents.gateway.server import Gateway
from checks import TIMEOUT
from npm_packages import installed
from protocol_page import PAGE, filled

SPECS = Path(__file__).parent / "asyncapi_schema"


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = cast(dict[str, Any], value)
        here = {found["$ref"]} if isinstance(found.get("$ref"), str) else set[str]()
        return here.union(*map(references, found.values()))
    return set[str]().union(*map(references, cast(list[Any], value))) if isinstance(value, list) else set()


def resolve(document: Any, reference: str) -> Any:
    for step in reference.removeprefix("#/").split("/"):
        document = document[step]
    return document


@pytest.mark.parametrize("document", [json_schema(), asyncapi()], ids=["schema", "asyncapi"])
def test_every_reference_resolves(document: dict[str, Any]) -> None:
    for reference in references(document):
        assert resolve(document, reference)


def test_asyncapi_document_follows_the_official_schema() -> None:
    """Unions had the `discriminator` object of OpenAPI; in AsyncAPI it is a string."""
    document = asyncapi()
    schemas = installed("asyncapi-schema", SPECS) / "node_modules" / "@asyncapi" / "specs" / "schemas"
    official = json.loads((schemas / f"{document['asyncapi']}.json").read_text())
    check = jsonschema_rs.validator_for(official)
    assert [(error.message, error.instance_path) for error in check.iter_errors(document)] == []
    unknown = {**document, "operations": {"x": {"action": "say", "channel": {"$ref": "#/channels/x"}}}}
    assert not check.is_valid(unknown)


def test_every_params_and_result_is_a_valid_schema() -> None:
    document = json_schema()
    for entry in [*document["methods"].values()]:
        for side in ("params", "result"):
            jsonschema_rs.validator_for({**entry[side], "$defs": document["$defs"]})
    sent = {**document["methods"]["chat.send"]["params"], "$defs": document["$defs"]}
    check = jsonschema_rs.validator_for(sent)
    assert check.is_valid({"sessionKey": "main", "message": "hi"})
    assert not check.is_valid({"message": "hi"})


def test_documents_contain_every_method_and_event() -> None:
    operations, types = asyncapi()["operations"], typescript()
    for name in (*METHODS, *RUN_EVENTS, *SERVER_EVENTS):
        assert name in operations
        assert f'  "{name}": ' in types


@pytest.mark.parametrize("form", ["schema", "asyncapi", "typescript"])
def test_command_prints_a_document(form: str) -> None:
    command = [sys.executable, "-m", "atlas_agents.gateway.protocol.documents", form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert "chat.send" in done.stdout if form == "typescript" else json.loads(done.stdout)


def test_protocol_is_described_without_importing_the_server() -> None:
    ask = "import sys, atlas_agents.gateway.protocol.documents; print('uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert done.stdout.strip() == "False"


def test_event_is_stored_once_and_sent_in_two_profiles() -> None:
    body = encode_event(ChatDelta("r1", 'a "b"\n'))
    assert read_event_name(body) == "chat.delta"
    assert json.loads(full_frame(body, b'"s"', 7)) == {
        "event": "chat.delta",
        "data": {"runId": "r1", "text": 'a "b"\n', "sessionKey": "s", "seq": 7},
    }
    (frame,) = plain_frames("chat.delta", body)
    assert json.loads(frame) == {"event": "chat.delta", "data": {"runId": "r1", "text": 'a "b"\n'}}


def test_plain_profile_excludes_other_events() -> None:
    assert set(PLAIN) == {"chat.delta", "chat.reset", "chat.final", "chat.error", "exec.approval_request"}
    body = b'{"event":"tool.call","data":{"runId":"r"}}'
    assert plain_frames("tool.call", body) == ()


def test_plain_profile_repeats_kept_text_after_a_reset() -> None:
    frames = plain_frames("chat.reset", encode_event(ChatReset("r", 1, kept="Let me see. ")))
    assert [json.loads(frame) for frame in frames] == [
        {"event": "chat.reset", "data": {"runId": "r", "attempt": 1}},
        {"event": "chat.delta", "data": {"runId": "r", "text": "Let me see. "}},
    ]


def test_protocol_page_matches_the_models() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run `make texts`"


async def test_openapi_document_is_valid_and_has_every_route(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path) as gateway:
        code, answer = await http(gateway, "GET /openapi.json")
    document = json.loads(answer.partition("\r\n\r\n")[2])
    assert code == 200
    OpenAPIV31SpecValidator(document).validate()
    routes = [route for route in http_routes(gateway) if route.include_in_schema]
    expected = {
        (re.sub(r":\w+}", "}", route.path), method.lower()) for route in routes for method in route.methods or ()
    }
    found = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert found == {each for each in expected if each[1] != "head"} and ("/v1/responses/{id}/cancel", "post") in found
    assert all(isinstance(route, ApiRoute) for route in routes)  # each has its own description
    hidden = {route.path for route in http_routes(gateway) if not route.include_in_schema}
    assert hidden <= {"/artifact-frame", "/{path:path}", "/", "/welcome.js", "/consent.js", "/v1/{rest:path}"}
    created = document["paths"]["/v1/responses"]["post"]
    assert created["security"] == [{"bearer": ["read", "write"]}]
    assert created["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ResponseRequest")
    assert created["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}


def http_routes(gateway: Gateway) -> list[Route]:
    """Return the HTTP routes of a gateway."""
    app: Any = gateway
    return list(app._app._http.routes)
