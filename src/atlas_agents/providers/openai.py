"""OpenAI's chat completions, and every server that speaks them."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import MissingKey, ProviderError
from atlas_agents.core.secret import Secret
from atlas_agents.providers.base import Capabilities, Chunk, Request
from atlas_agents.providers.faults import fault_of_status
from atlas_agents.providers.http import Clocks, HttpClient, read_error
from atlas_agents.providers.openai_reader import OpenAIReader, first_model
from atlas_agents.providers.openai_request import encode_request
from atlas_agents.providers.wire import exchange, header_value

OFFICIAL = "https://api.openai.com/v1"


class OpenAIProvider:
    """Chat completions at `base_url`; without one, `OPENAI_BASE_URL` or OpenAI itself.

    The key comes from `api_key` or `OPENAI_API_KEY`; a server of your own may need none. Without a model, the
    first one that the server lists is taken.
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
        id: str = "openai",
    ) -> None:
        where = environment or Environment()
        self.id = id
        self.model = model
        self.base_url = (base_url or where.get("OPENAI_BASE_URL") or OFFICIAL).rstrip("/")
        key = api_key or where.secret("OPENAI_API_KEY")
        if not key and self.base_url == OFFICIAL:
            raise MissingKey("OpenAI needs a key: set OPENAI_API_KEY (in the environment or in .env) or pass api_key=")
        self.key = Secret(key) if key else None
        self._http = HttpClient(clocks, clock)
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.key:
            self._headers["Authorization"] = f"Bearer {header_value(self.key, 'OpenAI')}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(structured=True)

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        model = request.model or self.model
        return self._ask(request, model) if model else self._ask_first(request)

    async def close(self) -> None:
        await self._http.close()

    def __repr__(self) -> str:
        return f"OpenAIProvider({self.model!r}, base_url={self.base_url!r})"

    def _ask(self, request: Request, model: str) -> AsyncGenerator[Chunk, None]:
        body = encode_request(request, model, official=self.base_url == OFFICIAL)
        url = f"{self.base_url}/chat/completions"
        return exchange(self._http, url, self._headers, body, OpenAIReader(), self.key)

    async def _ask_first(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async with aclosing(self._ask(request, await self._first_model())) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _first_model(self) -> str:
        if self.base_url == OFFICIAL:
            raise ProviderError("no model is named: OpenAIProvider('gpt-…')", "bad_request")
        async with self._http.request("GET", f"{self.base_url}/models", self._headers, b"") as answer:
            body = await read_error(answer)
            if answer.status != 200:
                raise fault_of_status(answer.status, body, answer.headers)
        self.model = first_model(body)
        if self.model is None:
            raise ProviderError(f"{self.base_url}/models lists no model: name one with model=", "bad_request")
        return self.model
