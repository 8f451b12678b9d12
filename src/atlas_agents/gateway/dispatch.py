"""Request dispatch: decodes a frame, calls the method it names and encodes the response."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from atlas_agents.core import errors
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.protocol.frames import ErrorFrame, ProtocolError, RequestFrame, ResponseFrame
from atlas_agents.gateway.protocol.methods import METHODS, Method
from atlas_agents.gateway.protocol.types import WireStruct
from atlas_agents.gateway.telemetry import Metrics

logger = logging.getLogger(__name__)
P = TypeVar("P", bound=WireStruct)
Call: TypeAlias = Callable[[Any, Any], Awaitable[WireStruct]]
_encoder = msgspec.json.Encoder()
_requests = msgspec.json.Decoder(RequestFrame)
_RETRY_AFTER_MS = 1000
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `[^`]*` - at `\$\.([\w.]+)`")


class BoundMethod(msgspec.Struct, frozen=True):
    """A method of the protocol and its handler."""

    method: Method
    call: Call
    params: msgspec.json.Decoder[Any]


class Methods:
    """The handlers of the protocol's methods."""

    def __init__(self) -> None:
        self._bound: dict[str, BoundMethod] = {}

    def add(self, name: str, call: Call) -> None:
        """Register a handler. Raises KeyError if the protocol has no such method."""
        method = METHODS[name]
        self._bound[name] = BoundMethod(method, call, msgspec.json.Decoder(method.params))

    def find(self, name: str) -> BoundMethod | None:
        return self._bound.get(name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._bound))


class Dispatch:
    """Answers requests: looks up the method, checks the scope, decodes the parameters and calls the handler."""

    def __init__(self, methods: Methods, metrics: Metrics) -> None:
        self.methods = methods
        self._metrics = metrics

    def read(self, frame: str | bytes) -> RequestFrame:
        """Decode the request in a frame; raise ProtocolError if it is not one."""
        try:
            return _requests.decode(frame)
        except msgspec.ValidationError as error:
            raise ProtocolError("BAD_FRAME", f"invalid request: {error}") from None
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise ProtocolError("PARSE_ERROR", "the frame is not valid JSON") from None

    def find(self, request: RequestFrame, grant: Grant) -> BoundMethod:
        """Return the requested method; raise ProtocolError if it is unknown or the grant lacks its scope."""
        bound = self.methods.find(request.method)
        if bound is None:
            raise ProtocolError("METHOD_NOT_FOUND", f"unknown method {request.method!r}")
        if not grant.allows(bound.method.scope):
            raise ProtocolError("FORBIDDEN", f"{request.method} requires the scope '{bound.method.scope}'")
        return bound

    async def answer(self, request: RequestFrame, bound: BoundMethod, caller: Any) -> bytes:
        """Call the handler and return the response frame, whether it succeeds or fails."""
        started = time.perf_counter()
        try:
            result = await bound.call(caller, _decode_params(request, bound))
            frame = _encoder.encode(ResponseFrame(request.id, result))
        except ProtocolError as fault:
            return self.encode_error(request.id, fault)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - every exception becomes an error response
            return self.encode_error(request.id, to_protocol_error(error))
        finally:
            self._metrics.requests.labels(request.method).observe(time.perf_counter() - started)
        return frame

    def encode_error(self, id: str | int | float | None, fault: ProtocolError) -> bytes:
        self._metrics.faults.labels(fault.kind).inc()
        return _encoder.encode(ErrorFrame(id, fault.shape()))


def _decode_params(request: RequestFrame, bound: BoundMethod) -> Any:
    raw = bytes(request.params)
    try:
        return bound.params.decode(b"{}" if raw == b"null" else raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        known = _list_known_fields(bound.params.type, str(error))
        raise ProtocolError("INVALID_PARAMS", f"{request.method}: {error}{known}") from None


def _list_known_fields(kind: Any, error: str) -> str:
    """Return the fields that an error about an unknown field should name."""
    if not (found := _UNKNOWN_FIELD.fullmatch(error)):
        return ""
    for name in found[1].split("."):
        field = next((each for each in msgspec.structs.fields(kind) if each.encode_name == name), None)
        kinds = get_args(field.type) if field else ()
        kind = next((each for each in kinds if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)
        if kind is None:
            return ""
    return f"; known fields: {', '.join(kind.__struct_encode_fields__)}"


def read_frame_id(frame: str | bytes) -> str | int | float | None:
    """Return the id of a frame that is not a valid request, or None if it has none."""
    try:
        found = msgspec.json.decode(frame)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    id: Any = found.get("id") if isinstance(found, dict) else None
    return id if isinstance(id, str | int | float) and not isinstance(id, bool) else None


def to_protocol_error(error: Exception) -> ProtocolError:
    """Convert an exception to the error a client receives. Details of unexpected ones are only logged."""
    match error:
        case errors.SessionBusy():
            return ProtocolError("BUSY", "a turn is already running in this session", retry_after_ms=_RETRY_AFTER_MS)
        case errors.Conflict():
            return ProtocolError("CONFLICT", "this idempotency key was already used for a different request")
        case errors.NotFound():
            return ProtocolError("INVALID_PARAMS", "not found")
        case errors.StoreFull():
            return ProtocolError(
                "UNAVAILABLE", "the store is full: nothing more can be written", retry_after_ms=_RETRY_AFTER_MS
            )
        case errors.StoreError():
            logger.error("store error: %s", error)
            return ProtocolError("UNAVAILABLE", "the store is temporarily unavailable", retry_after_ms=_RETRY_AFTER_MS)
        case errors.QuotaExceeded():
            return ProtocolError("LIMIT_EXCEEDED", str(error))
        case errors.ConfigError() | errors.ToolFault() | errors.ModelUnavailable():
            return ProtocolError("INVALID_PARAMS", str(error))
        case errors.Refused():
            return ProtocolError("FORBIDDEN", f"forbidden: {error}")
        case _:
            logger.error("method failed", exc_info=error)
            return ProtocolError("INTERNAL", "internal error; details are in the gateway log")
