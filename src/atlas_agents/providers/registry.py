"""From a model ref to the provider behind it: one exists when its key is set."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import BadModelRef, ConfigError, MissingKey
from atlas_agents.core.plugins import Plugins
from atlas_agents.providers.anthropic import AnthropicProvider
from atlas_agents.providers.balanced import Balanced
from atlas_agents.providers.base import Provider, Request, keys_of
from atlas_agents.providers.failover import Route
from atlas_agents.providers.function import FunctionProvider
from atlas_agents.providers.nearby import NEARBY, NearbyProvider
from atlas_agents.providers.openai import OpenAIProvider
from atlas_agents.providers.pace import NO_LIMIT, Ledger, Pace
from atlas_agents.providers.several import each_by_itself

Model: TypeAlias = str | Provider | Route | Callable[[Request], Any]
"""What an agent can be given as its model: a ref, a provider (with a model), or a callable that answers like one."""

Maker: TypeAlias = Callable[[Environment], Provider]
"""Makes a provider from the environment; raises MissingKey where something must be set first."""


class ModelRef(msgspec.Struct, frozen=True):
    """`provider/model`, taken apart."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def parse_model_ref(ref: str) -> ModelRef:
    """`"anthropic/claude-…"` → ModelRef; the model itself may contain further slashes."""
    provider, slash, model = ref.partition("/")
    if not slash or not provider.strip() or not model.strip():
        raise BadModelRef(f"{ref!r} is no model ref: write provider/model, for example anthropic/claude-opus-4-6")
    return ModelRef(provider.strip(), model.strip())


class Registry:
    """Makes each provider once, from the environment."""

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        paces: Mapping[str, Pace] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """`paces` says by the ids of providers how fast one key may be used; a shared `ledger` has it hold for all
        processes together."""
        self._environment = environment or Environment()
        self._paces = paces or {}
        self._ledger = ledger
        self._makers = dict(_MAKERS)
        self._made: dict[str, Provider] = {}

    def register(self, id: str, maker: Maker) -> None:
        """Let refs `id/…` lead to what `maker` makes; one that is known is replaced."""
        if not id.strip() or "/" in id:
            raise ConfigError(f"{id!r} cannot be a provider's id: it stands before the / of a ref")
        self._makers[id] = maker
        self._made.pop(id, None)

    def load_plugins(self, plugins: Plugins | None = None) -> None:
        """Let refs `name/…` lead to the providers of installed plugins; a built-in one is never replaced."""
        (plugins or Plugins()).load("providers", self._take)

    def _take(self, name: str, thing: Any) -> None:
        if name in self._makers:
            raise ConfigError(f"there is a provider {name!r} already")
        if not callable(thing):
            raise ConfigError(f"a plugin gives a function that makes a provider from the environment, not {thing!r}")
        self.register(name, cast(Maker, thing))

    def route(self, model: Model) -> Route:
        """The provider behind a ref, a provider or a callable."""
        if isinstance(model, str):
            ref = parse_model_ref(model)
            return Route(self.provider(ref.provider), ref.model)
        if isinstance(model, Route):
            return model
        if isinstance(model, Provider):
            return Route(model)
        if callable(model):
            return Route(FunctionProvider(model))
        raise ConfigError(f"a model is a ref, a provider or a callable, not {cast(object, model)!r}")

    def provider(self, id: str) -> Provider:
        """The provider of that id; MissingKey or BadModelRef say what stands in the way."""
        if id not in self._made:
            if id not in self._makers:
                raise BadModelRef(f"there is no provider {id!r}; there are {', '.join(sorted(self._makers))}")
            self._made[id] = self._make(id)
        return self._made[id]

    def _make(self, id: str) -> Provider:
        """One provider for each key or address that is set, and all of them as one."""
        made = [self._makers[id](each) for each in each_by_itself(id, self._environment)]
        if len(made) == 1 and id not in self._paces and (self._ledger is None or not keys_of(made[0])):
            return made[0]
        return Balanced(made, self._paces.get(id, NO_LIMIT), ledger=self._ledger)

    def available(self) -> list[str]:
        """The ids of the providers whose key, or for a server nearby whose address, is set."""
        found: list[str] = []
        for id in self._makers:
            if id in NEARBY and not self._environment.get(NEARBY[id].variable):
                continue
            try:
                self.provider(id)
            except MissingKey:
                continue
            found.append(id)
        return found

    @property
    def default_model(self) -> str | None:
        """`ATLAS_MODEL`: the ref for agents that name none."""
        return self._environment.get("ATLAS_MODEL")


def built_in(id: str, maker: Maker) -> None:
    """Let every registry that is made from now on know this provider: for floors above this one."""
    _MAKERS[id] = maker


def _http(environment: Environment) -> Provider:
    if not (url := environment.get("OPENAI_BASE_URL")):
        raise MissingKey("http/… needs OPENAI_BASE_URL: the address of an OpenAI-compatible server")
    return OpenAIProvider(base_url=url, environment=environment, id="http")


def _local(environment: Environment) -> Provider:
    """Named and not imported: local models live on a floor above, and few need them."""
    maker: Maker = import_module("atlas_agents.local.provider").local_provider
    return maker(environment)


_MAKERS: dict[str, Maker] = {
    "openai": lambda environment: OpenAIProvider(environment=environment),
    "anthropic": lambda environment: AnthropicProvider(environment=environment),
    "http": _http,
    "local": _local,
    **{id: partial(NearbyProvider, server) for id, server in NEARBY.items()},
}
