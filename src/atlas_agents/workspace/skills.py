"""Skills and prompt templates of a workspace.

The prompt lists each skill in one line; the model reads its `SKILL.md` with a tool when it needs it.
"""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from atlas_agents.core.errors import ConfigError, ToolFailed
from atlas_agents.core.paths import is_secret
from atlas_agents.core.text import HiddenCharacters, hidden_characters
from atlas_agents.core.trust import Trust
from atlas_agents.tools.tool import Tool, tool
from atlas_agents.workspace.files import MAX_BYTES, read

SKILLS_FOLDER, FILE = "skills", "SKILL.md"
_SKILLS_FOLDERS = (SKILLS_FOLDER, ".agents/skills")
"""Folders of skills: Atlas's own first, then the one that agents of several vendors share."""
_SKILL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_ENTRY = re.compile(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?")
_MAX_FILES = 200
_MAX_DESCRIPTION = 1024
_FRONT_MATTER = "start it with ---, a line name: …, a line description: …, and ---"
_PROMPT = """\
# Skills

You have skills: instructions for particular tasks. When one fits what you are asked, read it with `read_skill` before \
you begin, and follow it.

"""
PROMPTS_FOLDER = "prompts"
_PROMPT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,63})\}")


class Skill(msgspec.Struct, frozen=True):
    """Front matter of a `SKILL.md` and its folder."""

    name: str
    description: str
    folder: Path


def read_skills(workspace: Path, trust: Trust | None = None) -> tuple[tuple[Skill, ...], list[HiddenCharacters]]:
    """Return the skills of a workspace by name, and the hidden characters in them; ConfigError names the file.

    A skill in `skills` wins over one of the same name in `.agents/skills`. With `trust`, the version of a skill counts
    that a person agreed to.
    """
    skills: dict[str, Skill] = {}
    findings: list[HiddenCharacters] = []
    for path in skill_files(workspace):
        text = read(workspace, path, trust)
        if text is None:
            continue
        skill = _parse_skill(text, (workspace / path).parent, str(workspace / path))
        if skills.setdefault(skill.name, skill) is skill:
            findings += hidden_characters(text, path)
    return tuple(sorted(skills.values(), key=lambda skill: skill.name)), findings


def skill_files(workspace: Path) -> list[str]:
    """Return the paths of all `SKILL.md` files relative to the workspace."""
    folders = [folder for parent in _SKILLS_FOLDERS for folder in _skill_folders(workspace / parent)]
    return [str(folder.relative_to(workspace) / FILE) for folder in folders]


def skills_prompt(skills: tuple[Skill, ...]) -> str:
    """Return the part of the system prompt that lists the skills."""
    return _PROMPT + "\n".join(f"- {skill.name}: {skill.description}" for skill in skills)


def skill_tool(workspace: Path, trust: Trust | None = None) -> Tool:
    """Return the `read_skill` tool. It reads the files at each call; with `trust`, the agreed versions."""

    def read_file(skill: Skill, file: str) -> str | None:
        return read(workspace, str(skill.folder.relative_to(workspace) / file), trust)

    @tool(effect="pure", in_process=True)
    def read_skill(name: str, file: str = FILE) -> str:
        """Read a skill's instructions, or another file in its folder.

        Args:
            name: The skill's name.
            file: A file of the skill that its instructions mention, such as reference.md.
        """
        skills, _ = read_skills(workspace, trust)
        skill = next((each for each in skills if each.name == name), None)
        if skill is None:
            names = ", ".join(each.name for each in skills) or "none"
            raise ToolFailed(f"Unknown skill {name!r}. Known skills: {names}.")
        files = [each for each in _files(skill.folder) if read_file(skill, each) is not None]
        if file not in files:
            raise ToolFailed(f"Skill {name!r} has no file {file!r}. Its files: {', '.join(files)}.")
        text = read_file(skill, file)
        if file != FILE or text is None:
            return text or ""
        others = [each for each in files if each != FILE]
        more = f"\n\nOther files of this skill: {', '.join(others)}." if others else ""
        return _body(text) + more

    return read_skill


