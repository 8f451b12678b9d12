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

_PERMANENT_KINDS = frozenset(("auth", "quota"))
MAX_ANSWER = 4 << 20
"""Characters of text and thinking in one answer, about a million tokens."""


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


class _ModelRefused(ProviderError):
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
        self._cooldown_ends: dict[int, float] = {}
        self._failure_counts: dict[int, int] = {}

    def pick(self, tried: set[int], now: float) -> int | None:
        """Pick the next route: a healthy one, else the one whose cool-down ends first, else none."""
        untried = [index for index in range(len(self.routes)) if index not in tried]
        if not untried:
            return None
        healthy = [index for index in untried if self._cooldown_ends.get(index, 0) <= now]
        if not healthy:
            return min(untried, key=lambda index: self._cooldown_ends[index])
        return self.rng.choice(healthy) if self.policy.order == "random" and len(healthy) > 1 else healthy[0]

    def record_failure(self, index: int, error: ProviderError, now: float) -> None:
        """Put a provider into cool-down, longer after each repeated failure."""
        count = self._failure_counts[index] = self._failure_counts.get(index, 0) + 1
        policy, permanent = self.policy, error.kind in _PERMANENT_KINDS
        seconds = policy.long_cooldown if permanent else policy.cooldown * 2 ** min(count - 1, 4)
        self._cooldown_ends[index] = now + min(max(seconds, error.retry_after or 0), 3600)

    def record_success(self, index: int) -> None:
        if index in self._failure_counts:
            del self._failure_counts[index]
            self._cooldown_ends.pop(index, None)

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
        supported = [route.provider.capabilities for route in self._pool.routes]
        return Capabilities(
            streaming=all(each.streaming for each in supported),
            tools=all(each.tools for each in supported),
            structured=all(each.structured for each in supported),
        )

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        tried: set[int] = set()
        failures: list[str] = []
        attempt = 0
        while (index := self._pool.pick(tried, self._clock.monotonic())) is not None:
            for retry in range(self._pool.policy.retries + 1):
                attempt += 1
                others = len(tried) + 1 < len(self._pool.routes)
                async with aclosing(self._attempt(index, request, attempt, others)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                if self._failure is None:
                    return
                error = self._failure
                failures.append(f"{self._last.label}: {error}")
                if not await self._should_retry(index, error, retry):
                    break
            tried.add(index)
        kind = self._failure.kind if self._failure else "unknown"
        raise ProviderError("no provider answered: " + "; ".join(failures), kind)

    async def _attempt(self, index: int, request: Request, attempt: int, others: bool) -> AsyncGenerator[Chunk, None]:
        """Make one attempt. If it fails, withdraw its output and set `_failure`."""
        self._last = route = self._pool.routes[index]
        self._failure = None
        if route.model:
            request = msgspec.structs.replace(request, model=route.model)
        streamed = done = False
        size = 0
        try:
            async with aclosing(route.provider.stream(request)) as chunks:
                async for chunk in chunks:
                    if type(chunk) is DoneChunk:
                        if others and chunk.stop_reason == "refusal" and self._pool.policy.on_refusal == "failover":
                            raise _ModelRefused("the model refused to answer", "quota")
                        done = True
                    elif (size := size + len(getattr(chunk, "text", ""))) > MAX_ANSWER:
                        raise ProviderError(f"the answer exceeds {MAX_ANSWER >> 20} million characters", "protocol")
                    streamed = True
                    yield chunk
            if not done:
                raise ProviderError("the stream ended without completing the message", "incomplete")
            self._pool.record_success(index)
        except ProviderError as error:
            self._failure = error
            if streamed:
                yield ResetChunk(attempt)

    async def _should_retry(self, index: int, error: ProviderError, retry: int) -> bool:
        """Wait and return True to retry the same provider, False to move on; raise if neither helps."""
        policy = self._pool.policy
        if not error.failover:
            raise error
        self._failures_left -= 1
        is_only = len(self._pool.routes) == 1
        if self._failures_left <= 0:
            self._pool.record_failure(index, error, self._clock.monotonic())
            raise error if is_only else ProviderError(f"the turn's retry budget is used up: {error}", error.kind)
        wait = (
            error.retry_after if error.retry_after is not None else backoff(retry, policy.backoff, rng=self._pool.rng)
        )
        if error.retryable and retry < policy.retries and wait <= policy.longest_wait:
            await self._clock.sleep(wait)
            return True
        if type(error) is not _ModelRefused:
            self._pool.record_failure(index, error, self._clock.monotonic())
        if is_only:
            raise error
        return False
