"""Workspace: parse `AGENTS.md`, read the files and watch them for edits."""

import difflib
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec

from atlas_agents.agents.options import Mode
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.budgets import read_budgets
from atlas_agents.core.errors import BadModelRef, ConfigError
from atlas_agents.core.text import HiddenCharacters, hidden_characters
from atlas_agents.core.trust import Trust
from atlas_agents.providers.catalogue import parse_model_ref
from atlas_agents.providers.settings import EFFORTS, Cache, Effort, ModelSettings
from atlas_agents.workspace.files import NAMES, FileStamps, default_text, read, read_stamps, write_defaults
from atlas_agents.workspace.skills import SKILLS_FOLDER, Skill, read_skills, skill_files, skills_prompt

logger = logging.getLogger(__name__)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TOOL = re.compile(r"\S{1,200}")
_ENTRY = re.compile(r"([A-Za-z][A-Za-z _-]{0,30}?)[ \t]*:(?:[ \t]+(.*))?")
_INTEGER = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,9})?")
_ALL, _NONE = "*", "none"
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_PROMPT = "prompt"
_AGENTS_HEADING = "# Agents"
_SEPARATOR = "\n\n---\n\n"


def is_plain_name(text: str) -> bool:
    """Return whether a text is a valid id of an agent or a role: safe in paths and URLs."""
    return _PLAIN_NAME.fullmatch(text) is not None


def _error_at(file: str, line: int, key: str, message: str) -> ConfigError:
    """Return a ConfigError that starts with its location."""
    return ConfigError(f"{file}:{line}: {key}: {message}")


class SectionLine(msgspec.Struct, frozen=True):
    """A `Key: value` line of an agent's section."""

    file: str
    line: int
    key: str
    value: str

    @classmethod
    def parse(cls, line: str, number: int, file: str) -> "SectionLine":
        """Parse a line; ConfigError if it is not `Key: value` or the key is unknown."""
        match = _ENTRY.fullmatch(line.strip())
        if not match:
            start = line.strip()[:40]
            raise _error_at(file, number, repr(start), "expected 'Key: value'; free text goes after a line 'Prompt:'")
        entry = cls(file, number, match[1], (match[2] or "").strip())
        known = (*KEYS, "prompt")
        if entry.key.casefold() not in known:
            close = difflib.get_close_matches(entry.key.casefold(), known, 1)
            guess = f"did you mean {close[0].capitalize()}? " if close else ""
            names = ", ".join(name.capitalize() for name in known)
            raise entry.error(f"unknown key; {guess}Known keys: {names}; free text goes after Prompt:")
        if not entry.value and entry.key.casefold() != "prompt":
            raise entry.error("missing value; set one or remove the line")
        return entry

    def error(self, message: str) -> ConfigError:
        return _error_at(self.file, self.line, self.key, message)

    @property
    def values(self) -> list[str]:
        """The comma-separated values, without duplicates."""
        items = [item.strip() for item in self.value.split(",")]
        if "" in items:
            raise self.error(f"empty value in {self.value[:80]!r}; remove the extra comma")
        if duplicate := next((item for item in items if items.count(item) > 1), None):
            raise self.error(f"{duplicate!r} is listed twice; remove one of them")
        return items


def _parse_models(entry: SectionLine) -> list[str]:
    refs: list[str] = []
    for item in entry.values:
        try:
            ref = parse_model_ref(item)
        except BadModelRef as error:
            raise BadModelRef(str(entry.error(str(error)))) from error
        if any(char.isspace() for char in item):
            advice = "separate two models with a comma"
            raise BadModelRef(str(entry.error(f"invalid model reference {item!r}: it contains a space; {advice}")))
        refs.append(str(ref))
    return refs


def _parse_text(entry: SectionLine) -> str:
    return entry.value


def _parse_role(entry: SectionLine) -> str:
    if not is_plain_name(entry.value):
        raise entry.error(f"invalid role {entry.value[:80]!r}: expected 1 to 64 letters, digits, _ or -")
    return entry.value


