"""Sessions of a store: list, rename, read, fork, export, import and delete them, and make their titles."""

import logging
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import Any, TypeAlias, TypeVar

import msgspec

from atlas_agents.core.aio import TimeSlices, finish_despite_cancel
from atlas_agents.core.errors import BrokenHistory, ConfigError, Conflict, NotFound
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, new_id
from atlas_agents.core.store import (
    UNREADABLE,
    AddMessages,
    DropMessages,
    DropSession,
    NameSession,
    PutSession,
    Session,
    Store,
    StoredMessage,
    Write,
)

Listed: TypeAlias = list[Session]
Rows: TypeAlias = list[StoredMessage]
Messages: TypeAlias = list[Message]
Writes: TypeAlias = list[Write]
Bodies: TypeAlias = list[tuple[str, bytes]]
T = TypeVar("T")
_FORMAT = 1
_PAGE = 500
_BATCH, _BATCH_BYTES = 200, 256 * 1024
"""Maximum number of messages, and of bytes, per commit."""
_MAX_LABEL = 60
_SHORTEST_TITLE = 8
_CODE_BLOCK = re.compile(r"```.*?(?:```|$)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MARKUP = re.compile(r"^[#>*\-\s]+|[*`]+")
_SENTENCE = re.compile(r".{12,}?[.!?](?=\s|$)")
_OPENING = re.compile(
    r"^(?:(?:hi|hello|hey|please|can you|could you|would you|i want you to)\b[,!\s]*)+", re.IGNORECASE
)
_FIRST_ROWS = 10
"""Number of messages that are searched for the first message of a person."""
logger = logging.getLogger(__name__)
INCOMPLETE = "incomplete"
"""Key in the metadata of a session whose messages are still being written."""


class SessionHeader(msgspec.Struct, frozen=True):
    """The first line of an exported session."""

    atlas_session: int
    key: str
    agent_id: str = ""
    label: str = ""
    metadata: dict[str, Any] = {}
    created_at: int = 0


class Sessions:
    """The stored sessions of an Atlas, `atlas.sessions`; every method requires a store."""

    def __init__(self, store: Store | None, tenant: str, on_delete: Callable[[str], None]) -> None:
        self._optional_store = store
        self._tenant = tenant
        self._on_delete = on_delete
        self._on_named: list[Callable[[str], object]] = []

    @property
    def _store(self) -> Store:
        if self._optional_store is None:
            raise ConfigError("sessions require a store: Atlas(store=…)")
        return self._optional_store

    async def list(
        self, *, limit: int = 100, before: int | None = None, before_key: str = "", prefix: str = ""
    ) -> Listed:
        """Return sessions, latest change first; with `prefix`, only those whose keys start with it.

        To continue, pass the `updated_at` and the key of the last one as `before` and `before_key`.
        """
        return await self._store.sessions(
            self._tenant, limit=limit, before=before, before_key=before_key, prefix=prefix
        )

    async def get(self, key: str) -> Session:
        """Return a session; raises NotFound if there is none."""
        found = await self._store.session(self._tenant, key)
        if found is None:
            raise NotFound(f"not found: session {key!r}")
        return found

    async def put(
        self,
        key: str | None = None,
        *,
        agent_id: str | None = None,
        label: str | None = None,
        archived: bool | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Session:
        """Create or update a session; fields that are None stay unchanged."""
        (session,) = await self._store.commit(
            self._tenant, [PutSession(key or new_id(), agent_id, label, archived, metadata)]
        )
        return session

    async def name(self, key: str, label: str, replaces: str = "") -> Session | None:
        """Name a session that has no name, or the name `replaces`; None if it was deleted or has another name."""
        (session,) = await self._store.commit(self._tenant, [NameSession(key, label, replaces)])
        if session is not None:
            for callback in self._on_named:
                callback(key)
        return session

    def on_named(self, callback: Callable[[str], object]) -> None:
        """Internal: call a function with the key of each session that `name` has named."""
        self._on_named.append(callback)

    async def first_text(self, key: str) -> str:
        """Return a person's first message in the session, from which its name is made; empty if there is none."""
        rows = await self._store.messages(self._tenant, key, limit=_FIRST_ROWS)
        messages = [row.message for row in rows]
        return next((each.text for each in messages if each.role == "user" and not each.metadata.get("synthetic")), "")

    async def messages(
        self, key: str, *, before: int | None = None, after: int = 0, limit: int | None = None, last: bool = False
    ) -> Rows:
        """Return messages in order; of more than `limit` the first ones, or the last ones with `last`."""
        await self.get(key)
        return await self._store.messages(self._tenant, key, after=after, before=before, limit=limit, last=last)

    async def history(self, key: str) -> Messages:
        """Return the whole conversation."""
        return [row.message for row in await self.messages(key)]

    async def delete(self, key: str) -> None:
        """Delete a session with its messages, but not its audit and usage rows; raises Conflict while a turn runs.

        Many messages are deleted in several commits, so that other writes do not wait for all of them. After a crash in
        between, the session is in the archive and can be deleted again.
        """
        rows = await self._store.messages(self._tenant, key, limit=1, last=True)
        last, writes = (
            rows[-1].seq if rows else 0,
            Writes([PutSession(key, archived=True, metadata={INCOMPLETE: True})]),
        )
        while last > 2 * _PAGE:
            last -= _PAGE
            await self._store.commit(self._tenant, [*writes, DropMessages(key, last)])
            writes.clear()
        await self._store.commit(self._tenant, [DropSession(key)])
        self._on_delete(key)

    async def fork(self, key: str, at: str | None = None, *, to: str | None = None) -> Session:
        """Copy the messages up to and including message id `at` (default: all) into a new session.

        A fork at a message with tool calls also includes their results.
        """
        source, last = await self.get(key), await self._find_fork(key, at)
        metadata = {**source.metadata, "forked_from": key, "forked_at": last.id if last else None}
        header = SessionHeader(_FORMAT, to or new_id(), source.agent_id, source.label, metadata)
        return await self._create(header, self._copy(key, last.seq if last else 0))

    async def _find_fork(self, key: str, at: str | None) -> StoredMessage | None:
        """Return the last message that a fork contains; None if it contains none."""
        if at is None:
            return next(iter(await self.messages(key, limit=1, last=True)), None)
        found: StoredMessage | None = None
        async for row in self._pages(key):
            if found is not None and not found.message.tool_calls:
                break
            if found is not None or row.id == at:
                found = row
        if found is None:
            raise NotFound(f"not found: message {at!r} in session {key!r}")
        return found

    async def _copy(self, key: str, end: int) -> AsyncGenerator[tuple[str, bytes], None]:
        async for row in self._pages(key):
            if row.seq > end:
                return
            yield row.id, row.body

    async def _pages(self, key: str, seq: int = 0) -> AsyncGenerator[StoredMessage, None]:
        """Yield the messages of a session after a number, reading a page at a time."""
        slices = TimeSlices()
        while rows := await self._store.messages(self._tenant, key, after=seq, limit=_PAGE):
            for row in rows:
                yield row
                await slices.pause()
            seq = rows[-1].seq

    async def export(self, key: str, *, after: int = 0) -> AsyncGenerator[str, None]:
        """Yield the session as JSON lines: a header, then one message per line, byte for byte as stored.

        A message that cannot be read is replaced by a note. The first `after` lines are skipped.
        """
        session = await self.get(key)
        if not after:
            yield encode(
                SessionHeader(_FORMAT, key, session.agent_id, session.label, session.metadata, session.created_at)
            ).decode()
        async for row in self._pages(key, max(0, after - 1)):  # messages are numbered from 1 without gaps
            message = row.message
            yield (message.to_json() if UNREADABLE in message.metadata else row.body).decode()

    async def load(
        self, lines: Iterable[str] | AsyncIterable[str], *, key: str | None = None, system: bool = True
    ) -> Session:
        """Import exported lines as a new session, under its own key or another; raises Conflict if the key is taken.

        Everything is checked before anything is written. With `system=False`, messages with the role `system` are
        refused, because a model obeys them more than it obeys a user.
        """
        header: SessionHeader | None = None
        bodies: dict[str, bytes] = {}
        number, expected, slices = 0, (), TimeSlices()
        async for line in _iterate(lines):
            number += 1
            if header is None:
                header = _header(line)
            elif line.strip():
                message = _message(line, number)
                if message.role == "system" and not system:
                    raise ConfigError(f"line {number}: the role 'system' is not allowed here; remove this message")
                calls, answered = message.pairing
                if answered != expected:
                    raise _unpaired(number)
                expected = calls
                bodies.setdefault(message.id, message.to_json())
            await slices.pause()
        if header is None:
            raise ConfigError("nothing to import: expected a session header in the first line")
        if expected:
            raise _unpaired(number + 1)
        return await self._create(msgspec.structs.replace(header, key=key or header.key), _iterate(bodies.items()))

    async def _create(self, header: SessionHeader, messages: AsyncGenerator[tuple[str, bytes], None]) -> Session:
        """Create a session, in several commits if it is large, so that other writes do not wait for all of it.

        Until the last commit it is in the archive and marked as incomplete. If a crash leaves it there, the next try
        replaces it.
        """
        existing = await self._store.session(self._tenant, header.key)
        if existing is not None and INCOMPLETE not in existing.metadata:
            raise Conflict(f"session {header.key!r} already exists: choose another key")
        if existing is not None:
            await self.delete(header.key)
        final, writes = PutSession(header.key, header.agent_id, header.label, False, header.metadata), Writes()
        batch, size = Bodies(), 0
        try:
            async for id, body in messages:
                batch.append((id, body))
                size += len(body)
                if len(batch) >= _BATCH or size >= _BATCH_BYTES:
                    first = (
                        [] if writes else [msgspec.structs.replace(final, archived=True, metadata={INCOMPLETE: True})]
                    )
                    writes = [*first, AddMessages(header.key, tuple(batch))]
                    await self._store.commit(self._tenant, writes)
                    batch, size = Bodies(), 0
            last = AddMessages(header.key, tuple(batch))
            await self._store.commit(self._tenant, [last, final] if writes else [final, last])
        except BaseException:
            if writes:
                await finish_despite_cancel(self.delete(header.key))
            raise
        return await self.get(header.key)


async def _iterate(items: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[T, None]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _unpaired(number: int) -> BrokenHistory:
    return BrokenHistory(f"line {number}: a tool call without its result, or a result without its call")


def _header(line: str) -> SessionHeader:
    try:
        header = msgspec.json.decode(line, type=SessionHeader)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"line 1: expected the header of an exported session ({error})") from error
    if header.atlas_session != _FORMAT:
        raise ConfigError(f"line 1: unsupported format {header.atlas_session}, expected {_FORMAT}")
    return header


def _message(line: str, number: int) -> Message:
    try:
        return Message.from_json(line.encode())
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"line {number}: expected a message ({error})") from error


def make_title(text: str) -> str:
    """Make a title of a message: its first sentence without markup and polite openings, cut between words."""
    plain = " ".join(_CODE_BLOCK.sub(" ", text).split()) or " ".join(text.split())
    plain = _MARKUP.sub("", _LINK.sub(r"\1", plain)).strip()
    sentence = _SENTENCE.match(plain)
    title = sentence[0] if sentence else plain
    asked = _OPENING.sub("", title)
    if asked != title and len(asked) >= _SHORTEST_TITLE:
        title = asked[0].upper() + asked[1:]
    title = title if len(title) <= _MAX_LABEL else title[: _MAX_LABEL - 1].rsplit(" ", 1)[0].rstrip(",;:") + "…"
    return title[:_MAX_LABEL].removesuffix(".")
