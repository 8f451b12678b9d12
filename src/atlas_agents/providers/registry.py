"""Provider registry: resolves model references to providers. A provider is available if its key is set.

The module also has providers that the registry builds: `Balanced` over several keys, `FunctionProvider` for a callable,
and `SelfHostedProvider` for Ollama, vLLM and llama.cpp.
"""

import asyncio
import hashlib
import inspect
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeGuard, cast

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, invoke
from atlas_agents.core.errors import AtlasError, BadModelRef, ConfigError, MissingKey, ProviderError
from atlas_agents.core.json import encode
from atlas_agents.core.messages import approximate_tokens
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.core.plugins import Plugins
from atlas_agents.providers import base
from atlas_agents.providers.anthropic import AnthropicProvider
from atlas_agents.providers.catalogue import DEMO, key_variables, parse_model_ref
from atlas_agents.providers.failover import Route
from atlas_agents.providers.http import HttpProvider, Timeouts
from atlas_agents.providers.openai import OpenAIProvider, OpenAIReader
from atlas_agents.providers.rate_limits import NO_LIMIT, LocalRateLimiter, RateLimit, RateLimiter

MAX_WAIT = 60.0
"""Maximum seconds a request waits for capacity; beyond that it fails, and failover may try another model."""
_COOLDOWNS = {"rate_limit": 15.0, "overloaded": 15.0, "quota": 600.0, "auth": 600.0}
_SHARED_CREDENTIALS = {"openai-responses": "openai"}
"""Providers that use the stored credentials of another one."""
_LIMITED_AS = {"openai-responses": "openai"}
"""Providers whose keys use the limits of another provider, unless they have limits of their own."""
_SLOW_START_TIMEOUTS = Timeouts(first_byte=180, idle=60, total=900)  # a self-hosted server may load its model first
Model: TypeAlias = str | base.Provider | Route | Callable[[base.Request], Any]
"""Accepted forms of an agent's model: a reference, a provider (with a model), or a callable."""

ProviderFactory: TypeAlias = Callable[[Environment], base.Provider]
"""Creates a provider from the environment; raises MissingKey if a setting is missing."""


def _is_provider(model: object) -> TypeGuard[base.Provider]:
    """Return whether a value is a provider. The base class is checked first, which is much faster than the protocol."""
    return isinstance(model, (base.BaseProvider, base.Provider))


def check_model(model: Model) -> Model:
    """Return a model as an agent holds it; raises ConfigError if it cannot be one.

    A provider that is not known yet may be registered later, unless its name is almost that of a known one.
    """
    if isinstance(model, str):
        ref = parse_model_ref(model)
        if ref.provider not in _known_ids and (nearest := _nearest_provider(ref.provider, _known_ids)):
            raise BadModelRef(f"unknown provider {ref.provider!r}: did you mean {nearest!r}?")
        return str(ref)
    if isinstance(model, type):
        raise ConfigError(f"invalid model: pass a provider, {model.__name__}(…), not its class")
    if isinstance(model, Route) or _is_provider(model):
        return model
    if not callable(model):
        raise ConfigError(
            f"invalid model {cast(object, model)!r}: expected a model reference such as 'anthropic/claude-opus-4-6', "
            "a provider or a function"
        )
    try:
        inspect.signature(model).bind(None)
    except TypeError as error:
        raise ConfigError(f"invalid model {model!r}: the function must take one argument, the request") from error
    except ValueError:  # a function in C without a signature
        pass
    return model


def _nearest_provider(id: str, known: Iterable[str]) -> str:
    """Return the known provider that a name probably misspells; an extended known name is not a misspelling."""
    import difflib  # needed only for the error

    names = sorted(known)
    if any(name in id for name in names):
        return ""
    return next(iter(difflib.get_close_matches(id.lower(), names, n=1, cutoff=0.8)), "")


