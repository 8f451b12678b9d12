"""User directories, protected and trusted paths, environment variables, secrets and atomic file writes."""

import hashlib
import logging
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
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from atlas_agents.core.errors import ConfigError

logger = logging.getLogger(__name__)
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
    *("skills", "hooks", ".agents", ".atlas", ".claude", ".cursor", ".codex", ".vscode", ".idea", ".github", ".husky"),
    *(".git", ".hg", ".svn", ".venv", "venv", ".ssh", ".aws", ".gnupg", ".kube", ".docker"),
)
"""Folders of such files, including everything below them."""

SECRET = (
    *(".env", ".env.*", ".envrc", ".netrc", ".pypirc", ".pgpass", ".git-credentials", ".htpasswd"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.kdbx", "*.ppk"),
    *(
        "token",
        "tokens.json",
        "invitations.json",
        "credentials.json",
        "secrets.toml",
        "secrets.yaml",
        "secrets.yml",
        "secrets.json",
    ),
    *("atlas.db", "atlas.db-*"),
)
"""File names whose content must never reach a model."""

SECRET_FOLDERS = (".ssh", ".aws", ".gnupg", ".kube", ".docker")
_PUBLIC_FILES = (".env.example", ".env.sample", ".env.template", ".env.dist", "cacert.pem")
SECRETS_FILE = "secrets.json"
"""File in the home folder with stored API keys, the bot token and values of MCP servers."""
TRUST_FILE = Path("trust", "trust.json")
"""File in the home folder with a person's trust decisions."""
TRUST_VARIABLE = "ATLAS_TRUSTED_FOLDERS"
_WORKING_DOTENV = Path(".env")
"""The `.env` of the working directory, which `Environment` reads by default."""
_HARMLESS = re.compile(r"[A-Z0-9_]+_API_KEY|ATLAS_(PORT|LOG_LEVEL|LOG_FORMAT)")
_RELEVANT = re.compile(r"(ATLAS|XDG)_\w+|\w+_(BASE_URL|API_KEY_FILE)|HOME|SEARXNG_URL|MAX_ACTIONS_PER_DAY")
_reported: set[Path] = set()
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
    """Return whether a file at this path defines agents or permissions, or is executed by other programs."""
    return _matches(path, _protected, _protected_folders)


def is_secret(path: PurePath) -> bool:
    """Return whether a file of this name holds keys, passwords or private data; `.env.example` and the like do not."""
    return _matches(path, _secret, _secret_folders) and _normalize_name(path.name) not in _PUBLIC_FILES


@lru_cache(1 << 16)
def classify_name(name: str) -> Literal["secret", "protected", ""]:
    """Classify a file or folder by its name alone."""
    normalized = _normalize_name(name)
    if (normalized in _secret_folders or _secret.match(normalized)) and normalized not in _PUBLIC_FILES:
        return "secret"
    return "protected" if normalized in _protected_folders or _protected.match(normalized) else ""


def _matches(path: PurePath, names: re.Pattern[str], folders: frozenset[str]) -> bool:
    parts = [_normalize_name(part) for part in path.parts]
    return bool(parts) and (not folders.isdisjoint(parts) or names.match(parts[-1]) is not None)


@lru_cache(4096)
def _normalize_name(name: str) -> str:
    """Normalise a name as the most lenient file system would: `agents.MD` and `AGENTS\u200c.md.` are equal."""
    if name.isascii() and name.isprintable():
        return name.lower().rstrip(". ")
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
    except (FileNotFoundError, NotADirectoryError):
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


class TrustedFolder(msgspec.Struct, frozen=True):
    """A folder that a person trusts: the digest of each settings file in it, and the workspace it sets."""

    files: dict[str, str] = {}
    workspace: str = ""
    at: int = 0


class HeldFile(msgspec.Struct, frozen=True):
    """A file that an agent changed: the digest of the version that stays in use, empty if there was none."""

    agreed: str = ""
    reason: str = ""
    at: int = 0


class TrustRecords(msgspec.Struct, frozen=True):
    """Trust decisions of a person: trusted folders and held files, by absolute path."""

    folders: dict[str, TrustedFolder] = {}
    held: dict[str, HeldFile] = {}
    agreed: dict[str, str] = {}
    """Digests of changes that a person agreed to. They take effect at once, even while a tool call is running."""
    declined: dict[str, str] = {}
    """Folders that a person does not trust, with a digest of their settings."""


def read_trust(home: Path) -> TrustRecords:
    """Read the trust records of a home folder; ConfigError if the file is invalid, so that nothing is trusted."""
    return read_json(home / TRUST_FILE, TrustRecords) or TrustRecords()


def trust_key(path: Path) -> str:
    """Return the path of a file in the trust records: its folder is resolved, the file itself is not."""
    return os.path.join(os.path.realpath(path.parent), path.name)


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def is_harmless(name: str, value: str) -> bool:
    """Return whether a folder may set a variable before it is trusted: API keys, the model, the port and logging.

    A path to a local model is not harmless: loading a crafted model file could run code.
    """
    if name == "ATLAS_MODEL":
        provider, _, model = value.strip().partition("/")
        return provider.strip() != "local" or not re.search(r"/|\.gguf\s*$", model, re.IGNORECASE)
    return _HARMLESS.fullmatch(name) is not None


def is_relevant(name: str) -> bool:
    """Return whether Atlas itself reads a variable; other programs' variables in a `.env` are not reported."""
    return _RELEVANT.fullmatch(name) is not None


class EnvironmentValue(msgspec.Struct, frozen=True):
    """A value as written, and where: `environment`, or `.env:3`."""

    value: str
    where: str

    def __repr__(self) -> str:
        return f"EnvironmentValue(…, {self.where!r})"  # the value may be a key


class Environment:
    """Looks up names in the process environment, then in a `.env` file that is read once.

    The `.env` of the working directory may set only API keys, the model, the port and logging until the folder is
    trusted; `ignored` are the other values. A file that the caller names is read whole.

    Args:
        values: Variables to read; those of the process if None.
        dotenv: File with further variables; `.env` in the working directory by default, None for no file.
    """

    def __init__(self, values: Mapping[str, str] | None = None, *, dotenv: Path | None = _WORKING_DOTENV) -> None:
        self._values = os.environ if values is None else values
        self._file: dict[str, EnvironmentValue] = {}
        self.ignored: dict[str, EnvironmentValue] = {}
        if dotenv is not None and dotenv is _WORKING_DOTENV:
            self._read_untrusted(dotenv)
        elif dotenv is not None:
            self._file = read_dotenv(dotenv)

    @classmethod
    def of_folder(cls, folder: Path, values: Mapping[str, str] | None = None) -> "Environment":
        """Read the `.env` of a folder as far as that folder is trusted."""
        environment = cls(values, dotenv=None)
        environment._read_untrusted(folder / ".env")
        return environment

    def _read_untrusted(self, path: Path) -> None:
        content = _read_dotenv(path)
        found = _parse_dotenv(content, path)
        risky = {name: value for name, value in found.items() if not is_harmless(name, value.value)}
        if risky and not self.trusts(path, digest(content)):
            self.ignored = {name: value for name, value in risky.items() if is_relevant(name)}
            found = {name: value for name, value in found.items() if name not in risky}
            _report_ignored(path.absolute(), list(self.ignored))
        self._file = found

    def trusts(self, path: Path, content_digest: str, folder: Path | None = None) -> bool:
        """Return whether a file with this content may set anything, because its folder, or `folder`, is trusted."""
        real = trust_key(path)
        within = os.path.realpath(path.parent if folder is None else folder)
        home = self.trust_home
        records = read_trust(home)
        if (held := records.held.get(real)) is not None and held.agreed != content_digest:
            return False
        named = [os.path.realpath(each) for each in self.trusted_folders()]
        if within == os.path.realpath(home) or within in named:
            return True
        trusted = records.folders.get(within)
        return trusted is not None and trusted.files.get(real) == content_digest

    @property
    def trust_home(self) -> Path:
        """The home folder with the trust records; a `.env` file cannot choose it."""
        try:
            return home(Environment(self._values, dotenv=None))
        except ConfigError:
            return Path(os.devnull)  # a user without a home directory has no records

    def trusted_folders(self) -> list[str]:
        """Return the folders that the process environment names as trusted."""
        names = [each.strip() for each in self._values.get(TRUST_VARIABLE, "").split(",") if each.strip()]
        if relative := next((name for name in names if not os.path.isabs(name)), None):
            raise ConfigError(f"{TRUST_VARIABLE}: expected absolute paths, separated by commas; got {relative!r}")
        return names

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
        other._file, other.ignored = self._file, self.ignored
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


def _report_ignored(path: Path, names: list[str]) -> None:
    """Log once per file which variables are ignored."""
    if names and path not in _reported:
        _reported.add(path)
        what = ", ".join(names)
        logger.warning("ignored %s in %s: the folder is not trusted; run: atlas trust %s", what, path, path.parent)


def read_dotenv(path: Path) -> dict[str, EnvironmentValue]:
    """Parse the `NAME=value` lines of a file; a missing file has none. Quotes around a value are removed."""
    return _parse_dotenv(_read_dotenv(path), path)


def _read_dotenv(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _parse_dotenv(content: bytes, path: Path) -> dict[str, EnvironmentValue]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
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
