"""Where everything in a context comes from: who gave each rule, tool and value, and which rules don't apply."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class RuleOrigin(msgspec.Struct, frozen=True):
    """A rule, who gave it, and whether its condition holds."""

    text: str
    source: str
    applies: bool
    conditional: bool


class Origin(msgspec.Struct, frozen=True):
    """A tool or a value, who gave it, and whose it hides."""

    name: str
    value: Any
    source: str
    hides: tuple[str, ...] = ()


class Explanation(msgspec.Struct, frozen=True):
    """All of it; `str()` gives a page to read."""

    rules: tuple[RuleOrigin, ...]
    tools: tuple[Origin, ...]
    metadata: tuple[Origin, ...]

    def __str__(self) -> str:
        lines = ["rules:"]
        for rule in self.rules:
            state = "" if rule.applies else " (not applied: its `when` was false)"
            lines.append(f"  {rule.text!r} from {rule.source}{state}")
        for title, origins in (("tools", self.tools), ("metadata", self.metadata)):
            lines.append(f"{title}:")
            for origin in origins:
                hidden = f", over {', '.join(origin.hides)}" if origin.hides else ""
                shown = "" if title == "tools" else f" = {origin.value!r}"
                lines.append(f"  {origin.name}{shown} from {origin.source}{hidden}")
        return "\n".join(lines)


def origins(names: Sequence[str], holdings: Sequence[Mapping[str, Any]]) -> tuple[Origin, ...]:
    """For each thing held, who wins and whom it hides; both sequences run in the order of look-up."""
    holders: dict[str, list[int]] = {}
    for place, held in enumerate(holdings):
        for name in held:
            holders.setdefault(name, []).append(place)
    return tuple(
        Origin(name, holdings[first][name], names[first], tuple(names[other] for other in rest))
        for name, (first, *rest) in holders.items()
    )
