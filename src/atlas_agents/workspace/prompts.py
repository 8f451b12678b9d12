"""Prompts that a workspace keeps for people to start from: `prompts/NAME.md`, with `{blanks}` to fill in."""

import re
from pathlib import Path

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.workspace.files import read

FOLDER = "prompts"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
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
    folder = workspace / FOLDER
    if not folder.is_dir():
        return ()
    return tuple(_prompt(folder, path) for path in sorted(folder.glob("*.md")) if not path.name.startswith("."))


def _prompt(folder: Path, path: Path) -> Prompt:
    if not _NAME.fullmatch(path.stem):
        raise ConfigError(f"{path}: {path.stem!r} is no name for a prompt; write letters, digits, _ or -")
    text = (read(folder, path.name) or "").strip()
    first, _, rest = text.partition("\n")
    if first.startswith("# ") and rest.strip():
        return Prompt(path.stem, rest.strip(), first[2:].strip())
    return Prompt(path.stem, text)
