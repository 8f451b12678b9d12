"""The words of an index of words: those that are looked for, and those that say whose a passage is."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from atlas_agents.core.shelves import Where

_WORD = re.compile(r"[^\W_]+")


def plain(words: Iterable[str]) -> list[str]:
    """Letters and digits alone, each word once: nothing that means something in a query."""
    return list(dict.fromkeys(piece for word in words for piece in _WORD.findall(word)))


def on_shelf(where: Where) -> dict[str, Any]:
    """The values of a statement that looks at one shelf or at all."""
    return {"kind": where.kind, "any": where.shelf is None, "shelf": where.shelf or ""}


def owners_of(tenant: str, kind: str, shelf: str) -> str:
    """Two words: one for all that a tenant has of a kind, one for a shelf alone."""
    return f"{_word(tenant, kind)} {_word(tenant, kind, shelf)}"


def owner_of(tenant: str, where: Where) -> str:
    """The word that every passage there has, and no other."""
    return _word(tenant, where.kind) if where.shelf is None else _word(tenant, where.kind, where.shelf)


def _word(*names: str) -> str:
    lengths = ",".join(str(len(name)) for name in names)  # or two names could pass for one
    return "o" + hashlib.sha256("\0".join((lengths, *names)).encode(errors="replace")).hexdigest()
