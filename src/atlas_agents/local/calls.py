"""Finding the call in what a model said: bare or fenced JSON that names a known tool. All other words are shown."""

import json
import re
from collections.abc import Collection
from typing import Any, cast

from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import ToolCall

_OPENINGS = tuple(fence + brace for fence in ("", "```", "```json") for brace in ('{"name":', '{"arguments":'))
_FENCE = re.compile(r"\A\s*```(?:json)?\s*|\s*```\s*\Z")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]+)"')
_AT_LINE = re.compile(r"(?:\A|\n)[ \t]*(?=[{`])")


class CallFinder:
    """Lets words through as they come, and holds back what may become a call, until that is certain."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._line = "\n"  # what was shown of the line under way; a call begins one
        self._held = ""

    def add(self, text: str) -> str:
        """The words that can be shown now."""
        if not self._names:
            return text
        self._held += text
        shown = ""
        while self._held:
            found = _AT_LINE.search(self._line + self._held)
            start = max(0, found.end() - len(self._line)) if found else len(self._held)
            shown += self._let(start)
            if not self._held or _may_be_call(self._held):
                break
            shown += self._let(1)
        return shown

    def end(self, *, cut: bool) -> tuple[str, ToolCall | None]:
        """What was held back: as words, or as the call that it is. One that was cut off is never run."""
        call = _call(self._held, self._names, cut) if self._held else None
        return ("" if call else self._held), call

    def _let(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        self._line = (self._line + shown)[(self._line + shown).rfind("\n") :] if shown else self._line
        return shown


def _may_be_call(held: str) -> bool:
    start = "".join(held[:200].split())
    return any(start.startswith(opening) or opening.startswith(start) for opening in _OPENINGS)


def _call(held: str, names: Collection[str], cut: bool) -> ToolCall | None:
    text = _FENCE.sub("", held)
    try:
        _, end = json.JSONDecoder().raw_decode(text)
        value = parse_object(text[:end])
    except ValueError:
        named = _NAME.search(text)
        return ToolCall("", named[1], {}, malformed=text) if named and named[1] in names else None
    name = value.get("name")
    arguments: Any = value.get("arguments", value.get("parameters", {}))
    if not isinstance(name, str) or name not in names or cut:
        return None
    if not isinstance(arguments, dict):
        return ToolCall("", name, {}, malformed=json.dumps(arguments))
    return ToolCall("", name, cast(dict[str, Any], arguments))
