"""Pages of other sites that were let in: what their browser must be told so that they may read an answer."""

import re
from typing import Any, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]
PATHS = ("/v1/", "/ag-ui/")
"""Where they may ask; everything else here is for our own page."""
_FIELDS = re.compile(rb"[a-z0-9, -]{1,2000}", re.IGNORECASE)
_METHODS = b"GET, POST"
_MINUTES = b"600"


def is_preflight(scope: Any) -> bool:
    """The browser asks first whether the page may ask."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def headers_for(origin: str | None, scope: Any) -> Headers:
    """For the one origin that asked, never for all; nothing for our own page."""
    if origin is None or not scope["path"].startswith(PATHS):
        return []
    return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]


def preflight_headers(origin: str, scope: Any) -> Headers:
    """Which requests the page may make: with the fields that it asked for, and never with cookies."""
    found = headers_for(origin, scope)
    if found:
        found += [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _MINUTES)]
        fields = dict(scope["headers"]).get(b"access-control-request-headers", b"")
        if _FIELDS.fullmatch(fields):
            found.append((b"access-control-allow-headers", fields))
    return found
