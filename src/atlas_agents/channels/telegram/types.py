"""How fast the channel goes."""

import msgspec


class TelegramUser(msgspec.Struct, frozen=True):
    """A person, or a bot."""

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
    """A message. Without a sender it is a channel's; without a text it is a picture, a voice and so on."""

    message_id: int
    chat: Chat
    sender: TelegramUser | None = None
    text: str | None = None


class Press(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """A button was pressed, under a message of the bot's if that is still there."""

    id: str
    sender: TelegramUser
    message: TelegramMessage | None = None
    data: str = ""


class Update(msgspec.Struct, frozen=True):
    """Something has happened. Updates have rising numbers, and come again until a later one is asked for."""

    update_id: int
    message: TelegramMessage | None = None
    callback_query: Press | None = None


class UpdateId(msgspec.Struct, frozen=True):
    """The number of an update of which nothing else can be read."""

    update_id: int


class TelegramTiming(msgspec.Struct, frozen=True):
    """Seconds: between two changes of a message, between two signs that somebody types, that Telegram may hold a
    question for news, and before another try, at first and at most."""

    edit: float = 1.5
    typing: float = 4.5
    poll: int = 50
    first: float = 1.0
    most: float = 60.0
    watch: float = 1.0


PACE = TelegramTiming()
"""Telegram lets a bot write about once a second in a chat."""
