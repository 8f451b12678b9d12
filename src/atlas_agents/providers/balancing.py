"""Load balancing: spreads requests over several keys or addresses of one provider, with a rate limit for each."""

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, ProviderError
from atlas_agents.core.messages import approximate_tokens
from atlas_agents.core.paths import Secret
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, Provider, Request, keys_of
from atlas_agents.providers.rate_limits import NO_LIMIT, LocalRateLimiter, RateLimit, RateLimiter

LONGEST = 60.0
"""Maximum seconds a request waits for capacity; beyond that it fails, and failover may try another model."""
_RESTS = {"rate_limit": 15.0, "overloaded": 15.0, "quota": 600.0, "auth": 600.0}


class Member:
    """One key at one address, and its number of requests in flight."""

    def __init__(self, provider: Provider, pace: RateLimit, number: int) -> None:
        self.provider = provider
        self.pace = pace
        self.busy = 0
        secrets = "\0".join(key.reveal() for key in keys_of(provider))
        where = getattr(provider, "base_url", None) or (
            "" if secrets else number
        )  # distinguishes two members that look the same
        place = f"{provider.id}\0{where}\0{secrets}"
        self.name = f"{provider.id}:{hashlib.sha256(place.encode()).hexdigest()[:16]}"

    @property
    def full(self) -> bool:
        return self.pace.at_once is not None and self.busy >= self.pace.at_once


class Balanced:
    """Several providers of one kind as one. It waits for its own rate limits; errors of the vendor are passed on."""

    def __init__(
        self,
        providers: Sequence[Provider],
        pace: RateLimit = NO_LIMIT,
        *,
        ledger: RateLimiter | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        if not providers:
            raise ConfigError("Balanced needs at least one provider")
        self.members = [Member(provider, pace, number) for number, provider in enumerate(providers)]
        self.id = providers[0].id
        self.model: str | None = getattr(providers[0], "model", None)
        self._ledger = ledger or LocalRateLimiter(clock)
        self._clock = clock
        self._rng = rng or random.Random()
        self._waiting: list[asyncio.Event] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.members[0].provider.capabilities

    @property
    def keys(self) -> tuple[Secret, ...]:
        """All keys, for redaction."""
        return tuple(key for member in self.members for key in keys_of(member.provider))

    @property
    def key(self) -> Secret | None:
        """The first member's key."""
        return next(iter(self.keys), None)

    @property
    def base_url(self) -> str | None:
        """The first member's address."""
        return getattr(self.members[0].provider, "base_url", None)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Send a request to the provider with the most capacity left and yield its chunks."""
        counts = self.members[0].pace.tokens is not None
        tokens = sum([approximate_tokens(message) for message in request.messages]) if counts else 0
        left = list(self.members)
        while left:
            member = await self._free(left, tokens)
            left.remove(member)
            spoke = False
            try:
                async with aclosing(self._asked(member, request, tokens)) as chunks:
                    async for chunk in chunks:
                        spoke = True
                        yield chunk
                return
            except ProviderError as error:
                await self._tire(member, error)
                if spoke or not left or error.kind not in _RESTS:
                    raise

    async def _asked(self, member: Member, request: Request, tokens: int) -> AsyncGenerator[Chunk, None]:
        try:
            async with aclosing(member.provider.stream(request)) as chunks:
                async for chunk in chunks:
                    if type(chunk) is DoneChunk and member.pace.tokens is not None:
                        used = chunk.usage.input_tokens + chunk.usage.output_tokens
                        self._ledger.spent(member.name, member.pace, used - tokens)
                    yield chunk
        finally:
            member.busy -= 1
            for freed in self._waiting:
                freed.set()
            self._waiting.clear()

    async def _free(self, left: Sequence[Member], tokens: int) -> Member:
        """Return a member with capacity; its request counts as in flight from now on."""
        end = self._clock.monotonic() + LONGEST
        while True:
            waits: list[float] = []
            for member in sorted(left, key=lambda each: (each.busy, self._rng.random())):
                if member.full:
                    continue
                member.busy += 1
                wait = await self._taken(member, tokens)
                if not wait:
                    return member
                waits.append(wait)
            if not waits:
                self._waiting.append(freed := asyncio.Event())
                await freed.wait()
            elif self._clock.monotonic() + min(waits) > end:
                raise ProviderError(
                    f"all {len(left)} keys of {self.id} are rate-limited or cooling down",
                    "rate_limit",
                    retry_after=min(waits),
                )
            else:
                await self._clock.sleep(min(waits))

    async def _taken(self, member: Member, tokens: int) -> float:
        """Reserve capacity; return the seconds to wait if there is none."""
        wait = 1.0
        try:
            wait = await self._ledger.take(member.name, member.pace, tokens)
        finally:
            if wait:
                member.busy -= 1
        return wait

    async def _tire(self, member: Member, error: ProviderError) -> None:
        if error.kind in _RESTS:
            await self._ledger.rest(member.name, min(error.retry_after or _RESTS[error.kind], 3600.0))

    async def close(self) -> None:
        """Close all providers."""
        for member in self.members:
            close = getattr(member.provider, "close", None)
            if close is not None:
                await close()
