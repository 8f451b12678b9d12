"""HTTP errors: a status code and a JSON body in OpenAI's error format."""

import logging
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from atlas_agents.core import errors
from atlas_agents.gateway.protocol.frames import ProtocolError

logger = logging.getLogger(__name__)
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_BY_FAULT: dict[errors.ProviderFault, tuple[int, str]] = {
    "bad_request": (400, "bad_request"),
    "model_not_found": (404, "model_not_found"),
    "context_length": (400, "context_length_exceeded"),
    "rate_limit": (429, "rate_limit_exceeded"),
    "quota": (429, "insufficient_quota"),
    "overloaded": (503, "overloaded"),
}
_BY_ERROR: tuple[tuple[type[errors.AtlasError], int, str], ...] = (
    (errors.QuotaExceeded, 429, "insufficient_quota"),
    (errors.SessionBusy, 429, "session_busy"),
    (errors.Conflict, 409, "conflict"),
    (errors.Refused, 400, "content_filter"),
    (errors.Cancelled, 400, "cancelled"),
    (errors.BadOutput, 502, "bad_output"),
    (errors.ConfigError, 503, "agent_unavailable"),
)
"""Status and code by exception type; the first match applies."""
_STORE_RETRY_SECONDS = 1.0
Hide: TypeAlias = Callable[[str], str]
"""Redacts secrets in a text."""
_encoder = msgspec.json.Encoder()


class ErrorShape(msgspec.Struct, frozen=True):
    """Error object in OpenAI's format: `code` is for programs, `message` for people."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """Error response body."""

    error: ErrorShape


class HTTPError(Exception):
    """An error response, raised by endpoints. `code` is for programs; `param` names the invalid field."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after

    @property
    def body(self) -> bytes:
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return _encoder.encode(ErrorResponse(ErrorShape(self.message, kind, self.param, self.code)))

    @property
    def headers(self) -> dict[str, str]:
        found = {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}
        if self.retry_after is not None:
            found["Retry-After"] = str(max(1, round(self.retry_after)))
        return found


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> HTTPError:
    """Return an error for an invalid request."""
    return HTTPError(400, code, message, param=param)


def to_http_error(failure: BaseException, hide: Hide) -> HTTPError:
    """Convert the exception of a failed turn to an error response without secrets.

    Unexpected exceptions are logged; the client is only informed that the turn failed.
    """
    found = _convert_failure(failure)
    message = hide(found.message)
    return HTTPError(found.status, found.code, message, param=found.param, retry_after=found.retry_after)


def _convert_failure(failure: BaseException) -> HTTPError:
    if isinstance(failure, HTTPError):
        return failure
    if isinstance(failure, ProtocolError):
        return _convert_protocol_error(failure)
    if isinstance(failure, errors.ProviderError):
        status, code = _BY_FAULT.get(failure.kind, (503, f"provider_{failure.kind}"))
        return HTTPError(status, code, str(failure), retry_after=failure.retry_after)
    for kind, status, code in _BY_ERROR:
        if isinstance(failure, kind):
            return HTTPError(status, code, str(failure))
    if isinstance(failure, errors.StoreError):
        logger.error("store error: %s", failure)
        full = isinstance(failure, errors.StoreFull)
        message = "the store is full: nothing more can be written" if full else "the store is temporarily unavailable"
        return HTTPError(503, "store_unavailable", message, retry_after=_STORE_RETRY_SECONDS)
    if isinstance(failure, errors.AtlasError):
        return HTTPError(500, "turn_failed", str(failure))
    logger.error("turn failed", exc_info=failure)
    return HTTPError(500, "internal_error", "the turn failed")


def _convert_protocol_error(fault: ProtocolError) -> HTTPError:
    wait = fault.retry_after_ms / 1000 if fault.retry_after_ms else None
    if fault.kind == "UNAVAILABLE":
        return HTTPError(503, "unavailable", fault.message, retry_after=wait)
    if fault.kind == "AGENT_NOT_FOUND":
        return HTTPError(404, "model_not_found", fault.message, param="model")
    return HTTPError(429, "limit", fault.message) if fault.kind == "LIMIT_EXCEEDED" else bad_request(fault.message)
