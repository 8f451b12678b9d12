"""What a store may forget of runs that ended long ago: what they said, and the steps in which they came about."""

from typing import Literal, TypeAlias

import msgspec

Forgettable: TypeAlias = Literal["events", "journal"]


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Remove events or journals of runs that ended, and said their last, before a moment; what is oldest goes first.

    At most `limit` rows, of at most `runs` runs, so that nobody has to wait for it; what was removed is the result, and
    where that is nothing, nothing is left to remove. A run loses its last rows first: whoever asks for it in between
    finds no last word, so that one is said anew.
    """

    what: Forgettable
    before: int
    limit: int = 1000
    runs: int = 20


class Forgotten(msgspec.Struct, frozen=True):
    """How many runs have nothing of it any more, how many rows that were, and how many bytes stood in them."""

    runs: int = 0
    rows: int = 0
    size: int = 0

    def __bool__(self) -> bool:
        return self.runs > 0 or self.rows > 0

    def __add__(self, more: "Forgotten") -> "Forgotten":
        return Forgotten(self.runs + more.runs, self.rows + more.rows, self.size + more.size)
