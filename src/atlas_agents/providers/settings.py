"""Model settings: how a model generates its answer. Each wire maps them to the fields that its vendor knows."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from atlas_agents.core.errors import ConfigError

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model reasons before it answers."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)
Cache: TypeAlias = Literal["off", "5m", "1h"]
"""How long a vendor keeps the beginning of a request for the next one."""
_MIN_BUDGET = 1


class ModelSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a model generates its answer. A setting that is None is left to the model.

    A setting that a model does not know, or refuses, is dropped with one warning; `extra_body` and `extra_headers` are
    sent as they are.

    Args:
        temperature: Randomness, from 0 to 2.
        top_p: Share of the probability mass to choose from, above 0 and at most 1.
        max_tokens: Most tokens of one answer, including its reasoning.
        stop: Texts that end the answer.
        seed: Makes answers reproducible where a vendor supports it.
        service_tier: The vendor's name of a processing tier.
        parallel_tool_calls: Whether one answer may call several tools.
        effort: How much the model reasons, or the most tokens that it may reason for.
        cache: How long the vendor caches the prompt; "off" turns prompt caching off.
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

    def __post_init__(self) -> None:
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature must be between 0 and 2, got {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if isinstance(self.effort, str) and self.effort not in EFFORTS:
            raise ConfigError(f"effort must be one of {', '.join(EFFORTS)} or a number of tokens, got {self.effort!r}")
        if isinstance(self.effort, int) and self.effort < _MIN_BUDGET:
            raise ConfigError(f"effort as a number of tokens must be at least {_MIN_BUDGET}, got {self.effort}")

    def merge(self, over: "ModelSettings") -> "ModelSettings":
        """Return these settings, with those that `over` sets in their place. Extra fields and headers are combined."""
        changed: dict[str, Any] = {
            name: value for name in self.__struct_fields__ if (value := getattr(over, name)) not in (None, (), {})
        }
        for name in ("extra_body", "extra_headers"):
            if name in changed:
                changed[name] = {**getattr(self, name), **changed[name]}
        return msgspec.structs.replace(self, **changed) if changed else self


DEFAULT_SETTINGS = ModelSettings()


def read_settings(value: ModelSettings | Mapping[str, Any] | None) -> ModelSettings:
    """Return settings given as such or as a mapping; an unknown name or an invalid value is a ConfigError."""
    if value is None:
        return DEFAULT_SETTINGS
    if isinstance(value, ModelSettings):
        return value
    known = ModelSettings.__struct_fields__
    if unknown := [str(name) for name in value if name not in known]:
        raise ConfigError(f"unknown model setting {unknown[0]!r}; known settings: {', '.join(known)}")
    try:
        return msgspec.convert(dict(value), ModelSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"invalid model settings: {error}") from error
