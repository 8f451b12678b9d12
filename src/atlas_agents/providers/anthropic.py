"""Anthropic's Messages."""

from collections.abc import AsyncGenerator

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import MissingKey, ProviderError
from atlas_agents.core.secret import Secret
from atlas_agents.providers.anthropic_reader import AnthropicReader
from atlas_agents.providers.anthropic_request import encode_request
from atlas_agents.providers.base import Capabilities, Chunk, Request
from atlas_agents.providers.http import Clocks, HttpClient
from atlas_agents.providers.wire import exchange, header_value

OFFICIAL = "https://api.anthropic.com"
_VERSION = "2023-06-01"


class AnthropicProvider:
    """Messages at `base_url`; without one, `ANTHROPIC_BASE_URL` or Anthropic itself.

    The key comes from `api_key` or `ANTHROPIC_API_KEY`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        clocks: Clocks | None = None,
        clock: Clock = SYSTEM_CLOCK,
        environment: Environment | None = None,
        id: str = "anthropic",
    ) -> None:
        where = environment or Environment()
        self.id = id
        self.model = model
        self.base_url = (base_url or where.get("ANTHROPIC_BASE_URL") or OFFICIAL).rstrip("/").removesuffix("/v1")
        key = api_key or where.secret("ANTHROPIC_API_KEY")
        if not key and self.base_url == OFFICIAL:
            raise MissingKey(
                "Anthropic needs a key: set ANTHROPIC_API_KEY (in the environment or in .env) or pass api_key="
            )
        self.key = Secret(key) if key else None
        self._http = HttpClient(clocks, clock)
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "anthropic-version": _VERSION,
        }
        if self.key:
            self._headers["x-api-key"] = header_value(self.key, "Anthropic")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(structured=True)

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        model = request.model or self.model
        if not model:
            raise ProviderError("no model is named: AnthropicProvider('claude-…')", "bad_request")
        body = encode_request(request, model)
        url = f"{self.base_url}/v1/messages"
        return exchange(self._http, url, self._headers, body, AnthropicReader(), self.key)

    async def close(self) -> None:
        await self._http.close()

    def __repr__(self) -> str:
        return f"AnthropicProvider({self.model!r}, base_url={self.base_url!r})"
