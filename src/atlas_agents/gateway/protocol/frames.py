"""Frames of the protocol: authentication, requests, responses and errors."""

from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.gateway.protocol.types import CurrentValue, Features, PolicyShape, Principal, ServerShape, WireStruct

Kind: TypeAlias = Literal[
    "PARSE_ERROR",
    "BAD_FRAME",
    "METHOD_NOT_FOUND",
    "INVALID_PARAMS",
    "SESSION_NOT_FOUND",
    "RUN_NOT_FOUND",
    "APPROVAL_NOT_FOUND",
    "AGENT_NOT_FOUND",
    "JOB_NOT_FOUND",
    "INTERNAL",
    "FORBIDDEN",
    "BUSY",
    "LIMIT_EXCEEDED",
    "UNAVAILABLE",
    "CONFLICT",
]
CODES: dict[Kind, int] = {
    "PARSE_ERROR": -32700,
    "BAD_FRAME": -32600,
    "METHOD_NOT_FOUND": -32601,
    "INVALID_PARAMS": -32602,
    "SESSION_NOT_FOUND": -32602,
    "RUN_NOT_FOUND": -32602,
    "APPROVAL_NOT_FOUND": -32602,
    "AGENT_NOT_FOUND": -32602,
    "JOB_NOT_FOUND": -32602,
    "INTERNAL": -32603,
    "FORBIDDEN": -32001,
    "BUSY": -32002,
    "LIMIT_EXCEEDED": -32003,
    "UNAVAILABLE": -32004,
    "CONFLICT": -32005,
}
_RETRYABLE: frozenset[Kind] = frozenset(("BUSY", "LIMIT_EXCEEDED", "UNAVAILABLE"))

BAD_FIRST_FRAME = 4400
BAD_TOKEN = 4401
SLOW_CONSUMER = 4008
RESTART = 1012
PROTOCOL = 1
"""Protocol version that a client sends to get the full profile."""


class ErrorDetails(WireStruct, frozen=True):
    """Machine-readable details: the kind of error, and whether the same request may succeed later.

    If an edit was refused because the value has another version, `current` is that version with its value.
    """

    kind: Kind
    retryable: bool
    retry_after_ms: int | None = None
    current: CurrentValue | None = None


class ErrorPayload(WireStruct, frozen=True):
    """Error of a request."""

    code: int
    message: str
    data: ErrorDetails


class ProtocolError(Exception):
    """An error response, raised by method handlers."""

    def __init__(
        self, kind: Kind, message: str, *, retry_after_ms: int | None = None, current: CurrentValue | None = None
    ) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.current = current

    def shape(self) -> ErrorPayload:
        detail = ErrorDetails(self.kind, self.kind in _RETRYABLE, self.retry_after_ms, self.current)
        return ErrorPayload(CODES[self.kind], self.message, detail)


def not_found(what: Literal["SESSION", "RUN", "APPROVAL", "JOB"]) -> ProtocolError:
    """Return a not-found error. It is the same whether the object does not exist or belongs to another user."""
    kinds: dict[str, Any] = {
        "SESSION": ("SESSION_NOT_FOUND", "session not found"),
        "RUN": ("RUN_NOT_FOUND", "run not found"),
        "APPROVAL": ("APPROVAL_NOT_FOUND", "approval not found or already resolved"),
        "JOB": ("JOB_NOT_FOUND", "job not found"),
    }
    return ProtocolError(*kinds[what])


class Client(WireStruct, frozen=True):
    """Name and version of a client, for the log only."""

    name: str = ""
    version: str = ""


class AuthFrame(WireStruct, frozen=True):
    """The first frame of a client. With `protocol` it gets the full profile, without it the plain one."""

    type: Literal["auth"]
    token: str = ""
    protocol: int = 0
    client: Client | None = None


class WelcomeFrame(WireStruct, frozen=True):
    """The response to a valid token. The plain profile has only the first two fields."""

    type: Literal["auth"]
    ok: Literal[True]
    protocol: int = 0
    server: ServerShape | None = None
    principal: Principal | None = None
    features: Features | None = None
    policy: PolicyShape | None = None


class AuthErrorFrame(WireStruct, frozen=True):
    """The response to an invalid token, sent before the socket is closed."""

    type: Literal["auth"]
    ok: Literal[False]
    error: str


class RequestFrame(WireStruct, frozen=True):
    """A request; its `id` is repeated in the response."""

    id: str | int | float
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class ResponseFrame(WireStruct, frozen=True):
    """The result of a request."""

    id: str | int | float
    result: Any


class ErrorFrame(WireStruct, frozen=True):
    """The error of a request. `id` is null if the frame had no readable id."""

    id: str | int | float | None
    error: ErrorPayload
