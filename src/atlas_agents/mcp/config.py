"""MCP server configuration (`mcp.json`) and the approvals that the owner gave to servers and their tools.

Approvals are stored in a private file in the home folder. Models see the approved descriptions, even if a server
reports others later.
"""

import hashlib
import json
import os
import re
import time
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import parse_object
from atlas_agents.core.paths import SECRETS_FILE, SettingLookup, make_private_folder, read_json, write_json
from atlas_agents.core.text import is_hidden

FILE_NAME = "mcp.json"
MASK = "••••"
"""Shown instead of a secret."""
MAX_SIZE = 256 * 1024
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_OF_CLIENTS = "client"
"""Prefix of the tools that the caller of a turn runs."""
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TYPES = ("", "stdio", "http", "streamable-http", "streamableHttp")
Kind: TypeAlias = Literal["tool", "list_resources", "read_resource", "list_prompts", "get_prompt"]
_PROMPT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
Stamp: TypeAlias = tuple[int, ...]


class OAuthClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """An OAuth client that the owner registered with the authorization server beforehand."""

    client_id: str
    """An id, or the https URL of a client metadata document."""
    client_secret: str = ""
    """A reference to a variable; the secret itself is not in the file."""
    callback_port: int = 0
    """The port of the registered redirect URI, `http://127.0.0.1:PORT/callback`; 0 if any port is accepted."""


class ServerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "type"}):
    """A server entry: a command to start, or a URL. The fields below the divider are Atlas's own."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    headers: dict[str, str] = {}
    oauth: OAuthClient | msgspec.UnsetType = msgspec.UNSET
    kind: str = ""
    description: str = ""
    disabled: bool = False
    # ---
    pure: tuple[str, ...] = ()
    """Tools without side effects, as declared by the owner; claims of the server do not count."""
    confirm: bool = True
    """Require approval for each call of a tool that is not pure."""
    timeout: float = 60.0
    sandbox: bool = True
    """Run the command in the sandbox."""
    network: bool = False
    """Let the command use the network."""
    folders: dict[str, Literal["read", "write"]] = {}
    """Folders that the command may read, or also write to."""

    @property
    def text(self) -> str:
        """Return the command or URL in one line, as configured."""
        return self.url or " ".join([self.command, *self.args])


class ServerConfig(msgspec.Struct, frozen=True):
    """A configured server; `where` is its position in the file, `folder` the working directory of its command."""

    name: str
    entry: ServerEntry
    where: str
    folder: Path

    @property
    def canonical(self) -> bytes:
        """Return the canonical form of the entry, which an approval covers."""
        return msgspec.json.encode(self.entry, order="deterministic")

    @property
    def variables(self) -> frozenset[str]:
        """Return the names of the variables that the entry refers to."""
        return frozenset([found[1] for found in _VARIABLE.finditer(self.canonical.decode())])

    def expanded(self, environment: SettingLookup) -> ServerEntry:
        """Return the entry with its `${VARIABLES}` expanded; ConfigError names one that is not set."""
        entry, oauth = self.entry, self.entry.oauth
        if oauth:
            id, secret = oauth.client_id, oauth.client_secret
            oauth = msgspec.structs.replace(
                oauth,
                client_id=self._expand("oauth.clientId", id, environment),
                client_secret=self._expand("oauth.clientSecret", secret, environment),
            )
        return msgspec.structs.replace(
            entry,
            command=self._expand("command", entry.command, environment),
            args=tuple(self._expand("args", each, environment) for each in entry.args),
            env={key: self._expand(f"env.{key}", value, environment) for key, value in entry.env.items()},
            cwd=self._expand("cwd", entry.cwd, environment),
            url=self._expand("url", entry.url, environment),
            headers={key: self._expand(f"headers.{key}", value, environment) for key, value in entry.headers.items()},
            oauth=oauth,
            folders={self._expand("folders", path, environment): access for path, access in entry.folders.items()},
        )

    def _expand(self, key: str, text: str, environment: SettingLookup) -> str:
        def value(found: re.Match[str]) -> str:
            variable = environment.get(found[1])
            if variable is None and found[2] is None:
                raise ConfigError(f"{self.where}.{key}: {found[1]} is not set; set it in the environment or in .env")
            return found[2] if variable is None else variable

        return _VARIABLE.sub(value, text)


def read_servers(folder: Path) -> dict[str, ServerConfig]:
    """Read all servers of a workspace; ConfigError names the file and key. A missing file means none."""
    path = folder / FILE_NAME
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return parse_servers(content, path)


def parse_servers(content: bytes, path: Path) -> dict[str, ServerConfig]:
    """Decode the servers in the content of a file; ConfigError names the file and key."""
    data = _parse_file(content, path)
    unknown = [key for key in data if key != "mcpServers"]
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}; servers belong under mcpServers")
    servers: Any = data.get("mcpServers", {})
    if not isinstance(servers, dict):
        raise ConfigError(f"{path}: mcpServers: expected an object of server names and entries")
    return {name: _parse_server(path, name, entry) for name, entry in cast(dict[str, Any], servers).items()}


def change_entry(content: bytes, path: Path, name: str, entry: dict[str, Any] | None) -> bytes:
    """Return the content of the file with this entry, or without it if it is None."""
    data = _parse_file(content, path)
    servers: dict[str, Any] = data.setdefault("mcpServers", {})
    if entry is None:
        servers.pop(name, None)
    else:
        servers[name] = entry
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def raw_entry(content: bytes, path: Path, name: str) -> dict[str, Any] | None:
    """Return an entry as written in the file; None if there is none."""
    return _parse_file(content, path).get("mcpServers", {}).get(name)


def _parse_file(content: bytes, path: Path) -> dict[str, Any]:
    if not content:  # a file that does not exist yet
        return {}
    if len(content) > MAX_SIZE:
        raise ConfigError(f"{path}: exceeds {MAX_SIZE // 1024} KiB")
    try:
        return parse_object(content.decode("utf-8").removeprefix("\ufeff"))
    except ValueError as error:
        raise ConfigError(f"{path}: invalid JSON: {error}") from error


def _parse_server(path: Path, name: str, entry: Any) -> ServerConfig:
    where = f"{path}: mcpServers.{name}"
    if not _SERVER.fullmatch(name):
        raise ConfigError(f"{where}: invalid server name {name!r}: expected 1 to 32 letters, digits, _ or -")
    if name == _OF_CLIENTS:
        raise ConfigError(f"{where}: the name {name!r} is reserved for tools that clients run; choose another name")
    try:
        found = msgspec.convert(entry, ServerEntry)
    except msgspec.ValidationError as error:
        message = str(error)
        key = message.rpartition("`$.")[2].rstrip("`") if "`$." in message else ""
        reason = message.partition(" - at ")[0]
        raise ConfigError(f"{where}{'.' if key else ''}{key}: {reason}") from error
    _check_entry(found, where)
    return ServerConfig(name, found, where, path.parent)


def _check_entry(entry: ServerEntry, where: str) -> None:
    if entry.kind not in _TYPES:
        raise ConfigError(f"{where}.type: unsupported type {entry.kind!r}; supported: stdio, http")
    if bool(entry.command) == bool(entry.url):
        raise ConfigError(f"{where}: expected either a command or a url")
    if entry.url and not entry.url.startswith(("https://", "http://", "${")):
        raise ConfigError(f"{where}.url: must start with https:// or http://")
    if not 1 <= entry.timeout <= 3600:
        raise ConfigError(f"{where}.timeout: expected 1 to 3600 seconds, got {entry.timeout:g}")
    if entry.url and (entry.network or entry.folders or not entry.sandbox):
        raise ConfigError(f"{where}: sandbox, network and folders apply to a command, not to a url")
    if sum(access == "write" for access in entry.folders.values()) > 1:
        raise ConfigError(f"{where}.folders: a server can write to one folder; grant a common parent, or use 'read'")
    if entry.oauth:
        _check_oauth(entry, entry.oauth, where)


def _check_oauth(entry: ServerEntry, oauth: OAuthClient, where: str) -> None:
    if not entry.url:
        raise ConfigError(f"{where}.oauth: applies to a url, not to a command")
    if any(name.lower() == "authorization" for name in entry.headers):
        raise ConfigError(f"{where}: expected either oauth or the header Authorization, got both")
    if not oauth.client_id:
        raise ConfigError(f"{where}.oauth.clientId: expected the id of the registered client")
    if oauth.client_secret and not _VARIABLE.fullmatch(oauth.client_secret):
        raise ConfigError(
            f"{where}.oauth.clientSecret: expected a variable such as ${{NAME}}; set the secret in the environment, in "
            ".env, or in the web UI"
        )
    if not 0 <= oauth.callback_port <= 65535:
        raise ConfigError(f"{where}.oauth.callbackPort: expected a port number, got {oauth.callback_port}")


def secret_variable(server: str, key: str) -> str:
    """Return the name of the variable under which a value of an entry is stored in the secret file.

    Digests keep servers and keys apart whose names differ only in case or punctuation. The key is last, because the end
    of a name decides whether its value is redacted.
    """
    return f"{_variable_prefix(server)}{_short_digest(key)}_{_in_variable(key)}"


def _variable_prefix(server: str) -> str:
    return f"MCP_{_in_variable(server)}_{_short_digest(server)}"


def _in_variable(name: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", name.upper())


def _short_digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8].upper()


def mask(value: str) -> str:
    """Hide a value, unless it is empty or a reference to a variable of the owner's."""
    return value if not value or ("${" in value and "${MCP_" not in value) else MASK