def _parse_mode(entry: SectionLine) -> str:
    modes = get_args(Mode)
    if entry.value not in modes:
        raise entry.error(f"unknown mode {entry.value[:80]!r}: expected {' or '.join(modes)}")
    return entry.value


def _parse_tools(entry: SectionLine) -> list[str]:
    names = entry.values
    if names == [_NONE]:
        return []
    for name in names:
        if not _TOOL.fullmatch(name) or not name.isprintable():
            raise entry.error(f"invalid tool name {name[:80]!r}: expected names with commas, * for all, or none")
    if _ALL in names and len(names) > 1:
        raise entry.error("* selects all tools; remove the other names")
    return names


def _parse_handoffs(entry: SectionLine) -> list[str]:
    for name in entry.values:
        if not is_plain_name(name):
            raise entry.error(f"invalid agent id {name[:80]!r}: expected ids with commas")
    return entry.values


def _parse_temperature(entry: SectionLine) -> float:
    if not _NUMBER.fullmatch(entry.value) or float(entry.value) > 2:
        raise entry.error(f"invalid temperature {entry.value[:80]!r}: expected a number from 0 to 2, such as 0.3")
    return float(entry.value)


def _parse_top_p(entry: SectionLine) -> float:
    if not _NUMBER.fullmatch(entry.value) or not 0 < float(entry.value) <= 1:
        raise entry.error(f"invalid number {entry.value[:80]!r}: expected one above 0 and at most 1, such as 0.9")
    return float(entry.value)


def _parse_effort(entry: SectionLine) -> str | int:
    level = entry.value.casefold()
    if level not in EFFORTS and (not _INTEGER.fullmatch(level) or int(level) < 1):
        names = ", ".join(EFFORTS)
        raise entry.error(f"invalid effort {entry.value[:80]!r}: expected one of {names}, or a number of tokens")
    return level if level in EFFORTS else int(level)


def _parse_seed(entry: SectionLine) -> int:
    if not _INTEGER.fullmatch(entry.value):
        raise entry.error(f"invalid seed {entry.value[:80]!r}: expected an integer")
    return int(entry.value)


def _parse_tier(entry: SectionLine) -> str:
    if not is_plain_name(entry.value):
        raise entry.error(f"invalid service tier {entry.value[:80]!r}: expected a name of the vendor, such as flex")
    return entry.value


def _parse_cache(entry: SectionLine) -> str:
    known = get_args(Cache)
    if entry.value.casefold() not in known:
        raise entry.error(f"invalid cache {entry.value[:80]!r}: expected one of {', '.join(known)}")
    return entry.value.casefold()


def _parse_count(entry: SectionLine) -> int:
    if not _INTEGER.fullmatch(entry.value) or int(entry.value) < 1:
        raise entry.error(f"invalid number {entry.value[:80]!r}: expected an integer of at least 1")
    return int(entry.value)


def _parse_retries(entry: SectionLine) -> int:
    if not _INTEGER.fullmatch(entry.value):
        raise entry.error(f"invalid number {entry.value[:80]!r}: expected an integer of at least 0")
    return int(entry.value)


def _parse_budgets(entry: SectionLine) -> list[str]:
    try:
        read_budgets(entry.values, ("turn", "session", "agent"))
    except ConfigError as error:
        raise entry.error(str(error)) from error
    return entry.values


def _parse_switch(entry: SectionLine) -> bool:
    if entry.value.casefold() not in ("on", "off"):
        raise entry.error(f"expected on or off, got {entry.value[:80]!r}")
    return entry.value.casefold() == "on"


