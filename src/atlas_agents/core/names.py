"""Names as vendors allow them: letters, digits, `_` and `-`, at most 64."""

import hashlib
import re
from functools import lru_cache

_ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


@lru_cache(maxsize=4096)
def wire_name(name: str) -> str:
    """The name under which a model knows a tool: itself where allowed, `server__tool` for `server/tool`.

    Whatever else is not allowed is replaced, and a hash of the whole keeps different names different.
    """
    if _ALLOWED.fullmatch(name):
        return name
    readable = name.replace("/", "__")
    if _ALLOWED.fullmatch(readable):
        return readable
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_OTHER.sub('_', readable)[:55]}_{digest}"
