"""User directories, protected paths, environment variables, secrets and atomic file writes."""

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
_MACOS_FOLDER = Path("Library", "Application Support")

PROTECTED = (
    *("AGENTS.md", "SOUL.md", "TOOLS.md", "SKILL.md", "CLAUDE.md", "atlas.toml", "policy.toml"),
    *("mcp.json", ".mcp.json"),
    *(".env", ".env.*", ".envrc", "token", "tokens.json"),
    *(".gitconfig", ".gitmodules", ".gitattributes", ".pre-commit-config.yaml"),
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile"),
    *("pyvenv.cfg", "sitecustomize.py", "usercustomize.py", "*.pth", ".npmrc", ".netrc", ".pypirc"),
)
"""File names that define agents or that other programs execute or trust, whether or not the files exist."""

PROTECTED_FOLDERS = (
    *("skills", "hooks", ".atlas", ".claude", ".cursor", ".codex", ".vscode", ".idea", ".github", ".husky"),
    *(".git", ".hg", ".svn", ".venv", "venv", ".ssh", ".aws", ".gnupg", ".kube", ".docker"),
)
"""Folders of such files, including everything below them."""

SECRET = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".pgpass", ".git-credentials", ".htpasswd"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.ppk"),
    *("token", "tokens.json", "credentials.json", "secrets.toml", "secrets.yaml", "secrets.yml", "secrets.json"),
    *("atlas.db", "atlas.db-*"),
)
"""File names whose content must never reach a model."""

SECRET_FOLDERS = (".ssh", ".aws", ".gnupg", ".kube", ".docker")
_EXAMPLE_FILES = (".env.example", ".env.sample", ".env.template", ".env.dist")
T = TypeVar("T")


class SettingLookup(Protocol):
    """Looks up settings by name, as `Environment` does."""

    def get(self, name: str, /) -> str | None: ...


def home(environment: SettingLookup) -> Path:
    """Return `ATLAS_HOME`, or the application folder in the user's data directory; the folder is not created."""
    if given := environment.get("ATLAS_HOME"):
        return resolve_path(given.strip(), Path.cwd(), environment)
    return _user_folder(environment, "XDG_DATA_HOME", Path(".local", "share")) / _FOLDER


def user_config(environment: SettingLookup) -> Path:
    """Return the path of the user's settings file, which need not exist."""
    return _user_folder(environment, "XDG_CONFIG_HOME", Path(".config")) / "atlas" / "config.toml"


def resolve_path(given: str | Path, base: Path, environment: SettingLookup) -> Path:
    """Resolve a path: `~` is the user's home directory, and relative paths start at `base`."""
    text = str(given)
    if "\0" in text:
        raise ConfigError("invalid path: contains a NUL character")
    if text == "~" or text.startswith("~/"):
        text = f"{_user_home(environment)}{text[1:]}"
    return Path(os.path.normpath(base.absolute() / text))


def is_protected(path: PurePath) -> bool:
    """Return whether a file at this path defines what agents may do, or is executed by other programs."""
    return _matches(path, _protected, _protected_folders)


def is_secret(path: PurePath) -> bool:
    """Return whether a file of this name holds keys, passwords or private data; `.env.example` and the like do not."""
    return _matches(path, _secret, _secret_folders) and _normalize_name(path.name) not in _EXAMPLE_FILES


def _matches(path: PurePath, names: re.Pattern[str], folders: frozenset[str]) -> bool:
    parts = [_normalize_name(part) for part in path.parts]
    return bool(parts) and (not folders.isdisjoint(parts) or names.match(parts[-1]) is not None)


@lru_cache(4096)
def _normalize_name(name: str) -> str:
    """Normalise a name as the most lenient file system would: `agents.MD` and `AGENTS\u200c.md.` are equal."""
    normalized = unicodedata.normalize("NFKC", name)
    visible = "".join(char for char in normalized if unicodedata.category(char) not in ("Cf", "Cc"))
    return unicodedata.normalize("NFKC", visible.casefold()).rstrip(". ")


