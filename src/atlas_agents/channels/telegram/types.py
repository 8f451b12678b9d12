"""Bot API objects that the channel reads, and its timing."""

from typing import Any

import msgspec


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


class TelegramTiming(msgspec.Struct, frozen=True):
    """Intervals in seconds. The default edit interval respects Telegram's limit of about one message a second."""

    edit: float = 1.5  # between two edits of a message
    typing: float = 4.5  # between two typing indicators
    poll: int = 50  # for which Telegram holds a long poll
    min_delay: float = 1.0  # before the first retry
    max_delay: float = 60.0
    watch: float = 1.0  # between two reads of the paired users


TIMING = TelegramTiming()