class Registry:
    """Provider registry. It creates each provider once, from the environment.

    Args:
        environment: Settings and keys; by default those of the process and of `.env`.
        rate_limits: Limits of each key, by provider id.
        limiter: Enforces the limits; a shared one does so across all processes.
    """

    def __init__(
        self,
        environment: Environment | None = None,
        *,
        rate_limits: Mapping[str, RateLimit] | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        self._given_environment = environment
        self._rate_limits = rate_limits or {}
        self._limiter = limiter
        self._factories = dict(_BUILT_IN_FACTORIES)
        self._providers: dict[str, base.Provider] = {}
        self._credentials: Mapping[str, Mapping[str, str]] = {}

    @cached_property
    def _environment(self) -> Environment:
        """The given variables, or those of the process and of `.env`, which are read when a provider needs them."""
        return self._given_environment or Environment()

    def set_credentials(self, credentials: Mapping[str, Mapping[str, str]]) -> list[base.Provider]:
        """Use these variables for providers that the environment sets no key for; they see no other variables.

        Returns the providers that are no longer used, for their owner to close.
        """
        changed = {id for id in {*credentials, *self._credentials} if credentials.get(id) != self._credentials.get(id)}
        self._credentials = {id: dict(values) for id, values in credentials.items()}
        stale = [id for id in self._providers if _SHARED_CREDENTIALS.get(id, id) in changed]
        return [self._providers.pop(id) for id in stale]

    def _environment_of(self, id: str) -> Environment:
        """Return the variables of a provider: those of the environment, or else its stored credentials."""
        stored = self._credentials.get(_SHARED_CREDENTIALS.get(id, id))
        names = ("OPENAI_BASE_URL",) if id == "http" else key_variables(id)
        if not stored or any(self._environment.get(name) or self._environment.get(f"{name}_FILE") for name in names):
            return self._environment
        return Environment(stored, dotenv=None)

    def register(self, id: str, factory: ProviderFactory) -> None:
        """Register a provider id, so that references `id/…` resolve to it; an existing one is replaced."""
        if not id.strip() or "/" in id:
            raise ConfigError(f"invalid provider id {id!r}: it must be the part before the / of a model reference")
        _known_ids.add(id)
        self._factories[id] = factory
        self._providers.pop(id, None)

    def load_plugins(self, plugins: Plugins | None = None) -> None:
        """Register the providers of installed plugins; a built-in one is never replaced."""
        (plugins or Plugins()).load("providers", self._register_plugin)

    def _register_plugin(self, name: str, factory: Any) -> None:
        if name in self._factories:
            raise ConfigError(f"provider {name!r} already exists")
        if not callable(factory):
            raise ConfigError(f"expected a function that creates a provider from the environment, got {factory!r}")
        self.register(name, cast(ProviderFactory, factory))

    def route(self, model: Model) -> Route:
        """Resolve a reference, a provider or a callable to a route."""
        if isinstance(model, str):
            ref = parse_model_ref(model)
            return Route(self.provider(ref.provider), ref.model)
        model = check_model(model)
        if isinstance(model, Route):
            return model
        return Route(model if _is_provider(model) else FunctionProvider(cast(Callable[..., Any], model)))

    def provider(self, id: str) -> base.Provider:
        """Return the provider with this id; raises MissingKey or BadModelRef."""
        if id not in self._providers:
            if id not in self._factories:
                nearest = _nearest_provider(id, self._factories)
                hint = f": did you mean {nearest!r}?" if nearest else ";"
                raise BadModelRef(
                    f"unknown provider {id!r}{hint} known providers: {', '.join(sorted(self._factories))}"
                )
            self._providers[id] = self._create(id)
        return self._providers[id]

    @cached_property
    def _local_limiter(self) -> RateLimiter:
        """Enforces the limits within this process; created when a provider needs it."""
        return LocalRateLimiter()

    def _create(self, id: str) -> base.Provider:
        """Create one provider per configured key or address, balanced if there are several."""
        environment = self._environment_of(id)
        providers = [self._factories[id](each) for each in split_environment(id, environment)]
        limited_as = id if id in self._rate_limits else _LIMITED_AS.get(id, id)
        limited = limited_as in self._rate_limits or (self._limiter is not None and base.collect_keys(providers[0]))
        if len(providers) == 1 and not limited:
            return providers[0]
        limit = self._rate_limits.get(limited_as, NO_LIMIT)
        return Balanced(providers, limit, limiter=self._limiter or self._local_limiter, limited_as=limited_as)

    def limited_providers(self) -> list["Balanced"]:
        """Return the providers in use that have rate limits or several keys."""
        return [provider for provider in self._providers.values() if isinstance(provider, Balanced)]

    def has_key(self, id: str) -> bool:
        """Whether a key of this provider is set or stored; the address of a server alone is none."""
        environment = self._environment_of(id)
        return any(environment.secret(name) for name in key_variables(id))

    def available(self) -> list[str]:
        """Return the ids of providers whose key, or address for a self-hosted one, is set."""
        found: list[str] = []
        for id in self._factories:
            if id == DEMO:
                continue
            if id in SELF_HOSTED and not self._environment.get(SELF_HOSTED[id].variable):
                continue
            try:
                self.provider(id)
            except MissingKey:
                continue
            found.append(id)
        return found

    @property
    def default_model(self) -> str | None:
        """The model of agents that name none, from `ATLAS_MODEL`."""
        return self._environment.get("ATLAS_MODEL")


def register_built_in(id: str, factory: ProviderFactory) -> None:
    """Add a provider to every registry created from now on; used by higher layers."""
    _BUILT_IN_FACTORIES[id] = factory
    _known_ids.add(id)


class Member:
    """One key at one address, and its number of requests in flight."""

    def __init__(self, provider: base.Provider, limit: RateLimit, number: int, limited_as: str) -> None:
        self.provider = provider
        self.limit = limit
        self.busy = 0
        secrets = "\0".join(key.reveal() for key in base.collect_keys(provider))
        if not secrets and (getattr(provider, "rotates_key", False) or not getattr(provider, "base_url", None)):
            secrets = str(number)
        identity = f"{limited_as}\0{getattr(provider, 'base_url', '')}\0{secrets}"
        self.name = f"{limited_as}:{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    @property
    def full(self) -> bool:
        return self.limit.at_once is not None and self.busy >= self.limit.at_once


class Balanced(base.BaseProvider):
    """Several providers of one kind as one. It waits for its own rate limits; errors of the vendor are passed on.

    Args:
        providers: The providers, such as one per key.
        limit: Rate limit of each of them.
        limiter: Enforces the limits; within this process by default.
        limited_as: Name under which keys share their limits in one limiter; by default the provider's id.
        clock: Source of time.
        rng: Source of random numbers, for the choice between equals.
    """

    def __init__(
        self,
        providers: Sequence[base.Provider],
        limit: RateLimit = NO_LIMIT,
        *,
        limiter: RateLimiter | None = None,
        limited_as: str = "",
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        if not providers:
            raise ConfigError("Balanced: expected at least one provider, got none")
        self.members = [
            Member(provider, limit, number, limited_as or provider.id) for number, provider in enumerate(providers)
        ]
        _share_refusals(providers)
        self.id = providers[0].id
        self.model: str | None = getattr(providers[0], "model", None)
        self._limiter = limiter or LocalRateLimiter(clock)
        self._clock = clock
        self._rng = rng or random.Random()
        self._waiting: list[asyncio.Event] = []

    @property
    def capabilities(self) -> base.Capabilities:
        return self.members[0].provider.capabilities

    @property
    def keys(self) -> tuple[Secret, ...]:
        """All keys, for redaction."""
        return tuple(key for member in self.members for key in base.collect_keys(member.provider))

    @property
    def key(self) -> Secret | None:
        """The first member's key."""
        return next(iter(self.keys), None)

    @property
    def base_url(self) -> str | None:
        """The first member's address."""
        return getattr(self.members[0].provider, "base_url", None)

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Send a request to the provider with the most capacity left and yield its chunks."""
        limits_tokens = self.members[0].limit.tokens is not None
        tokens = sum([approximate_tokens(message) for message in request.messages]) if limits_tokens else 0
        candidates = list(self.members)
        while candidates:
            member = await self._acquire_member(candidates, tokens)
            candidates.remove(member)
            streamed = False
            try:
                async with aclosing(self._stream_member(member, request, tokens)) as chunks:
                    async for chunk in chunks:
                        streamed = True
                        yield chunk
                return
            except ProviderError as error:
                await self._cool_down(member, error)
                if streamed or not candidates or error.kind not in _COOLDOWNS:
                    raise

    async def _stream_member(
        self, member: Member, request: base.Request, tokens: int
    ) -> AsyncGenerator[base.Chunk, None]:
        try:
            async with aclosing(member.provider.stream(request)) as chunks:
                async for chunk in chunks:
                    if type(chunk) is base.DoneChunk and member.limit.tokens is not None:
                        used = chunk.usage.input_tokens + chunk.usage.output_tokens
                        self._limiter.settle(member.name, member.limit, used - tokens)
                    yield chunk
        finally:
            member.busy -= 1
            for slot_freed in self._waiting:
                slot_freed.set()
            self._waiting.clear()

    async def _acquire_member(self, candidates: Sequence[Member], tokens: int) -> Member:
        """Return a member with capacity; its request counts as in flight from now on."""
        end = self._clock.monotonic() + MAX_WAIT
        while True:
            waits: list[float] = []
            for member in sorted(candidates, key=lambda each: (each.busy, self._rng.random())):
                if member.full:
                    continue
                member.busy += 1
                wait = await self._reserve(member, tokens)
                if not wait:
                    return member
                waits.append(wait)
            if not waits:
                self._waiting.append(slot_freed := asyncio.Event())
                await slot_freed.wait()
            elif self._clock.monotonic() + min(waits) > end:
                raise ProviderError(
                    f"all {len(candidates)} keys of {self.id} are rate-limited or cooling down",
                    "rate_limit",
                    retry_after=min(waits),
                )
            else:
                await self._clock.sleep(min(waits))

    async def _reserve(self, member: Member, tokens: int) -> float:
        """Reserve capacity; return the seconds to wait if there is none."""
        wait = 1.0
        try:
            wait = await self._limiter.acquire(member.name, member.limit, tokens)
        finally:
            if wait:
                member.busy -= 1
        return wait

    async def _cool_down(self, member: Member, error: ProviderError) -> None:
        if error.kind in _COOLDOWNS:
            await self._limiter.cool_down(member.name, min(error.retry_after or _COOLDOWNS[error.kind], 3600.0))

    async def close(self) -> None:
        """Close all providers."""
        for member in self.members:
            close = getattr(member.provider, "close", None)
            if close is not None:
                await close()


def _share_refusals(providers: Sequence[base.Provider]) -> None:
    """Share refusals among providers of one API, so that each refusal occurs and is reported only once."""
    first = providers[0]
    for provider in providers[1:]:
        if isinstance(first, HttpProvider) and isinstance(provider, type(first)) and isinstance(provider, HttpProvider):
            provider.share_refusals(first)


class FunctionProvider(base.BaseProvider):
    """Wraps a sync or async function as a provider; a sync one runs in a thread and never blocks the event loop."""

    def __init__(self, function: Callable[[base.Request], Any]) -> None:
        self._function = function
        self.id = str(getattr(function, "__name__", type(function).__name__))

    @property
    def capabilities(self) -> base.Capabilities:
        return base.Capabilities(streaming=False)

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        try:
            completion = await invoke(self._function, request)
        except AtlasError:
            raise
        except Exception as error:  # user code may raise anything; it counts as a failure of this provider
            raise _classify_exception(error) from error
        if isinstance(completion, str):
            completion = {"choices": [{"message": {"content": completion}, "finish_reason": "stop"}]}
        for chunk in OpenAIReader().decode_body(_as_json(completion, self.id)):
            yield chunk

    def __repr__(self) -> str:
        return f"FunctionProvider({self.id})"


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


SELF_HOSTED = {
    each.id: each
    for each in (
        SelfHosted("ollama", "Ollama", "http://localhost:11434/v1", "`ollama serve`"),
        SelfHosted("lmstudio", "LM Studio", "http://localhost:1234/v1", "`lms server start`"),
        SelfHosted("vllm", "vLLM", "http://localhost:8000/v1", "`vllm serve MODEL`"),
        SelfHosted("llamacpp", "llama.cpp", "http://localhost:8080/v1", "`llama-server --jinja -m MODEL.gguf`"),
    )
}


class SelfHostedProvider(base.BaseProvider):
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
            timeouts=_SLOW_START_TIMEOUTS,
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
    def capabilities(self) -> base.Capabilities:
        return self._provider.capabilities

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        try:
            async with aclosing(self._provider.stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except ProviderError as error:
            if not error.unreachable:
                raise
            raise ProviderError(
                f"{self._server.title} does not respond at {self.base_url}: start it with {self._server.start}, "
                f"or set its address with {self._server.variable}",
                error.kind,
            ) from error

    async def list_models(self) -> list[str]:
        """Return the names of the models that the server lists."""
        return await self._provider.list_models()

    async def close(self) -> None:
        await self._provider.close()

    def __repr__(self) -> str:
        return f"SelfHostedProvider({self.id!r}, base_url={self.base_url!r})"


def split_environment(id: str, environment: Environment) -> list[Environment]:
    """Split `OPENAI_API_KEY=one,two` into two environments. Addresses are paired with keys; a single one applies to
    all."""
    first, *others = key_variables(id)
    key = next((name for name in (first, *others) if environment.secret(name)), first)
    url = f"{first.removesuffix('_API_KEY')}_BASE_URL"
    keys, urls = _split(environment.secret(key)), _split(environment.get(url))
    count = max(len(keys), len(urls))
    if count < 2:
        return [environment]
    if len(keys) > 1 and len(urls) > 1 and len(keys) != len(urls):
        raise ConfigError(
            f"{key} has {len(keys)} keys but {url} has {len(urls)} addresses; set one of either, or equally many"
        )
    pairs = zip(_repeat_single(key, keys, count), _repeat_single(url, urls, count), strict=True)
    return [environment.with_values(key_values | url_values) for key_values, url_values in pairs]


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _repeat_single(name: str, values: list[str], count: int) -> list[dict[str, str]]:
    return [{name: value} for value in values * (count if len(values) == 1 else 1)] or [{} for _ in range(count)]


def _as_json(completion: Any, name: str) -> bytes:
    """Encode a dict as it is, an SDK object with its `model_dump`, any other object by its attributes."""
    if callable(dump := getattr(completion, "model_dump", None)):
        completion = dump(mode="json")
    try:
        data = encode(_to_builtins(completion))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProviderError(f"{name} did not return a chat completion: {error}", "protocol") from error
    if not data.startswith(b"{"):
        kind = type(completion).__name__
        raise ProviderError(f"{name} must return a text or a chat completion, got {kind}", "bad_request")
    return data


def _to_builtins(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _to_builtins(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, (list, tuple)):
        return [_to_builtins(item) for item in cast(list[Any], value)]
    if isinstance(value, msgspec.Struct) or not hasattr(value, "__dict__"):
        return value
    fields = cast(dict[str, Any], vars(value))
    return {key: _to_builtins(item) for key, item in fields.items() if not key.startswith("_")}


def _classify_exception(error: Exception) -> ProviderError:
    """Classify an exception: SDK errors carry their HTTP status; others may be worth a retry."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status >= 400:
        headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
        return base.classify_response(status, getattr(error, "body", None) or str(error), headers)
    return ProviderError(f"{type(error).__name__}: {error}", "unknown")


def _create_http_provider(environment: Environment) -> base.Provider:
    if not (url := environment.get("OPENAI_BASE_URL")):
        ignored = environment.ignored.get("OPENAI_BASE_URL")
        why = f"; {ignored.where} sets it, but its folder is not trusted, run: atlas trust" if ignored else ""
        raise MissingKey(f"http/… needs OPENAI_BASE_URL: the address of an OpenAI-compatible server{why}")
    return OpenAIProvider(base_url=url, environment=environment, id="http")


HOSTED = {
    "deepseek": "https://api.deepseek.com",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "xai": "https://api.x.ai/v1",
}
"""Vendors of chat completions, and their addresses."""


def _create_hosted_provider(id: str, environment: Environment) -> base.Provider:
    prefix = id.upper()
    key, address = environment.secret(f"{prefix}_API_KEY"), environment.get(f"{prefix}_BASE_URL")
    if not key and not address:
        raise MissingKey(f"{id}/… needs {prefix}_API_KEY: set it in the environment or in .env")
    # without the environment, as OpenAI's key is never sent to another server
    own = Environment({}, dotenv=None)
    return OpenAIProvider(base_url=address or HOSTED[id], api_key=key, environment=own, id=id)


def _create_google_provider(environment: Environment) -> base.Provider:
    from atlas_agents.providers.gemini import GeminiProvider  # not needed by agents with other models

    return GeminiProvider(environment=environment)


def _create_responses_provider(environment: Environment) -> base.Provider:
    from atlas_agents.providers.openai_responses import OpenAIResponsesProvider

    return OpenAIResponsesProvider(environment=environment, id="openai-responses")


def _create_demo(environment: Environment) -> base.Provider:
    from atlas_agents.providers.demo import Demo

    return Demo()


_BUILT_IN_FACTORIES: dict[str, ProviderFactory] = {
    "openai": lambda environment: OpenAIProvider(environment=environment),
    "openai-responses": _create_responses_provider,
    "anthropic": lambda environment: AnthropicProvider(environment=environment),
    "google": _create_google_provider,
    "http": _create_http_provider,
    DEMO: _create_demo,
    **{id: partial(_create_hosted_provider, id) for id in HOSTED},
    **{id: partial(SelfHostedProvider, server) for id, server in SELF_HOSTED.items()},
}
_known_ids = set(_BUILT_IN_FACTORIES)
"""Ids of the built-in providers, and of those that any registry of this process knows."""
