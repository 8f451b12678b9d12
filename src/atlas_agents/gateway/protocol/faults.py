"""What a request can be told instead of a result: a code, a kind, and whether trying again may help."""

from typing import Any, Literal, TypeAlias

from atlas_agents.gateway.protocol.shapes import Wire

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
_AGAIN: frozenset[Kind] = frozenset(("BUSY", "LIMIT_EXCEEDED", "UNAVAILABLE"))

BAD_FIRST_FRAME = 4400
BAD_TOKEN = 4401
SLOW_CONSUMER = 4008
RESTART = 1012


class FaultDetail(Wire, frozen=True):
    """For programs: the kind, and whether the same request may succeed later."""

    kind: Kind
    retryable: bool
    retry_after_ms: int | None = None


class FaultShape(Wire, frozen=True):
    """For people and programs."""

    code: int
    message: str
    data: FaultDetail


class Fault(Exception):
    """Raise it in a method: the client is told so."""

    def __init__(self, kind: Kind, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.message = message
        self.retry_after_ms = retry_after_ms

    def shape(self) -> FaultShape:
        detail = FaultDetail(self.kind, self.kind in _AGAIN, self.retry_after_ms)
        return FaultShape(CODES[self.kind], self.message, detail)


def not_found(what: Literal["SESSION", "RUN", "APPROVAL", "JOB"]) -> Fault:
    """The same words whether it never was or belongs to somebody else."""
    kinds: dict[str, Any] = {
        "SESSION": ("SESSION_NOT_FOUND", "there is no such session"),
        "RUN": ("RUN_NOT_FOUND", "there is no such run"),
        "APPROVAL": ("APPROVAL_NOT_FOUND", "there is no such open question"),
        "JOB": ("JOB_NOT_FOUND", "there is no such job"),
    }
    return Fault(*kinds[what])
