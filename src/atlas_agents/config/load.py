"""Settings from all their sources: flags, then the environment and `.env`, then two files, then defaults."""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from atlas_agents.builtin_tools.web.ssrf import Hosts
from atlas_agents.config.settings import SETTINGS, Setting, Settings, has_password, scheme
from atlas_agents.core.errors import BadModelRef, ConfigError
from atlas_agents.core.paths import Environment, Secret, absolute, home, read_secret, user_config
from atlas_agents.core.plugins import Plugins
from atlas_agents.providers.rate_limits import read_paces
from atlas_agents.providers.registry import parse_model_ref
from atlas_agents.tools.redact import is_secret_name

LARGEST = 256 * 1024
_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_NAME = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PAIR = re.compile(rf"\s*({_NAME})(?:\s*\.\s*{_NAME})*\s*=")
_TABLE = re.compile(rf"\s*\[\[?\s*({_NAME})(?:\s*\.\s*{_NAME})*\s*\]")
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate")


class Value(msgspec.Struct, frozen=True):
    """What a key of the file says, and in which line it begins."""

    value: Any
    line: int


def read_toml(path: Path) -> dict[str, Value] | None:
    """The keys of a file, tables as one value each; None if there is no such file."""
    content = _content(path)
    if content is None:
        return None
    if content.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(f"{path}:1: it begins with a byte order mark; save it as UTF-8 without one")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: it is not UTF-8; save it as UTF-8") from error
    lines = text.split("\n")
    try:
        parsed = tomllib.loads(text)
    except ValueError as error:
        raise _mistake(path, lines, str(error)) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: it is nested too deeply; settings are plain values") from error
    return {key: Value(value, _line_of(key, lines)) for key, value in parsed.items()}


def _content(path: Path) -> bytes | None:
    """Opening does not wait, so that a pipe in the place of a file is refused and not listened to."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise ConfigError(f"{path}: it is a link to nothing; mend it or take it away") from None
        return None
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}; mend that or take it away") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path}: it is not a regular file; put a text file there or take it away")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(LARGEST + 1)
    finally:
        os.close(descriptor)
    if len(content) > LARGEST:
        raise ConfigError(f"{path}: it is larger than {LARGEST // 1024} KiB; these are no settings")
    return content


def _mistake(path: Path, lines: list[str], words: str) -> ConfigError:
    """What TOML's reader says, with the key that it was at."""
    match = _LINE.search(words)
    number = min(int(match[1]), len(lines)) if match else _last(lines)
    key = next((found for line in reversed(lines[:number]) if (found := _key(line))), "")
    if words.startswith(_TWICE):
        first = _line_of(key, lines)
        return ConfigError(f"{path}:{number}: {key}: it stands in line {first} already; keep one of them")
    return ConfigError(f"{path}:{number}: {key or 'the first line'}: this is no TOML: {words}")


def _last(lines: list[str]) -> int:
    return max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)


def _line_of(key: str, lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines, 1) if _key(line) == key), 1)


def _key(line: str) -> str:
    """The first name of a line that sets something or begins a table; of a dotted one its first part."""
    match = _PAIR.match(line) or _TABLE.match(line)
    return match[1].strip("\"'") if match else ""


KEYS_ELSEWHERE = "keys come only from the environment, .env or a secret file"


class Given(msgspec.Struct, frozen=True):
    """A value for a setting. `name` is what its writer called it, `base` is where a relative path begins."""

    setting: Setting
    value: Any
    name: str
    where: str
    source: Literal["flag", "environment", "file"]
    base: Path
    environment: Environment

    @property
    def origin(self) -> str:
        """As it is shown to a person: `--port`, `environment ATLAS_PORT`, `/home/ana/atlas.toml:3`."""
        return {"flag": self.name, "environment": f"environment {self.name}"}.get(self.where, self.where)

    def path(self, text: str) -> Path:
        return absolute(text, self.base, self.environment)

    def wrong(self, words: str) -> ConfigError:
        return ConfigError(f"{self.where}: {self.name}: {words}")

    def __repr__(self) -> str:
        return f"Given({self.name!r}, {self.where!r})"  # the value may be a secret


def from_flags(flags: Mapping[str, Any], base: Path, environment: Environment) -> Iterator[Given]:
    """What was said on the command line; None is not said."""
    for key, value in flags.items():
        if value is None:
            continue
        if key not in SETTINGS:
            raise ConfigError(f"flag: {key}: there is no such setting{_guess(key, list(SETTINGS))}")
        yield Given(SETTINGS[key], value, SETTINGS[key].flag, "flag", "flag", base, environment)


def from_environment(environment: Environment, base: Path) -> Iterator[Given]:
    """What the environment and `.env` say; a secret may stand in a file of its own."""
    for setting in SETTINGS.values():
        found = environment.find(setting.variable)
        if found is not None and (found.value.strip() or setting.hides == "all"):
            yield Given(setting, found.value.strip(), setting.variable, found.where, "environment", base, environment)
        elif setting.hides and (path := environment.get(f"{setting.variable}_FILE")):
            name, place = f"{setting.variable}_FILE", absolute(path.strip(), base, environment)
            yield Given(setting, read_secret(name, place), name, str(place), "environment", base, environment)


