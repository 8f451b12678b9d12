"""Client of the Telegram Bot API: calls of any method, formatted messages, and the objects in updates."""

import asyncio
import re
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec
from yarl import URL

from atlas_agents.builtin_tools.telegram_format import FormattedText, message_params
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.http import open_session
from atlas_agents.core.paths import SECRETS_FILE, Secret, lock_file, make_private_folder, read_json, write_json

API_URL = "https://api.telegram.org"
_TOKEN = re.compile(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}")
_MAX_RESPONSE = 8 * 1024 * 1024
_CONNECT_TIMEOUT = 10.0
_NO_LINK_PREVIEW = {"is_disabled": True}
"""Link previews are off: Telegram would fetch the first URL of a text, and so send its content to the URL's server."""


class _Parameters(msgspec.Struct, frozen=True):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _BotResponse(msgspec.Struct, frozen=True):
    """Response of every method."""

    ok: bool
    result: Any = None
    error_code: int = 0
    description: str = ""
    parameters: _Parameters = _Parameters()


_decoder = msgspec.json.Decoder(_BotResponse)


class TelegramUser(msgspec.Struct, frozen=True):
    """A person or a bot."""

    id: int
    first_name: str = ""
    last_name: str = ""
    username: str = ""
    is_bot: bool = False

    @property
    def name(self) -> str:
        return " ".join(f"{self.first_name} {self.last_name}".split())[:80]


class Chat(msgspec.Struct, frozen=True):
    id: int
    type: str