def extract_secrets(server: str, entry: dict[str, Any], before: dict[str, Any], secrets: dict[str, str]) -> None:
    """Replace the secrets of an entry by references, and add them to `secrets` by variable.

    A masked value refers to the same variable as in the entry `before`.
    """
    for key in ("env", "headers"):
        if key in entry:
            values, old = entry[key], before.get(key, {})
            entry[key] = {each: _refer(server, each, value, old, secrets) for each, value in values.items()}
    if "oauth" in entry:
        key, oauth, old = "clientSecret", entry["oauth"], before.get("oauth", {})
        oauth[key] = _refer(server, "client_secret", oauth.get(key, ""), {"client_secret": old.get(key, "")}, secrets)
        entry["oauth"] = {each: value for each, value in oauth.items() if value}


def _refer(server: str, key: str, value: str, old: dict[str, str], secrets: dict[str, str]) -> str:
    if value == MASK and key in old:
        return old[key]
    if "${" in value or not value:
        return value
    variable = secret_variable(server, key)
    secrets[variable] = value
    return f"${{{variable}}}"


class StoredSecrets:
    """Values of entries that are kept in the secret file of a home folder, found by variable before the environment."""

    def __init__(self, home: Path, environment: SettingLookup) -> None:
        self._path = home / SECRETS_FILE
        self._environment = environment

    def get(self, name: str, /) -> str | None:
        found = self._read().get("mcp", {}).get(name) if name.startswith("MCP_") else None
        return self._environment.get(name) if found is None else found

    def put(self, values: Mapping[str, str]) -> None:
        """Store values by variable."""
        content = self._read()
        self._write({**content, "mcp": {**content.get("mcp", {}), **values}})

    def remove(self, server: ServerConfig, servers: Iterable[ServerConfig]) -> None:
        """Delete the values of a server, except those that one of the other `servers` refers to."""
        content, prefix, own = self._read(), _variable_prefix(server.name), server.variables
        others = {name for each in servers if each.name != server.name for name in each.variables}
        kept = {
            name: value
            for name, value in content.get("mcp", {}).items()
            if name in others or not (name in own or name.startswith(prefix))
        }
        if kept != content.get("mcp", {}):
            self._write({**content, "mcp": kept})

    def _read(self) -> dict[str, Any]:
        return read_json(self._path, dict[str, Any]) or {}

    def _write(self, content: dict[str, Any]) -> None:
        make_private_folder(self._path.parent)
        write_json(self._path, content)


class DiscoveredTool(msgspec.Struct, frozen=True):
    """A tool as its server describes it, or one of ours that reads the server's resources and prompts."""

    name: str
    description: str
    parameters: dict[str, Any]
    kind: Kind = "tool"

    @property
    def digest(self) -> str:
        """Return a hash over name, description and schema."""
        definition = [self.kind, self.name, self.description, self.parameters]
        return hashlib.sha256(msgspec.json.encode(definition, order="sorted")).hexdigest()

    @property
    def text(self) -> str:
        """Render the whole definition for review, with invisible characters shown."""
        schema = msgspec.json.format(msgspec.json.encode(self.parameters, order="sorted"), indent=2).decode()
        name, description, schema = map(reveal_invisible, (self.name, self.description, schema))
        return f"{name}\n{_indent(description)}\n{_indent(schema)}"


def reveal_invisible(text: str) -> str:
    """Replace every invisible character with its name, for example `<U+200B ZERO WIDTH SPACE>`."""
    return "".join(_name_character(char) if _is_invisible(char) else char for char in text)


def tools_with_invisible(tools: Iterable[DiscoveredTool]) -> list[str]:
    """Return the names of tools that contain invisible characters."""
    return [each.name for each in tools if any(map(_is_invisible, f"{each.name}{each.description}{each.parameters!r}"))]


