"""Requests that an MCP server sends to its client: elicitation (questions to the user) and sampling (model calls)."""

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

import mcp_types as types
import msgspec
from mcp.client.session import ClientRequestContext

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, utc_day
from atlas_agents.core.approvals import Choice, Field, Filled, Form, Kind
from atlas_agents.core.errors import AtlasError, ConfigError, QuotaExceeded
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import Message, Text, approximate_tokens, assistant, user
from atlas_agents.providers.base import DoneChunk, Request, TextChunk, complete
from atlas_agents.providers.failover import Route
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.tools.context import ToolContext

logger = logging.getLogger(__name__)


_current_caller: ContextVar[ToolContext | None] = ContextVar("atlas_mcp_call", default=None)
MAX_FIELDS, MAX_CHOICES = 50, 200
MAX_MESSAGE, MAX_TEXT = 5000, 1000
_KINDS: dict[str, Kind] = {"string": "text", "number": "number", "integer": "integer", "boolean": "boolean"}
_BOUNDS: dict[str, tuple[str, str]] = {
    "text": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "choices": ("minItems", "maxItems"),
}
_FORMATS = ("email", "uri", "date", "date-time")
MAX_REPLY_TOKENS = 1024


class ActiveCalls:
    """The running calls of one MCP session."""

    def __init__(self) -> None:
        self._callers: list[ToolContext] = []

    @contextmanager
    def track(self, caller: ToolContext) -> Generator[None, None, None]:
        self._callers.append(caller)
        before = _current_caller.set(caller)
        try:
            yield
        finally:
            _current_caller.reset(before)
            self._callers.remove(caller)

    def find_caller(self) -> ToolContext | None:
        """Return the caller that a server's question belongs to: the call of the request if known (over HTTP), else the
        only turn with running calls. Without exactly one candidate it returns None, so that no question is shown to the
        wrong user."""
        own = _current_caller.get()
        if own is not None and own in self._callers:
            return own
        turns = {(each.tenant_id, each.run_id) for each in self._callers}
        return self._callers[-1] if len(turns) == 1 else None


