"""The `Key: value` lines of `AGENTS.md`: which keys there are, and what each may say."""

import difflib
import re
from collections.abc import Callable
from typing import get_args

import msgspec

from atlas_agents.core.errors import BadModelRef, ConfigError
from atlas_agents.engine.settings import Mode
from atlas_agents.providers.registry import parse_model_ref

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TOOL = re.compile(r"\S{1,200}")
_ENTRY = re.compile(r"([A-Za-z][A-Za-z _-]{0,30}?)[ \t]*:(?:[ \t]+(.*))?")
_WHOLE = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,9})?")
_EVERY, _NONE = "*", "none"


def plain_name(text: str) -> bool:
    """Whether a text can name an agent or a role, in a path and in an address too."""
    return _PLAIN.fullmatch(text) is not None


def wrong(file: str, line: int, key: str, words: str) -> ConfigError:
    """What is wrong, beginning with where."""
    return ConfigError(f"{file}:{line}: {key}: {words}")


class Entry(msgspec.Struct, frozen=True):
    """One line of a section."""

    file: str
    line: int
    key: str
    value: str

    @classmethod
    def of(cls, line: str, number: int, file: str) -> "Entry":
        """Take a line apart; ConfigError for one that is no entry, or of a key that there is not."""
        match = _ENTRY.fullmatch(line.strip())
        if not match:
            start = line.strip()[:40]
            raise wrong(file, number, repr(start), "write Key: value here, and free text after a line Prompt:")
        entry = cls(file, number, match[1], (match[2] or "").strip())
        known = (*KEYS, "prompt")
        if entry.key.casefold() not in known:
            close = difflib.get_close_matches(entry.key.casefold(), known, 1)
            guess = f"did you mean {close[0].capitalize()}? " if close else ""
            names = ", ".join(name.capitalize() for name in known)
            raise entry.wrong(f"there is no such key; {guess}There are {names}; free text goes after Prompt:")
        if not entry.value and entry.key.casefold() != "prompt":
            raise entry.wrong("it has no value; give it one or take the line out")
        return entry

    def wrong(self, words: str) -> ConfigError:
        return wrong(self.file, self.line, self.key, words)

    @property
    def values(self) -> list[str]:
        """What stands between commas; each one only once."""
        items = [item.strip() for item in self.value.split(",")]
        if "" in items:
            raise self.wrong("there is nothing between two commas, or after the last; take the comma out")
        if twice := next((item for item in items if items.count(item) > 1), None):
            raise self.wrong(f"{twice!r} is named twice; keep one of them")
        return items


def _models(entry: Entry) -> list[str]:
    refs: list[str] = []
    for item in entry.values:
        try:
            ref = parse_model_ref(item)
        except BadModelRef as error:
            raise BadModelRef(str(entry.wrong(str(error)))) from error
        if any(char.isspace() for char in item):
            advice = "put a comma between two models"
            raise BadModelRef(str(entry.wrong(f"{item!r} is no model ref: it has a space in it; {advice}")))
        refs.append(str(ref))
    return refs


def _text(entry: Entry) -> str:
    return entry.value


def _role(entry: Entry) -> str:
    if not plain_name(entry.value):
        raise entry.wrong(f"{entry.value[:80]!r} is no role; write 1 to 64 letters, digits, _ or -")
    return entry.value


def _mode(entry: Entry) -> str:
    modes = get_args(Mode)
    if entry.value not in modes:
        raise entry.wrong(f"there is no mode {entry.value[:80]!r}; write {' or '.join(modes)}")
    return entry.value


def _tools(entry: Entry) -> list[str]:
    names = entry.values
    if names == [_NONE]:
        return []
    for name in names:
        if not _TOOL.fullmatch(name) or not name.isprintable():
            raise entry.wrong(f"{name[:80]!r} is no name of a tool; write names with commas, * for all, or none")
    if _EVERY in names and len(names) > 1:
        raise entry.wrong("* is all tools; name no others beside it")
    return names


def _colleagues(entry: Entry) -> list[str]:
    for name in entry.values:
        if not plain_name(name):
            raise entry.wrong(f"{name[:80]!r} is no id of an agent; write ids with commas between them")
    return entry.values


def _temperature(entry: Entry) -> float:
    if not _NUMBER.fullmatch(entry.value) or float(entry.value) > 2:
        raise entry.wrong(f"{entry.value[:80]!r} is no temperature; write a number from 0 to 2, like 0.3")
    return float(entry.value)


def _count(entry: Entry) -> int:
    if not _WHOLE.fullmatch(entry.value) or int(entry.value) < 1:
        raise entry.wrong(f"{entry.value[:80]!r} is no count; write a whole number of at least 1")
    return int(entry.value)


KEYS: dict[str, tuple[str, Callable[[Entry], object]]] = {
    "model": ("models", _models),
    "description": ("description", _text),
    "name": ("name", _text),
    "role": ("role", _role),
    "mode": ("mode", _mode),
    "tools": ("tools", _tools),
    "hands off to": ("hands_off_to", _colleagues),
    "temperature": ("temperature", _temperature),
    "max tokens": ("max_tokens", _count),
    "max rounds": ("max_rounds", _count),
}
"""Each key, the field of an `AgentSpec` that it sets, and how its value is read. `Prompt:` ends the keys."""
