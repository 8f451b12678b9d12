"""`mcp.json`: which MCP servers there are, in the shape that other programs use, too."""

import re
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import parse_object

NAME = "mcp.json"
LARGEST = 256 * 1024
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TYPES = ("", "stdio", "http", "streamable-http", "streamableHttp")


class Lookup(Protocol):
    """Knows variables by name, as `Environment` does."""

    def get(self, name: str, /) -> str | None: ...


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "type"}):
    """A server as it is written down: a command to start, or an address. The keys below the line are our own."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    kind: str = ""
    description: str = ""
    disabled: bool = False
    # ---
    pure: tuple[str, ...] = ()
    """Tools that have no effects, because the owner says so; what a server says of itself does not count."""
    confirm: bool = True
    """Ask a person before each call of a tool that is not pure."""
    timeout: float = 60.0
    sampling_tokens: int = 0
    """Tokens that the server may have our model speak in a day."""

    @property
    def text(self) -> str:
        """What is started or spoken to, in one line, as it is written down."""
        return self.url or " ".join([self.command, *self.args])


class Server(msgspec.Struct, frozen=True):
    """A server by its name; `where` is its place in the file, `folder` where its command starts."""

    name: str
    entry: Entry
    where: str
    folder: Path

    @property
    def shown(self) -> bytes:
        """All that was written down of it, in one way: what an approval is for."""
        return msgspec.json.encode(self.entry, order="deterministic")

    def filled(self, environment: Lookup) -> Entry:
        """The entry with its `${VARIABLES}` filled in; ConfigError names the one that is not set."""
        entry = self.entry
        return msgspec.structs.replace(
            entry,
            command=self._fill("command", entry.command, environment),
            args=tuple(self._fill("args", each, environment) for each in entry.args),
            env={key: self._fill(f"env.{key}", value, environment) for key, value in entry.env.items()},
            cwd=self._fill("cwd", entry.cwd, environment),
            url=self._fill("url", entry.url, environment),
            headers={key: self._fill(f"headers.{key}", value, environment) for key, value in entry.headers.items()},
        )

    def _fill(self, key: str, text: str, environment: Lookup) -> str:
        def value(found: re.Match[str]) -> str:
            given = environment.get(found[1])
            if given is None and found[2] is None:
                raise ConfigError(f"{self.where}.{key}: {found[1]} is not set; set it in the environment or in .env")
            return found[2] if given is None else given

        return _VARIABLE.sub(value, text)


def read_servers(folder: Path) -> dict[str, Server]:
    """All servers that a workspace names; ConfigError names the file and the key. No file names none."""
    path = folder / NAME
    data = _object(path)
    unknown = [key for key in data if key != "mcpServers"]
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]}: there is no such key; servers stand under mcpServers")
    servers: Any = data.get("mcpServers", {})
    if not isinstance(servers, dict):
        raise ConfigError(f"{path}: mcpServers: it must be an object, with a server's name before each entry")
    return {name: _server(path, name, entry) for name, entry in cast(dict[str, Any], servers).items()}


def _object(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}") from error
    if len(content) > LARGEST:
        raise ConfigError(f"{path}: it is larger than {LARGEST // 1024} KiB")
    try:
        return parse_object(content.decode("utf-8").removeprefix("\ufeff"))
    except ValueError as error:
        raise ConfigError(f"{path}: it is no JSON: {error}") from error


def _server(path: Path, name: str, entry: Any) -> Server:
    where = f"{path}: mcpServers.{name}"
    if not _SERVER.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is no name for a server; write 1 to 32 letters, digits, _ or -")
    try:
        found = msgspec.convert(entry, Entry)
    except msgspec.ValidationError as error:
        words = str(error)
        key = words.rpartition("`$.")[2].rstrip("`") if "`$." in words else ""
        reason = words.partition(" - at ")[0]
        raise ConfigError(f"{where}{'.' if key else ''}{key}: {reason}") from error
    _check(found, where)
    return Server(name, found, where, path.parent)


def _check(entry: Entry, where: str) -> None:
    if entry.kind not in _TYPES:
        raise ConfigError(f"{where}.type: {entry.kind!r} is not spoken here; there are stdio and http")
    if bool(entry.command) == bool(entry.url):
        raise ConfigError(f"{where}: it needs either a command to start or a url to speak to")
    if entry.url and not entry.url.startswith(("https://", "http://", "${")):
        raise ConfigError(f"{where}.url: it must begin with https:// or http://")
    if not 1 <= entry.timeout <= 3600:
        raise ConfigError(f"{where}.timeout: it is a number of seconds from 1 to 3600, not {entry.timeout:g}")
    if entry.sampling_tokens < 0:
        raise ConfigError(f"{where}.sampling_tokens: it is a number of tokens a day, not {entry.sampling_tokens}")
