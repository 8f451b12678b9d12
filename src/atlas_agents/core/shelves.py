"""Documents on shelves: what is kept of all that can be searched, be it a file that was read or one memory.

A document is cut into passages; a passage is what is found. The shelf is a document's category or, for a memory, whose
it is: who asks for one shelf never sees what stands on another.
"""

from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["knowledge", "memory"]


class Document(msgspec.Struct, frozen=True):
    """`hash` is that of the content, and empty while not all passages are there; `model` is what made the vectors."""

    kind: Kind
    id: str
    shelf: str = ""
    source: str = ""
    title: str = ""
    hash: str = ""
    model: str = ""
    about: bytes = b"{}"
    """What else is to be known about it, as JSON."""
    passages: int = 0
    created_at: int = 0


class Passage(msgspec.Struct, frozen=True):
    """A piece of a document: the headings it stands under, and where it is. `vector` holds 16-bit floats, or none."""

    heading: str
    text: str
    position: str = ""
    vector: bytes = b""


class PassageRow(msgspec.Struct, frozen=True):
    """A passage that is kept."""

    id: int
    document: str
    shelf: str
    place: int
    heading: str
    text: str
    position: str


class Hit(msgspec.Struct, frozen=True):
    """A passage that fits; the higher the score the better. Scores are comparable within one answer."""

    passage: int
    score: float


class Where(msgspec.Struct, frozen=True):
    """What to look through: one shelf, or with None all of them."""

    kind: Kind
    shelf: str | None = None


class PutDocument(msgspec.Struct, frozen=True, tag=True):
    """Keep a document with its first passages; if one of this id is there, it is replaced whole. Its row is the result.

    Under the `hash` "" more passages are to follow.
    """

    document: Document
    passages: tuple[Passage, ...] = ()


class AddPassages(msgspec.Struct, frozen=True, tag=True):
    """Keep further passages of a document; with the last ones comes its hash. Its row is the result."""

    kind: Kind
    id: str
    passages: tuple[Passage, ...]
    hash: str = ""


class DropDocument(msgspec.Struct, frozen=True, tag=True):
    """Remove a document and all of its passages. One that stands on another shelf than the named one is `NotStored`,
    like one that never was."""

    kind: Kind
    id: str
    shelf: str | None = None
