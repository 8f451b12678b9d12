"""Outgoing HTTP: client sessions that share their defaults, and the delay between retries."""

import math
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

_JITTER = 0.25


def open_session(
    *, connect_timeout: float = 10.0, read_timeout: float | None = None, use_proxies: bool = False, **options: Any
) -> "aiohttp.ClientSession":
    """Open an aiohttp session. It keeps no cookies and does not limit a request as a whole: that is up to its callers.

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