KEYS: dict[str, tuple[str, Callable[[SectionLine], object]]] = {
    "model": ("models", _parse_models),
    "description": ("description", _parse_text),
    "name": ("name", _parse_text),
    "role": ("role", _parse_role),
    "mode": ("mode", _parse_mode),
    "tools": ("tools", _parse_tools),
    "hands off to": ("hands_off_to", _parse_handoffs),
    "temperature": ("temperature", _parse_temperature),
    "max tokens": ("max_tokens", _parse_count),
    "top p": ("top_p", _parse_top_p),
    "effort": ("effort", _parse_effort),
    "seed": ("seed", _parse_seed),
    "service tier": ("service_tier", _parse_tier),
    "parallel calls": ("parallel_calls", _parse_switch),
    "cache": ("cache", _parse_cache),
    "strict tools": ("strict_tools", _parse_switch),
    "max rounds": ("max_rounds", _parse_count),
    "output retries": ("output_retries", _parse_retries),
    "tool search": ("tool_search", _parse_count),
    "budget": ("budget", _parse_budgets),
    "recall": ("recall", _parse_switch),
}
"""Each key, the field of `AgentSpec` it sets, and the parser of its value. `Prompt:` ends the keys."""


class AgentSpec(msgspec.Struct, frozen=True):
    """Agent as its section defines it. `models` are tried in order; `tools` are names, `*` means all.

    Attributes:
        id: Unique name of the agent.
        name: Display name.
        description: What the agent is for.
        models: References of models, which are tried in order.
        role: Role under which a policy knows the agent.
        mode: `"tools"`, `"react"` or `"plan"`.
        tools: Names of tools; `*` means all.
        temperature: Sampling temperature.
        max_tokens: Maximum number of tokens in one reply.
        top_p: Share of probability that sampling uses.
        effort: Effort of reasoning: a level, or a number of tokens.
        seed: Seed of sampling.
        service_tier: The vendor's service tier.
        parallel_calls: Whether the model may make several calls in one reply.
        cache: How long the vendor caches the prompt.
        strict_tools: Whether arguments that match the schema are demanded.
        max_rounds: Maximum number of model calls in one turn.
        output_retries: How often an answer that does not match the requested output type may be corrected.
        hands_off_to: Ids of agents that may take over the turn.
        budget: Budgets as in the file.
        tool_search: Number of tools above which the model is shown `search_tools`.
        recall: Whether memories are recalled automatically; the setting `recall` if None.
        prompt: Its instructions.
    """

    id: str
    name: str = ""
    description: str = ""
    models: tuple[str, ...] = ()
    role: str = ""
    mode: Mode = "tools"
    tools: tuple[str, ...] = ("*",)
    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    effort: Effort | int | None = None
    seed: int | None = None
    service_tier: str | None = None
    parallel_calls: bool | None = None
    cache: Cache | None = None
    strict_tools: bool | None = None
    max_rounds: int = 10
    output_retries: int = 1
    hands_off_to: tuple[str, ...] = ()
    budget: tuple[str, ...] = ()
    tool_search: int | None = None
    recall: bool | None = None
    prompt: str = ""
    where: str = ""
    """File and line of its heading."""

    @property
    def settings(self) -> ModelSettings:
        """The model settings."""
        return ModelSettings(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            seed=self.seed,
            service_tier=self.service_tier,
            parallel_tool_calls=self.parallel_calls,
            effort=self.effort,
            cache=self.cache,
            strict_tools=self.strict_tools,
        )


class _Section(msgspec.Struct):
    id: str
    line: int
    lines: list[tuple[int, str]]


def parse_agents(text: str, file: str = "AGENTS.md") -> tuple[AgentSpec, ...]:
    """Return the agents of a file in its order; ConfigError names the line and the key of the first mistake.

    A file for other tools, in which no `##` heading is followed by a known key, is free text and has no agents.
    """
    specs: dict[str, AgentSpec] = {}
    for section in _sections(text, file):
        known = specs.get(section.id.casefold())
        if known is not None:
            raise _error_at(file, section.line, f"## {section.id}", f"duplicate of {known.id!r} at {known.where}")
        specs[section.id.casefold()] = _parse_spec(section, file)
    return tuple(specs.values())


def _sections(text: str, file: str) -> Iterator[_Section]:
    """Split the file at its `## ` headings, except inside code fences. Text before the first heading is ignored."""
    section: _Section | None = None
    fence: tuple[str, int] | None = None
    free = _count_free_lines(text)
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if number <= free:
            continue
        inside = fence is not None
        fence = _fence(line, number, fence)
        if not inside and line.startswith("##") and not line.startswith("###"):
            if section:
                yield section
            section = _Section(_parse_id(line, number, file), number, [])
        elif section:
            section.lines.append((number, line))
    if fence:
        raise _error_at(file, fence[1], fence[0], "unclosed code block; close it with the same fence")
    if section:
        yield section


