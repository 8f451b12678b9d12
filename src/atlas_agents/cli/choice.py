"""Which model answers where a person says so on the command line, and why this one."""

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment
from atlas_agents.providers.demo import Demo
from atlas_agents.providers.failover import Route
from atlas_agents.providers.openai import OpenAIProvider
from atlas_agents.providers.registry import Registry
from atlas_agents.workspace.build import LOCAL_MODEL

ANTHROPIC = "anthropic/claude-opus-4-6"
OPENAI = "openai/gpt-5.2"


class Choice(msgspec.Struct, frozen=True):
    """The model that answers and the reason."""

    route: Route
    why: str

    @property
    def name(self) -> str:
        """As it is shown to a person; a server's first model has no name until it was asked for."""
        route = self.route
        if isinstance(route.provider, OpenAIProvider) and not (route.model or route.provider.model):
            return f"the first model of {route.provider.base_url}"
        return "a scripted demo" if self.is_demo else route.label

    @property
    def headline(self) -> str:
        """Who answers and why, as the first line of a conversation."""
        words = "a scripted demo answers, not a model" if self.is_demo else f"{self.name} answers"
        return f"{words} ({self.why})"

    @property
    def is_demo(self) -> bool:
        return isinstance(self.route.provider, Demo)

    @property
    def address(self) -> str:
        """Where the provider is reached."""
        return str(getattr(self.route.provider, "base_url", ""))


def choose(model: str | None, base_url: str | None, environment: Environment, *, pause: float) -> Choice:
    """What the options say, else what the settings say, else the local model. ConfigError when that cannot work."""
    if base_url:
        return _server(base_url, model, "--base-url", environment)
    if model == "demo":
        return Choice(Route(Demo(pause=pause)), "--model")
    if model:
        return _named(model, "--model", environment)
    if ref := environment.get("ATLAS_MODEL"):
        return _named(ref.strip(), "ATLAS_MODEL", environment)
    if environment.secret("ANTHROPIC_API_KEY"):
        return _named(ANTHROPIC, "ANTHROPIC_API_KEY is set", environment)
    if address := environment.get("OPENAI_BASE_URL"):
        return _server(address.strip(), None, "OPENAI_BASE_URL is set", environment)
    if environment.secret("OPENAI_API_KEY"):
        return _named(OPENAI, "OPENAI_API_KEY is set", environment)
    return _named(LOCAL_MODEL, "no key is set", environment)


def _named(ref: str, why: str, environment: Environment) -> Choice:
    try:
        return Choice(Registry(environment).route(ref), why)
    except ConfigError as error:
        raise type(error)(f"{why}: {error}") from error


def _server(address: str, model: str | None, why: str, environment: Environment) -> Choice:
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"{why}: an address begins with http:// or https://, and {address!r} does not")
    name = model.removeprefix("http/") if model else None
    return Choice(Route(OpenAIProvider(name, base_url=address, environment=environment, id="http")), why)
