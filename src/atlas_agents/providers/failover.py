"""Retries and failover over several providers, with one budget per turn.

Output of a failed attempt is withdrawn with a ResetChunk; two answers are never joined. An invalid request is invalid
everywhere, so it is not sent to the other providers. A request that exceeds a model's context window moves on to a
model with a larger window, if there is one.
"""

import math
import random
import re
import weakref
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, ProviderError
from atlas_agents.core.events import FailedAttempt, Usage
from atlas_agents.core.http import backoff
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolSpec, memo, text_tokens, total_tokens
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, Provider, Request, ResetChunk, TextChunk
from atlas_agents.providers.catalogue import UNKNOWN, ModelProfile, find_profile

_PERMANENT_KINDS = frozenset(("auth", "quota"))
MAX_ANSWER = 4 << 20
"""Maximum number of characters of text and thinking in one answer, about a million tokens."""


WINDOW = 900.0
"""Seconds that recent figures cover."""
_MAX_SAMPLES = 2000
_BUCKET_RATIO, _MIN_VALUE = 1.05, 1e-4
_LOG_RATIO = math.log(_BUCKET_RATIO)
_TOOL_TOKENS = "context_tokens"
_MIN_LIMIT = 256
_MEASURED = 1000
"""Minimum estimated tokens of a request whose estimate is calibrated with the vendor's count."""
_SMALL, _FEW = 250, 4
"""Tokens and messages up to which an answered request says nothing about the limit of its model. The tokens alone are
not enough: some servers do not count cached tokens."""
_WINDOW = re.compile(
    r"(?:maximum context length is|maximum prompt length is|allowed \(|context size \(|tokens >)\s*([\d,]+)"
)
_NUMBERS = re.compile(r"\d[\d,]*")
REFUSAL = "refusal"
"""Kind of a failed attempt whose model refused to answer."""
_MAX_MESSAGE = 300
"""Maximum length of the recorded message of a failed attempt."""


def request_tokens(request: Request) -> int:
    """Estimate the tokens of a request."""
    return total_tokens(request.messages) + overhead_tokens(request.system, request.tools)


def overhead_tokens(system: str, tools: Sequence[ToolSpec]) -> int:
    """Estimate the tokens of a request without its messages."""
    tokens = text_tokens(len(system))
    for spec in tools:
        found: int | None = getattr(spec, _TOOL_TOKENS, None)
        if found is None:
            found = memo(spec)[_TOOL_TOKENS] = text_tokens(len(encode(spec)))
        tokens += found
    return tokens


class ContextLimit:
    """Learned context limit of a model, in estimated tokens: a share of its context window, or less if it refused that.

    All turns of a process share it. The estimate is calibrated by the tokens that the vendor counts.
    """

    __slots__ = ("_answered", "_learned", "_model", "_ratio")

    def __init__(self, model: str = "") -> None:
        self._model = model
        self._ratio = 1.0
        self._learned = math.inf
        self._answered = 0
        """Tokens of the largest request that was answered."""

    @property
    def profile(self) -> ModelProfile:
        return find_profile(self._model) if self._model else UNKNOWN

    @property
    def tokens(self) -> float:
        """Maximum estimated tokens of a request; infinite if unknown. An eighth of the window is left free."""
        return self.within()

    @property
    def is_unknown(self) -> bool:
        """Whether the limit is unknown: neither the catalogue nor an answer of the model implies one."""
        return self._learned == math.inf and self.profile.context_window is None

    def within(self, window: int | None = None) -> float:
        """Return the limit with this context window in tokens instead of the one in the catalogue."""
        window = window or self.profile.context_window
        return min(self._learned, math.inf if window is None else window * 7 / 8 / self._ratio)

    def record_refusal(self, tokens: int, error: ProviderError) -> None:
        """Lower the limit after a request that was too long: by the ratio in the error, or else by half.

        It does not fall below the largest request that was answered.
        """
        if tokens <= self._answered:
            self._answered = 0
        window, size = _read_numbers(str(error))
        share = window / size * 0.9 if size > window else 0.5
        self._learned = max(_MIN_LIMIT, self._answered, min(self._learned, tokens * share))

    def record_success(self, tokens: int, usage: Usage) -> None:
        """Calibrate the estimate; a request above the limit that was answered raises it."""
        self._answered = max(self._answered, tokens)
        self._learned = max(self._learned, tokens)
        if tokens >= _MEASURED and usage.input_tokens and not usage.estimated:
            self._ratio = (self._ratio + min(max(usage.input_tokens / tokens, 0.6), 3)) / 2


