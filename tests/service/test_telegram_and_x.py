"""Telegram and X as a gateway has them: there, offered when they are set up, and silent about their tokens."""

from pathlib import Path

import msgspec
import pytest

from atlas_agents import Actor, ConfigError
from atlas_agents.app.app import opened
from atlas_agents.app.serve import is_on
from atlas_agents.app.tools import HOUSE_RULES, known_tools, offers
from atlas_agents.config.load import load
from atlas_agents.config.settings import Settings
from atlas_agents.core.messages import user
from atlas_agents.core.paths import Environment
from atlas_agents.providers.base import Request

NAMES = ("send_telegram_message", "post_to_x", "search_x")
TELEGRAM = "123456:AAtelegram-canary"
X = "x-token-canary"


def settled(home: Path, **variables: str) -> tuple[Settings, Environment]:
    given = {"ATLAS_HOME": str(home), "ATLAS_PORT": "0", "HOME": str(home), **variables}
    environment = Environment(given, dotenv=None)
    return load(environment=environment, cwd=home.parent), environment


async def offered(settings: Settings, said: str) -> set[str]:
    """Which of the three a model is told of."""
    tools = tuple(tool.spec for tool in known_tools(settings) if tool.name in NAMES)
    assert len(tools) == 3
    ask = offers(settings).request
    assert ask is not None
    request = Request(messages=(user(said),), tools=tools)
    changed = await ask(request)
    return {spec.name for spec in (changed or request).tools}


async def test_they_are_offered_when_they_are_set_up_and_telegram_on_its_words(tmp_path: Path) -> None:
    bare, _ = settled(tmp_path)
    assert await offered(bare, "notify me by telegram and on x") == set()
    telegram, _ = settled(tmp_path, ATLAS_TELEGRAM_TOKEN=TELEGRAM)
    assert await offered(telegram, "notify me") == {"send_telegram_message"}
    assert await offered(telegram, "hello") == set()
    x, _ = settled(tmp_path, ATLAS_X_TOKEN=X)
    assert await offered(x, "notify me") == {"post_to_x", "search_x"}


def test_without_a_policy_telegram_asks_and_x_is_for_nobody() -> None:
    actor = Actor("assistant")
    cells = {name: HOUSE_RULES.verdict(name, actor, acts=name != "search_x").cell for name in NAMES}
    assert cells == {"send_telegram_message": "ask", "post_to_x": "no", "search_x": "no"}


async def test_their_tokens_are_hidden_wherever_they_were_set(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(TELEGRAM)
    secret.chmod(0o600)
    settings, environment = settled(tmp_path / "home", ATLAS_TELEGRAM_TOKEN_FILE=str(secret), ATLAS_X_TOKEN=X)
    assert [each.reveal() for each in settings.secrets] == [TELEGRAM, X]
    async with opened(settings, environment=environment, fetch=False) as runtime:
        shown = runtime.atlas.hide(f"POST https://api.telegram.org/bot{TELEGRAM}/sendMessage with {X}")
    assert "canary" not in shown


def test_the_channel_is_on_when_it_was_asked_for_or_somebody_is_paired(tmp_path: Path) -> None:
    assert not is_on(settled(tmp_path)[0])
    bot, _ = settled(tmp_path, ATLAS_TELEGRAM_TOKEN=TELEGRAM)
    assert not is_on(bot)
    assert is_on(msgspec.structs.replace(bot, telegram_channel=True))
    (tmp_path / "telegram").mkdir()
    (tmp_path / "telegram" / "pairs.json").write_text('[{"user": 42, "name": "Ana"}]')
    assert is_on(bot)
    assert not is_on(msgspec.structs.replace(bot, telegram_channel=False))
    with pytest.raises(ConfigError, match="ATLAS_TELEGRAM_TOKEN"):
        is_on(settled(tmp_path, ATLAS_TELEGRAM_CHANNEL="true")[0])
