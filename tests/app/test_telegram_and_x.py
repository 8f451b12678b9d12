"""Telegram and X tools: offered once configured, with redacted tokens."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas_agents import Actor, ConfigError
from atlas_agents.app.app import open_runtime
from atlas_agents.app.serve import telegram_enabled
from atlas_agents.app.tools import DEFAULT_POLICY, build_tool_registry, keyword_tools
from atlas_agents.config.load import load
from atlas_agents.config.settings import Settings
from atlas_agents.core.messages import user
from atlas_agents.core.paths import Environment
from atlas_agents.providers.base import Request

NAMES = ("send_telegram_message", "post_to_x", "search_x")
TELEGRAM = "123456:AAtelegram-canary"
X = "x-token-canary"


def load_settings(home: Path, **variables: str) -> tuple[Settings, Environment]:
    given = {"ATLAS_HOME": str(home), "ATLAS_PORT": "0", "HOME": str(home), **variables}
    environment = Environment(given, dotenv=None)
    return load(environment=environment, cwd=home.parent), environment


async def offered_tools(configured: tuple[Settings, Environment], message: str) -> set[str]:
    """Return which of the four tools are offered to a model."""
    settings, environment = configured
    registry = build_tool_registry(settings, environment=environment)
    tools = tuple(tool.spec for tool in registry if tool.name in (*NAMES, "web_search"))
    assert len(tools) == 4
    ask: Any = keyword_tools(settings, environment).request
    assert ask is not None
    request = Request(messages=(user(message),), tools=tools)
    changed = await ask(request)
    return {spec.name for spec in (changed or request).tools}


async def test_tools_are_offered_once_configured_and_telegram_on_keywords(tmp_path: Path) -> None:
    bare = load_settings(tmp_path)
    assert await offered_tools(bare, "notify me by telegram and on x") == set()
    telegram = load_settings(tmp_path, ATLAS_TELEGRAM_TOKEN=TELEGRAM)
    assert await offered_tools(telegram, "notify me") == {"send_telegram_message"}
    assert await offered_tools(telegram, "hello") == set()
    x = load_settings(tmp_path, ATLAS_X_TOKEN=X)
    assert await offered_tools(x, "notify me") == {"post_to_x", "search_x"}
    search = load_settings(tmp_path, BRAVE_API_KEY="key")
    assert await offered_tools(search, "notify me") == {"web_search"}


def test_default_policy_asks_for_telegram_and_denies_x() -> None:
    actor = Actor("assistant")
    cells = {name: DEFAULT_POLICY.verdict(name, actor, acts=name != "search_x").cell for name in NAMES}
    assert cells == {"send_telegram_message": "ask", "post_to_x": "no", "search_x": "no"}


async def test_tokens_from_any_source_are_redacted(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(TELEGRAM)
    secret.chmod(0o600)
    settings, environment = load_settings(tmp_path / "home", ATLAS_TELEGRAM_TOKEN_FILE=str(secret), ATLAS_X_TOKEN=X)
    assert [each.reveal() for each in settings.secrets] == [TELEGRAM, X]
    async with open_runtime(settings, environment=environment, fetch=False) as runtime:
        shown = runtime.atlas.hide(f"POST https://api.telegram.org/bot{TELEGRAM}/sendMessage with {X}")
    assert "canary" not in shown


def test_channel_is_enabled_by_setting_or_pairing(tmp_path: Path) -> None:
    assert not telegram_enabled(load_settings(tmp_path)[0])
    bot, _ = load_settings(tmp_path, ATLAS_TELEGRAM_TOKEN=TELEGRAM)
    assert not telegram_enabled(bot)
    assert telegram_enabled(msgspec.structs.replace(bot, telegram_channel=True))
    (tmp_path / "telegram").mkdir()
    (tmp_path / "telegram" / "pairs.json").write_text('[{"user": 42, "name": "Ana"}]')
    assert telegram_enabled(bot)
    assert not telegram_enabled(msgspec.structs.replace(bot, telegram_channel=False))
    with pytest.raises(ConfigError, match="ATLAS_TELEGRAM_TOKEN"):
        telegram_enabled(load_settings(tmp_path, ATLAS_TELEGRAM_CHANNEL="true")[0])