def resource_tools(*, resources: bool, prompts: bool, taken: set[str]) -> list[DiscoveredTool]:
    """Return tools for a server's resources and prompts, unless it has tools with those names."""
    found: list[DiscoveredTool] = []
    if resources:
        found += [
            DiscoveredTool(
                "list_resources", "List the available resources with their URIs.", _NO_PARAMETERS, "list_resources"
            ),
            DiscoveredTool("read_resource", "Read a resource by its URI.", _text_parameters("uri"), "read_resource"),
        ]
    if prompts:
        found += [
            DiscoveredTool("list_prompts", "List the available prompts.", _NO_PARAMETERS, "list_prompts"),
            DiscoveredTool("get_prompt", "Get a prompt by name, with its arguments filled in.", _PROMPT, "get_prompt"),
        ]
    return [each for each in found if each.name not in taken]


def _text_parameters(*names: str) -> dict[str, Any]:
    properties = {name: {"type": "string"} for name in names}
    return {"type": "object", "properties": properties, "required": list(names), "additionalProperties": False}


_NO_PARAMETERS = _text_parameters()


def _is_invisible(char: str) -> bool:
    """Return whether a character is invisible or changes the display of others."""
    return char == "\r" or is_hidden(char)


def _name_character(char: str) -> str:
    return f"<U+{ord(char):04X} {unicodedata.name(char, 'UNNAMED')}>"


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


class ServerProgram(msgspec.Struct, frozen=True):
    """Program of a server: its folder, a hash of its expanded command or URL, and hashes of its files and packages.

    A path that ends with a slash is a package; its hash covers all code in it.
    """

    folder: str = ""
    command: str = ""
    files: dict[str, str] = {}

    @property
    def paths(self) -> list[str]:
        """Return the files and the folders of packages."""
        return [path.rstrip("/") for path in self.files]

    def changes(self, now: "ServerProgram") -> list[str]:
        """Return the differences from another program: paths, or a changed command."""
        paths = sorted(path for path, _ in self.files.items() ^ now.files.items())
        other = [] if self.command == now.command else ["the command, after inserting variables"]
        return [*other, *dict.fromkeys(path.rstrip("/") for path in paths)]


class Approval(msgspec.Struct, frozen=True):
    """An approval of a server: the hash of its entry, the program that it runs, and its tools verbatim."""

    entry: str
    tools: tuple[DiscoveredTool, ...]
    at: int
    program: ServerProgram

    def covers(self, server: ServerConfig) -> bool:
        """Return whether the entry is the approved one."""
        return self.entry == entry_digest(server)


def entry_digest(server: ServerConfig) -> str:
    return hashlib.sha256(server.canonical).hexdigest()


class ApprovedServers:
    """Approvals of a home folder, by server and the folder that its configuration is in."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "mcp"
        self.path = self.folder / "approved.json"

    def read(self, workspace: Path) -> dict[str, Approval]:
        """Return the approvals of the servers of a workspace by name."""
        folder = os.path.realpath(workspace)
        pairs = [(key.rpartition("/"), approval) for key, approval in self._read().items()]
        return {name: approval for (where, _, name), approval in pairs if where == folder}

    def approve(self, server: ServerConfig, tools: Iterable[DiscoveredTool], program: ServerProgram) -> Approval:
        """Store an approval; it replaces earlier approvals of this server."""
        approval = Approval(entry_digest(server), tuple(tools), int(time.time()), program)
        self._write({**self._read(), _approval_key(server.folder, server.name): approval})
        return approval

    def program_paths(self, workspace: Path) -> list[str]:
        """Return the program files of the approved servers of a workspace; none if the approvals cannot be read."""
        try:
            return [path for approval in self.read(workspace).values() for path in approval.program.paths]
        except ConfigError:
            return []

    def revoke(self, server: ServerConfig) -> bool:
        """Revoke an approval."""
        approvals = self._read()
        existed = approvals.pop(_approval_key(server.folder, server.name), None) is not None
        if existed:
            self._write(approvals)
        return existed

    def _read(self) -> dict[str, Approval]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, Approval])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise ConfigError(f"cannot read {self.path}: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path}: {error}; delete the file and approve the servers again") from error

    def stamp(self) -> Stamp:
        """Return a stamp that changes with the file."""
        return file_stamp(self.path)

    def _write(self, approvals: dict[str, Approval]) -> None:
        make_private_folder(self.folder)
        write_json(self.path, approvals)


def _approval_key(folder: Path, name: str) -> str:
    """Return the key of an approval. Names contain no slash, so keys of servers in different folders never collide."""
    return f"{os.path.realpath(folder)}/{name}"


def file_stamp(path: Path | str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_ctime_ns
