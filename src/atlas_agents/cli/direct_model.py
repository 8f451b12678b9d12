"""Direct model: a model named on the command line, its demo tools, and a gateway for it alone."""

import random
import secrets
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import Field

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.app.model_setup import apply_stored_keys, read_stored_keys
from atlas_agents.app.tools import current_time
from atlas_agents.client import GatewayAddress
from atlas_agents.config.settings import REDACTED, redact_url
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment, Secret, home
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.providers.demo import Demo
from atlas_agents.providers.failover import Route
from atlas_agents.providers.openai import OpenAIProvider
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.tools.tool import tool
from atlas_agents.workspace.build import LOCAL_MODEL

_ANTHROPIC_MODEL = "anthropic/claude-opus-4-6"
_OPENAI_MODEL = "openai/gpt-5.2"
_GOOGLE_MODEL = "google/gemini-3.8-flash"
_SYSTEM_PROMPT = "You talk with a person in a terminal. Be brief. Use a tool when it helps."


class ModelChoice(msgspec.Struct, frozen=True):
    """The model that answers, and the option or variable that chose it."""

    route: Route
    reason: str

    @property
    def name(self) -> str:
        """The model's name; the first model of a server has none until the server was asked."""
        route = self.route
        if isinstance(route.provider, OpenAIProvider) and not (route.model or route.provider.model):
            return f"the first model of {self.url}"
        return "a scripted demo, not a model" if isinstance(route.provider, Demo) else route.label

    @property
    def headline(self) -> str:
        """The first line of a conversation."""
        return f"using {self.name} ({self.reason})"

    @property
    def url(self) -> str:
        """The address of the provider, without a password."""
        url = str(getattr(self.route.provider, "base_url", ""))
        return redact_url(url, REDACTED) if url else ""


def choose_model(model: str | None, base_url: str | None) -> ModelChoice:
    """Choose by the options, then by the environment, then the local model. Raises ConfigError if it cannot work."""
    environment = Environment()
    if base_url:
        return _server(base_url, model, "--base-url", environment)
    if model:
        return _named(model, "--model", environment)
    if ref := environment.get("ATLAS_MODEL"):
        return _named(ref.strip(), "ATLAS_MODEL", environment)
    if environment.secret("ANTHROPIC_API_KEY"):
        return _named(_ANTHROPIC_MODEL, "ANTHROPIC_API_KEY is set", environment)
    if url := environment.get("OPENAI_BASE_URL"):
        return _server(url.strip(), None, "OPENAI_BASE_URL is set", environment)
    if environment.secret("OPENAI_API_KEY"):
        return _named(_OPENAI_MODEL, "OPENAI_API_KEY is set", environment)
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        if environment.secret(name):
            return _named(_GOOGLE_MODEL, f"{name} is set", environment)
    return _named(LOCAL_MODEL, "no API key is set", environment)


def _named(ref: str, reason: str, environment: Environment) -> ModelChoice:
    registry = Registry(environment)
    apply_stored_keys(registry, read_stored_keys(home(environment)))
    try:
        return ModelChoice(registry.route(ref), reason)
    except ConfigError as error:
        raise type(error)(f"{reason}: {error}") from error


def _server(url: str, model: str | None, reason: str, environment: Environment) -> ModelChoice:
    if not url.startswith(("http://", "https://")):
        shown = redact_url(url, REDACTED) if "@" in url else url
        raise ConfigError(f"{reason}: invalid URL {shown!r}: expected http:// or https://")
    name = model.removeprefix("http/") if model else None
    return ModelChoice(Route(OpenAIProvider(name, base_url=url, environment=environment, id="http")), reason)


@asynccontextmanager
async def direct_gateway(
    choice: ModelChoice, system: str | None, *, with_tools: bool
) -> AsyncGenerator[GatewayAddress, None]:
    """Serve one agent for a model from memory; nothing is written to the home folder."""
    agent = Agent(
        "assistant",
        model=choice.route,
        system_prompt=_SYSTEM_PROMPT if system is None else system,
        tools=(current_time.named("now"), roll_dice, add) if with_tools else (),
    )
    token = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="atlas-") as folder:
        async with Atlas(agents=[agent], store=MemoryStore()) as atlas:
            gateway = Gateway(atlas, GatewaySettings(home=Path(folder), port=0, token=Secret(token)))
            async with gateway.running():
                yield GatewayAddress(f"http://127.0.0.1:{gateway.port}", token)


@tool(effect="pure")
async def roll_dice(sides: Annotated[int, Field(ge=2, le=1_000_000)] = 6) -> int:
    """Roll one die.

    Args:
        sides: The number of sides.
    """
    return random.randint(1, sides)


@tool(effect="pure")
async def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b
