"""Addresses of pages: taken apart by one parser, and refused unless they are plain `http` or `https`."""

import re
from collections.abc import Iterable

import msgspec
from yarl import URL

from atlas_agents.core.errors import ToolFailed
from atlas_agents.toolbox.web.hosts import Hosts

LONGEST = 4000
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
_AUTHORITY = re.compile(r"[/?#]")
"""Where the host ends."""
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ADDRESS = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}")
_OTHER_SERVICES = frozenset(
    (
        *(1719, 1720, 1723, 2049, 2375, 2376, 3306, 3659, 4045, 4190, 5060, 5061, 5432, 6000, 6379, 6566),
        *(6665, 6666, 6667, 6668, 6669, 6679, 6697, 9100, 10080, 11211, 27017),
    )
)
"""Ports of services that are no web servers and might take a request for an order of theirs."""


class Refused(ToolFailed):
    """The guard says no; the model reads why."""


class Target(msgspec.Struct, frozen=True):
    """A page to be fetched. `trusted` if its host may be in a private network."""

    url: URL
    host: str
    port: int
    trusted: bool


def target(text: str, hosts: Hosts) -> Target:
    """The address of a page, or Refused. What is dialled later is what this parser has found, and no other."""
    if len(text) > LONGEST:
        raise Refused(f"the address is {len(text):,} characters long; at most {LONGEST:,} can be taken")
    if "\\" in text or any(char.isspace() or not char.isprintable() for char in text):
        raise Refused("there is a space, a backslash or a character that cannot be seen in the address")
    if "@" in _AUTHORITY.split(text.partition("://")[2], maxsplit=1)[0]:
        raise Refused("there is a name or a password in the address; they are not sent")
    try:
        return _checked(URL(text), hosts)
    except (ValueError, TypeError) as error:
        raise Refused(f"{text[:200]} is no address of a page: {str(error)[:200]}") from None


def onwards(here: URL, location: str, hosts: Hosts) -> Target:
    """Where a redirect leads, looked at as strictly as the first address."""
    if "\\" in location or any(char.isspace() or not char.isprintable() for char in location.strip()):
        raise Refused(f"{here} redirects to something that is no address")
    try:
        there = here.join(URL(location.strip()))
    except (ValueError, TypeError):
        raise Refused(f"{here} redirects to something that is no address") from None
    return target(str(there), hosts)


def _checked(url: URL, hosts: Hosts) -> Target:
    if url.scheme not in ("http", "https"):
        raise Refused(f"only http and https can be fetched, not {url.scheme or 'an address without either'}")
    if url.raw_user is not None or url.raw_password is not None:
        raise Refused("there is a name or a password in the address; they are not sent")
    host, port = (url.raw_host or "").lower(), url.port
    if port is None or not _is_host(host):
        raise Refused(f"{host[:200] or 'nothing'!r} is no name of a host")
    trusted = hosts.include(host, port)
    if not trusted and (port in _OTHER_SERVICES or (port < 1024 and port not in (80, 443))):
        raise Refused(f"port {port} is not one that pages are fetched from")
    return Target(url.with_fragment(None), host, port, trusted)


def _is_host(host: str) -> bool:
    """A name, or an address in its one usual form: `0177.1` and `2130706433` are ways to hide one."""
    if ":" in host:
        return "%" not in host
    if not _NAME.fullmatch(host) or len(host) > 253:
        return False
    last = host.rstrip(".").rpartition(".")[2]
    return not _NUMBER.fullmatch(last) or bool(_ADDRESS.fullmatch(host))


def absolute(base: str, links: Iterable[str]) -> list[str]:
    """Links of a page as whole addresses, those that lead to pages alone."""
    found: list[str] = []
    for link in links:
        try:
            url = URL(base).join(URL(link.strip()))
        except (ValueError, TypeError):
            continue
        if url.scheme in ("http", "https") and url.raw_host:
            found.append(str(url))
    return found