def _count_free_lines(text: str) -> int:
    """Count the lines of free text: up to a heading `# Agents`, or else all lines, if none sets a key."""
    fence: tuple[str, int] | None = None
    in_head, count = False, 0
    for count, line in enumerate(text.split("\n"), 1):
        inside = fence is not None
        fence = _fence(line, count, fence)
        if inside or not line.strip():
            continue
        if line.rstrip() == _AGENTS_HEADING:
            return count
        if line.startswith("##") and not line.startswith("###"):
            in_head = True
        elif in_head:
            match = _ENTRY.fullmatch(line.strip())
            if match and difflib.get_close_matches(match[1].casefold(), (*KEYS, _PROMPT), 1, 0.8):
                return 0
            in_head = match is not None
    return count


def _fence(line: str, number: int, opened: tuple[str, int] | None) -> tuple[str, int] | None:
    """Return the code fence that is open after this line and the line where it starts."""
    match = _FENCE.match(line)
    if not match:
        return opened
    if opened is None:
        return match[1], number
    closes = match[1].startswith(opened[0]) and not match[2].strip()
    return None if closes else opened


def _parse_id(line: str, number: int, file: str) -> str:
    id = line[2:].strip()
    if not line[2:3].isspace() or not is_plain_name(id):
        advice = "expected ## and 1 to 64 letters, digits, _ or -"
        raise _error_at(file, number, "##", f"invalid agent id {id[:80]!r}: {advice} (### for a heading in a prompt)")
    return id


def _parse_spec(section: _Section, file: str) -> AgentSpec:
    values: dict[str, object] = {}
    seen: dict[str, int] = {}
    for index, (number, line) in enumerate(section.lines):
        if not line.strip():
            continue
        entry = SectionLine.parse(line, number, file)
        key = entry.key.casefold()
        if key in seen:
            raise entry.error(f"already set in line {seen[key]}; remove one of them")
        seen[key] = number
        if key == _PROMPT:
            rest = [line for _, line in section.lines[index + 1 :]]
            values[_PROMPT] = "\n".join([entry.value, *rest]).strip()
            break
        field, read = KEYS[key]
        values[field] = read(entry)
    if not values:
        advice = "add a line such as Description: …, or use ### for a heading in a prompt"
        raise _error_at(file, section.line, f"## {section.id}", f"the section sets no key; {advice}")
    spec = msgspec.convert({"id": section.id, "where": f"{file}:{section.line}", **values}, AgentSpec)
    try:
        _ = spec.settings
    except ConfigError as error:
        raise _error_at(file, section.line, f"## {section.id}", str(error)) from error
    return spec


_FORM_KEYS = ("name", "description", "model", "effort", "tools", "role", "hands off to")
"""The keys that `put_agent` writes, in the order of a new section."""


def _format_value(key: str, spec: AgentSpec) -> str:
    """Return the text of a key in a section; empty if the line is not needed."""
    match key:
        case "tools":
            return "" if spec.tools == (_ALL,) else ", ".join(spec.tools) or _NONE
        case "model":
            return ", ".join(spec.models)
        case "hands off to":
            return ", ".join(spec.hands_off_to)
        case "effort":
            return "" if spec.effort is None else str(spec.effort)
        case _:
            return getattr(spec, key)


