"""Model catalogue: what each model family accepts.

The rules are the vendors' own; `docs/design/models.md` names their sources. An unknown model gets `UNKNOWN`, whose
values are safe everywhere: nothing is sent unless it was set, and what a server refuses is dropped and remembered.
"""

import re
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from atlas_agents.providers.settings import Effort

Reasoning: TypeAlias = Literal["unknown", "never", "optional", "default", "always"]
"""Whether a model reasons: only when asked (optional), unless turned off (default), or in any case (always)."""
_LOW_HIGH: tuple[Effort, ...] = ("low", "medium", "high")
_TO_XHIGH: tuple[Effort, ...] = (*_LOW_HIGH, "xhigh")
_TO_MAX: tuple[Effort, ...] = (*_TO_XHIGH, "max")
_PREFIX = re.compile(
    r"^(?:models/|publishers/[^/]+/models/|(?:[a-z-]+\.)?(?:anthropic|openai)\.|(?:anthropic|openai|google|deepseek|x-ai|mistralai)/)"
)


class ModelProfile(msgspec.Struct, frozen=True):
    """What a model accepts, as far as it is known."""

    family: str = ""
    reasoning: Reasoning = "unknown"
    efforts: tuple[Effort, ...] = ()
    """Accepted levels of effort, lowest first and without "none"; empty if the model has no such setting."""
    budget: bool = False
    """Whether the effort may be a number of tokens."""
    min_budget: int = 1024
    max_budget: int | None = None
    off: Literal["none", "disabled", "between_tools", "zero", "omit", "impossible"] = "omit"
    """How reasoning is turned off."""
    sampling: Literal["yes", "no", "without_reasoning"] = "yes"
    """Whether `temperature` and `top_p` are accepted."""
    forced_tools: Literal["yes", "no", "without_reasoning"] = "yes"
    """Whether a tool call can be demanded."""
    bound_reasoning: bool = False
    """Whether returned reasoning is refused after a change to anything before it."""
    chat_tools: Literal["yes", "without_reasoning", "no"] = "yes"
    """Whether chat completions accept tools. If not always, the Responses API is used."""
    completion_tokens: bool = False
    """Whether chat completions call the limit `max_completion_tokens`."""
    typed_output: Literal["schema", "json", "no"] = "schema"
    typed_with_tools: bool = True
    strict_tools: bool = False
    signed_calls: bool = False
    """Whether a returned tool call needs the vendor's signature. Such models also accept images in tool results."""
    cache_marks: bool = False
    """Whether the request marks what is to be cached."""
    min_cached_tokens: int = 1024


UNKNOWN = ModelProfile()


def _claude(family: str, reasoning: Reasoning, efforts: tuple[Effort, ...], **rules: object) -> ModelProfile:
    known = {"off": "disabled", "sampling": "no", "strict_tools": True, "cache_marks": True, **rules}
    return msgspec.convert({"family": family, "reasoning": reasoning, "efforts": efforts, **known}, ModelProfile)


def _gpt(family: str, reasoning: Reasoning, efforts: tuple[Effort, ...], **rules: object) -> ModelProfile:
    known = {"off": "none", "sampling": "without_reasoning", "completion_tokens": True, "strict_tools": True, **rules}
    return msgspec.convert({"family": family, "reasoning": reasoning, "efforts": efforts, **known}, ModelProfile)


def _gemini(family: str, reasoning: Reasoning, efforts: tuple[Effort, ...], **rules: object) -> ModelProfile:
    return msgspec.convert({"family": family, "reasoning": reasoning, "efforts": efforts, **rules}, ModelProfile)


