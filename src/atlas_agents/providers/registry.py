"""Provider registry: resolves model references to providers, which exist when their key is set."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.core.aio import invoke
from atlas_agents.core.errors import AtlasError, BadModelRef, ConfigError, MissingKey, ProviderError
from atlas_agents.core.json import encode
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.core.plugins import Plugins
from atlas_agents.providers.anthropic import AnthropicProvider
from atlas_agents.providers.balancing import Balanced
from atlas_agents.providers.base import Capabilities, Chunk, Provider, Request, fault_of_status, keys_of
from atlas_agents.providers.failover import Route
from atlas_agents.providers.http import Timeouts
from atlas_agents.providers.openai import OpenAIProvider, OpenAIReader
from atlas_agents.providers.rate_limits import NO_LIMIT, RateLimit, RateLimiter

_OWN = {"http": "OPENAI"}


def each_by_itself(id: str, environment: Environment) -> list[Environment]:
    """Split `OPENAI_API_KEY=one,two` into two environments. Addresses are paired with keys; a single one applies to
    all."""
    prefix = _OWN.get(id, id.upper())
    key, url = f"{prefix}_API_KEY", f"{prefix}_BASE_URL"
    keys, urls = _split(environment.secret(key)), _split(environment.get(url))
    count = max(len(keys), len(urls))
    if count < 2:
        return [environment]
    if len(keys) > 1 and len(urls) > 1 and len(keys) != len(urls):
        raise ConfigError(
            f"{key} has {len(keys)} keys but {url} has {len(urls)} addresses; set one of either, or equally many"
        )
    pairs = zip(_filled(key, keys, count), _filled(url, urls, count), strict=True)
    return [environment.replaced(one | other) for one, other in pairs]


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _filled(name: str, values: list[str], count: int) -> list[dict[str, str]]:
    return [{name: value} for value in values * (count if len(values) == 1 else 1)] or [{} for _ in range(count)]


class FunctionProvider:
    """Wraps a sync or async `provider(request)`; a sync one runs in a thread and never blocks the loop."""

    def __init__(self, function: Callable[[Request], Any]) -> None:
        self._function = function
        self.id = str(getattr(function, "__name__", type(function).__name__))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(streaming=False)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        try:
            completion = await invoke(self._function, request)
        except AtlasError:
            raise
        except Exception as error:  # user code may raise anything; it counts as a failure of this provider
            raise _fault(error) from error
        for chunk in OpenAIReader().whole(_as_json(completion, self.id)):
            yield chunk

    def __repr__(self) -> str:
        return f"FunctionProvider({self.id})"


def _as_json(completion: Any, name: str) -> bytes:
    """Encode a dict as it is, an SDK object with its `model_dump`, any other object by its attributes."""
    if callable(dump := getattr(completion, "model_dump", None)):
        completion = dump(mode="json")
    try:
        data = encode(_plain(completion))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProviderError(f"{name} did not return a chat completion: {error}", "protocol") from error
    if not data.startswith(b"{"):
        raise ProviderError(f"{name} must return a chat completion, got {type(completion).__name__}", "protocol")
    return data


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(list[Any], value)]
    if isinstance(value, msgspec.Struct) or not hasattr(value, "__dict__"):
        return value
    fields = cast(dict[str, Any], vars(value))
    return {key: _plain(item) for key, item in fields.items() if not key.startswith("_")}


def _fault(error: Exception) -> ProviderError:
    """Classify an exception: SDK errors carry their HTTP status; others may be worth a retry."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
        return fault_of_status(status, getattr(error, "body", None) or str(error), headers)
    return ProviderError(f"{type(error).__name__}: {error}", "unknown")


_PATIENT = Timeouts(first_byte=180, idle=60, total=900)  # a self-hosted server may load its model first


class SelfHosted(msgspec.Struct, frozen=True):
    """A kind of self-hosted server: its default address and the command that starts it."""

    id: str
    title: str
    address: str
    start: str

    @property
    def variable(self) -> str:
        """The variable that sets another address."""
        return f"{self.id.upper()}_BASE_URL"


NEARBY = {
    each.id: each
    for each in (
        SelfHosted("ollama", "Ollama", "http://localhost:11434/v1", "`ollama serve`"),
        SelfHosted("vllm", "vLLM", "http://localhost:8000/v1", "`vllm serve MODEL`"),
        SelfHosted("llamacpp", "llama.cpp", "http://localhost:8080/v1", "`llama-server --jinja -m MODEL.gguf`"),
    )
}