_limits: weakref.WeakKeyDictionary[Provider, dict[str, ContextLimit]] = weakref.WeakKeyDictionary()


def find_limit(route: "Route") -> ContextLimit:
    """Return the context limit of a route's model."""
    model = route.model or getattr(route.provider, "model", None) or ""
    provider: Provider = getattr(route.provider, "inner", route.provider)
    known = _limits.setdefault(provider, {})
    if model not in known:
        known[model] = ContextLimit(model)
    return known[model]


def _read_numbers(message: str) -> tuple[float, float]:
    """Return the window and the size of the request that an error names; zeros if it does not."""
    found = _WINDOW.search(message)
    if found is None:
        return 0, 0
    return float(found[1].replace(",", "")), max(float(each.replace(",", "")) for each in _NUMBERS.findall(message))


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

    def __post_init__(self) -> None:
        if self.order not in ("random", "given"):
            raise ConfigError(f"invalid RetryPolicy(order={self.order!r}): expected 'random' or 'given'")
        if self.on_refusal not in ("final", "failover"):
            raise ConfigError(f"invalid RetryPolicy(on_refusal={self.on_refusal!r}): expected 'final' or 'failover'")
        for name in ("retries", "failures", "backoff", "longest_wait", "cooldown", "long_cooldown"):
            value: object = getattr(self, name)
            if not isinstance(value, (int, float)) or value < 0:
                raise ConfigError(f"invalid RetryPolicy({name}={value!r}): expected a number that is not negative")


class ModelRefused(ProviderError):
    """The model refused to answer; another model may be tried, and this one needs no cool-down."""

    def __init__(self, usage: Usage) -> None:
        super().__init__("the model refused to answer", "quota")
        self.usage = usage


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of recent values; None if there are none."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class RecentValues:
    """Sliding window of values with the time at which they were added; it keeps the latest 2,000, in a ring buffer."""

    __slots__ = ("_next", "_times", "_values")

    def __init__(self) -> None:
        self._times, self._values, self._next = array("d"), array("d"), 0

    def add(self, now: float, value: float) -> None:
        if len(self._times) < _MAX_SAMPLES:
            self._times.append(now)
            self._values.append(value)
            return
        self._times[self._next], self._values[self._next] = now, value
        self._next = (self._next + 1) % _MAX_SAMPLES

    def since(self, now: float) -> list[float]:
        """Return the values of the window that ends now, in any order."""
        return [value for time, value in zip(self._times, self._values, strict=True) if time >= now - WINDOW]

    def percentiles(self, now: float) -> Percentiles:
        """Return the percentiles of the window that ends now, by nearest rank."""
        return _find_percentiles(sorted(self.since(now)))

    def buckets(self, now: float) -> dict[int, int]:
        """Count the values of the window that ends now in buckets that `merge_buckets` reads."""
        return Counter([math.ceil(math.log(max(value, _MIN_VALUE)) / _LOG_RATIO) for value in self.since(now)])


def merge_buckets(found: Iterable[Mapping[int, int]]) -> Percentiles:
    """Return the percentiles of the values of several processes, with an error of at most 2.5 %."""
    counts = Counter[int]()
    for each in found:
        counts.update(each)
    return _find_percentiles([_BUCKET_RATIO ** (bucket - 0.5) for bucket in sorted(counts.elements())])


