"""What Telegram tells a bot, as far as it is listened to."""

import msgspec


class User(msgspec.Struct, frozen=True):
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


class Said(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """A message. Without a sender it is a channel's; without a text it is a picture, a voice and so on."""

    message_id: int
    chat: Chat
    sender: User | None = None
    text: str | None = None


class Press(msgspec.Struct, frozen=True, rename={"sender": "from"}):
    """A button was pressed, under a message of the bot's if that is still there."""

    id: str
    sender: User
    message: Said | None = None
    data: str = ""


class Update(msgspec.Struct, frozen=True):
    """Something has happened. Updates have rising numbers, and come again until a later one is asked for."""

    update_id: int
    message: Said | None = None
    callback_query: Press | None = None


class Place(msgspec.Struct, frozen=True):
    """The number of an update of which nothing else can be read."""

    update_id: int
