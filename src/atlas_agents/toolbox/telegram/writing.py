"""Writing into a chat: one message, sent or changed."""

from typing import Any

import msgspec

from atlas_agents.toolbox.telegram.api import BotApi, BotRefused
from atlas_agents.toolbox.telegram.markdown import Styled
from atlas_agents.toolbox.telegram.pieces import as_params

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
