"""`AGENTS.md`: a section for each agent, its settings as `Key: value` lines, its prompt as the text after `Prompt:`."""

import re
from collections.abc import Iterator

import msgspec

from atlas_agents.engine.settings import Mode
from atlas_agents.workspace.entries import KEYS, Entry, plain_name, wrong

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_PROMPT = "prompt"


class AgentSpec(msgspec.Struct, frozen=True):
    """An agent as its section says. `models` in the order in which they are tried; `tools` are names, `*` is all."""

    id: str
    name: str = ""
    description: str = ""
    models: tuple[str, ...] = ()
    role: str = ""
    mode: Mode = "tools"
    tools: tuple[str, ...] = ("*",)
    temperature: float | None = None
    max_tokens: int | None = None
    max_rounds: int = 10
    hands_off_to: tuple[str, ...] = ()
    prompt: str = ""
    where: str = ""
    """File and line of its heading."""


class _Section(msgspec.Struct):
    id: str
    line: int
    lines: list[tuple[int, str]]


def parse_agents(text: str, file: str = "AGENTS.md") -> tuple[AgentSpec, ...]:
    """All agents of a file, in its order; ConfigError names the line and the key of the first thing that is wrong."""
    specs: dict[str, AgentSpec] = {}
    for section in _sections(text, file):
        known = specs.get(section.id.casefold())
        if known is not None:
            raise wrong(
                file, section.line, f"## {section.id}", f"there is an agent {known.id!r} already: {known.where}"
            )
        specs[section.id.casefold()] = _spec(section, file)
    return tuple(specs.values())


def _sections(text: str, file: str) -> Iterator[_Section]:
    """The file cut at its `## ` headings; those inside a fence of code are none, and what comes first is for people."""
    section: _Section | None = None
    fence: tuple[str, int] | None = None
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        inside = fence is not None
        fence = _fence(line, number, fence)
        if not inside and line.startswith("##") and not line.startswith("###"):
            if section:
                yield section
            section = _Section(_id(line, number, file), number, [])
        elif section:
            section.lines.append((number, line))
    if fence:
        raise wrong(file, fence[1], fence[0], "this block of code has no end; close it with the same line")
    if section:
        yield section


def _fence(line: str, number: int, opened: tuple[str, int] | None) -> tuple[str, int] | None:
    """The fence that is open after this line, and where it began."""
    match = _FENCE.match(line)
    if not match:
        return opened
    if opened is None:
        return match[1], number
    closes = match[1].startswith(opened[0]) and not match[2].strip()
    return None if closes else opened


def _id(line: str, number: int, file: str) -> str:
    id = line[2:].strip()
    if not line[2:3].isspace() or not plain_name(id):
        advice = "write ## and a name of 1 to 64 letters, digits, _ or -"
        raise wrong(file, number, "##", f"{id[:80]!r} is no id for an agent; {advice} (### for a heading in a prompt)")
    return id


def _spec(section: _Section, file: str) -> AgentSpec:
    values: dict[str, object] = {}
    seen: dict[str, int] = {}
    for place, (number, line) in enumerate(section.lines):
        if not line.strip():
            continue
        entry = Entry.of(line, number, file)
        key = entry.key.casefold()
        if key in seen:
            raise entry.wrong(f"it stands in line {seen[key]} already; keep one of them")
        seen[key] = number
        if key == _PROMPT:
            rest = [line for _, line in section.lines[place + 1 :]]
            values[_PROMPT] = "\n".join([entry.value, *rest]).strip()
            break
        field, read = KEYS[key]
        values[field] = read(entry)
    if not values:
        advice = "give it a line like Description: …, or write ### for a heading in a prompt"
        raise wrong(file, section.line, f"## {section.id}", f"this section says nothing about an agent; {advice}")
    return msgspec.convert({"id": section.id, "where": f"{file}:{section.line}", **values}, AgentSpec)
