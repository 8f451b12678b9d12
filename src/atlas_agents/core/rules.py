"""Rules: sentences for the system prompt, always or on a condition."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from atlas_agents.core.errors import ConfigError

Condition: TypeAlias = Callable[[Any], bool | Awaitable[bool]]
"""Takes the context the rule is applied in; sync or async."""


class Rule:
    """`Rule(text)` always applies; `Rule(text, when=…)` only while its condition holds."""

    __slots__ = ("text", "when")

    def __init__(self, text: str, *, when: Condition | None = None) -> None:
        if not text.strip():
            raise ConfigError("a rule needs a text")
        if when is not None and not callable(when):
            raise ConfigError(f"the `when` of a rule must be a function of the context, not {when!r}")
        self.text = text
        self.when = when

    def __repr__(self) -> str:
        return f"Rule({self.text!r}{', when=…' if self.when else ''})"
