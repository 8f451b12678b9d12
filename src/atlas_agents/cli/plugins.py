"""`atlas plugins …`: list the installed plugins and their problems, or create a new plugin."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli.command import Argument, Group, JsonFlag, command
from atlas_agents.cli.connect import load_settings
from atlas_agents.cli.output import print_json, print_table
from atlas_agents.core.errors import ConfigError

if TYPE_CHECKING:
    from atlas_agents.config.settings import Settings
    from atlas_agents.core.plugins import Plugin

app = Group()
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


@command(app, "list")
def list_plugins(as_json: JsonFlag = False) -> None:
    """List the installed plugins, what they provide, and the reason if one is disabled."""
    found = load_plugins(load_settings())
    if as_json:
        print_json([each._asdict() for each in found])
        return
    rows = [
        (each.name, each.kind, f"{each.package} {each.version}".strip(), each.trouble or "in use") for each in found
    ]
    print_table(("plugin", "provides", "package", "state"), rows, "No plugins are installed.")


@command(app)
def new(
    name: Annotated[str, Argument(metavar="NAME", help="The name of the plugin, for example my-tools.")],
    folder: Annotated[str | None, Argument(metavar="FOLDER", help="The folder to create; by default NAME.")] = None,
) -> None:
    """Create a plugin: a package with one tool and a test."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"invalid plugin name {name!r}: expected lowercase letters, digits and hyphens, like my-tools"
        )
    package = name.replace("-", "_")
    root = Path(folder or name).expanduser().absolute()
    if root.exists() and any(root.iterdir() if root.is_dir() else [root]):
        raise ConfigError(f"{root} is not empty; choose another folder")
    for path, text in _FILES.items():
        file = root / path.replace("%PACKAGE%", package)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("%NAME%", name).replace("%PACKAGE%", package), encoding="utf-8")
        print(f"created {file}", file=sys.stderr)
    print(f"Next: pip install -e {root} && atlas plugins list. Run its test with: pytest {root}", file=sys.stderr)


def load_plugins(settings: "Settings") -> "list[Plugin]":
    """Load all plugins as the gateway does, and return them with their problems."""
    from atlas_agents.app.app import load_interceptors
    from atlas_agents.app.tools import build_tool_registry
    from atlas_agents.core.paths import Environment
    from atlas_agents.core.plugins import Plugins
    from atlas_agents.providers.registry import Registry

    plugins = Plugins(settings.disabled_plugins)
    build_tool_registry(settings, plugins=plugins)
    Registry(Environment()).load_plugins(plugins)
    load_interceptors(plugins)
    for kind in ("stores", "commands"):
        plugins.load(kind, _check_callable)
    return plugins.examined


def _check_callable(name: str, target: Any) -> None:
    if not callable(target):
        raise ConfigError(f"expected a callable, got {target!r}")


# The files of a new plugin; %NAME% and %PACKAGE% are replaced.
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "%NAME%"
version = "0.1.0"
description = "Tools for Atlas Agents."
requires-python = ">=3.11"
dependencies = ["atlas-agents"]

# Each line is a plugin: its name, and the object to load. Agents see its tools as %NAME%/greet.
# Other groups: atlas_agents.providers, atlas_agents.interceptors, atlas_agents.stores, atlas_agents.commands.
[project.entry-points."atlas_agents.tools"]
%NAME% = "%PACKAGE%:tools"

[tool.hatch.build.targets.wheel]
packages = ["src/%PACKAGE%"]

[tool.pytest.ini_options]
pythonpath = ["src"]
"""
_CODE = '''\
"""Tools for Atlas Agents."""

from atlas_agents import tool


@tool(effect="pure")
async def greet(name: str) -> str:
    """Greet a person by name."""
    return f"Good day, {name}!"


tools = [greet]
'''
_TEST = '''\
"""The tools as an agent uses them, with a scripted model."""

import asyncio
import tomllib
from pathlib import Path

from atlas_agents import Agent, Atlas
from atlas_agents.testing import Scripted, calls, says
from %PACKAGE% import tools


def test_agent_greets() -> None:
    model = Scripted(calls("greet", name="Ana"), says("Done."))
    atlas = Atlas([Agent("assistant", model=model, tools=tools)])
    result = asyncio.run(atlas.run("Greet Ana."))
    assert [(step.status, step.output) for step in result.steps] == [("ok", "Good day, Ana!")]


def test_entry_point_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["atlas_agents.tools"] == {"%NAME%": "%PACKAGE%:tools"}
'''
_README = """\
# %NAME%

Tools for Atlas Agents.

    pip install -e .
    atlas plugins list
    pytest
"""
_FILES = {
    "pyproject.toml": _PROJECT,
    "README.md": _README,
    "src/%PACKAGE%/__init__.py": _CODE,
    "tests/test_tools.py": _TEST,
}
