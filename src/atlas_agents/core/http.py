"""Outgoing HTTP: client sessions that share their defaults, the delay between retries, and public addresses."""

import math
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

_JITTER = 0.25


def open_session(
    *, connect_timeout: float = 10.0, read_timeout: float | None = None, use_proxies: bool = False, **options: Any
) -> "aiohttp.ClientSession":
    """Open an aiohttp session. It keeps no cookies and sets no total timeout: callers set their own.

    `use_proxies` reads proxy settings and .netrc from the environment. Other options are those of aiohttp, which is
    imported only when it is needed, because it takes long to import.
    """
    import aiohttp

    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout, sock_read=read_timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=use_proxies,
        **options,
    )


def backoff(
    attempt: int, first: float, maximum: float = math.inf, *, factor: float = 2.0, rng: random.Random | None = None
) -> float:
    """Return the delay in seconds before a retry: exponential backoff with jitter.

    `attempt` counts from 0. The delay grows from `first` by `factor` up to `maximum`, less a random part of up to 25 %,
    so that many clients do not retry at the same moment.
    """
    delay = min(first * factor ** min(attempt, 64), maximum)
    return delay * (1 - _JITTER * (rng or random).random())


_NOT_PUBLIC_4 = tuple(
    IPv4Network(each)
    for each in (
        "0.0.0.0/8",  # "this network"; many systems treat 0.0.0.0 as the local host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's platform address, reachable from every virtual machine there
        "169.254.0.0/16",  # link-local, including the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_PRIVATE_4 = tuple(
    IPv4Network(each) for each in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
_PRIVATE_6 = (IPv6Network("::1/128"), IPv6Network("fc00::/7"))
_METADATA_SERVICES = (ip_address("100.100.100.200"), ip_address("fd00:ec2::254"), ip_address("fd20:ce::254"))
"""Cloud metadata services at addresses in private ranges; they hand out a machine's credentials."""
_LOCAL_NAMES = ("localhost", "local", "internal", "intern", "lan", "home", "corp", "private")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_GLOBAL_UNICAST = IPv6Network("2000::/3")
"""Contains every public IPv6 address. Ranges that map, embed or translate IPv4 addresses are excluded below."""
_NOT_PUBLIC_6 = tuple(
    IPv6Network(each)
    for each in (
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The upper half of the interface identifier in an ISATAP address; the lower half is an IPv4 address."""


def is_public(address: str) -> bool:
    """Return whether a canonical IP address is publicly routable."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return _is_public_4(parsed) if isinstance(parsed, IPv4Address) else _is_public_6(parsed)


def is_public_url(url: str) -> bool:
    """Return whether a URL's host may be public, judged by its text alone; no name is resolved."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or "\\" in url or "%" in host:
        return False
    name, dot, top_level = host.rpartition(".")
    if ":" in host or _NUMBER.fullmatch(top_level):
        return is_public(host)
    return bool(dot and name) and top_level not in _LOCAL_NAMES and not host.endswith(".home.arpa")


def is_private(address: str) -> bool:
    """Return whether an address is on a private network or this machine; never true for cloud metadata services."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    networks = _PRIVATE_4 if isinstance(parsed, IPv4Address) else _PRIVATE_6
    return parsed not in _METADATA_SERVICES and any(parsed in network for network in networks)


def _is_public_4(address: IPv4Address) -> bool:
    return not any(address in network for network in _NOT_PUBLIC_4)


def _is_public_6(address: IPv6Address) -> bool:
    if address.scope_id or address not in _GLOBAL_UNICAST:
        return False
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return not any(address in network for network in _NOT_PUBLIC_6)
