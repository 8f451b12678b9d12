"""How fast a key may be used: requests and tokens a minute, and how many requests at once."""

import re
from typing import Protocol

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError

BURST = 10.0
"""Seconds' worth of a pace that may be used in one go."""
_PART = re.compile(r"(requests|tokens|at_once)=([0-9][0-9_]*)")


class Pace(msgspec.Struct, frozen=True):
    """Requests and tokens in a minute, requests at a time; None is as many as one likes."""

    requests: int | None = None
    tokens: int | None = None
    at_once: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(f"Pace({name}=…) must be at least 1, not {limit}")


NO_LIMIT = Pace()


class Due(msgspec.Struct, frozen=True):
    """Till when what was asked so far would have taken at the pace: seconds since 1970, for requests and for tokens.
    `rest` is how long the key is to be left alone."""

    requests: float = 0.0
    tokens: float = 0.0
    rest: float = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the key may be used; 0 is now."""
        return max(self.rest - now, self.requests - now - BURST, self.tokens - now - BURST, 0.0)

    def charged(self, pace: Pace, now: float, requests: int, tokens: int) -> "Due":
        return Due(
            _later(self.requests, now, requests, pace.requests),
            _later(self.tokens, now, tokens, pace.tokens),
            self.rest,
        )

    def rested(self, until: float) -> "Due":
        return msgspec.structs.replace(self, rest=max(self.rest, until))


def _later(due: float, now: float, count: int, a_minute: int | None) -> float:
    return due if a_minute is None else max(due, now) + count * 60 / a_minute


class Ledger(Protocol):
    """Keeps account of keys, each named by what does not give it away."""

    async def take(self, key: str, pace: Pace, tokens: int) -> float:
        """0 if the key may be used now, and the use is counted; else the seconds to wait, and nothing is counted."""
        ...

    def spent(self, key: str, pace: Pace, tokens: int) -> None:
        """So many tokens more than was thought, or fewer."""
        ...

    async def rest(self, key: str, seconds: float) -> None:
        """Leave a key alone for so long."""
        ...


class LocalLedger:
    """The account of one process."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._due: dict[str, Due] = {}

    async def take(self, key: str, pace: Pace, tokens: int) -> float:
        due, now = self._due.get(key, Due()), self._clock.time()
        wait = due.wait(now)
        if not wait:
            self._due[key] = due.charged(pace, now, 1, tokens)
        return wait

    def spent(self, key: str, pace: Pace, tokens: int) -> None:
        self._due[key] = self._due.get(key, Due()).charged(pace, self._clock.time(), 0, tokens)

    async def rest(self, key: str, seconds: float) -> None:
        self._due[key] = self._due.get(key, Due()).rested(self._clock.time() + seconds)


def read_paces(lines: tuple[str, ...]) -> dict[str, Pace]:
    """`openai requests=500 tokens=200000 at_once=8`, one for each provider; ConfigError says what is wrong with one."""
    found: dict[str, Pace] = {}
    for line in lines:
        provider, *parts = line.split()
        matches = [_PART.fullmatch(part) for part in parts]
        limits = {match[1]: int(match[2]) for match in matches if match}
        if not parts or None in matches or len(limits) < len(parts) or provider in found:
            raise ConfigError(
                f"{line!r} is no limit of a provider: write each provider once, like "
                "'openai requests=500 tokens=200000 at_once=8'; requests and tokens are those of a minute"
            )
        found[provider] = Pace(**limits)
    return found