class AgentsText:
    """The text of an `AGENTS.md` with one section per agent, for edits that keep everything else byte for byte."""

    def __init__(self, content: bytes, file: str = "AGENTS.md") -> None:
        self.content = content
        text = content.decode("utf-8")
        self._mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
        self._file = file
        self._lines = text.split("\n")
        self._end = "\r" if "\r\n" in text else ""
        self.specs = parse_agents(text, file)
        found = list(_sections(text, file))
        ends = [*[section.line - 1 for section in found[1:]], len(self._lines)]
        self._spans = {
            section.id: (section.line - 1, self._trim(end)) for section, end in zip(found, ends, strict=False)
        }

    def _trim(self, end: int) -> int:
        """Return the end of a section without the blank lines after it."""
        while end and not self._lines[end - 1].strip():
            end -= 1
        return end

    def spec(self, id: str) -> AgentSpec | None:
        return next((spec for spec in self.specs if spec.id == id), None)

    def section(self, id: str) -> bytes | None:
        """Return the section of an agent without the blank lines after it; None if there is none."""
        span = self._spans.get(id)
        return "\n".join(self._lines[slice(*span)]).encode() if span is not None else None

    def put(self, spec: AgentSpec) -> bytes:
        """Return the file with this agent. In an existing section, only changed lines are rewritten.

        Only the keys of a form are written: name, description, models, effort, tools, role, hand-offs and the prompt.
        """
        for key in ("name", "description"):
            if len(getattr(spec, key).splitlines()) > 1:
                raise ConfigError(f"{key} of agent {spec.id!r}: expected a single line")
        if not is_plain_name(spec.id):
            raise ConfigError(f"invalid agent id {spec.id[:80]!r}: expected 1 to 64 letters, digits, _ or -")
        span, old = self._spans.get(spec.id), self.spec(spec.id)
        if span is None or old is None:
            content = self._append(self._new_section(spec))
        else:
            content = self._replace(span, self._changed_section(self._lines[slice(*span)], old, spec))
        self._require_written(spec, content)
        return content

    def remove(self, id: str) -> bytes:
        """Return the file without an agent, and without the hand-offs to it."""
        start, _ = self._spans[id]
        if after := [begin for begin, _ in self._spans.values() if begin > start]:
            content = self._replace((start, min(after)), [])
        else:
            content = self._join([*self._lines[: self._trim(start)], ""])
        without = AgentsText(content, self._file)
        for spec in without.specs:
            if id in spec.hands_off_to:
                kept = tuple(each for each in spec.hands_off_to if each != id)
                without = AgentsText(without.put(msgspec.structs.replace(spec, hands_off_to=kept)), self._file)
        return without.content

    def _join(self, lines: list[str]) -> bytes:
        return (self._mark + "\n".join(lines)).encode()

    def _replace(self, span: tuple[int, int], lines: list[str]) -> bytes:
        return self._join([*self._lines[: span[0]], *lines, *self._lines[span[1] :]])

    def _append(self, section: list[str]) -> bytes:
        lines = list(self._lines)
        if lines[-1]:  # no line break at the end of the file
            lines[-1] += self._end
            lines.append("")
        if len(lines) > 1 and lines[-2].strip():
            lines[-1:] = [self._end, ""]
        if not self.specs and any(line.strip() for line in lines) and _AGENTS_HEADING not in map(str.rstrip, lines):
            section = [_AGENTS_HEADING + self._end, self._end, *section]
        return self._join([*lines[:-1], *section, ""])

    def _new_section(self, spec: AgentSpec) -> list[str]:
        keys = [(key, _format_value(key, spec)) for key in _FORM_KEYS]
        if not any(value for _, value in keys):
            keys = [("tools", _ALL)]
        lines = [f"## {spec.id}", "", *(f"{key.capitalize()}: {value}" for key, value in keys if value)]
        return [line + self._end for line in (*lines, *_prompt_lines(spec))]

    def _changed_section(self, lines: list[str], old: AgentSpec, new: AgentSpec) -> list[str]:
        """Return the lines of a section, with those that differ between the two replaced, added or removed."""
        keys: dict[str, int] = {}
        prompt = len(lines)
        for index, line in enumerate(lines[1:], 1):
            if line.strip():
                key = SectionLine.parse(line, index, self._file).key.casefold()
                if key == _PROMPT:
                    prompt = index
                    break
                keys[key] = index
        head, tail = lines[:prompt], lines[prompt:]
        if old.prompt.strip() != new.prompt.strip():
            blank = [self._end] if prompt == len(lines) and new.prompt.strip() else []
            tail = [*blank, *(line + self._end for line in _prompt_lines(new))]
        last = max(keys.values(), default=1 if len(head) > 1 and not head[1].strip() else 0)
        added: list[str] = []
        removed: set[int] = set()
        for key in _FORM_KEYS:
            value = _format_value(key, new)
            if value == _format_value(key, old):
                continue
            if key not in keys:
                added.append(f"{key.capitalize()}: {value}{self._end}")
            elif value:
                written, end = head[keys[key]].partition(":")[0], "\r" if head[keys[key]].endswith("\r") else ""
                head[keys[key]] = f"{written}: {value}{end}"
            else:
                removed.add(keys[key])
        head = (
            [line for index, line in enumerate([*head[: last + 1]]) if index not in removed] + added + head[last + 1 :]
        )
        if not any(line.strip() for line in (*head[1:], *tail)):
            head.append(f"Tools: {_ALL}{self._end}")
        return [*head, *tail]

    def _require_written(self, spec: AgentSpec, content: bytes) -> None:
        """Raise ConfigError unless the agents of the content are those of this file and the given one."""
        before, after = (
            {each.id: msgspec.structs.replace(each, where="") for each in specs}
            for specs in (self.specs, AgentsText(content, self._file).specs)
        )
        expected = before | {spec.id: msgspec.structs.replace(after.get(spec.id, spec), **_form_values(spec))}
        if after != expected:
            advice = "a line that starts with ## begins another agent; write ### in its instructions"
            raise ConfigError(f"agent {spec.id!r} cannot be written to {Path(self._file).name}: {advice}")


