"""Who may knock: the right Host, the same Origin, and no other site's page. Asked before anything else is."""

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

Headers: TypeAlias = list[tuple[bytes, bytes]]
Refusal: TypeAlias = tuple[int, str]
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://([^/?#@\\\s]+)")
_PORTS = {"http": "80", "https": "443"}
_OWN_SITE = (b"same-origin", b"none")


class Guard:
    """Knows the names of this gateway, and the other sites whose pages may come in. Other names are those of somebody
    who points his own at this address."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str] = ()) -> None:
        self._hosts = {"localhost", "127.0.0.1", "[::1]"} | {_bracketed(host.strip().lower()) for host in hosts}
        self._origins = {origin.strip().lower().rstrip("/") for origin in origins} - {"*", "null"}

    def refusal(self, scope: Any) -> Refusal | None:
        """(status, reason) for a request that must not come in, None for one that may."""
        headers: Headers = scope["headers"]
        host = _only(headers, b"host")
        name = _HOST.fullmatch(host.lower()) if host else None
        if host is None or name is None or name[1] not in self._hosts:
            return 421, "this gateway has another name"
        if self.guest(scope) is not None:
            return None
        origins = [value for key, value in headers if key == b"origin"]
        if origins and (len(origins) > 1 or not _same(origins[0].decode("latin-1"), name)):
            return 403, "another site's page may not come in"
        if _cross_site(scope, headers):
            return 403, "another site's page may not come in"
        return None

    def guest(self, scope: Any) -> str | None:
        """The origin of another site's page that may come in; None for all others."""
        origin = _only(scope["headers"], b"origin") if self._origins else None
        return origin if origin is not None and origin.lower() in self._origins else None


def _same(origin: str, host: re.Match[str]) -> bool:
    found = _ORIGIN.fullmatch(origin.lower())
    there = _HOST.fullmatch(found[2]) if found else None
    if found is None or there is None:
        return False
    default = _PORTS[found[1]]
    return there[1] == host[1] and (there[2] or default) == (host[2] or default)


def _cross_site(scope: Any, headers: Headers) -> bool:
    """A browser says itself that another site asks. Following a link to the page is no harm."""
    told = dict(headers)
    if told.get(b"sec-fetch-site", b"none") in _OWN_SITE:
        return False
    follows_link = told.get(b"sec-fetch-mode") == b"navigate" and told.get(b"sec-fetch-dest") == b"document"
    return not (follows_link and scope["type"] == "http" and scope["method"] == "GET")


def _only(headers: Headers, key: bytes) -> str | None:
    found = [value for name, value in headers if name == key]
    return found[0].decode("latin-1") if len(found) == 1 else None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
