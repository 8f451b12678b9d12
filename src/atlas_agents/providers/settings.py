"""Model settings: how a model generates its answer. Each encoder maps them to its vendor's fields."""

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from atlas_agents.core.errors import ConfigError

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Effort: how much a model reasons before it answers."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
Cache: TypeAlias = Literal["off", "5m", "1h"]
"""Prompt caching: how long a vendor keeps the beginning of a request for the next one."""
EFFORT_BUDGETS: dict[Effort, int] = {
    "none": 0,
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 24_576,
    "max": 32_768,
}
"""Equivalent tokens of each effort level, for models that accept only the other form."""
_MIN_BUDGET = 1
_OWN_FIELDS = ("model", "messages", "stream", "input", "contents")
"""Fields of a body that only the request itself sets."""
_OWN_HEADERS = ("connection", "content-length", "content-type", "host", "transfer-encoding")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ModelSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a model generates its answer. A setting that is None is left to the model.

    A setting that a model does not know, or refuses, is dropped with one warning; `extra_body` and `extra_headers` are
    sent as they are.

    Args:
        temperature: Randomness, from 0 to 2.
        top_p: Share of the probability mass to choose from, above 0 and at most 1.
        max_tokens: Maximum number of tokens of one answer, including its reasoning.
        stop: Texts that end the answer.
        seed: Makes answers reproducible where a vendor supports it.
        service_tier: The vendor's name of a processing tier.
        parallel_tool_calls: Whether one answer may call several tools.
        effort: How much the model reasons, or the most tokens that it may reason for.
        cache: How long the vendor caches the prompt; "off" turns prompt caching off.
        strict_tools: Whether the vendor enforces the schemas of tools that it can enforce; by default only OpenAI does.
        extra_body: Further fields of the request's body.
        extra_headers: Further headers of the request.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    service_tier: str | None = None
    parallel_tool_calls: bool | None = None
    effort: Effort | int | None = None
    cache: Cache | None = None
    extra_body: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    extra_headers: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    strict_tools: bool | None = None

    def __post_init__(self) -> None:
        try:
            self._check()
        except TypeError as error:
            raise ConfigError(f"invalid model settings: {error}") from error

    def _check(self) -> None:
        if isinstance(self.stop, str):
            raise ConfigError(f"stop must be a list of texts, got {self.stop!r}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature must be between 0 and 2, got {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        _check_names(self.effort, self.cache)
        if isinstance(self.effort, int):
            self._check_budget(self.effort)
        if self.extra_body or self.extra_headers:
            self._check_extras()

    def _check_budget(self, budget: int) -> None:
        if budget < _MIN_BUDGET:
            raise ConfigError(f"effort as a number of tokens must be at least {_MIN_BUDGET}, got {budget}")
        if self.max_tokens is not None and budget >= self.max_tokens:
            raise ConfigError(
                f"effort must be less than max_tokens, which includes the reasoning, "
                f"got effort={budget} and max_tokens={self.max_tokens}"
            )

    def _check_extras(self) -> None:
        if name := next((name for name in _OWN_FIELDS if name in self.extra_body), None):
            raise ConfigError(f"extra_body cannot set {name!r}, which every request sets itself")
        for name, value in self.extra_headers.items():
            if name.lower() in _OWN_HEADERS:
                raise ConfigError(f"extra_headers cannot set {name!r}, which every request sets itself")
            if not _HEADER_NAME.fullmatch(name):
                raise ConfigError(f"extra_headers: invalid header name {name!r}")
            if not (value.isascii() and value.isprintable()):
                raise ConfigError(f"extra_headers: the value of {name!r} has a character that headers cannot have")

    def merge(self, over: "ModelSettings") -> "ModelSettings":
        """Return these settings, with those that `over` sets in their place. Extra fields and headers are combined."""
        changed: dict[str, Any] = {
            name: value for name in self.__struct_fields__ if (value := getattr(over, name)) not in (None, (), {})
        }
        for name in ("extra_body", "extra_headers"):
            if name in changed:
                changed[name] = {**getattr(self, name), **changed[name]}
        if over.max_tokens is not None and over.effort is None:
            changed["effort"] = _lower_budget(self.effort, over.max_tokens)
        return msgspec.structs.replace(self, **changed) if changed else self

    def fill(self, requested: "ModelSettings") -> "ModelSettings":
        """Internal: return these settings with those that a caller requests, where they allow it.

        A setting that is set here stays, except that the lower effort and the lower number of tokens apply. Extra
        fields and headers of the caller are ignored.
        """
        changed: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "seed", "service_tier", "parallel_tool_calls", "cache", "stop")
            if (value := getattr(requested, name)) not in (None, ()) and getattr(self, name) in (None, ())
        }
        limits = [each for each in (self.max_tokens, requested.max_tokens) if each is not None]
        changed["max_tokens"] = min(limits, default=None)
        changed["effort"] = _lower_budget(_lower_effort(self.effort, requested.effort), changed["max_tokens"])
        return msgspec.structs.replace(self, **changed)

    def __repr__(self) -> str:
        shown: list[str] = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value in (None, (), {}):
                continue
            if name == "extra_headers":  # they may carry a key
                value = dict.fromkeys(self.extra_headers, "…")
            shown.append(f"{name}={value!r}")
        return f"ModelSettings({', '.join(shown)})"


def _check_names(effort: object, cache: object) -> None:
    if isinstance(effort, str) and effort not in EFFORTS:
        raise ConfigError(f"effort must be one of {', '.join(EFFORTS)} or a number of tokens, got {effort!r}")
    if isinstance(cache, str) and cache not in get_args(Cache):
        raise ConfigError(f"cache must be one of {', '.join(get_args(Cache))}, got {cache!r}")


def _lower_effort(first: Effort | int | None, second: Effort | int | None) -> Effort | int | None:
    if first is None or second is None:
        return second if first is None else first
    tokens, others = [each if isinstance(each, int) else EFFORT_BUDGETS[each] for each in (first, second)]
    return first if tokens <= others else second


def _lower_budget(effort: Effort | int | None, max_tokens: int | None) -> Effort | int | None:
    """Return an effort that leaves tokens for an answer."""
    if not isinstance(effort, int) or max_tokens is None or effort < max_tokens:
        return effort
    return max_tokens - 1 if max_tokens > _MIN_BUDGET else None


DEFAULT_SETTINGS = ModelSettings()
GivenSettings: TypeAlias = ModelSettings | Mapping[str, Any]
"""Model settings as a caller may write them."""


def read_settings(value: GivenSettings | None) -> ModelSettings:
    """Return settings given as such or as a mapping; an unknown name or an invalid value is a ConfigError."""
    if value is None:
        return DEFAULT_SETTINGS
    if isinstance(value, ModelSettings):
        return value
    if not isinstance(cast(object, value), Mapping):
        raise ConfigError(f"invalid model settings {value!r}: expected a ModelSettings or a mapping of its fields")
    known = ModelSettings.__struct_fields__
    if unknown := [str(name) for name in value if name not in known]:
        raise ConfigError(f"unknown model setting {unknown[0]!r}; known settings: {', '.join(known)}")
    _check_names(value.get("effort"), value.get("cache"))
    try:
        return msgspec.convert(dict(value), ModelSettings)
    except msgspec.ValidationError as error:
        problem, _, name = str(error).rstrip("`").partition(" - at `$.")
        raise ConfigError(f"invalid model settings: {name + ': ' if name else ''}{problem}") from error
