"""`atlas plugins …`: what is installed, each put to the test in its place, and a new one to begin with."""

import re
import sys
from pathlib import Path
from typing import Any

from atlas_agents.app.app import interceptors_of
from atlas_agents.app.tools import known_tools
from atlas_agents.cli import show
from atlas_agents.cli.border import guarded
from atlas_agents.cli.plugin_template import FILES
from atlas_agents.config.load import load
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment
from atlas_agents.core.plugins import Plugin, Plugins
from atlas_agents.providers.registry import Registry

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


def installed(settings: Settings) -> list[Plugin]:
    """All of them, loaded as the gateway would, and what is wrong with each."""
    plugins = Plugins(settings.disabled_plugins)
    known_tools(settings, plugins=plugins)
    Registry(Environment()).load_plugins(plugins)
    interceptors_of(plugins)
    for kind in ("stores", "commands"):
        plugins.load(kind, _is_callable)
    return plugins.known


def show_plugins(*, as_json: bool) -> int:
    """The result is the exit code."""

    def work() -> None:
        found = installed(load())
        if as_json:
            show.as_json([each._asdict() for each in found])
            return
        rows = [
            (each.name, each.kind, f"{each.package} {each.version}".strip(), each.trouble or "in use") for each in found
        ]
        show.table(("plugin", "offers", "package", "state"), rows, "No plugins are installed.")

    return guarded(work)


def new_plugin(name: str, folder: str | None) -> int:
    """Write a plugin to begin with; the result is the exit code."""

    def work() -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is no name for a plugin: write small letters, digits and hyphens, like my-tools"
            )
        package = name.replace("-", "_")
        place = Path(folder or name).expanduser().absolute()
        if place.exists() and any(place.iterdir() if place.is_dir() else [place]):
            raise ConfigError(f"{place} is there already and not empty; name another folder")
        for path, text in FILES.items():
            file = place / path.replace("%PACKAGE%", package)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("%NAME%", name).replace("%PACKAGE%", package), encoding="utf-8")
            print(f"written {file}", file=sys.stderr)
        print(f"Next: pip install -e {place}, then atlas plugins; its test runs with pytest {place}.", file=sys.stderr)

    return guarded(work)


def _is_callable(name: str, thing: Any) -> None:
    if not callable(thing):
        raise ConfigError(f"a plugin gives something that can be called, not {thing!r}")