class Elicitation:
    """Elicitation: questions of one server to the user."""

    def __init__(self, server: str, calls: ActiveCalls) -> None:
        self._server = server
        self._calls = calls

    async def answer(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Ask the user and return the answer for the server. Without a running call the request is declined."""
        caller = self._calls.find_caller()
        if caller is None:
            logger.warning("elicitation declined, no single caller: server=%s", self._server)
            return types.ElicitResult(action="decline")
        return await self.ask(caller, params)

    async def ask(self, caller: ToolContext, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        try:
            form = build_form(self._server, params)
            filled = await caller.ask(form)
        except ConfigError as error:
            logger.warning("elicitation rejected: server=%s error=%s", self._server, error)
            return types.ErrorData(code=types.INVALID_PARAMS, message=f"invalid elicitation request: {error}")
        return _result(form, filled)


def build_form(server: str, params: types.ElicitRequestParams) -> Form:
    """Convert an elicitation request to a form; ConfigError if it is invalid."""
    asker = f"the MCP server {server}"
    message = _check_text(params.message, "the message", MAX_MESSAGE)
    if isinstance(params, types.ElicitRequestURLParams):
        address = urlsplit(params.url)
        if address.scheme not in ("https", "http") or not address.hostname or len(params.url) > MAX_MESSAGE:
            raise ConfigError("the URL must start with https:// or http://")
        return Form(asker, message, url=params.url)
    properties: Any = params.requested_schema.get("properties", {})
    required: Any = params.requested_schema.get("required", [])
    if not isinstance(properties, dict) or len(cast(dict[str, Any], properties)) > MAX_FIELDS:
        raise ConfigError(f"properties must be an object with at most {MAX_FIELDS} fields")
    required_names = [str(name) for name in cast(list[Any], required)] if isinstance(required, list) else []
    fields = [_field(name, schema, name in required_names) for name, schema in cast(dict[str, Any], properties).items()]
    return Form(asker, message, tuple(fields))


def _field(name: str, schema: Any, required: bool) -> Field:
    if not isinstance(schema, dict):
        raise ConfigError(f"{name[:80]}: must be an object")
    value = cast(dict[str, Any], schema)
    kind, choices = _kind(name, value)
    low, high = _BOUNDS.get(kind, ("", ""))
    form, pattern = value.get("format", ""), value.get("pattern", "")
    return Field(
        name=_check_text(name, "a field's name", 200),
        kind=kind,
        title=_check_text(value.get("title", ""), f"{name}.title"),
        description=_check_text(value.get("description", ""), f"{name}.description"),
        required=required,
        default=value.get("default"),
        choices=choices,
        format=form if form in _FORMATS and kind == "text" else "",
        pattern=_check_text(pattern, f"{name}.pattern") if kind == "text" else "",
        least=_number(value.get(low)),
        most=_number(value.get(high)),
    )


def _kind(name: str, value: Mapping[str, Any]) -> tuple[Kind, tuple[Choice, ...]]:
    """Return the kind of a field and its options; only flat values are supported."""
    kind = value.get("type")
    if kind == "array" and isinstance(value.get("items"), dict):
        return "choices", _choices(name, value["items"], "anyOf")
    if kind == "string" and ("enum" in value or "oneOf" in value):
        return "choice", _choices(name, value, "oneOf")
    if kind not in _KINDS:
        raise ConfigError(f"{name[:80]}: only text, numbers, booleans and choices are supported")
    return _KINDS[kind], ()


def _choices(name: str, value: Mapping[str, Any], titled: str) -> tuple[Choice, ...]:
    listed: Any = value.get(titled)
    if isinstance(listed, list):
        pairs = [
            (cast(dict[str, Any], each).get("const"), cast(dict[str, Any], each).get("title", ""))
            for each in cast(list[Any], listed)
            if isinstance(each, dict)
        ]
    else:
        values, names = _as_list(value.get("enum")), _as_list(value.get("enumNames"))
        pairs = [(value, names[index] if index < len(names) else "") for index, value in enumerate(values)]
    if not 1 <= len(pairs) <= MAX_CHOICES:
        raise ConfigError(f"{name[:80]}: expected 1 to {MAX_CHOICES} choices")
    return tuple([Choice(_check_text(value, f"{name}: a choice"), _check_text(title, name)) for value, title in pairs])


def _as_list(value: Any) -> Sequence[Any]:
    return cast(list[Any], value) if isinstance(value, list) else ()


def _check_text(value: Any, what: str, limit: int = MAX_TEXT) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ConfigError(f"{what[:100]} must be text of at most {limit} characters")
    return value


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _result(form: Form, filled: Filled) -> types.ElicitResult:
    if filled.action != "accept":
        return types.ElicitResult(action=filled.action)
    return types.ElicitResult(action="accept", content=None if form.url else filled.values)


class SampledMessage(msgspec.Struct, frozen=True):
    """A sampled model reply, the model's name and the tokens it used."""

    text: str
    model: str
    usage: Usage


async def sample_from_route(route: Route, messages: list[Message], system: str, max_tokens: int) -> SampledMessage:
    """Request one model reply without tools; raises ProviderError."""
    request = Request(
        messages=tuple(messages), system=system, settings=ModelSettings(max_tokens=max_tokens), model=route.model
    )
    chunks = await complete(route.provider, request)
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))
    done = next((chunk for chunk in reversed(chunks) if isinstance(chunk, DoneChunk)), DoneChunk())
    return SampledMessage(text, done.model or route.model or route.provider.id, done.usage)


SampleModel: TypeAlias = Callable[[list[Message], str, int], Awaitable[SampledMessage]]
"""Samples a model with messages, a system prompt and a token limit."""


class Sampling:
    """Sampling: model calls on behalf of one server, with a daily token budget."""

    def __init__(
        self, server: str, sample_model: SampleModel, tokens: int, calls: ActiveCalls, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._server = server
        self._calls = calls
        self._sample_model = sample_model
        self._tokens = tokens
        self._clock = clock
        self._day = ""
        self._remaining = 0

    async def answer(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        caller = self._calls.find_caller()
        if caller is None:
            return _error("sampling is only allowed during a single running call")
        today = utc_day(self._clock.time())
        if today != self._day:
            self._day, self._remaining = today, self._tokens
        max_tokens = min(params.max_tokens, MAX_REPLY_TOKENS, self._remaining)
        if max_tokens < 1:
            return _error(f"{self._server} has used up its {self._tokens} tokens for today")
        self._remaining -= max_tokens  # reserved until the real usage is known
        used = max_tokens
        try:
            tokens = sum(approximate_tokens(_message(each)) for each in params.messages)
            await caller.check_budget(tokens + max_tokens)
            sampled = await self._sample_model(
                [_message(each) for each in params.messages], params.system_prompt or "", max_tokens
            )
            used = min(max_tokens, sampled.usage.output_tokens or max_tokens)
            await caller.spend(sampled.model, sampled.usage)
        except AtlasError as error:
            logger.warning("sampling failed: server=%s error=%s", self._server, error)
            used = 0 if isinstance(error, QuotaExceeded) else used
            return _error("the model call failed")
        finally:
            self._remaining += max_tokens - used
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(text=sampled.text), model=sampled.model, stop_reason="endTurn"
        )


def _message(message: types.SamplingMessage) -> Message:
    blocks: list[Any] = list(message.content_as_list)
    text = Text("\n".join(block.text for block in blocks if isinstance(block, types.TextContent)))
    return user(text) if message.role == "user" else assistant(text)


def _error(text: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=text)
