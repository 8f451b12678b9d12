"""The documents made from the protocol's models: whole, and about every method and event."""

import json
import subprocess
import sys
from typing import Any, cast

import jsonschema_rs
import pytest

from atlas_agents.gateway.protocol.documents import asyncapi, json_schema, typescript
from atlas_agents.gateway.protocol.events import (
    PLAIN,
    RUN_EVENTS,
    SERVER_EVENTS,
    ChatDelta,
    encode_event,
    full_frame,
    plain_frame,
    read_event_name,
)
from atlas_agents.gateway.protocol.methods import METHODS
from protocol_page import PAGE, filled


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
def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for reference in references(document):
        assert resolve(document, reference)


def test_every_params_and_result_is_a_schema_that_can_be_used() -> None:
    document = json_schema()
    for entry in [*document["methods"].values()]:
        for side in ("params", "result"):
            jsonschema_rs.validator_for({**entry[side], "$defs": document["$defs"]})
    sent = {**document["methods"]["chat.send"]["params"], "$defs": document["$defs"]}
    check = jsonschema_rs.validator_for(sent)
    assert check.is_valid({"sessionKey": "main", "message": "hi"})
    assert not check.is_valid({"message": "hi"})


def test_the_documents_know_every_method_and_event() -> None:
    operations, types = asyncapi()["operations"], typescript()
    for name in (*METHODS, *RUN_EVENTS, *SERVER_EVENTS):
        assert name in operations
        assert f'  "{name}": ' in types


@pytest.mark.parametrize("form", ["schema", "asyncapi", "typescript"])
def test_a_document_is_written_by_a_command(form: str) -> None:
    command = [sys.executable, "-m", "atlas_agents.gateway.protocol", form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert "chat.send" in done.stdout if form == "typescript" else json.loads(done.stdout)


def test_the_protocol_can_be_described_without_a_server() -> None:
    ask = "import sys, atlas_agents.gateway.protocol.__main__; print('uvicorn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.strip() == "False"


def test_an_event_is_stored_once_and_sent_in_two_profiles() -> None:
    body = encode_event(ChatDelta("r1", 'a "b"\n'))
    assert read_event_name(body) == "chat.delta"
    assert json.loads(full_frame(body, b'"s"', 7)) == {
        "event": "chat.delta",
        "data": {"runId": "r1", "text": 'a "b"\n', "sessionKey": "s", "seq": 7},
    }
    assert json.loads(plain_frame("chat.delta", body) or b"") == {
        "event": "chat.delta",
        "data": {"runId": "r1", "text": 'a "b"\n'},
    }


def test_a_plain_client_hears_only_what_it_knows() -> None:
    assert set(PLAIN) == {"chat.delta", "chat.reset", "chat.final", "chat.error", "exec.approval_request"}
    body = b'{"event":"tool.call","data":{"runId":"r"}}'
    assert plain_frame("tool.call", body) is None


def test_the_page_says_what_the_models_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run `make texts`"
