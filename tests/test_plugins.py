"""Plugins: what installed packages add, and how failing, slow and conflicting plugins are disabled."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ToolRegistry
from atlas_agents.app.app import load_interceptors
from atlas_agents.config.load import load
from atlas_agents.config.open import open_store
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment
from atlas_agents.core.plugins import Plugins
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, says

CODE = '''\
from atlas_agents import Interceptor, Message, tool
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, says

@tool(effect="pure")
async def greet(name: str) -> str:
    """Greet."""
    return f"Hi {name}"

tools = [greet]
two_of_a_name = [greet, greet]
words = "nothing to call"
provider = lambda environment: Scripted(says("From a plugin."))
shout = Interceptor(outgoing=lambda message: message.with_text(message.text.upper()))
store = lambda url: MemoryStore()

def hello(name: str = "world") -> None:
    """Say hello."""
    print(f"hello {name}")
'''
"""An installed module."""


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create entry points to modules of this test."""
    (tmp_path / "some_plugin.py").write_text(CODE)
    (tmp_path / "broken_plugin.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / "leaving_plugin.py").write_text("raise SystemExit(3)")
    (tmp_path / "slow_plugin.py").write_text("import time; time.sleep(30)")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("some_plugin", "broken_plugin", "leaving_plugin", "slow_plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def make(kind: str, name: str, value: str) -> EntryPoint:
        return EntryPoint(name, value, f"atlas_agents.{kind}")

    return make


def test_failing_plugin_is_disabled_and_others_are_loaded(entry: Any) -> None:
    found = [
        entry("tools", "broken", "broken_plugin:tools"),
        entry("tools", "leaving", "leaving_plugin:tools"),
        entry("tools", "missing", "no_such_module:tools"),
        entry("tools", "nothing", "some_plugin:nothing"),
        entry("tools", "odd", "some_plugin:words"),
        entry("tools", "twice", "some_plugin:two_of_a_name"),
        entry("tools", "good", "some_plugin:tools"),
    ]
    plugins, registry = Plugins(entries=found), ToolRegistry()
    registry.load_plugins(plugins)
    assert [tool.name for tool in registry] == ["good/greet"]
    assert registry.source("good/greet") == "plugin"
    assert {name: trouble for name, trouble in plugins.disabled.items() if name == "broken"} == {
        "broken": "RuntimeError: no licence"
    }
    assert set(plugins.disabled) == {"broken", "leaving", "missing", "nothing", "odd", "twice"}
    assert registry.disabled == plugins.disabled


def test_slow_plugin_is_disabled_and_blocks_nothing(entry: Any) -> None:
    found = [entry("tools", "slow", "slow_plugin:tools"), entry("tools", "good", "some_plugin:tools")]
    plugins, registry = Plugins(entries=found, timeout=2), ToolRegistry()
    registry.load_plugins(plugins)
    assert plugins.disabled == {"slow": "TimeoutError: loading took longer than 2 seconds"}
    assert [tool.name for tool in registry] == ["good/greet"]


def test_plugin_can_be_disabled(entry: Any) -> None:
    plugins = Plugins(["good"], entries=[entry("tools", "good", "broken_plugin:tools")])
    plugins.load("tools", lambda name, thing: None)
    assert plugins.disabled == {"good": "disabled in the settings"}
    assert "broken_plugin" not in sys.modules


async def test_provider_of_a_plugin_is_found_and_replaces_no_other(entry: Any) -> None:
    found = [entry("providers", "acme", "some_plugin:provider"), entry("providers", "openai", "some_plugin:provider")]
    plugins, registry = Plugins(entries=found), Registry(Environment({}))
    registry.load_plugins(plugins)
    assert plugins.disabled == {"openai": "ConfigError: provider 'openai' already exists"}
    atlas = Atlas([Agent("a", model="acme/one")], registry=registry)
    assert (await atlas.ask("Hello")).text == "From a plugin."


async def test_interceptors_of_plugins_see_the_messages(entry: Any) -> None:
    found = [entry("interceptors", "loud", "some_plugin:shout"), entry("interceptors", "odd", "some_plugin:words")]
    plugins = Plugins(entries=found)
    interceptors = load_interceptors(plugins)
    model = Scripted(says("Yes."))
    await Atlas([Agent("a", model=model)], interceptors=interceptors).ask("hello")
    assert model.requests[0].messages[-1].text == "HELLO"
    assert list(plugins.disabled) == ["odd"]


@pytest.fixture
def database(entry: Any, tmp_path: Path) -> None:
    """An installed package with a store."""
    package = tmp_path / "stores_plugin-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: stores-plugin\nVersion: 1.0\n")
    points = "heap = some_plugin:store\nbad = broken_plugin:store\n"
    (package / "entry_points.txt").write_text(f"[atlas_agents.stores]\n{points}")


@pytest.mark.usefixtures("database")
def test_store_of_a_plugin_is_opened_by_its_scheme(tmp_path: Path) -> None:
    def opened(url: str) -> Any:
        given = {"ATLAS_HOME": str(tmp_path / "home"), "ATLAS_DATABASE_URL": url}
        return open_store(load(environment=Environment(given, dotenv=None), cwd=tmp_path))

    assert isinstance(opened("heap://anywhere"), MemoryStore)
    with pytest.raises(ConfigError, match="the plugin 'bad' is disabled: RuntimeError: no licence"):
        opened("bad://anywhere")
    with pytest.raises(ConfigError, match=r"sqlite:// or postgresql:// or postgres:// or .*heap://"):
        opened("mysql://anywhere")
