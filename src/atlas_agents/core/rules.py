"""Rules: sentences for the system prompt, unconditional or conditional."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from atlas_agents.core.errors import ConfigError

Condition: TypeAlias = Callable[[Any], bool | Awaitable[bool]]
"""A sync or async function of the context in which the rule is evaluated."""


class Rule:
    """`Rule(text)` always applies; `Rule(text, when=…)` only while its condition holds."""

    __slots__ = ("text", "when")

    def __init__(self, text: str, *, when: Condition | None = None) -> None:
        if not text.strip():
            raise ConfigError("a rule needs a text")
        if when is not None and not callable(when):
            raise ConfigError(f"invalid rule condition {when!r}: `when` must be a function of the context")
        self.text = text
        self.when = when

    def __repr__(self) -> str:
        return f"Rule({self.text!r}{', when=…' if self.when else ''})"
