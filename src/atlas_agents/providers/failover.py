"""Retries and failover over several providers, with one budget per turn.

Output of a failed attempt is withdrawn with a ResetChunk; two answers are never joined. An invalid request is invalid
everywhere, so it is not sent to the other providers.
"""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, ProviderError
from atlas_agents.core.http import backoff
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, Provider, Request, ResetChunk

_LONG = frozenset(("auth", "quota"))


class Route(msgspec.Struct, frozen=True):
    """A provider, and the model to request if not its default."""

    provider: Provider
    model: str | None = None

    @property
    def label(self) -> str:
        model = self.model or getattr(self.provider, "model", None)
        return f"{self.provider.id}/{model}" if model else self.provider.id


class RetryPolicy(msgspec.Struct, frozen=True):
    """Retry policy. Times are in seconds; `failures` is the number of failed attempts allowed in one turn.

    Args:
        order: Try the providers in random or in the given order.
        retries: Retries of one provider before the next one is tried.
        failures: Failed attempts allowed in one turn.
        backoff: Seconds before the first retry; doubled for each further one.
        longest_wait: Longest `Retry-After` to wait for; otherwise the next provider is tried.
        cooldown: Seconds for which a failed provider is avoided.
        long_cooldown: The same for failures that do not pass soon, such as an invalid key.
        on_refusal: Whether a refusal ends the turn or the next provider is tried.
    """

    order: Literal["random", "given"] = "random"
    retries: int = 2
    failures: int = 8
    backoff: float = 0.5
    longest_wait: float = 30
    cooldown: float = 15
    long_cooldown: float = 600
    on_refusal: Literal["final", "failover"] = "final"


class _Unwilling(ProviderError):
    """The model refused to answer; another model may be tried, and this one needs no cool-down."""


class Failover:
    """An agent's providers and their health; shared by all its turns."""

    def __init__(
        self, routes: Sequence[Route], policy: RetryPolicy | None = None, *, rng: random.Random | None = None
    ) -> None:
        if not routes:
            raise ConfigError("an agent needs at least one provider")
        self.routes = tuple(routes)
        self.policy = policy or RetryPolicy()
        self.rng = rng or random.Random()
        self._back: dict[int, float] = {}
        self._strikes: dict[int, int] = {}

    def pick(self, tried: set[int], now: float) -> int | None:
        """Pick the next route: a healthy one, else the one whose cool-down ends first, else none."""
        left = [place for place in range(len(self.routes)) if place not in tried]
        if not left:
            return None
        healthy = [place for place in left if self._back.get(place, 0) <= now]
        if not healthy:
            return min(left, key=lambda place: self._back[place])
        return self.rng.choice(healthy) if self.policy.order == "random" and len(healthy) > 1 else healthy[0]

    def failed(self, place: int, error: ProviderError, now: float) -> None:
        """Put a provider into cool-down, longer after each repeated failure."""
        strikes = self._strikes[place] = self._strikes.get(place, 0) + 1
        pause = self.policy.long_cooldown if error.kind in _LONG else self.policy.cooldown * 2 ** min(strikes - 1, 4)
        self._back[place] = now + min(max(pause, error.retry_after or 0), 3600)

    def succeeded(self, place: int) -> None:
        if place in self._strikes:
            del self._strikes[place]
            self._back.pop(place, None)

    def for_turn(self, clock: Clock = SYSTEM_CLOCK) -> "TurnProvider":
        """Return these providers as one, with the budget of one turn."""
        return TurnProvider(self, clock)


class TurnProvider:
    """One turn's view of the providers; itself a provider."""

    def __init__(self, pool: Failover, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._failures_left = pool.policy.failures
        self._failure: ProviderError | None = None
        self._last = pool.routes[0]

    @property
    def id(self) -> str:
        return self._last.label

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities common to all providers, since any of them may answer."""
        all_of_them = [route.provider.capabilities for route in self._pool.routes]
        return Capabilities(
            streaming=all(each.streaming for each in all_of_them),
            tools=all(each.tools for each in all_of_them),
            structured=all(each.structured for each in all_of_them),
        )

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        tried: set[int] = set()
        failures: list[str] = []
        attempt = 0
        while (place := self._pool.pick(tried, self._clock.monotonic())) is not None:
            for retry in range(self._pool.policy.retries + 1):
                attempt += 1
                others = len(tried) + 1 < len(self._pool.routes)
                async with aclosing(self._attempt(place, request, attempt, others)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                if self._failure is None:
                    return
                error = self._failure
                failures.append(f"{self._last.label}: {error}")
                if not await self._worth_another(place, error, retry):
                    break
            tried.add(place)
        kind = self._failure.kind if self._failure else "unknown"
        raise ProviderError("no provider answered: " + "; ".join(failures), kind)

    async def _attempt(self, place: int, request: Request, attempt: int, others: bool) -> AsyncGenerator[Chunk, None]:
        """Make one attempt. If it fails, withdraw its output and set `_failure`."""
        self._last = route = self._pool.routes[place]
        self._failure = None
        if route.model:
            request = msgspec.structs.replace(request, model=route.model)
        spoke = done = False
        try:
            async with aclosing(route.provider.stream(request)) as chunks:
                async for chunk in chunks:
                    if type(chunk) is DoneChunk:
                        if others and chunk.stop_reason == "refusal" and self._pool.policy.on_refusal == "failover":
                            raise _Unwilling("the model refused to answer", "quota")
                        done = True
                    spoke = True
                    yield chunk
            if not done:
                raise ProviderError("the stream ended without completing the message", "incomplete")
            self._pool.succeeded(place)
        except ProviderError as error:
            self._failure = error
            if spoke:
                yield ResetChunk(attempt)

    async def _worth_another(self, place: int, error: ProviderError, retry: int) -> bool:
        """Wait and return True to retry the same provider, False to move on; raise if neither helps."""
        policy = self._pool.policy
        if not error.failover:
            raise error
        self._failures_left -= 1
        last_one = len(self._pool.routes) == 1
        if self._failures_left <= 0:
            self._pool.failed(place, error, self._clock.monotonic())
            raise error if last_one else ProviderError(f"the turn's retry budget is used up: {error}", error.kind)
        wait = error.retry_after if error.retry_after is not None else self._backoff(retry)
        if error.retryable and retry < policy.retries and wait <= policy.longest_wait:
            await self._clock.sleep(wait)
            return True
        if type(error) is not _Unwilling:
            self._pool.failed(place, error, self._clock.monotonic())
        if last_one:
            raise error
        return False

    def _backoff(self, retry: int) -> float:
        return backoff(retry, self._pool.policy.backoff, rng=self._pool.rng)
