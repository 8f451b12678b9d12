"""The files of a new plugin; `%NAME%` and `%PACKAGE%` are filled in."""

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

# Each line is a plugin: its name, and what is loaded for it. Agents know its tools as %NAME%/greet.
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
    """Greet somebody by name."""
    return f"Good day, {name}!"


tools = [greet]
'''
_TEST = '''\
"""The tools as an agent uses them, with a model that says what it is told."""

import asyncio
import tomllib
from pathlib import Path

from atlas_agents import Agent, Atlas
from atlas_agents.testing import Scripted, calls, says
from %PACKAGE% import tools


def test_an_agent_greets() -> None:
    model = Scripted(calls("greet", name="Ana"), says("Done."))
    atlas = Atlas([Agent("assistant", model=model, tools=tools)])
    result = asyncio.run(atlas.run("Greet Ana."))
    assert [(step.status, step.output) for step in result.steps] == [("ok", "Good day, Ana!")]


def test_the_plugin_is_announced() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["atlas_agents.tools"] == {"%NAME%": "%PACKAGE%:tools"}
'''
_README = """\
# %NAME%

Tools for Atlas Agents.

    pip install -e .
    atlas plugins
    pytest
"""
FILES = {
    "pyproject.toml": _PROJECT,
    "README.md": _README,
    "src/%PACKAGE%/__init__.py": _CODE,
    "tests/test_tools.py": _TEST,
}
