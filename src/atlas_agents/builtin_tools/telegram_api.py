"""Writing into a chat: one message, sent or changed."""

import asyncio
import re
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from atlas_agents.builtin_tools.telegram_format import Styled, as_params
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.http import open_session
from atlas_agents.core.paths import Secret

PUBLIC = "https://api.telegram.org"
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}")
_LARGEST = 8 * 1024 * 1024
_CONNECT = 10.0


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _BotResponse(msgspec.Struct, frozen=True):
    """What every method answers with."""

    ok: bool
    result: Any = None
    error_code: int = 0
    description: str = ""
    parameters: _Parameters = _Parameters()


_answers = msgspec.json.Decoder(_BotResponse)


class BotRefused(Exception):
    """Telegram said no, and did nothing. `advice` says what it means and what to do."""

    def __init__(
        self, status: int, description: str, retry_after: float | None = None, new_chat: int | None = None
    ) -> None:
        super().__init__(f"Telegram refused it: {description} ({status})")
        self.status = status
        self.description = description
        self.retry_after = retry_after
        self.new_chat = new_chat

    @property
    def advice(self) -> str:
        return _advice(self)


class BotUnreachable(Exception):
    """No answer came. `sent` if the request may have arrived all the same."""

    def __init__(self, words: str, *, sent: bool) -> None:
        super().__init__(words)
        self.sent = sent


class BotApi:
    """Methods of one bot, by their names in Telegram's documentation; parameters that are None are left out."""

    def __init__(self, token: Secret, url: str = PUBLIC, clock: Clock = SYSTEM_CLOCK) -> None:
        if not _TOKEN.fullmatch(token.reveal()):
            raise ConfigError("telegram_token: this is no token of a bot; @BotFather gives one like 123456:ABC-…")
        if not url.startswith(("http://", "https://")):
            raise ConfigError("telegram_url: it must begin with https:// (or http:// for a server of your own)")
        self._token = token
        self._base = url.rstrip("/")
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None

    @property
    def bot_id(self) -> str:
        """The number of the bot, which is no secret."""
        return self._token.reveal().partition(":")[0]

    async def call(self, method: str, /, *, within: float = 20.0, patience: float = 0.0, **params: Any) -> Any:
        """The result of a method. When Telegram asks to wait, that is done, for `patience` seconds in all at most."""
        content = msgspec.json.encode({key: value for key, value in params.items() if value is not None})
        while True:
            try:
                return await self._once(method, content, within)
            except BotRefused as refused:
                if refused.status != 429 or refused.retry_after is None or refused.retry_after > patience:
                    raise
                patience -= refused.retry_after
                await self._clock.sleep(refused.retry_after)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _once(self, method: str, content: bytes, within: float) -> Any:
        address = URL(f"{self._base}/bot{self._token.reveal()}/{method}", encoded=True)
        status, body, trouble = 0, b"", ""
        try:
            async with (
                asyncio.timeout(within),
                self._session().post(
                    address, data=content, headers={"Content-Type": "application/json"}, allow_redirects=False
                ) as response,
            ):
                status = response.status
                body = await response.content.readexactly(_LARGEST)
        except asyncio.IncompleteReadError as end:
            body = end.partial
        except aiohttp.ClientConnectorError as error:
            raise BotUnreachable(f"Telegram cannot be reached: {_reason(error)}", sent=False) from None
        except TimeoutError:
            trouble = f"Telegram did not answer in {within:g} s"
        except (aiohttp.ClientError, OSError) as error:
            trouble = f"the line to Telegram broke ({type(error).__name__})"
        if trouble:  # raised here: a trace of what led to it could hold the address
            raise BotUnreachable(trouble, sent=True)
        return _read(status, body)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None or self._http.closed:
            self._http = open_session(connect_timeout=_CONNECT, use_proxies=True)
        return self._http


def _read(status: int, body: bytes) -> Any:
    try:
        answer = _answers.decode(body)
    except msgspec.DecodeError:
        if 400 <= status < 500:
            raise BotRefused(status, "what answers there is not the bot API") from None
        raise BotUnreachable(f"what came from Telegram is no answer (HTTP {status})", sent=True) from None
    if answer.ok:
        return answer.result
    if answer.error_code >= 500:
        raise BotUnreachable(f"Telegram has trouble of its own (HTTP {answer.error_code})", sent=True)
    parameters = answer.parameters
    raise BotRefused(
        answer.error_code or status, answer.description[:300], parameters.retry_after, parameters.migrate_to_chat_id
    )


def _reason(error: aiohttp.ClientConnectorError) -> str:
    return error.strerror or type(error.os_error).__name__


def _advice(refused: BotRefused) -> str:
    words, status = refused.description.lower(), refused.status
    if status in (401, 404):
        return "Telegram does not know this bot: set ATLAS_TELEGRAM_TOKEN to the token that @BotFather gave."
    if refused.new_chat is not None:
        return f"The group has become a supergroup and has a new id: use {refused.new_chat}."
    if status == 429:
        return f"Telegram asks to wait {refused.retry_after or 0:g} s before anything else is sent."
    if "chat not found" in words:
        return "Telegram knows no such chat. A person must write to the bot first; a channel must have it as a member."
    if status == 403:
        return f"The bot may not write there ({refused.description}): it was blocked or removed, or never let in."
    return f"Telegram refused it: {refused.description} ({status})."


NO_PREVIEW = {"is_disabled": True}
"""Telegram would fetch the first address in a text, and tell its owner what stands in it."""


class _Sent(msgspec.Struct, frozen=True):
    message_id: int


async def send(api: BotApi, chat: str | int, part: Styled, *, patience: float = 0.0, **more: Any) -> int:
    """Send one message, and give its number."""
    answer = await write(api, "sendMessage", part, chat_id=chat, patience=patience, **more)
    return msgspec.convert(answer, _Sent).message_id


async def write(api: BotApi, method: str, part: Styled, **more: Any) -> Any:
    """Call a method that takes a text. Marks that Telegram does not take are left out; the words go anyway."""
    more["link_preview_options"] = NO_PREVIEW
    try:
        return await api.call(method, **as_params(part), **more)
    except BotRefused as refused:
        if refused.status != 400 or "entit" not in refused.description.lower() or not part.marks:
            raise
        return await api.call(method, text=part.text, **more)
