"""Telegram: its bot API, texts as it takes them, and the tool that sends a message."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from atlas_agents.builtin_tools.telegram_api import BotApi, BotRefused, BotUnreachable, send
from atlas_agents.builtin_tools.telegram_format import Styled, pieces, styled
from atlas_agents.core.errors import OutcomeUnknown, ToolFailed, Transient
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool, tool

NAME = "send_telegram_message"
"""Name of the tool."""
KEYWORDS = ("telegram", "notify me", "ping me", "alert me")
"""Words of a user on which the tool is offered."""
_PATIENCE = 60.0
_TIMEOUT = 120.0
_UNSET = (
    "Telegram is not set up here: set ATLAS_TELEGRAM_TOKEN to the token of a bot, and ATLAS_TELEGRAM_CHAT to a chat."
)
_NO_CHAT = "No chat was named, and there is no default: give chat_id, or set ATLAS_TELEGRAM_CHAT."
Words = Annotated[str, Field(min_length=1, max_length=40_000)]
Chat = Annotated[str, Field(pattern=r"^(-?[0-9]{1,20}|@[A-Za-z][A-Za-z0-9_]{3,31})$")]


def telegram_tool(api: BotApi | None, chat: str | None = None) -> Tool:
    """The tool of a bot. Without one it is there all the same, and says what to set."""

    @tool(name=NAME, effect="unsafe", timeout=_TIMEOUT)
    async def send_telegram_message(
        message: Words, context: ToolContext, chat_id: Chat | None = None
    ) -> dict[str, Any]:
        """Send a message to a Telegram chat.

        Args:
            message: What to send; Markdown is shown as such. Long texts become several messages.
            chat_id: The chat, as a number or as @channel; without it the message goes to the user's own chat.
        """
        if api is None:
            raise ToolFailed(_UNSET)
        to = chat_id or chat
        if not to:
            raise ToolFailed(_NO_CHAT)
        parts = pieces(styled(message))
        if not parts:
            raise ToolFailed("There is nothing to send: the message is blank.")
        return {"chat_id": to, "message_ids": await _send_all(api, to, parts, context), "parts": len(parts)}

    return send_telegram_message


async def _send_all(api: BotApi, chat: str, parts: Sequence[Styled], context: ToolContext) -> list[int]:
    sent: list[int] = []
    for number, part in enumerate(parts, 1):
        if len(parts) > 1:
            context.progress(f"sending part {number} of {len(parts)}")
        try:
            sent.append(await send(api, chat, part, patience=_PATIENCE))
        except BotRefused as refused:
            raise _failed(refused.advice, sent, parts) from None
        except BotUnreachable as lost:
            if lost.sent:
                words = f"{lost}: part {number} of {len(parts)} may have been sent. It was not sent again."
                raise OutcomeUnknown(_told(words, sent, parts)) from None
            raise _failed(f"{lost}.", sent, parts, again=True) from None
    return sent


def _failed(words: str, sent: list[int], parts: Sequence[Styled], *, again: bool = False) -> ToolFailed:
    if not sent and again:
        return Transient(f"{words} Nothing was sent.")
    return ToolFailed(_told(words, sent, parts))


def _told(words: str, sent: list[int], parts: Sequence[Styled]) -> str:
    """What went wrong, and what is in the chat already."""
    if not sent:
        return words if "may have been sent" in words else f"{words} Nothing was sent."
    numbers = ", ".join(map(str, sent))
    return f"{words} {len(sent)} of {len(parts)} parts are in the chat already (messages {numbers}) and stay there."
