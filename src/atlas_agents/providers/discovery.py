"""Discovery: vendors and their key variables, model servers on this machine, and the models that a provider lists."""

import asyncio
from collections.abc import Iterable
from importlib import import_module
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec

from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import AtlasError, MissingKey, ProviderError
from atlas_agents.core.http import open_session
from atlas_agents.core.paths import Environment
from atlas_agents.providers.catalogue import key_variables
from atlas_agents.providers.http import MAX_MODELS_BODY, HttpProvider, read_model_names
from atlas_agents.providers.registry import HOSTED, SELF_HOSTED, Registry, SelfHostedProvider

_TITLES = {
    "anthropic": "Anthropic",
    "openai": "OpenAI",
    "openai-responses": "OpenAI",
    "google": "Google",
    "deepseek": "DeepSeek",
    "groq": "Groq",
    "mistral": "Mistral",
    "openrouter": "OpenRouter",
    "xai": "xAI",
    "http": "OpenAI-compatible server",
    "local": "This computer",
    **{id: server.title for id, server in SELF_HOSTED.items()},
}
VENDORS = ("anthropic", "openai", "google", *HOSTED, "http")
"""Providers whose key can be entered, in the order in which they are offered."""
_PREFERRED = {
    "anthropic": ("claude-sonnet-", "claude-opus-", "claude-"),
    "openai": ("gpt-5.2", "gpt-5", "gpt-"),
    "google": ("gemini-3", "gemini-2.5", "gemini-"),
    "deepseek": ("deepseek-chat",),
    "mistral": ("mistral-large-latest", "mistral-medium-latest"),
}
"""Beginnings of the model names that are offered first."""
_NOT_FOR_CHAT = ("embed", "whisper", "tts", "dall-e", "image", "moderation", "audio", "realtime", "transcribe", "ocr")
_CONNECT_TIMEOUT = 0.5
_TOTAL_TIMEOUT = 1.5


def provider_title(id: str) -> str:
    """Return the name of a provider as people know it."""
    return _TITLES.get(id, id)


def describe_missing_key(id: str, error: MissingKey) -> str:
    """Return in a few words why a provider cannot be used: `no Anthropic key`."""
    if "not trusted" in str(error):
        return str(error)
    return "no OPENAI_BASE_URL" if id == "http" else f"no {provider_title(id)} key"


def sort_models(provider: str, names: Iterable[str]) -> list[str]:
    """Return the models that can chat, those that most people want first."""
    chats = [name for name in names if not any(word in name.lower() for word in _NOT_FOR_CHAT)]
    beginnings = _PREFERRED.get(provider, ())

    def rank(name: str) -> int:
        return next((index for index, start in enumerate(beginnings) if name.startswith(start)), len(beginnings))

    return sorted(chats, key=rank)  # otherwise as the vendor orders them, which is newest first


class FoundKey(msgspec.Struct, frozen=True):
    """A key of a vendor in the environment, and the variable that holds it."""

    provider: str
    variable: str


def find_keys(environment: Environment) -> list[FoundKey]:
    """Return the vendors whose key is set in the environment or in `.env`."""
    found: list[FoundKey] = []
    for id in VENDORS:
        names = ("OPENAI_BASE_URL",) if id == "http" else key_variables(id)
        if name := next((name for name in names if environment.get(name) or environment.get(f"{name}_FILE")), None):
            found.append(FoundKey(id, name))
    return found


class FoundServer(msgspec.Struct, frozen=True):
    """A model server that answers on this machine, and its models."""

    provider: str
    address: str
    models: tuple[str, ...]


async def find_servers(environment: Environment) -> list[FoundServer]:
    """Look for Ollama, LM Studio, vLLM and llama.cpp at their addresses on this machine, and nowhere else."""
    candidates = [
        (id, (environment.get(server.variable) or server.address).strip().rstrip("/"))
        for id, server in SELF_HOSTED.items()
    ]
    await run_in_thread(import_module, "aiohttp")  # takes long the first time
    async with open_session(connect_timeout=_CONNECT_TIMEOUT) as session:
        found = await asyncio.gather(*[_look_at(session, id, url) for id, url in candidates if _is_loopback(url)])
    return [server for server in found if server is not None]


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _look_at(session: Any, id: str, address: str) -> FoundServer | None:
    import aiohttp

    try:
        async with asyncio.timeout(_TOTAL_TIMEOUT):
            async with session.get(f"{address}/models", allow_redirects=False) as response:
                if response.status != 200:
                    return None
                names = read_model_names(await response.content.read(MAX_MODELS_BODY))
    except (aiohttp.ClientError, OSError, ProviderError):
        return None
    return FoundServer(id, address, tuple(sort_models(id, names))) if names else None


class ProviderCheck(msgspec.Struct, frozen=True):
    """Outcome of a test request: the models of the provider, or the error."""

    models: tuple[str, ...] = ()
    error: str = ""


async def check_provider(id: str, registry: Registry) -> ProviderCheck:
    """List the models of a provider, which shows whether its address and key work."""
    try:
        provider: Any = registry.provider(id)
    except AtlasError as error:
        return ProviderCheck(error=str(error).replace(" or pass api_key=", ""))
    if not isinstance(provider, HttpProvider | SelfHostedProvider):
        provider = provider.members[0].provider  # several keys: the first one
    try:
        return ProviderCheck(tuple(sort_models(id, await provider.list_models())))
    except ProviderError as error:
        return ProviderCheck(error=_describe_failure(provider_title(id), provider.base_url, error))
    finally:
        await provider.close()  # a provider that is in use opens its connections again


def _describe_failure(title: str, address: str, error: ProviderError) -> str:
    """Describe the error without the vendor's text, which may repeat a part of the key."""
    host = urlsplit(address).netloc.rpartition("@")[2]
    if error.status in (401, 403):
        return f"{title} rejected this key ({error.status}). Check that you copied all of it."
    if error.unreachable or error.status is None:
        return f"Couldn't reach {host}."
    if error.status == 404:
        return f"{host} has no list of models (404). Check the base URL."
    return f"{title} answered with an error ({error.status}). Try again later."
