"""Full-text search with the index of the database.

Both databases score every passage that matches, so words that occur everywhere cost more than they contribute. If the
query has rarer words, only the rarest are searched for, and the number of passages that are scored is limited.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from atlas_agents.core.store import Where
from atlas_agents.storage.sql.tables import Row

MAX_WORDS = 32
_WORD = re.compile(r"[^\W_]+")


class CostLimits(NamedTuple):
    """Cost limits of a search. A word in `common_from` passages or more is common; rare words are searched for as long
    as they occur in no more than `max_scored` passages together."""

    common_from: int
    max_scored: int


def session_owners(tenant: str, session: str) -> str:
    """Return the words for the `owners` column of a text: one for its tenant, one for the user who owns the session."""
    owner, slash, _ = session.partition("/")
    own = f" {owner_word(tenant, 'session', owner + slash)}" if owner.startswith("@") and slash else ""
    return owner_word(tenant, "session") + own


def key_range(prefix: str) -> dict[str, str]:
    """Return the first key with a prefix, and the first one after them; keys are compared by code point."""
    return {"first": prefix, "end": prefix[:-1] + chr(ord(prefix[-1]) + 1)}


def choose_words(limits: CostLimits, wanted: Sequence[str], counts: Sequence[Row], any_of: str, all_of: str) -> str:
    """Build an expression: any of the rarest words or, if all words are common, all of them together."""
    rare: list[str] = []
    passages = 0
    for count, word in sorted(zip((count for (count,) in counts), wanted, strict=True), key=lambda pair: pair[0]):
        passages += count
        if count >= limits.common_from or (rare and passages > limits.max_scored):
            break
        rare.append(word)
    return any_of.join(rare) if rare else all_of.join(wanted)


def plain_words(words: Iterable[str]) -> list[str]:
    """Return the distinct runs of letters and digits, without characters that have a meaning in a query."""
    return list(dict.fromkeys(piece for word in words for piece in _WORD.findall(word)))


def scope_values(where: Where) -> dict[str, Any]:
    """Return the parameters of a statement that searches one collection or all."""
    return {"kind": where.kind, "any": where.collection is None, "collection": where.collection or ""}


def owner_words(tenant: str, kind: str, collection: str) -> str:
    """Return the words for the `owners` column of a passage: one for its tenant and kind, one for its collection."""
    return f"{owner_word(tenant, kind)} {owner_word(tenant, kind, collection)}"


def owner_word(*names: str) -> str:
    """Return the word for a tenant and a kind, or for a part of them."""
    lengths = ",".join(str(len(name)) for name in names)  # without them, two lists of names could give the same word
    return "o" + hashlib.sha256("\0".join((lengths, *names)).encode(errors="replace")).hexdigest()
