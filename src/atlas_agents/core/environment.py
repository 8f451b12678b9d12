"""Where settings and keys come from: the environment, then `.env`, then a secret file named by `NAME_FILE`."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from atlas_agents.core.errors import ConfigError


class Found(msgspec.Struct, frozen=True):
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

    def find(self, name: str) -> Found | None:
        """The value as it was written, blank ones too, and where it stands."""
        if value := self._values.get(name):
            return Found(value, "environment")
        if found := self._file.get(name):
            return found
        return Found("", "environment") if name in self._values else None

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


def read_dotenv(path: Path) -> dict[str, Found]:
    """The `NAME=value` lines of a file; a missing file has none. Quotes around a value are taken off."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found: dict[str, Found] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not name.strip().isidentifier():
            raise ConfigError(f"{path}, line {number}: expected NAME=value")
        found[name.strip()] = Found(_unquote(value.strip()), f"{path}:{number}")
    return found


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()
