"""Where things are kept on this machine, and which files say what agents may do, so that no agent may write them."""

import os
import sys
from pathlib import Path
from typing import Protocol

from atlas_agents.core.errors import ConfigError

_FOLDER = "atlas-agents"
_APPLE = Path("Library", "Application Support")

PROTECTED = ("AGENTS.md", "SOUL.md", "TOOLS.md", "atlas.toml", "mcp.json", ".env")
"""Names of files that agents are made of, whether the files exist or not."""


class Lookup(Protocol):
    """Knows settings by name, as `Environment` does."""

    def get(self, name: str, /) -> str | None: ...


def home(environment: Lookup) -> Path:
    """`ATLAS_HOME`, else a folder of our own where this system keeps a user's data. It is not made here."""
    if given := environment.get("ATLAS_HOME"):
        return absolute(given.strip(), Path.cwd(), environment)
    return _user_folder(environment, "XDG_DATA_HOME", Path(".local", "share")) / _FOLDER


def user_config(environment: Lookup) -> Path:
    """The file with a person's settings for all projects; it need not exist."""
    return _user_folder(environment, "XDG_CONFIG_HOME", Path(".config")) / "atlas" / "config.toml"


def absolute(given: str | Path, base: Path, environment: Lookup) -> Path:
    """A path as a person writes it: `~` is their own folder, and what is relative starts at `base`."""
    text = str(given)
    if "\0" in text:
        raise ConfigError("a path cannot hold a NUL character")
    if text == "~" or text.startswith("~/"):
        text = f"{_person(environment)}{text[1:]}"
    return Path(os.path.normpath(base.absolute() / text))


def is_protected(path: Path) -> bool:
    """Whether a file of this name says what agents are told or may do; on some disks `agents.MD` is the same file."""
    return path.name.casefold() in {name.casefold() for name in PROTECTED}


def make_private(folder: Path) -> Path:
    """Make a folder that only its owner can enter; one that is there stays as it is."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)  # whatever the umask took away
        except FileExistsError:
            if not folder.is_dir():
                raise ConfigError(f"{folder} should be a folder, and a file is in its place") from None
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}; set ATLAS_HOME elsewhere") from error
    return folder


def _user_folder(environment: Lookup, variable: str, usual: Path) -> Path:
    """What the variable says, if it is a whole path (others are to be ignored), else what is usual on this system."""
    given = environment.get(variable)
    if given and Path(given).is_absolute():
        return Path(given)
    return _person(environment) / (_APPLE if sys.platform == "darwin" else usual)


def _person(environment: Lookup) -> Path:
    given = environment.get("HOME")
    try:
        return Path(given).absolute() if given else Path.home()
    except RuntimeError as error:
        raise ConfigError("this user has no home folder: set ATLAS_HOME") from error
