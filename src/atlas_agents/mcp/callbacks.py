"""Requests that an MCP server sends to its client: elicitation (questions to the user) and sampling (model calls)."""

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, day_of
from atlas_agents.core.approvals import Choice, Field, Filled, Form, Kind
from atlas_agents.core.errors import AtlasError, BadTool, ConfigError, QuotaExceeded
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import Message, Text, assistant, user
from atlas_agents.providers.base import DoneChunk, Request, TextChunk, complete
from atlas_agents.providers.failover import Route


class Caller(Protocol):
    """The caller of a tool, as far as a server's questions concern it; a ToolContext is one."""

    run_id: str
    tenant_id: str

    def progress(self, message: str) -> None: ...

    async def ask(self, form: Form) -> Filled: ...

    async def check_budget(self) -> None: ...

    async def spend(self, model: str, usage: Usage) -> None: ...


_own: ContextVar[Caller | None] = ContextVar("atlas_mcp_call", default=None)


class ActiveCalls:
    """The running calls of one MCP session."""

    def __init__(self) -> None:
        self._callers: list[Caller] = []

    @contextmanager
    def of(self, caller: Caller) -> Generator[None, None, None]:
        self._callers.append(caller)
        before = _own.set(caller)
        try:
            yield
        finally:
            _own.reset(before)
            self._callers.remove(caller)

    def asked(self) -> Caller | None:
        """Return the caller that a server's question belongs to: the call it came with if known (over HTTP), else
        the only turn with running calls. None if there is none or several, so that no question is shown to the wrong
        user."""
        own = _own.get()
        if own is not None and own in self._callers:
            return own
        turns = {(each.tenant_id, each.run_id) for each in self._callers}
        return self._callers[-1] if len(turns) == 1 else None


logger = logging.getLogger(__name__)
MOST_FIELDS, MOST_CHOICES = 50, 200
LONGEST_MESSAGE, LONGEST_WORDS = 5000, 1000
_KINDS: dict[str, Kind] = {"string": "text", "number": "number", "integer": "integer", "boolean": "boolean"}
_BOUNDS: dict[str, tuple[str, str]] = {
    "text": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "choices": ("minItems", "maxItems"),
}
_FORMATS = ("email", "uri", "date", "date-time")


