"""Elicitation: questions that an MCP server asks the user during a call."""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast
from urllib.parse import urlsplit

import mcp_types as types
from mcp.client.session import ClientRequestContext

from atlas_agents.core.approvals import Choice, Field, Filled, Form, Kind
from atlas_agents.core.errors import ConfigError
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
