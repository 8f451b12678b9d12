"""From what was given to what is used: the right type, and nothing that cannot work."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.config.given import KEYS_ELSEWHERE, Given
from atlas_agents.config.urls import has_password, scheme
from atlas_agents.core.errors import BadModelRef, ConfigError
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.secret import Secret
from atlas_agents.providers.pace import read_paces
from atlas_agents.providers.registry import parse_model_ref
from atlas_agents.toolbox.web.hosts import Hosts

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
        raise BadModelRef(str(given.wrong(f"{_short(value)} is no model ref: it has a space in it")))
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
}