class Elicitation:
    """Elicitation: questions of one server to the user."""

    def __init__(self, server: str, underway: ActiveCalls) -> None:
        self._server = server
        self._underway = underway

    async def answer(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Ask the user and return the answer for the server. Without a running call the request is declined."""
        caller = self._underway.asked()
        if caller is None:
            logger.warning("elicitation declined, no single caller: server=%s", self._server)
            return types.ElicitResult(action="decline")
        return await self.ask(caller, params)

    async def ask(self, caller: Caller, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        try:
            form = form_of(self._server, params)
            filled = await caller.ask(form)
        except (ConfigError, BadTool) as error:
            logger.warning("elicitation rejected: server=%s error=%s", self._server, error)
            return types.ErrorData(code=types.INVALID_PARAMS, message=f"invalid elicitation request: {error}")
        return _result(form, filled)


def form_of(server: str, params: types.ElicitRequestParams) -> Form:
    """Convert an elicitation request to a form; ConfigError if it is invalid."""
    asker = f"the MCP server {server}"
    message = _words(params.message, "the message", LONGEST_MESSAGE)
    if isinstance(params, types.ElicitRequestURLParams):
        address = urlsplit(params.url)
        if address.scheme not in ("https", "http") or not address.hostname or len(params.url) > LONGEST_MESSAGE:
            raise ConfigError("the URL must start with https:// or http://")
        return Form(asker, message, url=params.url)
    properties: Any = params.requested_schema.get("properties", {})
    required: Any = params.requested_schema.get("required", [])
    if not isinstance(properties, dict) or len(cast(dict[str, Any], properties)) > MOST_FIELDS:
        raise ConfigError(f"properties must be an object with at most {MOST_FIELDS} fields")
    needed = [str(name) for name in cast(list[Any], required)] if isinstance(required, list) else []
    fields = [_field(name, schema, name in needed) for name, schema in cast(dict[str, Any], properties).items()]
    return Form(asker, message, tuple(fields))


def _field(name: str, schema: Any, required: bool) -> Field:
    if not isinstance(schema, dict):
        raise ConfigError(f"{name[:80]}: must be an object")
    given = cast(dict[str, Any], schema)
    kind, choices = _kind(name, given)
    low, high = _BOUNDS.get(kind, ("", ""))
    form, pattern = given.get("format", ""), given.get("pattern", "")
    return Field(
        name=_words(name, "a field's name", 200),
        kind=kind,
        title=_words(given.get("title", ""), f"{name}.title"),
        description=_words(given.get("description", ""), f"{name}.description"),
        required=required,
        default=given.get("default"),
        choices=choices,
        format=form if form in _FORMATS and kind == "text" else "",
        pattern=_words(pattern, f"{name}.pattern") if kind == "text" else "",
        least=_number(given.get(low)),
        most=_number(given.get(high)),
    )


def _kind(name: str, given: Mapping[str, Any]) -> tuple[Kind, tuple[Choice, ...]]:
    """Return the kind of a field and its options; only flat values are supported."""
    kind = given.get("type")
    if kind == "array" and isinstance(given.get("items"), dict):
        return "choices", _choices(name, given["items"], "anyOf")
    if kind == "string" and ("enum" in given or "oneOf" in given):
        return "choice", _choices(name, given, "oneOf")
    if kind not in _KINDS:
        raise ConfigError(f"{name[:80]}: only text, numbers, booleans and choices are supported")
    return _KINDS[kind], ()


def _choices(name: str, given: Mapping[str, Any], titled: str) -> tuple[Choice, ...]:
    listed: Any = given.get(titled)
    if isinstance(listed, list):
        pairs = [
            (cast(dict[str, Any], each).get("const"), cast(dict[str, Any], each).get("title", ""))
            for each in cast(list[Any], listed)
            if isinstance(each, dict)
        ]
    else:
        values, names = _list(given.get("enum")), _list(given.get("enumNames"))
        pairs = [(value, names[place] if place < len(names) else "") for place, value in enumerate(values)]
    if not 1 <= len(pairs) <= MOST_CHOICES:
        raise ConfigError(f"{name[:80]}: expected 1 to {MOST_CHOICES} choices")
    return tuple([Choice(_words(value, f"{name}: a choice"), _words(title, name)) for value, title in pairs])


def _list(given: Any) -> Sequence[Any]:
    return cast(list[Any], given) if isinstance(given, list) else ()


def _words(given: Any, what: str, longest: int = LONGEST_WORDS) -> str:
    if not isinstance(given, str) or len(given) > longest:
        raise ConfigError(f"{what[:100]} must be text of at most {longest} characters")
    return given


def _number(given: Any) -> float | None:
    return given if isinstance(given, int | float) and not isinstance(given, bool) else None


def _result(form: Form, filled: Filled) -> types.ElicitResult:
    if filled.action != "accept":
        return types.ElicitResult(action=filled.action)
    return types.ElicitResult(action="accept", content=None if form.url else filled.values)


class SampledMessage(msgspec.Struct, frozen=True):
    """A sampled model reply, the model's name and the tokens it used."""

    text: str
    model: str
    usage: Usage


async def say(route: Route, messages: list[Message], system: str, most: int) -> SampledMessage:
    """Request one model reply without tools; raises ProviderError."""
    request = Request(messages=tuple(messages), system=system, max_tokens=most, model=route.model)
    chunks = await complete(route.provider, request)
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))
    done = next((chunk for chunk in reversed(chunks) if isinstance(chunk, DoneChunk)), DoneChunk())
    return SampledMessage(text, done.model or route.model or route.provider.id, done.usage)


Speak: TypeAlias = Callable[[list[Message], str, int], Awaitable[SampledMessage]]
"""Samples a model with messages, a system prompt and a token limit."""
AT_MOST = 1024


class Sampling:
    """Sampling: model calls on behalf of one server, with a daily token budget."""

    def __init__(
        self, server: str, speak: Speak, tokens: int, underway: ActiveCalls, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._server = server
        self._underway = underway
        self._speak = speak
        self._tokens = tokens
        self._clock = clock
        self._day = ""
        self._left = 0

    async def answer(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        caller = self._underway.asked()
        if caller is None:
            return _no("sampling is only allowed during a single running call")
        today = day_of(self._clock.time())
        if today != self._day:
            self._day, self._left = today, self._tokens
        most = min(params.max_tokens, AT_MOST, self._left)
        if most < 1:
            return _no(f"{self._server} has used up its {self._tokens} tokens for today")
        self._left -= most  # reserved until the real usage is known
        used = most
        try:
            await caller.check_budget()
            spoken = await self._speak([_message(each) for each in params.messages], params.system_prompt or "", most)
            used = min(most, spoken.usage.output_tokens or most)
            await caller.spend(spoken.model, spoken.usage)
        except AtlasError as error:
            logger.warning("sampling failed: server=%s error=%s", self._server, error)
            used = 0 if isinstance(error, QuotaExceeded) else used
            return _no("the model call failed")
        finally:
            self._left += most - used
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(text=spoken.text), model=spoken.model, stop_reason="endTurn"
        )


def _message(said: types.SamplingMessage) -> Message:
    blocks: list[Any] = list(said.content_as_list)
    words = Text("\n".join(block.text for block in blocks if isinstance(block, types.TextContent)))
    return user(words) if said.role == "user" else assistant(words)


def _no(words: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=words)
