"""A workspace as it stands, and as it is edited."""

import difflib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec

from atlas_agents.agents.options import Mode
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import BadModelRef, ConfigError
from atlas_agents.core.text import HiddenCharacters, hidden_characters
from atlas_agents.providers.registry import parse_model_ref
from atlas_agents.workspace.files import NAMES, Look, look, read, write_defaults
from atlas_agents.workspace.skills import SKILLS_FOLDER, Skill, read_skills, skill_files, skills_prompt

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


class SectionLine(msgspec.Struct, frozen=True):
    """One line of a section."""

    file: str
    line: int
    key: str
    value: str

    @classmethod
    def of(cls, line: str, number: int, file: str) -> "SectionLine":
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


def _models(entry: SectionLine) -> list[str]:
    refs: list[str] = []
    for item in entry.values:
        try:
            ref = parse_model_ref(item)
        except BadModelRef as error:
            raise BadModelRef(str(entry.wrong(str(error)))) from error
        if any(char.isspace() for char in item):
            advice = "put a comma between two models"
            raise BadModelRef(str(entry.wrong(f"invalid model reference {item!r}: it contains a space; {advice}")))
        refs.append(str(ref))
    return refs


def _text(entry: SectionLine) -> str:
    return entry.value


def _role(entry: SectionLine) -> str:
    if not plain_name(entry.value):
        raise entry.wrong(f"{entry.value[:80]!r} is no role; write 1 to 64 letters, digits, _ or -")
    return entry.value


def _mode(entry: SectionLine) -> str:
    modes = get_args(Mode)
    if entry.value not in modes:
        raise entry.wrong(f"there is no mode {entry.value[:80]!r}; write {' or '.join(modes)}")
    return entry.value


def _tools(entry: SectionLine) -> list[str]:
    names = entry.values
    if names == [_NONE]:
        return []
    for name in names:
        if not _TOOL.fullmatch(name) or not name.isprintable():
            raise entry.wrong(f"{name[:80]!r} is no name of a tool; write names with commas, * for all, or none")
    if _EVERY in names and len(names) > 1:
        raise entry.wrong("* is all tools; name no others beside it")
    return names


def _colleagues(entry: SectionLine) -> list[str]:
    for name in entry.values:
        if not plain_name(name):
            raise entry.wrong(f"{name[:80]!r} is no id of an agent; write ids with commas between them")
    return entry.values


def _temperature(entry: SectionLine) -> float:
    if not _NUMBER.fullmatch(entry.value) or float(entry.value) > 2:
        raise entry.wrong(f"{entry.value[:80]!r} is no temperature; write a number from 0 to 2, like 0.3")
    return float(entry.value)


def _count(entry: SectionLine) -> int:
    if not _WHOLE.fullmatch(entry.value) or int(entry.value) < 1:
        raise entry.wrong(f"{entry.value[:80]!r} is no count; write a whole number of at least 1")
    return int(entry.value)


def _switch(entry: SectionLine) -> bool:
    if entry.value.casefold() not in ("on", "off"):
        raise entry.wrong(f"{entry.value[:80]!r} is neither; write on or off")
    return entry.value.casefold() == "on"


KEYS: dict[str, tuple[str, Callable[[SectionLine], object]]] = {
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
    "recall": ("recall", _switch),
}
"""Each key, the field of an `AgentSpec` that it sets, and how its value is read. `Prompt:` ends the keys."""


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
    recall: bool | None = None
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
        entry = SectionLine.of(line, number, file)
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


logger = logging.getLogger(__name__)
_BETWEEN = "\n\n---\n\n"
_ALONE = AgentSpec("assistant")
"""Who answers in a workspace that names nobody."""


class WorkspaceState(msgspec.Struct, frozen=True):
    """What the files say. With `errors` the last edit was refused, and all else is as it was before."""

    prompt: str = ""
    agents: tuple[AgentSpec, ...] = (_ALONE,)
    findings: tuple[HiddenCharacters, ...] = ()
    errors: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()


class Workspace:
    """A folder with `AGENTS.md`, `SOUL.md`, `TOOLS.md` and `skills`, of which any may be missing."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._state: WorkspaceState | None = None
        self._seen: Look = ()

    def prepare(self) -> bool:
        """First run: make the folder and write the default files, unless any of them is there. True if it did."""
        return write_defaults(self.path)

    def make_skills(self) -> None:
        """Make the folder of the skills, empty: what is there can be kept from being changed, what is not cannot."""
        with suppress(OSError):
            (self.path / SKILLS_FOLDER).mkdir(exist_ok=True)

    @property
    def state(self) -> WorkspaceState:
        """What was read last; reads the files if they were not read yet."""
        return self._state or self.load()

    def system_prompt(self) -> str:
        """The files that exist, in their order, joined by a line `---`."""
        return self.state.prompt

    def load(self) -> WorkspaceState:
        """Read the files now; ConfigError names file, line and key, and what was read before stays."""
        seen = self._look()
        state = self._read()
        self._state, self._seen = state, seen
        _log(state)
        return state

    async def watch(self, *, every: float = 1.0, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[WorkspaceState, None]:
        """Each new state after an edit, without a thread: the files are looked at every second.

        An edit counts when all looks the same twice in a row: until then it may be half written. One that cannot be
        used is told in `errors`, once, and changes nothing else.
        """
        told = self.state
        used = before = self._seen
        while True:
            await clock.sleep(every)
            now = self._look()
            settled, before = now == before, now
            if now == used or not settled:
                continue
            state = self._again(told)
            if self._look() != now:  # it was written to while it was read
                continue
            used = now
            if state != told:
                self._state = told = state
                _log(state)
                yield state

    def _look(self) -> Look:
        return look(self.path, skill_files(self.path))

    def _again(self, old: WorkspaceState) -> WorkspaceState:
        """What the files say now, or what they said before and why that stays."""
        try:
            return self._read()
        except ConfigError as error:
            return msgspec.structs.replace(old, errors=(str(error),))

    def _read(self) -> WorkspaceState:
        if not self.path.is_dir():
            raise ConfigError(f"{self.path}: there is no such folder; make it, or set ATLAS_WORKSPACE to another one")
        texts = {name: text for name in NAMES if (text := read(self.path, name)) is not None}
        agents = parse_agents(texts.get("AGENTS.md", ""), str(self.path / "AGENTS.md"))
        findings = [finding for name, text in texts.items() for finding in hidden_characters(text, name)]
        skills, more = read_skills(self.path)
        pieces = [*texts.values(), *([skills_prompt(skills)] if skills else ())]
        return WorkspaceState(_BETWEEN.join(pieces), agents or (_ALONE,), (*findings, *more), skills=skills)


def _log(state: WorkspaceState) -> None:
    for error in state.errors:
        logger.warning("the workspace stays as it was: %s", error)
    for finding in () if state.errors else state.findings:
        logger.warning("%s", finding)
