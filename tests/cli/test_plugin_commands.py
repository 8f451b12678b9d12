"""`atlas plugins …`: plugins are listed with their problems, and a new plugin works at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from atlas_command import Home, install_plugin

from checks import TIMEOUT, scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CODE = '''\
from atlas_agents import tool


@tool(effect="pure")
async def greet(name: str) -> str:
    """Greet."""
    return f"Hi {name}"


def hello(name: str = "world") -> None:
    """Say hello."""
    print(f"hello {name}")
'''
POINTS = """\
[atlas_agents.tools]
demo = demo_plugin:greet
gone = demo_plugin:gone

[atlas_agents.commands]
hello = demo_plugin:hello
serve = demo_plugin:hello
"""


@pytest.fixture
def with_plugin(bare: Home) -> Home:
    install_plugin(bare.folder / "plugins", CODE, POINTS)
    return bare


def test_plugins_are_listed_with_their_problems(with_plugin: Home) -> None:
    listed = with_plugin.run("plugins", "list", "--json")
    found = {(each["name"], each["kind"]): each for each in json.loads(listed.stdout)}
    assert set(found) == {("demo", "tools"), ("gone", "tools"), ("hello", "commands"), ("serve", "commands")}
    assert found["demo", "tools"]["trouble"] == "" and found["demo", "tools"]["package"] == "demo-plugin"
    assert "gone" in found["gone", "tools"]["trouble"]
    assert "demo-plugin 1.0" in with_plugin.run("plugin", "list").stdout
    doctor = with_plugin.run("doctor")
    assert "gone (tools) is disabled" in doctor.stdout + doctor.stderr
    off = with_plugin.run("plugins", "list", ATLAS_DISABLED_PLUGINS="demo").stdout
    assert "disabled in the settings" in off


def test_plugin_command_is_added_and_replaces_none(with_plugin: Home) -> None:
    assert with_plugin.run("hello", "--name", "Ana").stdout == "hello Ana\n"
    assert "hello" in with_plugin.run("--help").stdout
    assert "Start the gateway" in with_plugin.run("serve", "--help").stdout
    assert with_plugin.run("nonsense").returncode == 2


def test_list_without_plugins_is_empty(bare: Home) -> None:
    assert "No plugins are installed." in (done := bare.run("plugins", "list")).stdout + done.stderr


def test_new_plugin_passes_its_test_and_can_be_installed(bare: Home) -> None:
    made = bare.run("plugin", "new", "my-tools")
    assert made.returncode == 0, made.stderr
    place = bare.folder / "my-tools"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", str(place)]
    tested = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout

    target = bare.folder / "plugins"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(place)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, env=environment, timeout=scaled(200))
    assert "my-tools" in bare.run("plugins", "list").stdout
    model = {"ATLAS_MODEL": "http/m", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}  # the tiny local model gets no tools
    assert "my-tools/greet" in bare.run("tools", **model).stdout

    again = bare.run("plugin", "new", "my-tools")
    assert again.returncode == 2 and "not empty" in again.stderr


@pytest.mark.parametrize("name", ["My Tools", "../x", "1st", ""])
def test_invalid_name_is_rejected(bare: Home, name: str) -> None:
    done = bare.run("plugin", "new", name)
    assert done.returncode == 2 and "invalid plugin name" in done.stderr
    assert not (Path(bare.folder) / name / "pyproject.toml").exists()
