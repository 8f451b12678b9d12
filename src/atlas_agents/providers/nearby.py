"""Servers that people run themselves and that speak chat completions: Ollama, vLLM, llama.cpp. No key is needed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import ConfigError, ProviderError
from atlas_agents.core.secret import Secret
from atlas_agents.providers.base import Capabilities, Chunk, Request
from atlas_agents.providers.http import Clocks
from atlas_agents.providers.openai import OpenAIProvider

_PATIENT = Clocks(first_byte=180, idle=60, total=900)  # a model on one's own machine is loaded first


class Nearby(msgspec.Struct, frozen=True):
    """A kind of server: where it usually listens, and how it is started."""

    id: str
    title: str
    address: str
    start: str

    @property
    def variable(self) -> str:
        """The setting with another address."""
        return f"{self.id.upper()}_BASE_URL"


NEARBY = {
    each.id: each
    for each in (
        Nearby("ollama", "Ollama", "http://localhost:11434/v1", "`ollama serve`"),
        Nearby("vllm", "vLLM", "http://localhost:8000/v1", "`vllm serve MODEL`"),
        Nearby("llamacpp", "llama.cpp", "http://localhost:8080/v1", "`llama-server --jinja -m MODEL.gguf`"),
    )
}


class NearbyProvider:
    """Chat completions of a server nearby. When nobody listens there, it says what to start."""

    def __init__(self, server: Nearby, environment: Environment) -> None:
        address = environment.get(server.variable) or server.address
        if not address.strip().startswith(("http://", "https://")):
            raise ConfigError(
                f"{server.variable}: an address begins with http:// or https://, and {address!r} does not"
            )
        self.id = server.id
        self._server = server
        self._provider = OpenAIProvider(
            base_url=address.strip(),
            api_key=environment.secret(f"{server.id.upper()}_API_KEY"),
            clocks=_PATIENT,
            environment=Environment({}, dotenv=None),  # OpenAI's key is not for other people's servers
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
            if not hasattr(error.__cause__, "os_error"):  # only a connection that was never made has it
                raise
            raise ProviderError(
                f"{self._server.title} does not answer at {self.base_url}: start it with {self._server.start}, "
                f"or say with {self._server.variable} where it is",
                error.kind,
            ) from error

    async def close(self) -> None:
        await self._provider.close()

    def __repr__(self) -> str:
        return f"NearbyProvider({self.id!r}, base_url={self.base_url!r})"
