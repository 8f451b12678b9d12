"""Guessing a token is slow: after ten wrong ones in a minute, an address must wait."""

import ipaddress
from collections import OrderedDict, deque

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock

MOST_WRONG = 10
WINDOW = 60.0
_MOST_ADDRESSES = 10_000


class Lockout:
    """Counts wrong tokens per address; an address of IPv6 counts with its whole network."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 if it may now."""
        times = self._wrong.get(_network(address))
        if times is None or len(times) < MOST_WRONG:
            return 0.0
        return max(0.0, times[0] + WINDOW - self._clock.monotonic())

    def wrong(self, address: str) -> None:
        """A wrong token came from this address."""
        key = _network(address)
        times = self._wrong.setdefault(key, deque(maxlen=MOST_WRONG))
        times.append(self._clock.monotonic())
        self._wrong.move_to_end(key)
        if len(self._wrong) > _MOST_ADDRESSES:
            self._wrong.popitem(last=False)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 6 and found.ipv4_mapped is None and not found.is_loopback:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