def from_file(path: Path, environment: Environment, *, must_exist: bool = False) -> Iterator[Given]:
    """What a settings file says; no file says nothing, unless it was asked for by name."""
    values = read_toml(path)
    if values is None:
        if must_exist:
            raise ConfigError(
                f"{path}: there is no such settings file; make it, or leave --config and ATLAS_CONFIG out"
            )
        return
    for key, value in values.items():
        where = f"{path}:{value.line}"
        setting = SETTINGS.get(key)
        if setting is None:
            raise ConfigError(f"{where}: {key}: {_unknown(key)}")
        if setting.hides == "all":
            raise ConfigError(f"{where}: {key}: {KEYS_ELSEWHERE}: set {setting.variable} or {setting.variable}_FILE")
        if not setting.in_files:
            raise ConfigError(f"{where}: {key}: it cannot stand in a file; use {setting.flag} or {setting.variable}")
        yield Given(setting, value.value, key, where, "file", path.parent, environment)


def notices(environment: Environment, base: Path) -> Iterator[str]:
    """What is no mistake for sure: variables that look like a slip, secret files that others can read."""
    known = {name for setting in SETTINGS.values() for name in (setting.variable, f"{setting.variable}_FILE")}
    for name in environment.names():
        close = difflib.get_close_matches(name, known, 1, 0.8) if name.startswith("ATLAS_") else []
        if close and name not in known:
            yield f"{name} is set, and there is no such setting; did you mean {close[0]}?"
    for setting in SETTINGS.values():
        path = environment.get(f"{setting.variable}_FILE") if setting.hides else None
        if path and not environment.get(setting.variable):
            place = absolute(path.strip(), base, environment)
            if _is_open(place):
                yield f"{setting.variable}_FILE points to {place}, which other users can read: say chmod 600 {place}"


def _is_open(path: Path) -> bool:
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def _unknown(key: str) -> str:
    files = [setting.key for setting in SETTINGS.values() if setting.in_files and setting.hides != "all"]
    close = difflib.get_close_matches(key.casefold().replace("-", "_"), files, 1)
    if not close and is_secret_name(key):
        return f"there is no such setting, and {KEYS_ELSEWHERE}"
    return f"there is no such setting{_guess(key, files)}"


def _guess(key: str, names: list[str]) -> str:
    close = difflib.get_close_matches(key.casefold().replace("-", "_"), names, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"


SQLITE, POSTGRES = ("sqlite",), ("postgresql", "postgres")
_REDIS = ("redis", "rediss", "unix")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]?")
_ORIGIN = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def checked(given: Given) -> Any:
    """The value as its setting wants it; ConfigError says where it stands and what it must be."""
    value = given.value
    setting = given.setting
    if setting.hides == "all" and given.source == "flag":
        raise given.wrong(f"everybody on the machine can read a command line; {KEYS_ELSEWHERE}")
    if isinstance(value, str) and not value.strip():
        raise given.wrong("it is blank; give it a value or take it out")
    if isinstance(value, str) and given.source != "file" and setting.takes == "a list of texts":
        value = [item.strip() for item in value.split(",") if item.strip()]

    def other(kind: type, raw: Any) -> Any:
        """Paths and secrets, which msgspec leaves to us."""
        if not isinstance(raw, str | Path):
            raise ValueError
        return given.path(str(raw)) if kind is Path else Secret(str(raw))

    try:
        found = msgspec.convert(value, setting.type, strict=given.source == "file", dec_hook=other)
    except (msgspec.ValidationError, ValueError) as error:
        shown = "" if setting.hides else f", not {_short(given.value)}"
        raise given.wrong(f"it must be {setting.takes}{shown}") from error
    check = _CHECKS.get(setting.key)
    return check(found, given) if check and found is not None else found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _token(value: Secret, given: Given) -> Secret:
    if not re.fullmatch(r"[!-~]+", value.reveal()):
        raise given.wrong("a token is made of letters, digits and signs without spaces; take another one")
    return value


def _model(value: str, given: Given) -> str:
    try:
        ref = parse_model_ref(value)
    except BadModelRef as error:
        raise BadModelRef(str(given.wrong(str(error)))) from error
    if re.search(r"\s", value.strip()):
        raise BadModelRef(str(given.wrong(f"invalid model reference {_short(value)}: it contains a space")))
    return str(ref)


def _host(value: str, given: Given) -> str:
    if not _HOST.fullmatch(value):
        raise given.wrong(f"{_short(value)} is no address to listen on; write one like 127.0.0.1, or a name")
    return value


def _hosts(values: tuple[str, ...], given: Given) -> tuple[str, ...]:
    for value in values:
        if not _HOST.fullmatch(value):
            raise given.wrong(f"{_short(value)} is no name of a host; write one like chat.example.org, without a port")
    return values


