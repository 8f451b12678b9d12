"""From a vendor's words for trouble to our closed list of kinds."""

import math
import re
import time
from collections.abc import Mapping
from typing import Any, cast

from atlas_agents.core.errors import ProviderError, ProviderFault
from atlas_agents.core.text import clean

_BY_STATUS: dict[int, ProviderFault] = {
    401: "auth",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_length",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}
_BY_NAME: dict[str, ProviderFault] = {
    "authentication_error": "auth",
    "permission_error": "auth",
    "invalid_api_key": "auth",
    "billing_error": "quota",
    "insufficient_quota": "quota",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "overloaded_error": "overloaded",
    "overloaded": "overloaded",
    "api_error": "server",
    "server_error": "server",
    "internal_server_error": "server",
    "timeout_error": "timeout",
    "context_length_exceeded": "context_length",
    "request_too_large": "context_length",
    "exceed_context_size_error": "context_length",
    "invalid_request_error": "bad_request",
    "not_found_error": "bad_request",
    "model_not_found": "bad_request",
}
_STATUS = re.compile("[1-5][0-9]{2}")
_GARBLED = "does not match the expected"  # how llama.cpp says that its model broke the form of a call
_TOO_LONG = ("context length", "context window", "prompt is too long", "maximum context", "too many tokens")


def fault_of_status(status: int, body: object, headers: Mapping[str, str]) -> ProviderError:
    """The error of an answer whose status is not 200."""
    names, message = _words(body)
    kind: ProviderFault = _BY_STATUS.get(status) or ("server" if status >= 500 else "bad_request")
    named = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if named in ("quota", "context_length") or (kind == "bad_request" and _too_long(message)):
        kind = "quota" if named == "quota" else "context_length"
    if status == 500 and _GARBLED in message:
        kind = "protocol"
    text = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    return ProviderError(text, kind, status=status, retry_after=retry_after(headers))


def fault_of_event(body: object) -> ProviderError:
    """The error that a stream announced after it had begun with status 200."""
    names, message = _words(body)
    kind: ProviderFault | None = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if kind is None:
        status = next((int(name) for name in names if _STATUS.fullmatch(name)), 0)
        kind = _BY_STATUS.get(status) or ("bad_request" if 400 <= status < 500 else "unknown")
    if kind == "bad_request" and _too_long(message):
        kind = "context_length"
    return ProviderError(message or "the provider reported an error without saying which", kind)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as the server wishes; None when it did not say or said nonsense."""
    if (milliseconds := _seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if (seconds := _seconds(value)) is not None or value is None:
        return seconds
    import email.utils  # rarely needed, and slow to import

    try:
        wait = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return wait if wait > 0 else None


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def _words(body: object) -> tuple[list[str], str]:
    """(names that may classify it, the message) out of the shapes vendors use."""
    if not isinstance(body, dict):
        return [], clean(str(body))[:500].strip() if body else ""
    outer = cast(dict[str, Any], body)
    inner = outer.get("error", outer)
    if not isinstance(inner, dict):
        return [], clean(str(inner))[:500]
    fields = cast(dict[str, Any], inner)
    names = [str(fields[name]) for name in ("code", "type", "status") if fields.get(name)]
    return names, clean(str(fields.get("message") or ""))[:500]


def _too_long(message: str) -> bool:
    lower = message.lower()
    return any(phrase in lower for phrase in _TOO_LONG)
