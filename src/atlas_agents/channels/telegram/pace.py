"""How fast the channel goes."""

import msgspec


class Pace(msgspec.Struct, frozen=True):
    """Seconds: between two changes of a message, between two signs that somebody types, that Telegram may hold a
    question for news, and before another try, at first and at most."""

    edit: float = 1.5
    typing: float = 4.5
    poll: int = 50
    first: float = 1.0
    most: float = 60.0
    watch: float = 1.0


PACE = Pace()
"""Telegram lets a bot write about once a second in a chat."""
