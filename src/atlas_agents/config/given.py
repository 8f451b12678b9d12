"""Values as flags, the environment and files give them: each with its place, none of them checked yet."""

import difflib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from atlas_agents.config.settings import SETTINGS, Setting
from atlas_agents.config.toml import read_toml
from atlas_agents.core.environment import Environment, read_secret
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.places import absolute
from atlas_agents.tools.redact import is_secret_name

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
