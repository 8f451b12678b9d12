"""Load settings from flags, the environment and `.env`, two TOML files and defaults, in this order of precedence."""

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.config.settings import SETTINGS, Setting, Settings, has_password, scheme
from atlas_agents.core import paths
from atlas_agents.core.errors import BadModelRef, ConfigError
from atlas_agents.core.paths import Environment, Secret, home, read_secret, read_text_file, resolve_path, user_config
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.trust import Trust
from atlas_agents.providers.catalogue import parse_model_ref, read_models

MAX_BYTES = 256 * 1024
ALLOWED_SOURCES = "secrets are accepted only from the environment, .env or a secret file"
_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_NAME = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PAIR = re.compile(rf"\s*({_NAME})(?:\s*\.\s*{_NAME})*\s*=")
_TABLE = re.compile(rf"\s*\[\[?\s*({_NAME})(?:\s*\.\s*{_NAME})*\s*\]")
_DUPLICATE_ERRORS = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate")
SQLITE, POSTGRES = ("sqlite",), ("postgresql", "postgres")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|\[?[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\]?")
_ORIGIN = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class TomlValue(msgspec.Struct, frozen=True):
    """Value of a TOML key and the line it starts on."""

    value: Any
    line: int


def _read_settings_file(path: Path) -> str | None:
    try:
        return read_text_file(path, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise ConfigError(f"{path}: broken symbolic link; fix or remove it") from None
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; fix its permissions or remove it") from error


def _parse_toml(path: Path, text: str) -> dict[str, TomlValue]:
    """Return the top-level keys of a TOML file, each table as one value."""
    if text.startswith("\ufeff"):
        raise ConfigError(f"{path}:1: the file starts with a byte order mark; save it as UTF-8 without one")
    lines = text.split("\n")
    try:
        parsed = tomllib.loads(text)
    except ValueError as error:
        raise _syntax_error(path, lines, str(error)) from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply; settings are plain values") from error
    return {key: TomlValue(value, _find_line(key, lines)) for key, value in parsed.items()}


def _syntax_error(path: Path, lines: list[str], message: str) -> ConfigError:
    """Turn an error of the TOML parser into a ConfigError with line and key."""
    match = _LINE.search(message)
    number = min(int(match[1]), len(lines)) if match else _last_nonblank_line(lines)
    key = next((found for line in reversed(lines[:number]) if (found := _key(line))), "")
    if message.startswith(_DUPLICATE_ERRORS):
        first = _find_line(key, lines)
        return ConfigError(f"{path}:{number}: {key}: already defined in line {first}; remove one of them")
    return ConfigError(f"{path}:{number}: {key or 'the first line'}: invalid TOML: {message}")


def _last_nonblank_line(lines: list[str]) -> int:
    return max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)


def _find_line(key: str, lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines, 1) if _key(line) == key), 1)


def _key(line: str) -> str:
    """Return the first key of a line that sets a value or starts a table, or '' for other lines."""
    match = _PAIR.match(line) or _TABLE.match(line)
    return match[1].strip("\"'") if match else ""


class RawSetting(msgspec.Struct, frozen=True):
    """A setting's value before validation. `name` is the name its source uses; relative paths start at `base`."""

    setting: Setting
    value: Any
    name: str
    where: str
    source: Literal["flag", "environment", "file"]
    base: Path
    environment: Environment
    trusted: bool = True
    """False for a value from an untrusted folder; of these, only harmless values are applied."""

    @property
    def applies(self) -> bool:
        return self.trusted or paths.is_harmless(self.setting.variable, str(self.value))

    @property
    def origin(self) -> str:
        """Displayed source: `--port`, `environment ATLAS_PORT`, `/home/ana/atlas.toml:3`."""
        return {"flag": self.name, "environment": f"environment {self.name}"}.get(self.where, self.where)

    def path(self, text: str) -> Path:
        return resolve_path(text, self.base, self.environment)

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"{self.where}: {self.name}: {message}")

    def __repr__(self) -> str:
        return f"Given({self.name!r}, {self.where!r})"  # without the value: it may be a secret


def from_flags(flags: Mapping[str, Any], base: Path, environment: Environment) -> Iterator[RawSetting]:
    """Yield the values of command-line flags; None means that the flag was not passed."""
    for key, value in flags.items():
        if value is None:
            continue
        if key not in SETTINGS:
            raise ConfigError(f"flag: unknown setting {key!r}{_suggest(key, list(SETTINGS))}")
        yield RawSetting(SETTINGS[key], value, SETTINGS[key].flag, "flag", "flag", base, environment)


