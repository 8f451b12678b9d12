"""`send_telegram_message`: the tool that sends a message to a Telegram chat."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from atlas_agents.builtin_tools.telegram_api import BotApi, BotApiError, BotUnreachable, send_message
from atlas_agents.builtin_tools.telegram_format import FormattedText, parse_markdown, split_message
from atlas_agents.core.errors import OutcomeUnknown, ToolFailed, Transient
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool, tool

NAME = "send_telegram_message"
"""Name of the tool."""
KEYWORDS = ("telegram", "notify me", "ping me", "alert me")
"""Phrases in a user's message that make the tool available."""
_MAX_RATE_LIMIT_WAIT = 60.0
_TIMEOUT = 120.0
_NOT_CONFIGURED = "Telegram is not configured: add a bot in Settings, Channels, or set ATLAS_TELEGRAM_TOKEN."
_NO_CHAT = "No chat given and no default chat: pass chat_id, pair one person with the bot, or set ATLAS_TELEGRAM_CHAT."
MessageText = Annotated[str, Field(min_length=1, max_length=40_000)]
ChatId = Annotated[str, Field(pattern=r"^(-?[0-9]{1,20}|@[A-Za-z][A-Za-z0-9_]{3,31})$")]


def telegram_tool(
    bot: BotApi | Callable[[], BotApi | None] | None, chat: str | Callable[[], str | None] | None = None
) -> Tool:
    """Create the tool for a bot and its default chat, each a value or a function that is asked at every call.

    Without a bot the tool fails and says how to set one.
    """

    @tool(name=NAME, effect="unsafe", timeout=_TIMEOUT, sends=True)
    async def send_telegram_message(
        message: MessageText, context: ToolContext, chat_id: ChatId | None = None
    ) -> dict[str, Any]:
        """Send a message to a Telegram chat.

        Args:
            message: The text to send, as Markdown. Long texts are split into several messages.
            chat_id: The chat, as a number or as @channel. Default: the user's own chat.
        """
        api = bot() if callable(bot) else bot
        if api is None:
            raise ToolFailed(_NOT_CONFIGURED)
        to = chat_id or (chat() if callable(chat) else chat)
        if not to:
            raise ToolFailed(_NO_CHAT)
        parts = split_message(parse_markdown(message))
        if not parts:
            raise ToolFailed("Nothing to send: the message is blank.")
        return {"chat_id": to, "message_ids": await _send_all(api, to, parts, context), "parts": len(parts)}

    return send_telegram_message


async def _send_all(api: BotApi, chat: str, parts: Sequence[FormattedText], context: ToolContext) -> list[int]:
    sent: list[int] = []
    for number, part in enumerate(parts, 1):
        if len(parts) > 1:
            context.progress(f"sending part {number} of {len(parts)}")
        try:
            sent.append(await send_message(api, chat, part, max_wait=_MAX_RATE_LIMIT_WAIT))
        except BotApiError as error:
            raise ToolFailed(f"{error.advice} {_describe_sent(sent, parts)}") from None
        except BotUnreachable as error:
            if error.sent:
                message = f"{error}: part {number} of {len(parts)} may have been sent. It was not sent again."
                raise OutcomeUnknown(f"{message} {_describe_sent(sent, parts)}" if sent else message) from None
            failure = ToolFailed if sent else Transient
            raise failure(f"{error}. {_describe_sent(sent, parts)}") from None
    return sent


def _describe_sent(sent: list[int], parts: Sequence[FormattedText]) -> str:
    if not sent:
        return "Nothing was sent."
    return f"{len(sent)} of {len(parts)} parts were already sent (messages {', '.join(map(str, sent))})."
