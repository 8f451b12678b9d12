"""Skills: folders with a `SKILL.md`, of which a model is told one line each, and reads the rest when it needs it."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from atlas_agents.core.errors import ConfigError, ToolFailed
from atlas_agents.core.paths import is_secret
from atlas_agents.core.text import HiddenCharacters, hidden_characters
from atlas_agents.tools.tool import Tool, tool
from atlas_agents.workspace.files import LARGEST, read

SKILLS_FOLDER, FILE = "skills", "SKILL.md"
_SKILL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_ENTRY = re.compile(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?")
_MOST_FILES = 200
_LONGEST = 1024
_FORM = "begin it with ---, a line name: …, a line description: …, and ---"
_PROMPT = """\
# Skills

You have skills: instructions for particular tasks. When one fits what you are asked, read it with `read_skill` before \
you begin, and follow it.

"""


class Skill(msgspec.Struct, frozen=True):
    """What its first lines say, and where it is."""

    name: str
    description: str
    folder: Path


def read_skills(workspace: Path) -> tuple[tuple[Skill, ...], list[HiddenCharacters]]:
    """All skills of a workspace by name, and hidden characters in them; ConfigError names the file that is wrong."""
    skills: list[Skill] = []
    findings: list[HiddenCharacters] = []
    for folder in _folders(workspace):
        path = f"{SKILLS_FOLDER}/{folder.name}/{FILE}"
        text = read(workspace, path)
        if text is None:
            continue
        skills.append(_skill(text, folder, str(workspace / path)))
        findings += hidden_characters(text, path)
    return tuple(skills), findings


def skill_files(workspace: Path) -> list[str]:
    """The paths of all `SKILL.md` files, relative to the workspace."""
    return [f"{SKILLS_FOLDER}/{folder.name}/{FILE}" for folder in _folders(workspace)]


def skills_prompt(skills: tuple[Skill, ...]) -> str:
    """What a model is told of them from the start."""
    return _PROMPT + "\n".join(f"- {skill.name}: {skill.description}" for skill in skills)


def skill_tool(workspace: Path) -> Tool:
    """The tool that reads them, as they are at the moment."""

    @tool(effect="pure", in_process=True)
    def read_skill(name: str, file: str = FILE) -> str:
        """Read a skill's instructions, or another file in its folder.

        Args:
            name: The skill's name.
            file: A file of the skill that its instructions mention, such as reference.md.
        """
        skills, _ = read_skills(workspace)
        skill = next((each for each in skills if each.name == name), None)
        if skill is None:
            names = ", ".join(each.name for each in skills) or "none"
            raise ToolFailed(f"There is no skill {name!r}. There are: {names}.")
        files = list(_files(skill.folder))
        if file not in files:
            raise ToolFailed(f"The skill {name!r} has no file {file!r}. It has: {', '.join(files)}.")
        text = read(workspace, f"{SKILLS_FOLDER}/{skill.folder.name}/{file}")
        if file != FILE or text is None:
            return text or ""
        others = [each for each in files if each != FILE]
        more = f"\n\nOther files of this skill: {', '.join(others)}." if others else ""
        return _body(text) + more

    return read_skill


def _folders(workspace: Path) -> list[Path]:
    """Those that have a `SKILL.md`; links are not followed."""
    try:
        found = [
            Path(each.path) for each in os.scandir(workspace / SKILLS_FOLDER) if each.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return []
    return sorted(folder for folder in found if os.path.lexists(folder / FILE))


def _files(folder: Path) -> Iterator[str]:
    """Regular files below a folder that can be read whole, but for those that hold keys."""
    count = 0
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(place) / name
            seen = path.lstat()
            inside = path.relative_to(folder)
            if is_secret(inside) or not stat.S_ISREG(seen.st_mode) or seen.st_size > LARGEST:
                continue
            if count < _MOST_FILES:
                count += 1
                yield str(inside)


def _skill(text: str, folder: Path, file: str) -> Skill:
    entries = dict(_entries(text, file))
    name, description = entries.get("name", ""), entries.get("description", "")
    if not _SKILL_NAME.fullmatch(name):
        raise ConfigError(
            f"{file}: name: {name[:80]!r} is no name for a skill; write small letters, digits and hyphens"
        )
    if name != folder.name:
        raise ConfigError(f"{file}: name: it is {name!r}, and its folder {folder.name!r}; call both the same")
    if not description:
        raise ConfigError(f"{file}: description: it has none; say in a sentence what it is for, and when to use it")
    if len(description) > _LONGEST:
        raise ConfigError(f"{file}: description: it is longer than {_LONGEST} characters; every model reads all of it")
    return Skill(name, description, folder)


def _entries(text: str, file: str) -> Iterator[tuple[str, str]]:
    """The keys at the top, each with its value; lines that are indented belong to the key before."""
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[0].strip() != "---" or "---" not in [line.strip() for line in lines[1:]]:
        raise ConfigError(f"{file}: it does not say what it is; {_FORM}")
    key, words = "", list[str]()
    for line in lines[1:]:
        entry = _ENTRY.fullmatch(line.rstrip()) if line[:1].strip() else None
        if line.strip() == "---" or entry:
            if key:
                yield key, _value(words)
            if entry is None:
                return
            key, words = entry[1].lower(), [entry[2] or ""]
        elif line.strip() and not line.startswith("#"):
            words.append(line)


def _value(words: list[str]) -> str:
    first, *rest = [word.strip() for word in words]
    if first in (">", ">-", "|", "|-"):
        first = ""
    text = " ".join(word for word in (first, *rest) if word)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _body(text: str) -> str:
    """What stands below the keys."""
    return text.replace("\r\n", "\n").split("\n---", 1)[1].partition("\n")[2].strip()


PROMPTS_FOLDER = "prompts"
_PROMPT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BLANK = re.compile(r"\{([a-z][a-z0-9_]{0,63})\}")


class Prompt(msgspec.Struct, frozen=True):
    """A text with blanks; its first line, if it is a heading, says what it is for."""

    name: str
    text: str
    description: str = ""

    @property
    def blanks(self) -> tuple[str, ...]:
        """The names of its blanks, in their order."""
        return tuple(dict.fromkeys(_BLANK.findall(self.text)))

    def filled(self, values: dict[str, str]) -> str:
        """The text with every blank filled in, once; what is filled in is not looked into."""
        missing = [blank for blank in self.blanks if blank not in values]
        if missing:
            raise ConfigError(f"the prompt {self.name} needs {', '.join(missing)}")
        return _BLANK.sub(lambda found: values[found[1]], self.text)


def read_prompts(workspace: Path) -> tuple[Prompt, ...]:
    """All prompts of a workspace, by name; ConfigError names the file that cannot be used."""
    folder = workspace / PROMPTS_FOLDER
    if not folder.is_dir():
        return ()
    return tuple(_prompt(folder, path) for path in sorted(folder.glob("*.md")) if not path.name.startswith("."))


def _prompt(folder: Path, path: Path) -> Prompt:
    if not _PROMPT_NAME.fullmatch(path.stem):
        raise ConfigError(f"{path}: {path.stem!r} is no name for a prompt; write letters, digits, _ or -")
    text = (read(folder, path.name) or "").strip()
    first, _, rest = text.partition("\n")
    if first.startswith("# ") and rest.strip():
        return Prompt(path.stem, rest.strip(), first[2:].strip())
    return Prompt(path.stem, text)