_BOUND: dict[str, object] = {"forced_tools": "no", "bound_reasoning": True, "min_cached_tokens": 512}
_RULES: tuple[tuple[str, ModelProfile], ...] = (
    ("claude-opus-5-5", _claude("Claude 5.5", "always", _TO_MAX, off="impossible", **_BOUND)),
    ("claude-sonnet-5-5", _claude("Claude 5.5", "always", _TO_MAX, off="between_tools", **_BOUND)),
    ("claude-haiku-5-5", _claude("Claude 5.5", "default", _TO_MAX, **{**_BOUND, "forced_tools": "yes"})),
    ("claude-fable-5-[12]", _claude("Claude 5.1", "always", _TO_MAX, off="impossible", **_BOUND)),
    (
        "claude-mythos-5-[12]",
        _claude("Claude 5.1", "always", _TO_MAX, off="impossible", **{**_BOUND, "bound_reasoning": False}),
    ),
    ("claude-(fable|mythos)-5", _claude("Claude 5", "always", _TO_MAX, off="impossible", min_cached_tokens=512)),
    ("claude-opus-5", _claude("Claude 5", "default", _TO_MAX, min_cached_tokens=512)),
    ("claude-sonnet-5", _claude("Claude 5", "default", _TO_MAX)),
    ("claude-opus-4-8", _claude("Claude 4.7", "optional", _TO_MAX)),
    ("claude-opus-4-7", _claude("Claude 4.7", "optional", _TO_MAX, min_cached_tokens=2048)),
    (
        "claude-(opus|sonnet)-4-6",
        _claude("Claude 4.6", "optional", (*_LOW_HIGH, "max"), budget=True, sampling="yes", min_cached_tokens=4096),
    ),
    (
        "claude-opus-4-5",
        _claude(
            "Claude 4.5",
            "optional",
            _LOW_HIGH,
            budget=True,
            sampling="yes",
            forced_tools="without_reasoning",
            min_cached_tokens=4096,
        ),
    ),
    (
        "claude-(sonnet|haiku)-4-5",
        _claude("Claude 4.5", "optional", (), budget=True, sampling="yes", forced_tools="without_reasoning"),
    ),
    (
        "claude-(opus|sonnet)-4|claude-4|claude-3-7",
        _claude(
            "Claude 4",
            "optional",
            (),
            budget=True,
            sampling="yes",
            forced_tools="without_reasoning",
            typed_output="no",
            strict_tools=False,
        ),
    ),
    ("claude-", _claude("Claude", "never", (), sampling="yes", off="omit", typed_output="no", strict_tools=False)),
    ("gpt-6-astra|gpt-6.1-sol", _gpt("GPT-6", "always", _TO_MAX, off="impossible", chat_tools="no")),
    ("gpt-6", _gpt("GPT-6", "default", _TO_MAX, chat_tools="without_reasoning")),
    ("gpt-5.6", _gpt("GPT-5.6", "default", _TO_MAX, chat_tools="without_reasoning")),
    ("gpt-5.[245]-pro", _gpt("GPT-5 pro", "always", ("medium", "high", "xhigh"), off="impossible", chat_tools="no")),
    ("gpt-5.5", _gpt("GPT-5.5", "default", _TO_XHIGH, chat_tools="without_reasoning")),
    ("gpt-5.4", _gpt("GPT-5.4", "optional", _TO_XHIGH, chat_tools="without_reasoning")),
    ("gpt-5.1-codex-max|gpt-5.[0-9]-codex", _gpt("GPT-5 codex", "default", _TO_XHIGH, chat_tools="no")),
    ("gpt-5.[123]", _gpt("GPT-5.1", "optional", _TO_XHIGH)),
    ("gpt-5-pro", _gpt("GPT-5 pro", "always", ("high",), off="impossible", chat_tools="no")),
    ("gpt-5-codex", _gpt("GPT-5 codex", "always", _LOW_HIGH, off="impossible", chat_tools="no")),
    ("gpt-5", _gpt("GPT-5", "always", ("minimal", *_LOW_HIGH), off="impossible")),
    (
        "o[134]-pro|o[34](-mini)?-deep-research",
        _gpt("o-series", "always", _LOW_HIGH, off="impossible", chat_tools="no"),
    ),
    ("o[134]", _gpt("o-series", "always", _LOW_HIGH, off="impossible")),
    ("gpt-oss", ModelProfile("gpt-oss", "always", _LOW_HIGH, off="impossible")),
    ("gpt-4|chatgpt-4", _gpt("GPT-4", "never", (), sampling="yes", off="omit", completion_tokens=False)),
    (
        "gemini-4",
        _gemini("Gemini 4", "always", _LOW_HIGH, off="impossible", signed_calls=True, min_cached_tokens=6144),
    ),
    (
        "gemini-3.1-pro|gemini-3.[78]-flash",
        _gemini("Gemini 3", "always", _LOW_HIGH, off="impossible", signed_calls=True),
    ),
    ("gemini-3", _gemini("Gemini 3", "always", ("minimal", *_LOW_HIGH), off="impossible", signed_calls=True)),
    (
        "gemini-2.5-pro",
        _gemini(
            "Gemini 2.5",
            "always",
            (),
            budget=True,
            min_budget=128,
            max_budget=32_768,
            off="impossible",
            typed_with_tools=False,
        ),
    ),
    (
        "gemini-2.5",
        _gemini(
            "Gemini 2.5",
            "default",
            (),
            budget=True,
            min_budget=1,
            max_budget=24_576,
            off="zero",
            typed_with_tools=False,
        ),
    ),
    ("gemini-[12][.-]", _gemini("Gemini", "never", (), typed_with_tools=False)),
    ("gemini-", _gemini("Gemini", "always", _LOW_HIGH, off="impossible", signed_calls=True)),
    (
        "deepseek",
        ModelProfile(
            "DeepSeek",
            "default",
            ("low", "high", "max"),
            off="disabled",
            forced_tools="without_reasoning",
            typed_output="json",
        ),
    ),
)
_COMPILED = tuple((re.compile(pattern), profile) for pattern, profile in _RULES)


@lru_cache(maxsize=1000)
def find_profile(model: str) -> ModelProfile:
    """Return what is known of a model, whatever prefix a cloud or a proxy puts before its name."""
    name = model.lower()
    while (shorter := _PREFIX.sub("", name, count=1)) != name:
        name = shorter
    return next((profile for pattern, profile in _COMPILED if pattern.match(name)), UNKNOWN)
