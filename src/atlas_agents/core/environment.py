"""Where settings and keys come from: the environment, then `.env`, then a secret file named by `NAME_FILE`."""

import os
from collections.abc import Mapping
from pathlib import Path

from atlas_agents.core.errors import ConfigError


class Environment:
    """Looks a name up in the process's environment first, then in a `.env` file, read once."""

    def __init__(self, values: Mapping[str, str] | None = None, *, dotenv: Path | None = Path(".env")) -> None:
        self._values = os.environ if values is None else values
        self._file = read_dotenv(dotenv) if dotenv is not None else {}

    def get(self, name: str) -> str | None:
        """The value of a setting; blank means not set."""
        value = self._values.get(name) or self._file.get(name)
        return value if value and value.strip() else None

    def secret(self, name: str) -> str | None:
        """The value of `NAME`, or the content of the file that `NAME_FILE` points to."""
        if value := self.get(name):
            return value.strip()
        if not (path := self.get(f"{name}_FILE")):
            return None
        try:
            content = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}_FILE points to {path}, which cannot be read: {error}") from error
        if not content:
            raise ConfigError(f"{name}_FILE points to {path}, which is empty")
        return content


def read_dotenv(path: Path) -> dict[str, str]:
    """The `NAME=value` lines of a file; a missing file has none. Quotes around a value are taken off."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not name.strip().isidentifier():
            raise ConfigError(f"{path}, line {number}: expected NAME=value")
        found[name.strip()] = _unquote(value.strip())
    return found


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()
