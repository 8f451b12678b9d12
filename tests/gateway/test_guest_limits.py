"""A user with the scope `write` cannot use models, files or work of the gateway that are not meant for users."""

import json
from pathlib import Path

import pytest
from gateway_client import connect_client, serve_gateway

from atlas_agents import Agent, Atlas
from atlas_agents.core.paths import Environment
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, says

GUEST = "guest-0123456789abcdefghijklmnop"


def write_tokens(home: Path) -> None:
    entry = {"token": GUEST, "scopes": ["read", "write", "approve"]}
    (home / "tokens.json").write_text(json.dumps({"guest": entry}))


def atlas_with_keys() -> Atlas:
    """An Atlas with a key for OpenAI, whose agent uses another model."""
    registry = Registry(Environment({"OPENAI_API_KEY": "sk-canary-0123456789abcdef"}, dotenv=None))
    registry.register("shop", lambda environment: Scripted(*[says("Hi.")] * 9))
    return Atlas([Agent("assistant", model="shop/small")], registry=registry, store=MemoryStore())


@pytest.mark.parametrize(
    "model",
    [
        *("openai/gpt-5.2", "shop/large", "openai/", "nobody/x", "openai", ""),
        *("local//etc/passwd", "local//etc/nothing.gguf", "local/~/.ssh/id_rsa", "local/smollm2-135m"),
    ],
)
async def test_user_can_choose_only_models_that_are_offered(model: str, tmp_path: Path) -> None:
    write_tokens(tmp_path)
    async with (
        serve_gateway(tmp_path, atlas_with_keys()) as gateway,
        connect_client(gateway, GUEST) as guest,
    ):
        answer = await guest.request("chat.send", sessionKey="main", message="Hi", model=model)
        assert answer["error"]["data"]["kind"] == "FORBIDDEN"
        assert answer["error"]["message"].endswith("this token may choose only these models: shop/small")
        assert (await guest.get("sessions.list"))["sessions"] == []


async def test_user_can_choose_the_models_of_agents_and_of_the_settings(tmp_path: Path) -> None:
    write_tokens(tmp_path)
    async with (
        serve_gateway(tmp_path, atlas_with_keys(), allowed_models=("shop/large", "openai/gpt-5.2")) as gateway,
        connect_client(gateway, GUEST) as guest,
    ):
        listed = [each["id"] for each in (await guest.get("models.list"))["models"]]
        assert sorted(listed) == ["openai/gpt-5.2", "shop/large", "shop/small"]
        for model in ("shop/small", "shop/large"):
            await guest.get("chat.send", sessionKey="main", message="Hi", model=model)
            await guest.until("chat.final")


async def test_owner_can_choose_any_model(tmp_path: Path) -> None:
    async with serve_gateway(tmp_path, atlas_with_keys()) as gateway, connect_client(gateway) as owner:
        await owner.get("chat.send", sessionKey="main", message="Hi", model="shop/other")
        await owner.until("chat.final")