def make_private_folder(folder: Path) -> Path:
    """Create a folder that only its owner can enter; an existing one is left unchanged."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)  # regardless of the umask
        except FileExistsError:
            if not folder.is_dir():
                raise ConfigError(f"expected a folder at {folder}, found a file") from None
    except OSError as error:
        raise ConfigError(
            f"cannot create the folder {folder}: {error.strerror}; set ATLAS_HOME to another folder"
        ) from error
    return folder


def _user_folder(environment: SettingLookup, variable: str, default: Path) -> Path:
    """Return the variable's value if it is an absolute path, else the platform's default."""
    given = environment.get(variable)
    if given and Path(given).is_absolute():
        return Path(given)
    return _user_home(environment) / (_MACOS_FOLDER if sys.platform == "darwin" else default)


def _user_home(environment: SettingLookup) -> Path:
    given = environment.get("HOME")
    try:
        return Path(given).absolute() if given else Path.home()
    except RuntimeError as error:
        raise ConfigError("this user has no home directory; set ATLAS_HOME") from error


_protected, _secret = (
    re.compile("|".join(translate(_normalize_name(name)) for name in names)) for names in (PROTECTED, SECRET)
)
_protected_folders, _secret_folders = (
    frozenset(map(_normalize_name, names)) for names in (PROTECTED_FOLDERS, SECRET_FOLDERS)
)


def write_file(path: Path, content: bytes, *, mode: int = 0o600, overwrite: bool = True) -> None:
    """Write a file atomically and durably: after a crash it has the old or the new content, never a part of it.

    With `overwrite=False` it raises FileExistsError if there is such a file already, also if two processes race.
    """
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
            temporary.unlink()
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # make the rename durable
    finally:
        os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write a value to a file as JSON, atomically; only its owner may read it."""
    write_file(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def read_json(path: Path, kind: type[T]) -> T | None:
    """Read a JSON file; None if it is missing. ConfigError if it is unreadable, so that it is never overwritten."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; fix the file or move it away") from error


def read_text_file(path: Path, max_bytes: int, real: Path | None = None) -> str:
    """Read a small UTF-8 file; ConfigError if it is invalid, OSError if it cannot be read. Never blocks on a pipe.

    `real` is the resolved path to open: messages name `path`, and a link that replaces `real` is not followed.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if real else 0)
    descriptor = os.open(real or path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path}: not a regular file; replace it with a text file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(content) > max_bytes:
        raise ConfigError(f"{path}: larger than the maximum of {max_bytes // 1024} KiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the file is not valid UTF-8; save it as UTF-8") from error


@contextmanager
def lock_file(path: Path) -> Generator[None, None, None]:
    """Hold an exclusive lock on a file for a read-modify-write cycle."""
    with path.with_name(f".{path.name}.lock").open("a") as file:
        flock(file, LOCK_EX)
        yield


class EnvironmentValue(msgspec.Struct, frozen=True):
    """A value as written, and where: `environment`, or `.env:3`."""

    value: str
    where: str

    def __repr__(self) -> str:
        return f"EnvironmentValue(…, {self.where!r})"  # the value may be a key


class Environment:
    """Looks up names in the process environment, then in a `.env` file that is read once."""

    def __init__(self, values: Mapping[str, str] | None = None, *, dotenv: Path | None = Path(".env")) -> None:
        self._values = os.environ if values is None else values
        self._file = read_dotenv(dotenv) if dotenv is not None else {}

    def find(self, name: str) -> EnvironmentValue | None:
        """Return the value as written, even if blank, and where it is set."""
        if value := self._values.get(name):
            return EnvironmentValue(value, "environment")
        if found := self._file.get(name):
            return found
        return EnvironmentValue("", "environment") if name in self._values else None

    def get(self, name: str) -> str | None:
        """Return a setting's value; blank counts as unset."""
        found = self.find(name)
        return found.value if found and found.value.strip() else None

    def secret(self, name: str) -> str | None:
        """Return the value of `NAME`, or the content of the file that `NAME_FILE` names."""
        if value := self.get(name):
            return value.strip()
        if not (path := self.get(f"{name}_FILE")):
            return None
        return read_secret(f"{name}_FILE", Path(path))

    def with_values(self, values: Mapping[str, str]) -> "Environment":
        """Return a copy with other values for some names."""
        other = Environment({**self._values, **values}, dotenv=None)
        other._file = self._file
        return other

    def names(self) -> list[str]:
        """Return all names that are set, in the environment or the file."""
        return sorted({*self._values, *self._file})


def read_secret(name: str, path: Path) -> str:
    """Read a file that holds one secret; refused if other users can write to it."""
    try:
        mode = path.stat().st_mode
        content = path.read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise ConfigError(f"{name} points to {path}, which cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} points to {path}, which is not UTF-8") from error
    if mode & stat.S_IWOTH:
        raise ConfigError(f"{name} points to {path}, which every user can write to; run: chmod 600 {path}")
    if not content:
        raise ConfigError(f"{name} points to {path}, which is empty")
    return content


def read_dotenv(path: Path) -> dict[str, EnvironmentValue]:
    """Parse the `NAME=value` lines of a file; a missing file has none. Quotes around a value are removed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
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
    """Wraps a secret so that printing, logging or formatting it shows nothing; only `reveal` returns it."""

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
