"""Extreme values in the parameters of every method get an answer that names the problem, never INTERNAL."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, serve_gateway
from msgspec import inspect

from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.protocol.methods import METHODS
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, in_memory_atlas, says

INTEGERS = [0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308, True]
STRINGS = [
    *("0001-01-01", "9999-12-31", "2024-02-30", "2024-13-01", "0000-00-00", "9999-12-31\n", "\u0662024-01-01"),
    *("", "0", "-1", "9" * 19, "9" * 20, "9" * 200, "\x00", "\n", "\u0661\u0662", "1\n", "a" * 5000, "' OR 1=1;--"),
    *("main", "* * * * *", "0 0 30 2 *", "@yearly", "UTC", "../../x", "/etc"),
]
SKIPPED = {"tokens.rotate"}
"""Methods that end the connection."""


def values(kind: Any) -> list[Any]:
    match kind:
        case inspect.Metadata(type=inner):
            return values(inner)
        case inspect.UnionType(types=types):
            return [value for each in types for value in values(each)]
        case inspect.IntType() | inspect.FloatType():
            return INTEGERS
        case inspect.StrType():
            return STRINGS
        case inspect.DictType(value_type=inner):
            return [{"main": value} for value in values(inner)] + [{"n": 2**64}, {"\x00": "x"}]
        case inspect.AnyType():
            return [2**64, "\x00"]
        case _:
            return []


def valid(kind: Any) -> Any:
    """Return a value of the type."""
    match kind:
        case inspect.Metadata(type=inner):
            return valid(inner)
        case inspect.UnionType(types=types):
            return valid(types[0])
        case inspect.LiteralType(values=given):
            return given[0]
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.DictType():
            return {}
        case _:
            return "main"


def requests(name: str) -> Generator[dict[str, Any]]:
    """Yield parameters in which one field has an extreme value and the other required ones are valid."""
    info = inspect.type_info(METHODS[name].params)
    assert isinstance(info, inspect.StructType)
    required = {field.encode_name: valid(field.type) for field in info.fields if field.required}
    for field in info.fields:
        for value in values(field.type):
            yield {**required, field.encode_name: value}


@pytest.mark.parametrize("share", range(3))
async def test_extreme_value_is_never_an_internal_error(share: int, tmp_path: Path) -> None:
    store = MemoryStore()
    atlas = in_memory_atlas(Scripted(*[says("Hi.")] * 300), store=store)
    services = GatewayServices(KnowledgeBase(store))
    async with serve_gateway(tmp_path, atlas, services=services) as gateway, connect_client(gateway) as client:
        await client.get("chat.send", sessionKey="main", message="Hi")
        await client.until("chat.final")
        for method in [name for name in METHODS if name not in SKIPPED][share::3]:
            for params in requests(method):
                answer = await client.request(method, **params)
                assert answer.get("error", {}).get("data", {}).get("kind") != "INTERNAL", (method, params)
