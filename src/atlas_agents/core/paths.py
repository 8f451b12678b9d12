"""A key that never shows itself."""

import os
import re
import secrets
import stat
import sys
import unicodedata
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from fnmatch import translate
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, Protocol, TypeVar

import msgspec

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


class SettingLookup(Protocol):
    """Knows settings by name, as `Environment` does."""

    def get(self, name: str, /) -> str | None: ...


def home(environment: SettingLookup) -> Path:
    """`ATLAS_HOME`, else a folder of our own where this system keeps a user's data. It is not made here."""
    if given := environment.get("ATLAS_HOME"):
        return absolute(given.strip(), Path.cwd(), environment)
    return _user_folder(environment, "XDG_DATA_HOME", Path(".local", "share")) / _FOLDER


def user_config(environment: SettingLookup) -> Path:
    """The file with a person's settings for all projects; it need not exist."""
    return _user_folder(environment, "XDG_CONFIG_HOME", Path(".config")) / "atlas" / "config.toml"


def absolute(given: str | Path, base: Path, environment: SettingLookup) -> Path:
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


def _user_folder(environment: SettingLookup, variable: str, usual: Path) -> Path:
    """What the variable says, if it is a whole path (others are to be ignored), else what is usual on this system."""
    given = environment.get(variable)
    if given and Path(given).is_absolute():
        return Path(given)
    return _person(environment) / (_APPLE if sys.platform == "darwin" else usual)


def _person(environment: SettingLookup) -> Path:
    given = environment.get("HOME")
    try:
        return Path(given).absolute() if given else Path.home()
    except RuntimeError as error:
        raise ConfigError("this user has no home folder: set ATLAS_HOME") from error


_protected, _secret = (
    re.compile("|".join(translate(_folded(name)) for name in names)) for names in (PROTECTED, SECRET)
)
_protected_folders, _secret_folders = (frozenset(map(_folded, names)) for names in (PROTECTED_FOLDERS, SECRET_FOLDERS))


T = TypeVar("T")


def keep(path: Path, value: Any) -> None:
    """Put a value into a file, as JSON. A sudden end leaves the old one or the new one."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the name is part of it
    finally:
        os.close(folder)


def kept(path: Path, kind: type[T]) -> T | None:
    """What a file has; None if there is none. ConfigError if it cannot be read: it is not written over in silence."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; mend it, or move it away") from error


@contextmanager
def alone(path: Path) -> Generator[None, None, None]:
    """Let nobody else in who says the same of this file: for reading, changing and keeping as one."""
    with path.with_name(f".{path.name}.lock").open("a") as file:
        flock(file, LOCK_EX)
        yield


class EnvironmentValue(msgspec.Struct, frozen=True):
    """A value as it was written, and where: `environment`, or `.env:3`."""

    value: str
    where: str

    def __repr__(self) -> str:
        return f"Found(…, {self.where!r})"  # it may be a key


class Environment:
    """Looks a name up in the process's environment first, then in a `.env` file, read once."""

    def __init__(self, values: Mapping[str, str] | None = None, *, dotenv: Path | None = Path(".env")) -> None:
        self._values = os.environ if values is None else values
        self._file = read_dotenv(dotenv) if dotenv is not None else {}

    def find(self, name: str) -> EnvironmentValue | None:
        """The value as it was written, blank ones too, and where it stands."""
        if value := self._values.get(name):
            return EnvironmentValue(value, "environment")
        if found := self._file.get(name):
            return found
        return EnvironmentValue("", "environment") if name in self._values else None

    def get(self, name: str) -> str | None:
        """The value of a setting; blank means not set."""
        found = self.find(name)
        return found.value if found and found.value.strip() else None

    def secret(self, name: str) -> str | None:
        """The value of `NAME`, or the content of the file that `NAME_FILE` points to."""
        if value := self.get(name):
            return value.strip()
        if not (path := self.get(f"{name}_FILE")):
            return None
        return read_secret(f"{name}_FILE", Path(path))

    def replaced(self, values: Mapping[str, str]) -> "Environment":
        """The same with other values for some names."""
        other = Environment({**self._values, **values}, dotenv=None)
        other._file = self._file
        return other

    def names(self) -> list[str]:
        """All names that are set, here or there."""
        return sorted({*self._values, *self._file})


def read_secret(name: str, path: Path) -> str:
    """The content of a file that holds one secret; refused if anybody could have written it."""
    try:
        mode = path.stat().st_mode
        content = path.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise ConfigError(f"{name} points to {path}, which cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} points to {path}, which is not UTF-8") from error
    if mode & stat.S_IWOTH:
        raise ConfigError(f"{name} points to {path}, which every user can write to: say chmod 600 {path}")
    if not content:
        raise ConfigError(f"{name} points to {path}, which is empty")
    return content


def read_dotenv(path: Path) -> dict[str, EnvironmentValue]:
    """The `NAME=value` lines of a file; a missing file has none. Quotes around a value are taken off."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found: dict[str, EnvironmentValue] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not name.strip().isidentifier():
            raise ConfigError(f"{path}, line {number}: expected NAME=value")
        found[name.strip()] = EnvironmentValue(_unquote(value.strip()), f"{path}:{number}")
    return found


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


class Secret:
    """Wraps a secret so that printing, logging or formatting it shows nothing; `reveal` is the only way out."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a secret cannot be copied or pickled")