class SelfHostedProvider:
    """Chat completions of a self-hosted server. If none is listening, the error names the command that starts it."""

    def __init__(self, server: SelfHosted, environment: Environment) -> None:
        address = environment.get(server.variable) or server.address
        if not address.strip().startswith(("http://", "https://")):
            raise ConfigError(f"{server.variable}: invalid address {address!r}: expected http:// or https://")
        self.id = server.id
        self._server = server
        self._provider = OpenAIProvider(
            base_url=address.strip(),
            api_key=environment.secret(f"{server.id.upper()}_API_KEY"),
            clocks=_PATIENT,
            environment=Environment({}, dotenv=None),  # never send OpenAI's key to another server
            id=server.id,
        )

    @property
    def base_url(self) -> str:
        return self._provider.base_url

    @property
    def key(self) -> Secret | None:
        return self._provider.key

    @property
    def capabilities(self) -> Capabilities:
        return self._provider.capabilities

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        try:
            async with aclosing(self._provider.stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ProviderError as error:
            if not hasattr(error.__cause__, "os_error"):  # set only if no connection was made
                raise
            raise ProviderError(
                f"{self._server.title} does not respond at {self.base_url}: start it with {self._server.start}, "
                f"or set its address with {self._server.variable}",
                error.kind,
            ) from error

    async def close(self) -> None:
        await self._provider.close()

    def __repr__(self) -> str:
        return f"SelfHostedProvider({self.id!r}, base_url={self.base_url!r})"


Model: TypeAlias = str | Provider | Route | Callable[[Request], Any]
"""What an agent accepts as its model: a reference, a provider (with a model), or a callable."""

Maker: TypeAlias = Callable[[Environment], Provider]
"""Makes a provider from the environment; raises MissingKey if a setting is missing."""


class ModelRef(msgspec.Struct, frozen=True):
    """A parsed model reference, `provider/model`."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def parse_model_ref(ref: str) -> ModelRef:
    """Split 'provider/model' into its two parts; the model may contain further slashes."""
    provider, slash, model = ref.partition("/")
    if not slash or not provider.strip() or not model.strip():
        raise BadModelRef(
            f"invalid model reference {ref!r}: expected 'provider/model', for example 'anthropic/claude-opus-4-6'"
        )
    return ModelRef(provider.strip(), model.strip())


class Registry:
    """Makes each provider once, from the environment."""

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        paces: Mapping[str, RateLimit] | None = None,
        ledger: RateLimiter | None = None,
    ) -> None:
        """`paces` are rate limits of a key by provider id; a shared `ledger` enforces them across all processes."""
        self._environment = environment or Environment()
        self._paces = paces or {}
        self._ledger = ledger
        self._makers = dict(_MAKERS)
        self._made: dict[str, Provider] = {}

    def register(self, id: str, maker: Maker) -> None:
        """Register a provider id, so that references `id/…` resolve to it; an existing one is replaced."""
        if not id.strip() or "/" in id:
            raise ConfigError(f"invalid provider id {id!r}: it must be the part before the / of a model reference")
        self._makers[id] = maker
        self._made.pop(id, None)

    def load_plugins(self, plugins: Plugins | None = None) -> None:
        """Register the providers of installed plugins; a built-in one is never replaced."""
        (plugins or Plugins()).load("providers", self._take)

    def _take(self, name: str, thing: Any) -> None:
        if name in self._makers:
            raise ConfigError(f"provider {name!r} already exists")
        if not callable(thing):
            raise ConfigError(f"expected a function that makes a provider from the environment, got {thing!r}")
        self.register(name, cast(Maker, thing))

    def route(self, model: Model) -> Route:
        """Resolve a reference, a provider or a callable to a route."""
        if isinstance(model, str):
            ref = parse_model_ref(model)
            return Route(self.provider(ref.provider), ref.model)
        if isinstance(model, Route):
            return model
        if isinstance(model, Provider):
            return Route(model)
        if callable(model):
            return Route(FunctionProvider(model))
        raise ConfigError(
            f"invalid model {cast(object, model)!r}: expected a model reference, a provider or a callable"
        )

    def provider(self, id: str) -> Provider:
        """Return the provider with this id; raises MissingKey or BadModelRef."""
        if id not in self._made:
            if id not in self._makers:
                raise BadModelRef(f"unknown provider {id!r}; known providers: {', '.join(sorted(self._makers))}")
            self._made[id] = self._make(id)
        return self._made[id]

    def _make(self, id: str) -> Provider:
        """Make one provider per configured key or address, balanced if there are several."""
        made = [self._makers[id](each) for each in each_by_itself(id, self._environment)]
        if len(made) == 1 and id not in self._paces and (self._ledger is None or not keys_of(made[0])):
            return made[0]
        return Balanced(made, self._paces.get(id, NO_LIMIT), ledger=self._ledger)

    def available(self) -> list[str]:
        """Return the ids of providers whose key, or address for a self-hosted one, is set."""
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
        """Return `ATLAS_MODEL`, the model of agents that name none."""
        return self._environment.get("ATLAS_MODEL")


def built_in(id: str, maker: Maker) -> None:
    """Add a provider to every registry created from now on; used by higher layers."""
    _MAKERS[id] = maker


def _http(environment: Environment) -> Provider:
    if not (url := environment.get("OPENAI_BASE_URL")):
        raise MissingKey("http/… needs OPENAI_BASE_URL: the address of an OpenAI-compatible server")
    return OpenAIProvider(base_url=url, environment=environment, id="http")


_MAKERS: dict[str, Maker] = {
    "openai": lambda environment: OpenAIProvider(environment=environment),
    "anthropic": lambda environment: AnthropicProvider(environment=environment),
    "http": _http,
    **{id: partial(SelfHostedProvider, server) for id, server in NEARBY.items()},
}
