"""Where things are kept on this machine, which files say what agents may do, so that no agent may write them unasked,
and which hold secrets, so that none may read them."""

import os
import re
import sys
import unicodedata
from fnmatch import translate
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Protocol

from atlas_agents.core.errors import ConfigError

_FOLDER = "atlas-agents"
_APPLE = Path("Library", "Application Support")

PROTECTED = (
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "SKILL.md", "CLAUDE.md", "atlas.toml", "policy.toml"),
    *("mcp.json", ".mcp.json"),
    *(".env", ".env.*", ".envrc", "token", "tokens.json"),
    *(".gitconfig", ".gitmodules", ".gitattributes", ".pre-commit-config.yaml"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile"),
    *("pyvenv.cfg", "sitecustomize.py", "usercustomize.py", "*.pth", ".npmrc", ".netrc", ".pypirc"),
)
"""Names of files that agents are made of, or that others run or believe, whether the files exist or not."""

PROTECTED_FOLDERS = (
    *("skills", "hooks", ".atlas", ".claude", ".cursor", ".codex", ".vscode", ".idea", ".github", ".husky"),
    *(".git", ".hg", ".svn", ".venv", "venv", ".ssh", ".aws", ".gnupg", ".kube", ".docker"),
)
"""Folders of such files, with all that is in them."""

SECRET = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".pgpass", ".git-credentials", ".htpasswd"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.ppk"),
    *("token", "tokens.json", "credentials.json", "secrets.toml", "secrets.yaml", "secrets.yml", "secrets.json"),
    *("atlas.db", "atlas.db-*"),
)
"""Names of files whose content is for no model."""

SECRET_FOLDERS = (".ssh", ".aws", ".gnupg", ".kube", ".docker")
_EXAMPLES = (".env.example", ".env.sample", ".env.template", ".env.dist")


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


def is_protected(path: PurePath) -> bool:
    """Whether what is written there says what agents are told or may do, or is run by others unasked."""
    return _named(path, _protected, _protected_folders)


def is_secret(path: PurePath) -> bool:
    """Whether a file of this name holds keys, passwords or what people have said; an example of one does not."""
    return _named(path, _secret, _secret_folders) and _folded(path.name) not in _EXAMPLES


def _named(path: PurePath, names: re.Pattern[str], folders: frozenset[str]) -> bool:
    parts = [_folded(part) for part in path.parts]
    return bool(parts) and (not folders.isdisjoint(parts) or names.match(parts[-1]) is not None)


@lru_cache(4096)
def _folded(name: str) -> str:
    """A name as the most forgiving disk knows it: `agents.MD`, `AGENTS.md.` and `AGENTS\u200c.md` are one."""
    plain = unicodedata.normalize("NFKC", name)
    seen = "".join(char for char in plain if unicodedata.category(char) not in ("Cf", "Cc"))
    return unicodedata.normalize("NFKC", seen.casefold()).rstrip(". ")


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


_protected, _secret = (
    re.compile("|".join(translate(_folded(name)) for name in names)) for names in (PROTECTED, SECRET)
)
_protected_folders, _secret_folders = (frozenset(map(_folded, names)) for names in (PROTECTED_FOLDERS, SECRET_FOLDERS))