def from_environment(environment: Environment, base: Path) -> Iterator[RawSetting]:
    """Yield the values from the environment and `.env`. `NAME_FILE` names a file that holds a secret."""
    for setting in SETTINGS.values():
        found = environment.find(setting.variable)
        if found is not None and (found.value.strip() or setting.hides == "all"):
            name, value = setting.variable, found.value.strip()
            yield RawSetting(setting, value, name, found.where, "environment", base, environment)
        elif setting.hides and (path := environment.get(f"{setting.variable}_FILE")):
            name, file = f"{setting.variable}_FILE", resolve_path(path.strip(), base, environment)
            yield RawSetting(setting, read_secret(name, file), name, str(file), "environment", base, environment)


def from_file(
    path: Path, environment: Environment, *, must_exist: bool = False, folder: Path | None = None
) -> Iterator[RawSetting]:
    """Yield the values of a settings file. A missing file is an error only if it was requested by name.

    If the file was chosen by `folder`, its values are trusted only if the folder is.
    """
    text = _read_settings_file(path)
    if text is None:
        if must_exist:
            raise ConfigError(f"settings file not found: {path}; create it, or remove --config and ATLAS_CONFIG")
        return
    if folder is None:  # the user named the file; a change by an agent waits for a person all the same
        agreed = Trust.of(environment).read(path, text.encode(), folders=False)
        text = agreed.decode() if agreed is not None else ""
    trusted = folder is None or environment.trusts(path, paths.digest(text.encode()), folder)
    for key, value in _parse_toml(path, text).items():
        where = f"{path}:{value.line}"
        setting = SETTINGS.get(key)
        if setting is None:
            raise ConfigError(f"{where}: {_describe_unknown(key)}")
        if setting.hides == "all":
            raise ConfigError(f"{where}: {key}: {ALLOWED_SOURCES}; set {setting.variable} or {setting.variable}_FILE")
        if not setting.in_files:
            raise ConfigError(f"{where}: {key}: not allowed in a file; use {setting.flag} or {setting.variable}")
        yield RawSetting(setting, value.value, key, where, "file", path.parent, environment, trusted)


def notices(environment: Environment, base: Path) -> Iterator[str]:
    """Yield warnings about probable mistakes: misspelled variables, and secret files that other users can read."""
    known = {name for setting in SETTINGS.values() for name in (setting.variable, f"{setting.variable}_FILE")}
    for name in environment.names():
        close = difflib.get_close_matches(name, known, 1, 0.8) if name.startswith("ATLAS_") else []
        if close and name not in known:
            yield f"unknown environment variable {name}; did you mean {close[0]}?"
    for setting in SETTINGS.values():
        path = environment.get(f"{setting.variable}_FILE") if setting.hides else None
        if path and not environment.get(setting.variable):
            secret_file = resolve_path(path.strip(), base, environment)
            if _is_readable_by_others(secret_file):
                yield f"{setting.variable}_FILE: other users can read {secret_file}; run: chmod 600 {secret_file}"