def _find_percentiles(found: Sequence[float]) -> Percentiles:
    if not found:
        return Percentiles()
    ranks = [found[max(0, math.ceil(share * len(found)) - 1)] for share in (0.5, 0.95, 0.99)]
    return Percentiles(len(found), *[round(rank, 4) for rank in ranks])


class ModelStatus(msgspec.Struct, frozen=True):
    """Recent requests to one model. `last_error` is the kind of the latest failure, and `last_error_at` its time."""

    model: str
    requests: int
    failures: int
    first_chunk: Percentiles
    last_error: str = ""
    last_error_at: float = 0.0
    cooldown: float = 0.0
    """Seconds for which other models are preferred."""


class _ModelWindow:
    """Recent requests to one model; a value of the outcomes is 1 for a failure."""

    __slots__ = ("cooldown_end", "first_chunk", "last_error", "last_error_at", "outcomes")

    def __init__(self) -> None:
        self.outcomes, self.first_chunk = RecentValues(), RecentValues()
        self.last_error, self.last_error_at, self.cooldown_end = "", 0.0, 0.0


class ModelHealth:
    """Health of the models that this process calls: recent requests, failures and time to the first chunk."""

    def __init__(self) -> None:
        self._models: dict[str, _ModelWindow] = {}

    def record_success(self, model: str, now: float, first_chunk: float) -> None:
        window = self._window(model)
        window.outcomes.add(now, 0.0)
        window.first_chunk.add(now, first_chunk)
        window.cooldown_end = 0.0

    def record_failure(self, model: str, now: float, kind: str, at: float) -> None:
        """Record a failed request; `at` is the time in seconds since 1970."""
        window = self._window(model)
        window.outcomes.add(now, 1.0)
        window.last_error, window.last_error_at = kind, at

    def record_cooldown(self, model: str, end: float) -> None:
        self._window(model).cooldown_end = end

    def status(self, now: float) -> list[ModelStatus]:
        """Return the models that were called recently or are in cool-down, by name."""
        found: list[ModelStatus] = []
        for model, window in sorted(self._models.items()):
            outcomes, cooldown = window.outcomes.since(now), max(0.0, window.cooldown_end - now)
            if outcomes or cooldown:
                latency = window.first_chunk.percentiles(now)
                error = (window.last_error, window.last_error_at)
                found.append(ModelStatus(model, len(outcomes), int(sum(outcomes)), latency, *error, cooldown))
        return found

    def first_chunk_buckets(self, model: str, now: float) -> dict[int, int]:
        """Return the times to the first chunk of a model, to merge them with those of other processes."""
        return self._window(model).first_chunk.buckets(now)

    def _window(self, model: str) -> _ModelWindow:
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = _ModelWindow()
        return found