def _origins(values: tuple[str, ...], given: Given) -> tuple[str, ...]:
    for value in values:
        if not _ORIGIN.fullmatch(value):
            raise given.wrong(f"{_short(value)} is no origin; write one like https://chat.example.org, without a path")
    return values


def _policy(value: Path, given: Given) -> Path:
    if not value.is_file():
        raise given.wrong(f"there is no file {value}; make it or take the setting out")
    if not os.access(value, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise given.wrong(f"the file {value} may not be read; give this user the right")
    return value


def _database(value: Secret, given: Given) -> Secret:
    known = (*SQLITE, *POSTGRES)
    url = _address(value, given, known if scheme(value.reveal()) in known else (*known, *Plugins().names("stores")))
    if scheme(url) not in SQLITE:
        return value
    _, _, rest = url.partition("://")
    path = rest.removeprefix("/")
    if not rest.startswith("/") or not path or path.endswith("/") or "?" in path or "#" in path:
        raise given.wrong("write sqlite:///file.db or, for a whole path, sqlite:////folder/file.db, without options")
    if ":memory:" in path:
        raise given.wrong("a database in memory forgets everything; name a file")
    return Secret(f"sqlite:///{given.path(path)}")


def _redis(value: Secret, given: Given) -> Secret:
    _address(value, given, _REDIS)
    return value


def _provider_limits(values: tuple[str, ...], given: Given) -> tuple[str, ...]:
    try:
        read_paces(values)
    except ConfigError as error:
        raise given.wrong(str(error)) from error
    return values


def _fetch_hosts(values: tuple[str, ...], given: Given) -> tuple[str, ...]:
    try:
        Hosts(values)
    except ConfigError as error:
        raise given.wrong(str(error)) from error
    return values


def _search_url(value: str, given: Given) -> str:
    if scheme(value) not in ("http", "https"):
        raise given.wrong("it must begin with http:// or https://")
    if has_password(value):
        raise given.wrong("there is a password in it, and it would be shown; let the SearXNG be reached without one")
    return value


def _embeddings(value: str, given: Given) -> str:
    return value if value in ("local", "none") else _model(value, given)


def _embeddings_url(value: str, given: Given) -> str:
    if scheme(value) not in ("http", "https"):
        raise given.wrong("it must begin with http:// or https://")
    if has_password(value):
        raise given.wrong("there is a password in it, and it would be shown; set embeddings_key")
    return value


def _address(value: Secret, given: Given, schemes: tuple[str, ...]) -> str:
    url = value.reveal()
    if scheme(url) not in schemes:
        raise given.wrong(f"it must begin with {' or '.join(f'{each}://' for each in schemes)}")
    if given.source != "environment" and has_password(url):
        variable = given.setting.variable
        raise given.wrong(f"there is a password in it, and {KEYS_ELSEWHERE}: set {variable} or {variable}_FILE")
    return url


def _knowledge_tool(value: str, given: Given) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,63}", value):
        raise given.wrong(f"invalid tool name {value!r}: expected 1 to 64 letters, digits, _ or -, a letter first")
    return value


_CHECKS: dict[str, Callable[[Any, Given], Any]] = {
    "token": _token,
    "model": _model,
    "host": _host,
    "allowed_hosts": _hosts,
    "allowed_origins": _origins,
    "policy": _policy,
    "database_url": _database,
    "redis_url": _redis,
    "provider_limits": _provider_limits,
    "fetch_hosts": _fetch_hosts,
    "search_url": _search_url,
    "embeddings": _embeddings,
    "embeddings_url": _embeddings_url,
    "knowledge_tool": _knowledge_tool,
}


def load(
    flags: Mapping[str, Any] | None = None, environment: Environment | None = None, cwd: Path | None = None
) -> Settings:
    """Read and check everything, also what another source overrides; ConfigError names file, line and key.

    Without an `environment` it is that of this process and the `.env` of `cwd`.
    """
    folder = (cwd or Path.cwd()).absolute()
    environment = environment or Environment(dotenv=folder / ".env")
    outside = [list(from_environment(environment, folder)), list(from_flags(flags or {}, folder, environment))]
    named = [checked(given) for each in outside for given in each if given.setting.key == "config"]
    project = from_file(named[-1] if named else folder / "atlas.toml", environment, must_exist=bool(named))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in (from_file(user_config(environment), environment), project, *outside):
        for given in source:
            values[given.setting.key] = checked(given)
            origins[given.setting.key] = given.origin
    values.setdefault("home", home(environment))
    values.setdefault("workspace", values["home"] / "workspace")
    values.setdefault("database_url", Secret(f"sqlite:///{values['home'] / 'atlas.db'}"))
    return Settings(**values, origins=origins, notices=tuple(notices(environment, folder)))


def load_again(
    old: Settings,
    flags: Mapping[str, Any] | None = None,
    environment: Environment | None = None,
    cwd: Path | None = None,
) -> tuple[Settings, str | None]:
    """The settings as they are now, or the old ones and why they stay."""
    try:
        return load(flags, environment, cwd), None
    except ConfigError as error:
        return old, str(error)