def _prompt_lines(spec: AgentSpec) -> list[str]:
    prompt = spec.prompt.strip()
    return ["Prompt:", *(line.rstrip("\r") for line in prompt.split("\n"))] if prompt else []


def _form_values(spec: AgentSpec) -> dict[str, Any]:
    fields = ("name", "description", "models", "effort", "tools", "role", "hands_off_to")
    prompt = "\n".join(line.rstrip("\r") for line in spec.prompt.strip().split("\n"))
    return {**{field: getattr(spec, field) for field in fields}, "prompt": prompt}


_DEFAULT_AGENT = AgentSpec("assistant")
"""The agent of a workspace that defines none."""


class WorkspaceState(msgspec.Struct, frozen=True):
    """Parsed content of the files. If `errors` is set, the last edit was rejected and the rest is unchanged.

    Attributes:
        prompt: Instructions of all agents.
        agents: The agents.
        findings: Hidden characters in the files.
        errors: Why the last edit was rejected.
        skills: The skills.
    """

    prompt: str = ""
    agents: tuple[AgentSpec, ...] = (_DEFAULT_AGENT,)
    findings: tuple[HiddenCharacters, ...] = ()
    errors: tuple[str, ...] = ()
    skills: tuple[Skill, ...] = ()
    pending: tuple[str, ...] = ()
    """Notices about changes that wait for a person."""
    generated: bool = False
    """Whether `AGENTS.md` is the default file that the first start writes, unedited."""


def default_prompt() -> str:
    """Return the prompt of a workspace whose files are unedited. It is too long for a tiny model."""
    return _SEPARATOR.join([default_text(name) for name in NAMES])