def _is_readable_by_others(path: Path) -> bool:
    try:
        return bool(os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False


def _describe_unknown(key: str) -> str:
    from atlas_agents.tools.redact import is_secret_name  # needed only for the error

    files = [setting.key for setting in SETTINGS.values() if setting.in_files and setting.hides != "all"]
    close = difflib.get_close_matches(key.casefold().replace("-", "_"), files, 1)
    if not close and is_secret_name(key):
        return f"unknown setting {key!r}; {ALLOWED_SOURCES}"
    return f"unknown setting {key!r}{_suggest(key, files)}"


def _suggest(key: str, names: list[str]) -> str:
    close = difflib.get_close_matches(key.casefold().replace("-", "_"), names, 1)
    return f"; did you mean {close[0]}?" if close else f"; known settings: {', '.join(names)}"


SettingCheck: TypeAlias = Callable[[Any, RawSetting], Any]
"""Validates the converted value of a setting and returns it, possibly normalized."""


def check_value(given: RawSetting) -> Any:
    """Convert and validate a value; ConfigError names its source, the key and the expected value."""
    value = given.value
    setting = given.setting
    if setting.hides == "all" and given.source == "flag":
        raise given.error(f"other users can read a command line; {ALLOWED_SOURCES}")
    if isinstance(value, str) and not value.strip():
        raise given.error("the value is empty; set it or remove the setting")
    if isinstance(value, str) and given.source != "file" and setting.takes == "a list of strings":
        value = [item.strip() for item in value.split(",") if item.strip()]

    def decode(kind: type, raw: Any) -> Any:
        """Convert the types that msgspec does not know: paths and secrets."""
        if not isinstance(raw, str | Path):
            raise ValueError
        return given.path(str(raw)) if kind is Path else Secret(str(raw))

    try:
        found = msgspec.convert(value, setting.type, strict=given.source == "file", dec_hook=decode)
    except (msgspec.ValidationError, ValueError) as error:
        got = "" if setting.hides else f", got {_shorten(given.value)}"
        raise given.error(f"expected {setting.takes}{got}") from error
    check = _CHECKS.get(setting.key)
    return check(found, given) if check and found is not None else found


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _check_token(value: Secret, given: RawSetting) -> Secret:
    if not re.fullmatch(r"[!-~]+", value.reveal()):
        raise given.error("invalid token: expected printable ASCII characters without spaces")
    return value


def _check_model(value: str, given: RawSetting) -> str:
    try:
        ref = parse_model_ref(value)
    except BadModelRef as error:
        raise BadModelRef(str(given.error(str(error)))) from error
    if re.search(r"\s", value.strip()):
        raise BadModelRef(str(given.error(f"invalid model reference {_shorten(value)}: it contains a space")))
    return str(ref)


def _check_policy(value: Path, given: RawSetting) -> Path:
    if not value.is_file():
        raise given.error(f"file not found: {value}; create it or remove the setting")
    if not os.access(value, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise given.error(f"cannot read {value}: permission denied for this user")
    return value


def _check_database(value: Secret, given: RawSetting) -> Secret:
    known = (*SQLITE, *POSTGRES)
    url = value.reveal()
    _check_url(value, given, known if scheme(url) in known else (*known, *Plugins().names("stores")))
    if scheme(url) not in SQLITE:
        return value
    _, _, rest = url.partition("://")
    path = rest.removeprefix("/")
    if not rest.startswith("/") or not path or path.endswith("/") or "?" in path or "#" in path:
        raise given.error("invalid URL: expected sqlite:///file.db or sqlite:////folder/file.db, without options")
    if ":memory:" in path:
        raise given.error("an in-memory database is lost at exit; name a file")
    return Secret(f"sqlite:///{given.path(path)}")


def _check_url(value: Secret, given: RawSetting, schemes: tuple[str, ...]) -> Secret:
    url = value.reveal()
    if scheme(url) not in schemes:
        expected = " or ".join(f"{each}://" for each in schemes)
        raise given.error(f"invalid URL scheme {scheme(url)!r}: expected {expected}")
    if given.source != "environment" and has_password(url):
        variable = given.setting.variable
        raise given.error(f"the URL contains a password, and {ALLOWED_SOURCES}; set {variable} or {variable}_FILE")
    return value


def _match(pattern: re.Pattern[str], kind: str, expected: str) -> SettingCheck:
    """Return a check that a string, or each string of a list, matches a pattern."""

    def check(value: str | tuple[str, ...], given: RawSetting) -> Any:
        for each in (value,) if isinstance(value, str) else value:
            if not pattern.fullmatch(each):
                raise given.error(f"invalid {kind} {_shorten(each)}: expected {expected}")
        return value

    return check


# What checks rarely used settings is imported when one is set: client commands load the settings at every start.


def _check_hosts(names: tuple[str, ...]) -> None:
    from atlas_agents.builtin_tools.web.ssrf import Hosts

    Hosts(names)


def _check_rate_limits(limits: tuple[str, ...]) -> None:
    from atlas_agents.providers.rate_limits import parse_rate_limits

    parse_rate_limits(limits)


def _check_budgets(budgets: tuple[str, ...]) -> None:
    from atlas_agents.core.budgets import read_budgets

    read_budgets(budgets)


def _check_alerts(rules: tuple[str, ...]) -> None:
    from atlas_agents.core.alert_rules import parse_alert_rules

    parse_alert_rules(rules)


def _check_webhook(value: Secret, given: RawSetting) -> Secret:
    if scheme(value.reveal()) not in ("http", "https"):
        raise given.error("invalid URL: expected http:// or https://")
    return value


def _parse_with(parse: Callable[[tuple[str, ...]], object]) -> SettingCheck:
    """Return a check that a function can parse the value."""

    def check(values: tuple[str, ...], given: RawSetting) -> Any:
        try:
            parse(values)
        except ConfigError as error:
            raise given.error(str(error)) from error
        return values

    return check


def _http_url(advice: str) -> SettingCheck:
    """Return a check for an HTTP URL without a password."""

    def check(value: str, given: RawSetting) -> Any:
        if scheme(value) not in ("http", "https"):
            shown = "" if "@" in value else f" {_shorten(value)}"
            raise given.error(f"invalid URL{shown}: expected http:// or https://")
        if has_password(value):
            raise given.error(f"the URL contains a password, which would be displayed; {advice}")
        return value

    return check


_CHECKS: dict[str, SettingCheck] = {
    "token": _check_token,
    "model": _check_model,
    "compaction_model": _check_model,
    "title_model": _check_model,
    "host": _match(_HOST, "address", "an IP address like 127.0.0.1 or a host name"),
    "allowed_hosts": _match(_HOST, "host", "a name like chat.example.org, without a port"),
    "allowed_origins": _match(_ORIGIN, "origin", "one like https://chat.example.org"),
    "policy": _check_policy,
    "database_url": _check_database,
    "redis_url": lambda value, given: _check_url(value, given, ("redis", "rediss", "unix")),
    "provider_limits": _parse_with(_check_rate_limits),
    "model_catalogue": _parse_with(read_models),
    "budgets": _parse_with(_check_budgets),
    "alerts": _parse_with(_check_alerts),
    "alert_webhook": _check_webhook,
    "fetch_hosts": _parse_with(_check_hosts),
    "search_url": _http_url("use a SearXNG that needs none"),
    "embeddings": lambda value, given: value if value in ("local", "none") else _check_model(value, given),
    "embeddings_url": _http_url("set embeddings_key instead"),
    "knowledge_tool": _match(_TOOL_NAME, "tool name", "1 to 64 letters, digits, _ or -, a letter first"),
}


def load(
    flags: Mapping[str, Any] | None = None, environment: Environment | None = None, cwd: Path | None = None
) -> Settings:
    """Load and validate the settings, including overridden values; ConfigError names file, line and key.

    `environment` defaults to the environment of this process and the `.env` file in `cwd`. Until a person trusts the
    folder `cwd`, its `.env` and `atlas.toml` may set only harmless values; `Settings.ignored` lists the others.
    """
    folder = (cwd or Path.cwd()).absolute()
    Trust.of(environment or Environment(dotenv=None)).recover()
    environment = environment or Environment.of_folder(folder)
    outside = [list(from_environment(environment, folder)), list(from_flags(flags or {}, folder, environment))]
    project = list(_project_settings(outside, folder, environment))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in (from_file(user_config(environment), environment), project, *outside):
        for given in source:
            if given.applies:
                values[given.setting.key] = check_value(given)
                origins[given.setting.key] = given.origin
    values.setdefault("home", home(environment))
    values.setdefault("workspace", values["home"] / "workspace")
    values.setdefault("database_url", Secret(f"sqlite:///{values['home'] / 'atlas.db'}"))
    ignored = [f"{name} ({value.where})" for name, value in environment.ignored.items()]
    ignored += [f"{given.name} ({given.where})" for given in project if not given.applies]
    return Settings(**values, origins=origins, notices=tuple(notices(environment, folder)), ignored=tuple(ignored))


def _project_settings(outside: list[list[RawSetting]], folder: Path, environment: Environment) -> Iterator[RawSetting]:
    """Yield the values of `atlas.toml`, or of the file that a flag or variable names.

    A file that the user names needs no trust; a file that the folder chooses, even through its `.env`, does.
    """
    named = [given for each in outside for given in each if given.setting.key == "config"]
    if not named:
        return from_file(folder / "atlas.toml", environment, folder=folder)
    by_user = named[-1].where in ("flag", "environment")
    return from_file(check_value(named[-1]), environment, must_exist=True, folder=None if by_user else folder)


def load_again(
    old: Settings,
    flags: Mapping[str, Any] | None = None,
    environment: Environment | None = None,
    cwd: Path | None = None,
) -> tuple[Settings, str | None]:
    """Load the settings again. If they are invalid, return the old ones and the error."""
    try:
        return load(flags, environment, cwd), None
    except ConfigError as error:
        return old, str(error)