def _skill_folders(parent: Path) -> list[Path]:
    """Return the folders that contain a `SKILL.md`; links are not followed."""
    try:
        found = [Path(each.path) for each in os.scandir(parent) if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(folder for folder in found if os.path.lexists(folder / FILE))


def _files(folder: Path) -> Iterator[str]:
    """Yield regular files below a folder that are small enough to read, except files with secrets."""
    count = 0
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent) / name
            seen = path.lstat()
            inside = path.relative_to(folder)
            if is_secret(inside) or not stat.S_ISREG(seen.st_mode) or seen.st_size > MAX_BYTES:
                continue
            if count < _MAX_FILES:
                count += 1
                yield str(inside)


def _parse_skill(text: str, folder: Path, file: str) -> Skill:
    entries = dict(_parse_front_matter(text, file))
    name, description = entries.get("name", ""), entries.get("description", "")
    if not _SKILL_NAME.fullmatch(name):
        raise ConfigError(
            f"{file}: name: invalid skill name {name[:80]!r}: expected lower-case letters, digits and hyphens"
        )
    if name != folder.name:
        raise ConfigError(f"{file}: name: expected the folder's name {folder.name!r}, got {name!r}")
    if not description:
        raise ConfigError(f"{file}: description: missing; describe what the skill does and when to use it")
    if len(description) > _MAX_DESCRIPTION:
        raise ConfigError(f"{file}: description: longer than {_MAX_DESCRIPTION} characters; it is part of every prompt")
    return Skill(name, description, folder)


def _parse_front_matter(text: str, file: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of the front matter; indented lines continue the value before."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---" or "---" not in [line.strip() for line in lines[1:]]:
        raise ConfigError(f"{file}: missing front matter; {_FRONT_MATTER}")
    key, pieces = "", list[str]()
    for line in lines[1:]:
        entry = _ENTRY.fullmatch(line.rstrip()) if line[:1].strip() else None
        if line.strip() == "---" or entry:
            if key:
                yield key, _value(pieces)
            if entry is None:
                return
            key, pieces = entry[1].lower(), [entry[2] or ""]
        elif line.strip() and not line.startswith("#"):
            pieces.append(line)


def _value(pieces: list[str]) -> str:
    first, *rest = [piece.strip() for piece in pieces]
    if first in (">", ">-", "|", "|-"):
        first = ""
    text = " ".join(piece for piece in (first, *rest) if piece)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _body(text: str) -> str:
    """Return the text below the front matter."""
    return text.replace("\r\n", "\n").split("\n---", 1)[1].partition("\n")[2].strip()


class Prompt(msgspec.Struct, frozen=True):
    """Prompt template. A heading in its first line is its description."""

    name: str
    text: str
    description: str = ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Names of the placeholders in order of appearance."""
        return tuple(dict.fromkeys(_PLACEHOLDER.findall(self.text)))

    def fill(self, values: dict[str, str]) -> str:
        """Return the text with its placeholders replaced. Values are not expanded again."""
        missing = [placeholder for placeholder in self.placeholders if placeholder not in values]
        if missing:
            raise ConfigError(f"prompt {self.name!r}: missing values for {', '.join(missing)}")
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)


def read_prompts(workspace: Path, trust: Trust | None = None) -> tuple[Prompt, ...]:
    """Return the prompt templates of a workspace sorted by name; ConfigError names the invalid file."""
    folder = workspace / PROMPTS_FOLDER
    if not folder.is_dir():
        return ()
    found = [_read_prompt(folder, path, trust) for path in sorted(folder.glob("*.md")) if not path.name.startswith(".")]
    return tuple(prompt for prompt in found if prompt is not None)


def _read_prompt(folder: Path, path: Path, trust: Trust | None) -> Prompt | None:
    text = read(folder, path.name, trust)
    if text is None:
        return None
    if not _PROMPT_NAME.fullmatch(path.stem):
        raise ConfigError(f"{path}: invalid prompt name {path.stem!r}: expected letters, digits, _ or -")
    text = text.strip()
    first, _, rest = text.partition("\n")
    if first.startswith("# ") and rest.strip():
        return Prompt(path.stem, rest.strip(), first[2:].strip())
    return Prompt(path.stem, text)
