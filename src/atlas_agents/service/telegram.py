"""The Telegram channel beside a gateway: whether it runs, and how its guests come in."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from atlas_agents.channels.telegram.channel import TelegramChannel
from atlas_agents.channels.telegram.notes import Notebook
from atlas_agents.channels.telegram.pairing import Pairing
from atlas_agents.client.client import Address
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.protocol.shapes import Scope
from atlas_agents.gateway.tokens import Tokens
from atlas_agents.toolbox.telegram.api import BotApi

logger = logging.getLogger(__name__)
_SCOPES: tuple[Scope, ...] = ("read", "write", "approve")


def is_on(settings: Settings) -> bool:
    """The channel runs where there is a bot, and somebody is let in or it was asked for."""
    if settings.telegram_token is None or settings.telegram_channel is False:
        if settings.telegram_channel:
            raise ConfigError("telegram_channel: there is no bot to talk through: set ATLAS_TELEGRAM_TOKEN")
        return False
    return bool(settings.telegram_channel or Pairing(settings.home).pairs())


class Borrowed:
    """Each guest has a token of their own, which may read, write and approve in their own sessions and nothing else."""

    def __init__(self, tokens: Tokens, url: str) -> None:
        self._tokens = tokens
        self._url = url

    async def let_in(self, user: int) -> Address:
        return Address(self._url, self._tokens.lend(f"telegram-{user}", _SCOPES).reveal())

    def send_away(self, user: int) -> None:
        self._tokens.take_back(f"telegram-{user}")


@asynccontextmanager
async def telegram(settings: Settings, tokens: Tokens) -> AsyncGenerator[Callable[[str], None], None]:
    """The channel as long as the block lasts, from when it is told where the gateway is."""
    running: list[asyncio.Task[None]] = []
    wanted = is_on(settings)

    def begin(url: str) -> None:
        if settings.telegram_token is None or not wanted:
            return
        api, pairing = BotApi(settings.telegram_token, settings.telegram_url), Pairing(settings.home)
        channel = TelegramChannel(api, pairing, Notebook(pairing.folder, api.bot_id), Borrowed(tokens, url))
        running.append(asyncio.create_task(channel.run()))
        running[0].add_done_callback(_ended)

    try:
        yield begin
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the Telegram channel has ended: %s", error, exc_info=error)
