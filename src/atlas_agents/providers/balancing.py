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
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, Provider, Request, collect_keys
from atlas_agents.providers.rate_limits import NO_LIMIT, LocalRateLimiter, RateLimit, RateLimiter

MAX_WAIT = 60.0
"""Maximum seconds a request waits for capacity; beyond that it fails, and failover may try another model."""
_COOLDOWNS = {"rate_limit": 15.0, "overloaded": 15.0, "quota": 600.0, "auth": 600.0}


class Member:
    """One key at one address, and its number of requests in flight."""

    def __init__(self, provider: Provider, limit: RateLimit, number: int) -> None:
        self.provider = provider
        self.limit = limit
        self.busy = 0
        secrets = "\0".join(key.reveal() for key in collect_keys(provider))
        address = getattr(provider, "base_url", None) or (
            "" if secrets else number
        )  # distinguishes two members that look the same
        identity = f"{provider.id}\0{address}\0{secrets}"
        self.name = f"{provider.id}:{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    @property
    def full(self) -> bool:
        return self.limit.at_once is not None and self.busy >= self.limit.at_once


class Balanced:
    """Several providers of one kind as one. It waits for its own rate limits; errors of the vendor are passed on."""

    def __init__(
        self,
        providers: Sequence[Provider],
        limit: RateLimit = NO_LIMIT,
        *,
        limiter: RateLimiter | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        if not providers:
            raise ConfigError("Balanced needs at least one provider")
        self.members = [Member(provider, limit, number) for number, provider in enumerate(providers)]
        self.id = providers[0].id
        self.model: str | None = getattr(providers[0], "model", None)
        self._limiter = limiter or LocalRateLimiter(clock)
        self._clock = clock
        self._rng = rng or random.Random()
        self._waiting: list[asyncio.Event] = []

    @property
    def capabilities(self) -> Capabilities:
        return self.members[0].provider.capabilities

    @property
    def keys(self) -> tuple[Secret, ...]:
        """All keys, for redaction."""
        return tuple(key for member in self.members for key in collect_keys(member.provider))

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
        limits_tokens = self.members[0].limit.tokens is not None
        tokens = sum([approximate_tokens(message) for message in request.messages]) if limits_tokens else 0
        candidates = list(self.members)
        while candidates:
            member = await self._acquire_member(candidates, tokens)
            candidates.remove(member)
            streamed = False
            try:
                async with aclosing(self._stream_member(member, request, tokens)) as chunks:
                    async for chunk in chunks:
                        streamed = True
                        yield chunk
                return
            except ProviderError as error:
                await self._cool_down(member, error)
                if streamed or not candidates or error.kind not in _COOLDOWNS:
                    raise

    async def _stream_member(self, member: Member, request: Request, tokens: int) -> AsyncGenerator[Chunk, None]:
        try:
            async with aclosing(member.provider.stream(request)) as chunks:
                async for chunk in chunks:
                    if type(chunk) is DoneChunk and member.limit.tokens is not None:
                        used = chunk.usage.input_tokens + chunk.usage.output_tokens
                        self._limiter.settle(member.name, member.limit, used - tokens)
                    yield chunk
        finally:
            member.busy -= 1
            for slot_freed in self._waiting:
                slot_freed.set()
            self._waiting.clear()

    async def _acquire_member(self, candidates: Sequence[Member], tokens: int) -> Member:
        """Return a member with capacity; its request counts as in flight from now on."""
        end = self._clock.monotonic() + MAX_WAIT
        while True:
            waits: list[float] = []
            for member in sorted(candidates, key=lambda each: (each.busy, self._rng.random())):
                if member.full:
                    continue
                member.busy += 1
                wait = await self._reserve(member, tokens)
                if not wait:
                    return member
                waits.append(wait)
            if not waits:
                self._waiting.append(slot_freed := asyncio.Event())
                await slot_freed.wait()
            elif self._clock.monotonic() + min(waits) > end:
                raise ProviderError(
                    f"all {len(candidates)} keys of {self.id} are rate-limited or cooling down",
                    "rate_limit",
                    retry_after=min(waits),
                )
            else:
                await self._clock.sleep(min(waits))

    async def _reserve(self, member: Member, tokens: int) -> float:
        """Reserve capacity; return the seconds to wait if there is none."""
        wait = 1.0
        try:
            wait = await self._limiter.acquire(member.name, member.limit, tokens)
        finally:
            if wait:
                member.busy -= 1
        return wait

    async def _cool_down(self, member: Member, error: ProviderError) -> None:
        if error.kind in _COOLDOWNS:
            await self._limiter.cool_down(member.name, min(error.retry_after or _COOLDOWNS[error.kind], 3600.0))

    async def close(self) -> None:
        """Close all providers."""
        for member in self.members:
            close = getattr(member.provider, "close", None)
            if close is not None:
                await close()
