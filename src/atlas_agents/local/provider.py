"""Provider for local models: downloads the model and starts its server at the first request."""

import importlib.util
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, in_thread
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.paths import Environment, home
from atlas_agents.core.text import wire_name
from atlas_agents.local import models, prompting
from atlas_agents.local.download import Progress, ensure_model
from atlas_agents.local.server import Endpoint, ServerSetup, acquire_server, release_servers
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, Request, TextChunk, ToolCallChunk
from atlas_agents.providers.http import HttpClient, Timeouts, exchange, header_value
from atlas_agents.providers.openai import OpenAIReader, encode_request

_TIMEOUTS = Timeouts(first_byte=300, idle=120, total=1800)  # a long prompt is read at a few hundred tokens per second
logger = logging.getLogger("atlas_agents.local")


class LocalProvider:
    """Provider of a local model. `model` is a name of the catalog or a path to a `.gguf` file.

    The small default model is downloaded automatically, a larger one only with `download=True` or with `pull`. All
    providers of a process share one server per model; `close` releases it.
    """

    def __init__(
        self,
        model: str = models.DEFAULT,
        *,
        context: int = 8192,
        download: bool | None = None,
        progress: Progress | None = None,
        timeouts: Timeouts | None = None,
        clock: Clock = SYSTEM_CLOCK,
        environment: Environment | None = None,
    ) -> None:
        self.id = "local"
        self.model = model
        self._context = context
        self._download = download
        self._progress = progress
        self._home = home(environment or Environment())
        self._http = HttpClient(timeouts or _TIMEOUTS, clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(structured=True)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Stream a reply. The first request downloads the model and starts its server."""
        name = request.model or self.model
        endpoint = await self.endpoint(name)
        style = models.PromptStyle() if models.is_gguf_path(name) else models.find_model(name).style
        request = prompting.select_tools(request, style)
        finder = prompting.CallFinder({wire_name(tool.name) for tool in prompting.callable_tools(request)})
        async with aclosing(self._request(endpoint, name, style, request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, TextChunk):
                    if text := finder.add(chunk.text):
                        yield TextChunk(text)
                    continue
                if isinstance(chunk, DoneChunk):
                    text, call = finder.end(cut=chunk.stop_reason == "length")
                    if text:
                        yield TextChunk(text)
                    if call:
                        yield ToolCallChunk(call)
                        chunk = _with_tool_calls(chunk)
                yield chunk

    async def endpoint(self, model: str | None = None) -> Endpoint:
        """Return the endpoint of a model's server, for other clients of the OpenAI or Anthropic API."""
        name = model or self.model
        if importlib.util.find_spec("xllamacpp") is None:
            raise ModelUnavailable("local models need an optional package; run: pip install 'atlas-agents[local]'")
        is_file = models.is_gguf_path(name)
        path = (
            await in_thread(models.check_gguf_file, name)
            if is_file
            else await self._model_file(models.find_model(name))
        )
        log = self._home / "logs" / f"{path.stem}.log"
        setup = ServerSetup(str(path), path.stem, self._context, str(log))
        return await acquire_server(setup, self).endpoint()

    async def close(self) -> None:
        """Release the servers; those without other users stop. A later request starts them again."""
        await self._http.close()
        await release_servers(self)

    def __repr__(self) -> str:
        return f"LocalProvider({self.model!r})"

    async def _model_file(self, model: models.LocalModel) -> Path:
        folder = self._home / "models"
        state = models.model_state(model, folder)
        allowed = model.auto_download if self._download is None else self._download
        if not state.installed and not allowed:
            raise ModelUnavailable(
                f"the local model {model.id} ({model.megabytes} MB) is not installed; run: atlas models pull {model.id}"
            )
        if not state.installed:
            logger.info("downloading local model: model=%s size_mb=%d folder=%s", model.id, model.megabytes, folder)
        return await ensure_model(model, folder, self._progress)

    async def _request(
        self, endpoint: Endpoint, name: str, style: models.PromptStyle, request: Request
    ) -> AsyncGenerator[Chunk, None]:
        """Request a reply, constrained by a grammar if there are tools."""
        extra = dict(style.sampling)
        tools = prompting.callable_tools(request)
        flat = prompting.flatten_tools(request, tools)
        if tools and endpoint.guided:
            form = prompting.choose_form(request, style)
            if form == "text":
                flat = prompting.flatten_tools(request, ())
            elif form == "either" and style.call_bias and not request.output:
                form = await self._choose_form(endpoint, name, flat, prompting.first_token_options(request, style))
            extra |= prompting.decoding_options(request, style, form)
            flat = msgspec.structs.replace(flat, output=None)
        async with aclosing(self._exchange(endpoint, name, flat, extra)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _choose_form(self, endpoint: Endpoint, name: str, flat: Request, extra: dict[str, Any]) -> prompting.Form:
        """Generate the first token, and return whether it opens a call."""
        one_token = msgspec.structs.replace(flat, max_tokens=1, temperature=None, stop=())
        async with aclosing(self._exchange(endpoint, name, one_token, extra)) as chunks:
            text = "".join([chunk.text async for chunk in chunks if isinstance(chunk, TextChunk)])
        return "call" if text.startswith("{") else "text"

    def _exchange(
        self, endpoint: Endpoint, name: str, request: Request, extra: dict[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        body = encode_request(request, name, official=False, extra=extra)
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Connection": "close",  # the server sometimes closes a kept-alive connection when the next request arrives
            "Authorization": f"Bearer {header_value(endpoint.key, 'the local model')}",
        }
        url = f"{endpoint.url}/v1/chat/completions"
        return exchange(self._http, url, headers, body, OpenAIReader(), endpoint.key)


def _with_tool_calls(done: DoneChunk) -> DoneChunk:
    return msgspec.structs.replace(done, stop_reason="tool_calls") if done.stop_reason == "stop" else done


def local_provider(environment: Environment) -> LocalProvider:
    """Create the provider for model references `local/…`."""
    return LocalProvider(environment=environment)
