"""What a tool's trouble means: whether anything can have happened, whether another try is worth it, what is told."""

from typing import Any

import msgspec

from atlas_agents.core.errors import OutcomeUnknown, ToolFailed, ToolFault, ToolTimeout, Transient
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.workers import WorkerDied

_BUSY = (408, 429, 503)
_LONGEST_WAIT = 60
_LOST = (
    "ConnectionError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ServerTimeoutError",
    "TransportError",
    "Timeout",
    "ReadError",
    "URLError",
)


class Diagnosis(msgspec.Struct, frozen=True):
    """The error to go on with, and whether (and not before when) the tool may be tried again."""

    error: Exception
    again: bool = False
    retry_after: float | None = None
    nothing_happened: bool = False


def diagnose(error: Exception, tool: Tool) -> Diagnosis:
    """Judge by class: it says itself that nothing happened, it was refused, it was lost on the way, or it is a bug."""
    harmless = tool.effect != "unsafe"
    if isinstance(error, Transient):
        return _refused(ToolFailed(str(error)), error.retry_after)
    if isinstance(error, ToolTimeout):
        return Diagnosis(error, again=harmless)
    if isinstance(error, ToolFault):
        return Diagnosis(error)
    status = _status(error)
    if status in _BUSY:
        return _refused(ToolFailed(_words(error)), _retry_after(error))
    if status is not None and 400 <= status < 500:
        return Diagnosis(ToolFailed(_words(error)))
    if isinstance(error, WorkerDied):
        return Diagnosis(error if tool.effect == "pure" else _maybe(tool, "process ended"))
    if status is not None or _is_lost(error):
        lost = ToolFailed(_words(error)) if tool.effect == "pure" else _maybe(tool, "connection was lost")
        return Diagnosis(lost, again=harmless)
    return Diagnosis(error)


def _refused(error: ToolFailed, retry_after: float | None) -> Diagnosis:
    """Nothing happened; unless the wait is too long to sit out, it may be tried again."""
    patient = retry_after is None or 0 <= retry_after <= _LONGEST_WAIT
    return Diagnosis(error, again=patient, retry_after=retry_after, nothing_happened=True)


def _maybe(tool: Tool, what: str) -> OutcomeUnknown:
    retried = "It was not retried." if tool.effect == "unsafe" else "It was retried under the same key."
    return OutcomeUnknown(f"The {what} while {tool.name} ran; it may have happened. {retried}")


def _is_lost(error: Exception) -> bool:
    """A timeout or a broken connection, by its kind or, for libraries that are not imported here, by its name."""
    if isinstance(error, TimeoutError | ConnectionError | EOFError):
        return True
    return any(kind.__name__ in _LOST for kind in type(error).__mro__)


def _status(error: Exception) -> int | None:
    """The HTTP status that the errors of most clients carry somewhere."""
    response: Any = getattr(error, "response", None)
    for holder in (error, response):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
                return value
    return None


def _retry_after(error: Exception) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None) or {}
    try:
        seconds = float(headers.get("retry-after") or headers.get("Retry-After"))
    except (AttributeError, TypeError, ValueError):
        return None
    return seconds if seconds >= 0 else None


def _words(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - a foreign class may do anything in its `__str__`
        return type(error).__name__
