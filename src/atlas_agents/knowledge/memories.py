"""Memories: what an agent has noted about its work with one person. They belong to these two, and to their tenant."""

import hashlib
from collections.abc import Sequence

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import encode
from atlas_agents.core.shelves import Document, DropDocument, Passage, PutDocument, Where
from atlas_agents.core.store import Store
from atlas_agents.knowledge.embedding import Embedder
from atlas_agents.knowledge.search import Searcher

LONGEST = 4_000
_MOST_TAGS = 10
_LONGEST_TAG = 40


class Whose(msgspec.Struct, frozen=True):
    """An agent and the person it works for."""

    tenant: str
    agent_id: str
    user: str = ""

    @property
    def shelf(self) -> str:
        """Where their memories stand; no two pairs share one, whatever their names are."""
        return encode([self.agent_id, self.user]).decode()


class Memory(msgspec.Struct, frozen=True):
    """One memory, and where it comes from: the run, the session and the call in which it was noted, and when."""

    id: str
    text: str
    tags: tuple[str, ...] = ()
    agent_id: str = ""
    user: str = ""
    run_id: str = ""
    session: str = ""
    call_id: str = ""
    created_at: int = 0


class Origin(msgspec.Struct, frozen=True):
    """Where a memory comes from; `key` names it, so that noting it twice under one key is noting it once."""

    key: str
    run_id: str = ""
    session: str = ""
    call_id: str = ""


class Memories:
    """Those of all tenants; each verb names whose are meant, and no other is touched."""

    def __init__(self, store: Store, embedder: Embedder | None) -> None:
        self._store = store
        self._embedder = embedder
        self._searcher = Searcher(store, embedder)

    async def remember(self, whose: Whose, text: str, tags: Sequence[str], origin: Origin) -> Memory:
        """Note something. It is kept when this returns."""
        memory = Memory(
            _id(whose, origin.key),
            _checked(text),
            _tags(tags),
            whose.agent_id,
            whose.user,
            origin.run_id,
            origin.session,
            origin.call_id,
        )
        vector = b""
        if self._embedder is not None:
            (vector,) = await self._embedder.embed([memory.text])
        document = Document(
            "memory",
            memory.id,
            whose.shelf,
            hash=hashlib.sha256(memory.text.encode(errors="replace")).hexdigest(),
            model=self._embedder.model if self._embedder is not None else "",
            about=encode(memory),
        )
        passage = Passage(" ".join(memory.tags), memory.text, "", vector)
        (kept,) = await self._store.commit(whose.tenant, [PutDocument(document, (passage,))])
        return _memory(kept)

    async def forget(self, whose: Whose, id: str) -> None:
        """Remove a memory; NotStored if there is none of theirs with this id, whoever else may have one."""
        await self._store.commit(whose.tenant, [DropDocument("memory", id, whose.shelf)])

    async def search(self, whose: Whose, question: str, most: int) -> list[tuple[Memory, float]]:
        """The memories that fit best, with their scores."""
        found = await self._searcher.search(whose.tenant, Where("memory", whose.shelf), question, most)
        return [(_memory(each.document), each.score) for each in found]

    async def all(self, whose: Whose) -> list[Memory]:
        """The latest first."""
        found = await self._store.documents(whose.tenant, Where("memory", whose.shelf))
        return sorted(map(_memory, found), key=lambda memory: -memory.created_at)


def _memory(document: Document) -> Memory:
    memory = msgspec.json.decode(document.about, type=Memory)
    return msgspec.structs.replace(memory, created_at=document.created_at)


def _id(whose: Whose, key: str) -> str:
    return "m" + hashlib.sha256(encode([whose.shelf, key])).hexdigest()[:20]


def _checked(text: str) -> str:
    words = text.replace("\0", " ").strip()
    if not words:
        raise ConfigError("there is nothing to remember: the text is empty")
    if len(words) > LONGEST:
        raise ConfigError(f"a memory has at most {LONGEST:,} characters, and this has {len(words):,}: say it in fewer")
    return words


def _tags(tags: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(" ".join(tag.split())[:_LONGEST_TAG] for tag in tags if tag.strip()))
    return found[:_MOST_TAGS]