class TelegramMessage(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """A message. A channel post has no sender; a picture or voice message has no text.

    `forward_origin` is set for a message that its sender forwards from someone else.
    """

    message_id: int
    chat: Chat
    sender: TelegramUser | None = None
    text: str | None = None
    forward_origin: dict[str, Any] | None = None


class CallbackQuery(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """A press of a button under one of the bot's messages; `message` is None if that message was deleted."""

    id: str
    sender: TelegramUser
    message: TelegramMessage | None = None
    data: str = ""


class Update(msgspec.Struct, frozen=True):
    """An incoming update. Ids increase; Telegram repeats an update until a later offset is requested."""

    update_id: int
    message: TelegramMessage | None = None
    callback_query: CallbackQuery | None = None


class BotApiError(Exception):
    """Telegram rejected a request and did nothing."""

    def __init__(
        self, status: int, description: str, retry_after: float | None = None, new_chat: int | None = None
    ) -> None:
        super().__init__(f"Telegram rejected the request: {description} (HTTP {status})")
        self.status = status
        self.description = description
        self.retry_after = retry_after
        self.new_chat = new_chat

    @property
    def advice(self) -> str:
        """Explanation of the error with a remedy."""
        if self.status in (401, 404):
            return "Telegram does not accept the bot token: copy it again from @BotFather."
        if self.new_chat is not None:
            return f"The group was upgraded to a supergroup and has a new id: use {self.new_chat}."
        if self.status == 429:
            return f"Telegram's rate limit is reached: retry after {self.retry_after or 0:g} s."
        if "chat not found" in self.description.lower():
            return "Chat not found. A person must write to the bot first; in a channel the bot must be a member."
        if self.status == 403:
            return f"The bot cannot write to this chat ({self.description}): it was blocked, removed or never added."
        return f"{self}."


class BotUnreachable(Exception):
    """No valid response arrived. `sent` if the request may have reached Telegram."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class BotApi:
    """Bot API client of one bot. Methods are called by their names in Telegram's documentation."""

    def __init__(self, token: Secret, url: str = API_URL, clock: Clock = SYSTEM_CLOCK) -> None:
        if not _TOKEN.fullmatch(token.reveal()):
            raise ConfigError("telegram_token: expected a bot token from @BotFather, like 123456:ABC-…")
        if not url.startswith(("http://", "https://")):
            raise ConfigError("telegram_url: must start with https:// (or http:// for a server of your own)")
        self._token = token
        self._base = url.rstrip("/")
        self._clock = clock
        self._http: aiohttp.ClientSession | None = None

    @property
    def bot_id(self) -> str:
        """Id of the bot, which is public."""
        return self._token.reveal().partition(":")[0]

    def uses(self, token: Secret) -> bool:
        """Return whether this client uses a token."""
        return token.reveal() == self._token.reveal()

    async def call(self, method: str, /, *, request_timeout: float = 20.0, max_wait: float = 0.0, **params: Any) -> Any:
        """Call a method and return its result; parameters that are None are left out.

        A request over the rate limit is retried after the time that Telegram asks for, up to `max_wait` seconds in all.
        """
        content = msgspec.json.encode({key: value for key, value in params.items() if value is not None})
        while True:
            try:
                return await self._post(method, content, request_timeout)
            except BotApiError as error:
                if error.status != 429 or error.retry_after is None or error.retry_after > max_wait:
                    raise
                max_wait -= error.retry_after
                await self._clock.sleep(error.retry_after)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _post(self, method: str, content: bytes, request_timeout: float) -> Any:
        url = URL(f"{self._base}/bot{self._token.reveal()}/{method}", encoded=True)
        status, body, failure = 0, b"", ""
        try:
            async with (
                asyncio.timeout(request_timeout),
                self._session().post(
                    url, data=content, headers={"Content-Type": "application/json"}, allow_redirects=False
                ) as response,
            ):
                status = response.status
                body = await response.content.readexactly(_MAX_RESPONSE)
        except asyncio.IncompleteReadError as end:
            body = end.partial
        except aiohttp.ClientConnectorError as error:
            raise BotUnreachable(
                f"cannot connect to Telegram: {error.strerror or type(error.os_error).__name__}", sent=False
            ) from None
        except TimeoutError:
            failure = f"Telegram did not respond within {request_timeout:g} s"
        except (aiohttp.ClientError, OSError) as error:
            failure = f"the connection to Telegram was lost ({type(error).__name__})"
        if failure:  # raised outside the except blocks: the traceback of the cause could show the token in the URL
            raise BotUnreachable(failure, sent=True)
        return _decode(status, body)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None or self._http.closed:
            self._http = open_session(connect_timeout=_CONNECT_TIMEOUT, use_proxies=True)
        return self._http


class BotAccount:
    """The bot of an installation. Its token is the one in the settings, or else the one in the secret file.

    A token that is stored or removed later, even by another process, takes effect at the next use.
    """

    def __init__(self, configured: Secret | None, home: Path, url: str = API_URL) -> None:
        self.url = url
        self._configured = configured
        self._path = home / SECRETS_FILE
        self._api: BotApi | None = None
        self._replaced: list[BotApi] = []

    @property
    def token(self) -> Secret | None:
        stored = self._read().get("token", "")
        return self._configured or (Secret(stored) if stored else None)

    @property
    def source(self) -> Literal["", "settings", "stored"]:
        """Where the token is set."""
        return "settings" if self._configured else "stored" if self.token else ""

    @property
    def name(self) -> str:
        """User name of a bot whose token is stored."""
        return "" if self._configured else self._read().get("bot", "")

    def api(self) -> BotApi | None:
        """Return the client of the bot; None without a token."""
        token = self.token
        if token is None:
            return None
        if self._api is None or not self._api.uses(token):
            if self._api is not None:  # a call may still be using it
                self._replaced.append(self._api)
            self._api = BotApi(token, self.url)
        return self._api

    def store(self, token: str, name: str) -> None:
        """Store a token with the user name of its bot; a blank token removes the stored one."""
        make_private_folder(self._path.parent)
        with lock_file(self._path):
            content = read_json(self._path, dict[str, Any]) or {}
            rest = {key: each for key, each in content.items() if key != "telegram"}
            write_json(self._path, {**rest, "telegram": {"token": token, "bot": name}} if token else rest)

    async def close(self) -> None:
        """Close the clients."""
        for api in (*self._replaced, *([self._api] if self._api else ())):
            await api.close()

    def _read(self) -> dict[str, str]:
        return (read_json(self._path, dict[str, Any]) or {}).get("telegram", {})


def _decode(status: int, body: bytes) -> Any:
    try:
        response = _decoder.decode(body)
    except msgspec.DecodeError:
        if 400 <= status < 500:
            raise BotApiError(status, "the server is not a Telegram Bot API") from None
        raise BotUnreachable(f"invalid response from Telegram (HTTP {status})", sent=True) from None
    if response.ok:
        return response.result
    if response.error_code >= 500:
        raise BotUnreachable(f"Telegram server error (HTTP {response.error_code})", sent=True)
    parameters = response.parameters
    raise BotApiError(
        response.error_code or status, response.description[:300], parameters.retry_after, parameters.migrate_to_chat_id
    )


class _SentMessage(msgspec.Struct, frozen=True):
    message_id: int


async def send_message(
    api: BotApi, chat: str | int, text: FormattedText, *, max_wait: float = 0.0, **params: Any
) -> int:
    """Send one message and return its id."""
    sent = await call_with_text(api, "sendMessage", text, chat_id=chat, max_wait=max_wait, **params)
    return msgspec.convert(sent, _SentMessage).message_id


async def call_with_text(api: BotApi, method: str, text: FormattedText, **params: Any) -> Any:
    """Call a method that takes a text. If Telegram rejects the entities, send the text without them."""
    params["link_preview_options"] = _NO_LINK_PREVIEW
    try:
        return await api.call(method, **message_params(text), **params)
    except BotApiError as error:
        if error.status != 400 or "entit" not in error.description.lower() or not text.entities:
            raise
        return await api.call(method, text=text.text, **params)
