"""Telegram and X: whether they are set up, whether their tokens are taken, and what is in the way."""

from collections.abc import AsyncIterator, Iterator

from atlas_agents.app.home_lock import find_running
from atlas_agents.app.serve import is_on
from atlas_agents.builtin_tools.telegram_api import BotApi, BotRefused, BotUnreachable
from atlas_agents.channels.telegram.state import Pairing, trouble_of
from atlas_agents.cli.doctor.finding import Finding, broken, notice, ok
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError

_PATIENCE = 8.0


async def look_at_telegram(settings: Settings) -> AsyncIterator[Finding]:
    try:
        on = is_on(settings)
    except ConfigError as error:
        yield broken("telegram", str(error), "set the token, or take telegram_channel out")
        return
    if settings.telegram_token is None:
        yield ok("telegram", "no bot is set up")
        return
    api = BotApi(settings.telegram_token, settings.telegram_url)
    try:
        me = await api.call("getMe", within=_PATIENCE)
        yield ok("telegram", f"the bot @{me.get('username', '?')} is known there; {_channel(settings, on)}")
    except BotRefused as refused:
        yield broken("telegram", str(refused), refused.advice)
    except BotUnreachable as lost:
        yield notice("telegram", f"{lost}; {_channel(settings, on)}", "look at the network, and at telegram_url")
    finally:
        await api.close()
    if on and find_running(settings.home) is not None and (trouble := trouble_of(settings.home / "telegram", api.bot_id)):
        yield broken("telegram", f"the channel does not hear: {trouble}")


def _channel(settings: Settings, on: bool) -> str:
    paired = len(Pairing(settings.home).pairs())
    people = f"{paired} {'person is' if paired == 1 else 'people are'} paired"
    return f"its channel is {'on' if on else 'off'}, {people}"


def look_at_x(settings: Settings) -> Iterator[Finding]:
    """Nothing is asked of X here: every question costs."""
    if settings.x_token is None and settings.x_refresh_token is None:
        yield ok("x", "no account is set up")
    elif settings.x_refresh_token is not None and settings.x_client_id is None:
        yield broken("x", "there is a refresh token and no client id", "set ATLAS_X_CLIENT_ID to that of your app")
    elif settings.x_refresh_token is None:
        yield notice("x", "there is an access token alone: it ends after two hours", "set ATLAS_X_REFRESH_TOKEN, too")
    else:
        yield ok("x", "an account is set up")