class Failover:
    """An agent's providers and their health; shared by all its turns."""

    def __init__(
        self,
        routes: Sequence[Route],
        policy: RetryPolicy | None = None,
        *,
        rng: random.Random | None = None,
        health: ModelHealth | None = None,
    ) -> None:
        if not routes:
            raise ConfigError("an agent needs at least one provider")
        self.routes = tuple(routes)
        self.policy = policy or RetryPolicy()
        self.rng = rng or random.Random(random.getrandbits(64))  # a seed of `random` makes tests repeatable
        self.health = health or ModelHealth()
        self.limits = tuple(find_limit(route) for route in self.routes)
        self._cooldown_ends: dict[int, float] = {}
        self._failure_counts: dict[int, int] = {}

    def pick(self, tried: Collection[int], now: float, tokens: int = 0) -> int | None:
        """Pick the next route: a healthy one, else the one whose cool-down ends first, else none.

        Models whose context window is too small for the tokens of the request come last.
        """
        if len(self.routes) == 1:
            return None if tried else 0
        untried = [index for index in range(len(self.routes)) if index not in tried]
        if not untried:
            return None
        if len(untried) > 1:
            untried = [index for index in untried if tokens <= self.limits[index].tokens] or untried
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
        self.health.record_cooldown(self.routes[index].label, self._cooldown_ends[index])

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
        self._index, self._last = 0, pool.routes[0]
        self._attempts = self._retries = 0
        """Attempts at the request, and those with the current provider after the first."""
        self._tried: tuple[int, ...] = ()
        self._failure: ProviderError | None = None
        self._failures: tuple[str, ...] = ()
        """Records of the failed attempts at the request."""
        self._sent_at = self._first_chunk = 0.0
        self._is_complete = self._is_too_long = False
        self.max_tokens: int | None = None
        """Output tokens that a budget leaves for the next attempt, instead of the request's limit."""
        self._tokens: int | None = None
        """Estimated tokens of the request, once they are needed."""
        self._summed: tuple[list[Message], int] = ([], 0)
        """The messages of the last request and their tokens; the next request usually adds to them."""
        self._failed: tuple[FailedAttempt, ...] = ()

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

    @property
    def limits(self) -> Sequence[ContextLimit]:
        """Context limits of the models."""
        return self._pool.limits

    @property
    def models(self) -> list[str]:
        """The names of the models, any of which may answer."""
        return [route.model or getattr(route.provider, "model", None) or route.label for route in self._pool.routes]

    def take_failed(self) -> tuple[FailedAttempt, ...]:
        """Return the attempts that failed since the last call."""
        failed, self._failed = self._failed, ()
        return failed

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Stream an answer. Output of a failed attempt is withdrawn before the next attempt."""
        sent = self._begin(request)
        while sent is not None:
            streamed, size = False, 0
            try:
                chunks = self._last.provider.stream(sent)
                try:
                    async for chunk in chunks:
                        if not streamed:
                            self._first_chunk = self._clock.monotonic() - self._sent_at
                        if type(chunk) is DoneChunk:
                            self._complete(request, chunk)
                        else:
                            size += len(chunk.text if type(chunk) is TextChunk else getattr(chunk, "text", ""))
                        if size > MAX_ANSWER:
                            raise ProviderError(f"the answer exceeds {MAX_ANSWER >> 20} million characters", "protocol")
                        streamed = True
                        yield chunk
                finally:
                    await chunks.aclose()
                if self._is_complete:
                    self._record_success()
                    return
                self._failure = ProviderError("the stream ended without completing the message", "incomplete")
            except ProviderError as error:
                self._failure = error
            if (reset := self._fail(self._failure, streamed=streamed)) is not None:
                yield reset
            sent = await self._next_attempt(request, self._failure)
        kind = "context_length" if self._is_too_long else self._failure.kind if self._failure else "unknown"
        raise ProviderError("no provider answered: " + "; ".join(self._failures), kind)

    def _fail(self, failure: ProviderError, *, streamed: bool) -> ResetChunk | None:
        """Record a failed attempt and return the reset that withdraws its output and usage; None if there is none."""
        self._failures = (*self._failures, self._record_failure(failure))
        used = failure.usage if isinstance(failure, ModelRefused) else None
        return ResetChunk(self._attempts, used) if streamed or used is not None else None

    def _record_success(self) -> None:
        self._pool.record_success(self._index)
        self._pool.health.record_success(self._last.label, self._clock.monotonic(), self._first_chunk)

    def _record_failure(self, error: ProviderError) -> str:
        """Record a failed attempt and return its record; a refusal does not affect the model's health."""
        now, kind = self._clock.monotonic(), REFUSAL
        if type(error) is not ModelRefused:
            kind = error.kind
            self._pool.health.record_failure(self.id, now, kind, self._clock.time())
        took = round((now - self._sent_at) * 1000)
        failed = FailedAttempt(self.id, kind, str(error)[:_MAX_MESSAGE], took, error.retry_after)
        self._failed = (*self._failed, failed)
        return f"{self._last.label}: {error}"

    def _begin(self, request: Request) -> Request | None:
        """Return the request of the first attempt."""
        self._attempts, self._tried, self._tokens, self._failure, self._failures = 0, (), None, None, ()
        self._is_too_long = False
        return self._send(request) if self._pick_route(request) else None

    async def _next_attempt(self, request: Request, failure: ProviderError) -> Request | None:
        """Return the request of the next attempt, with the same provider or the next one; None if all have failed."""
        if not await self._should_retry(request, failure):
            self._tried = (*self._tried, self._index)
            if not self._pick_route(request):
                return None
        return self._send(request)

    def _pick_route(self, request: Request) -> bool:
        """Choose the next provider; False if all were tried."""
        pool, self._retries = self._pool, 0
        tokens = self._estimate(request) if len(pool.routes) > 1 else 0
        index = pool.pick(self._tried, self._clock.monotonic(), tokens)
        if index is None:
            return False
        self._index, self._last = index, pool.routes[index]
        return True

    def _send(self, request: Request) -> Request:
        """Begin an attempt, and return the request as the current provider gets it."""
        self._attempts += 1
        self._is_complete = False
        self._sent_at = self._clock.monotonic()
        if self._last.model:
            request = msgspec.structs.replace(request, model=self._last.model)
        if self.max_tokens is not None:
            lowered = msgspec.structs.replace(request.settings, max_tokens=self.max_tokens)
            request = msgspec.structs.replace(request, settings=lowered)
        return request

    def _complete(self, request: Request, chunk: DoneChunk) -> None:
        """Note that the answer is complete; raise if another provider is to answer instead."""
        if chunk.stop_reason == "refusal" and self._should_ask_others():
            raise ModelRefused(chunk.usage)
        self._is_complete = True
        is_small = len(request.messages) <= _FEW and 0 < chunk.usage.input_tokens < _SMALL
        if not is_small:
            self._pool.limits[self._index].record_success(self._estimate(request), chunk.usage)

    def _should_ask_others(self) -> bool:
        """Return whether another provider is asked after this one refused."""
        return self._pool.policy.on_refusal == "failover" and len(self._tried) + 1 < len(self._pool.routes)

    def _estimate(self, request: Request) -> int:
        if self._tokens is None:
            messages, (known, tokens) = list(request.messages), self._summed
            is_longer = messages[: len(known)] == known
            tokens = tokens + total_tokens(messages[len(known) :]) if is_longer else total_tokens(messages)
            self._summed = (messages, tokens)
            self._tokens = tokens + overhead_tokens(request.system, request.tools)
        return self._tokens

    async def _should_retry(self, request: Request, error: ProviderError) -> bool:
        """Wait and return True to retry the same provider, False to move on; raise if neither helps."""
        if error.kind == "context_length":
            return self._move_to_larger(error, self._estimate(request))
        if not error.failover:
            raise error
        policy, retry = self._pool.policy, self._retries
        self._failures_left -= 1
        is_only = len(self._pool.routes) == 1
        if self._failures_left <= 0:
            self._pool.record_failure(self._index, error, self._clock.monotonic())
            raise error if is_only else ProviderError(f"the turn's retry budget is used up: {error}", error.kind)
        wait = (
            error.retry_after if error.retry_after is not None else backoff(retry, policy.backoff, rng=self._pool.rng)
        )
        if error.retryable and retry < policy.retries and wait <= policy.longest_wait:
            await self._clock.sleep(wait)
            self._retries += 1
            return True
        if type(error) is not ModelRefused:
            self._pool.record_failure(self._index, error, self._clock.monotonic())
        if is_only:
            raise error
        return False

    def _move_to_larger(self, error: ProviderError, tokens: int) -> bool:
        """Return False to move on to a model that may have a larger context window; raise if there is none."""
        self._is_too_long = True
        limits = self._pool.limits
        limits[self._index].record_refusal(tokens, error)
        others = [other for other in range(len(limits)) if other != self._index and other not in self._tried]
        if not any(limits[other].tokens >= tokens for other in others):
            raise error
        return False
