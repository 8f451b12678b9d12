"""A model on this machine as a provider: fetched and started when it is first asked, and no key."""

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
from atlas_agents.local.download import Progress, obtain
from atlas_agents.local.models import DEFAULT, LocalModel, Manner, given_file, is_path, known, state_of
from atlas_agents.local.prompting import CallFinder, Form, first_word, fitted, form_of, guidance, offered, plain
from atlas_agents.local.server import Endpoint, Setup, let_go, server_for
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, Request, TextChunk, ToolCallChunk
from atlas_agents.providers.http import HttpClient, Timeouts, exchange, header_value
from atlas_agents.providers.openai import OpenAIReader, encode_request

_PATIENT = Timeouts(first_byte=300, idle=120, total=1800)  # a long prompt is read at some hundred tokens a second
_log = logging.getLogger("atlas_agents.local")


class LocalProvider:
    """A model that runs on this machine. `model` is one of the known names, or a path to a `.gguf` file.

    The small default is fetched by itself; a larger one only with `download=True`, or beforehand by `pull`. All
    providers of a process that want the same model share one server; `close` lets go of it.
    """

    def __init__(
        self,
        model: str = DEFAULT,
        *,
        context: int = 8192,
        download: bool | None = None,
        progress: Progress | None = None,
        clocks: Timeouts | None = None,
        clock: Clock = SYSTEM_CLOCK,
        environment: Environment | None = None,
    ) -> None:
        self.id = "local"
        self.model = model
        self._context = context
        self._download = download
        self._progress = progress
        self._home = home(environment or Environment())
        self._http = HttpClient(clocks or _PATIENT, clock)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(structured=True)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Stream an answer; the model is fetched and its server started at the first request."""
        name = request.model or self.model
        endpoint = await self.endpoint(name)
        manner = Manner() if is_path(name) else known(name).manner
        request = fitted(request, manner)
        finder = CallFinder({wire_name(tool.name) for tool in offered(request)})
        async with aclosing(self._ask(endpoint, name, manner, request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, TextChunk):
                    if words := finder.add(chunk.text):
                        yield TextChunk(words)
                    continue
                if isinstance(chunk, DoneChunk):
                    words, call = finder.end(cut=chunk.stop_reason == "length")
                    if words:
                        yield TextChunk(words)
                    if call:
                        yield ToolCallChunk(call)
                        chunk = _with_call(chunk)
                yield chunk

    async def endpoint(self, model: str | None = None) -> Endpoint:
        """The server of a model, fetched and started if need be: for other clients that speak OpenAI's or Anthropic's
        wire."""
        name = model or self.model
        if importlib.util.find_spec("xllamacpp") is None:
            raise ModelUnavailable("a local model needs more than is installed: install atlas-agents[local]")
        path = await in_thread(given_file, name) if is_path(name) else await self._file(known(name))
        setup = Setup(
            path=str(path),
            alias=path.stem,
            context=self._context,
            log=str(self._home / "logs" / f"{path.stem}.log"),
        )
        return await server_for(setup, self).endpoint()

    async def close(self) -> None:
        """Let go of the servers; those that nobody else holds end. Used again, it starts them again."""
        await self._http.close()
        await let_go(self)

    def __repr__(self) -> str:
        return f"LocalProvider({self.model!r})"

    async def _file(self, model: LocalModel) -> Path:
        folder = self._home / "models"
        state = state_of(model, folder)
        wanted = model.by_itself if self._download is None else self._download
        if not state.installed and not wanted:
            raise ModelUnavailable(
                f"the local model {model.id} is not here yet ({model.megabytes} MB): fetch it with "
                f"`atlas models pull {model.id}`"
            )
        if not state.installed:
            _log.info("fetching the local model %s (%d MB) into %s", model.id, model.megabytes, folder)
        return await obtain(model, folder, self._progress)

    async def _ask(
        self, endpoint: Endpoint, name: str, manner: Manner, request: Request
    ) -> AsyncGenerator[Chunk, None]:
        """Ask for a reply, held to a form where there are tools."""
        extra = dict(manner.sampling)
        tools = offered(request)
        asked = plain(request, tools)
        if tools and endpoint.guided:
            form = form_of(request, manner)
            if form == "words":
                asked = plain(request, ())
            elif form == "either" and manner.lean and not request.output:
                form = await self._choose(endpoint, name, asked, first_word(request, manner))
            extra |= guidance(request, manner, form)
            asked = msgspec.structs.replace(asked, output=None)
        async with aclosing(self._exchange(endpoint, name, asked, extra)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _choose(self, endpoint: Endpoint, name: str, asked: Request, extra: dict[str, Any]) -> Form:
        """Have the model say its first token, and see whether that opens a call."""
        one_token = msgspec.structs.replace(asked, max_tokens=1, temperature=None, stop=())
        async with aclosing(self._exchange(endpoint, name, one_token, extra)) as chunks:
            said = "".join([chunk.text async for chunk in chunks if isinstance(chunk, TextChunk)])
        return "call" if said.startswith("{") else "words"

    def _exchange(
        self, endpoint: Endpoint, name: str, request: Request, extra: dict[str, Any]
    ) -> AsyncGenerator[Chunk, None]:
        body = encode_request(request, name, official=False, extra=extra)
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Connection": "close",  # the server now and then drops a kept one just as the next request comes
            "Authorization": f"Bearer {header_value(endpoint.key, 'the local model')}",
        }
        url = f"{endpoint.url}/v1/chat/completions"
        return exchange(self._http, url, headers, body, OpenAIReader(), endpoint.key)


def _with_call(done: DoneChunk) -> DoneChunk:
    return msgspec.structs.replace(done, stop_reason="tool_calls") if done.stop_reason == "stop" else done


def local_provider(environment: Environment) -> LocalProvider:
    """What a ref `local/…` leads to."""
    return LocalProvider(environment=environment)