class Workspace:
    """A folder with `AGENTS.md`, `SOUL.md`, `TOOLS.md` and `skills`, all optional.

    With `trust`, the old version of a file that an agent changed stays in use until a person agrees to the change.

    Args:
        path: The folder.
        trust: Trust decisions of a person; None to use every file as it is.
    """

    def __init__(self, path: Path | str, trust: Trust | None = None) -> None:
        self.path = Path(path).absolute()
        self.trust = trust
        self._waiting: frozenset[str] = frozenset()
        self._state: WorkspaceState | None = None
        self._stamps: FileStamps = ()

    def prepare(self) -> bool:
        """On the first run, create the folder and the default files. Return whether they were written."""
        return write_defaults(self.path)

    def make_skills_folder(self) -> None:
        """Create the empty folder of skills, because a sandbox can write-protect only what exists."""
        with suppress(OSError):
            (self.path / SKILLS_FOLDER).mkdir(exist_ok=True)

    @property
    def state(self) -> WorkspaceState:
        """The state that was read last; reads the files if needed."""
        return self._state or self.load()

    def system_prompt(self) -> str:
        """Return the content of the existing files in order, joined by `---` lines."""
        return self.state.prompt

    def load(self) -> WorkspaceState:
        """Read the files now; ConfigError names file, line and key, and the previous state stays."""
        seen = self._read_stamps()
        state = self._read()
        self._waiting = self.trust.waiting(self.path) if self.trust is not None else frozenset()
        self._state, self._stamps = state, seen
        _log(state)
        return state

    async def watch(self, *, every: float = 1.0, clock: Clock = SYSTEM_CLOCK) -> AsyncGenerator[WorkspaceState, None]:
        """Yield the new state after each edit. The files are polled every `every` seconds.

        An edit counts when two polls in a row agree, because it may be half written before. An invalid edit is
        reported once in `errors` and changes nothing else.
        """
        reported = self.state
        accepted = before = self._stamps
        while True:
            await clock.sleep(every)
            if self.trust is not None:
                self.trust.recover()
            now = self._read_stamps()
            settled, before = now == before, now
            if now == accepted or not settled:
                continue
            if self.trust is not None:
                self._waiting = self.trust.accept_edits(self.path, self._waiting)
            state = self._reload(reported)
            if self._read_stamps() != now:  # written to while it was read
                continue
            accepted = now
            if state != reported:
                self._state = reported = state
                _log(state)
                yield state

    def _read_stamps(self) -> FileStamps:
        files = read_stamps(self.path, skill_files(self.path))
        return files if self.trust is None else (*files, self.trust.stamp())

    def _reload(self, old: WorkspaceState) -> WorkspaceState:
        """Read the files; if they are invalid, return the old state with the error."""
        try:
            return self._read()
        except ConfigError as error:
            return msgspec.structs.replace(old, errors=(str(error),))

    def preview(self, agents: bytes) -> WorkspaceState:
        """Return the state that the workspace would have with this content of `AGENTS.md`."""
        return self._read(agents.decode("utf-8").removeprefix("\ufeff"))

    def _read(self, agents_text: str | None = None) -> WorkspaceState:
        if not self.path.is_dir():
            raise ConfigError(f"workspace folder not found: {self.path}; create it, or set ATLAS_WORKSPACE")
        texts = {name: text for name in NAMES if (text := read(self.path, name, self.trust)) is not None}
        if agents_text is not None:
            texts = {"AGENTS.md": agents_text, **{name: text for name, text in texts.items() if name != "AGENTS.md"}}
        agents = parse_agents(texts.get("AGENTS.md", ""), str(self.path / "AGENTS.md"))
        findings = [finding for name, text in texts.items() for finding in hidden_characters(text, name)]
        skills, more = read_skills(self.path, self.trust)
        pieces = [*texts.values(), *([skills_prompt(skills)] if skills else ())]
        return WorkspaceState(
            _SEPARATOR.join(pieces),
            agents or (_DEFAULT_AGENT,),
            (*findings, *more),
            skills=skills,
            pending=tuple(self._pending_notices()),
            generated=texts.get("AGENTS.md") == default_text("AGENTS.md"),
        )

    def _pending_notices(self) -> Iterator[str]:
        """Describe changes of these files, and changes by agents elsewhere, without paths and sessions of others."""
        for change in self.trust.pending() if self.trust is not None else ():
            name = os.path.relpath(change.path, os.path.realpath(self.path))
            if name.startswith(".."):
                name = change.path.name if change.by_agent else ""
            if name:
                yield f"{name} was {change.kind} and is not used until you agree; run: atlas trust"


def _log(state: WorkspaceState) -> None:
    if state.agents == (_DEFAULT_AGENT,):
        logger.info("AGENTS.md has no agents: its text is part of the prompt of the default agent")
    for error in state.errors:
        logger.warning("workspace edit rejected: error=%s", error)
    for finding in () if state.errors else state.findings:
        logger.warning("%s", finding)
