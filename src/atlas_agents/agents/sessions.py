"""Sessions of a store: list, rename, read, fork, export, import and delete them."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.errors import BrokenHistory, ConfigError, Conflict, NotFound
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, find_unpaired, new_id
from atlas_agents.core.store import (
    UNREADABLE,
    AddMessage,
    DropSession,
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
_FORMAT = 1
_PAGE = 500


class SessionHeader(msgspec.Struct, frozen=True):
    """The first line of an exported session."""

    atlas_session: int
    key: str
    agent_id: str = ""
    label: str = ""
    metadata: dict[str, Any] = {}
    created_at: int = 0


class Sessions:
    """The stored sessions of an Atlas; every method requires a store."""

    def __init__(self, store: Store | None, tenant: str, on_delete: Callable[[str], None]) -> None:
        self._optional_store = store
        self._tenant = tenant
        self._on_delete = on_delete

    @property
    def _store(self) -> Store:
        if self._optional_store is None:
            raise ConfigError("sessions require a store: Atlas(store=…)")
        return self._optional_store

    async def list(self, *, limit: int = 100, before: int | None = None) -> Listed:
        """Return sessions, latest change first; `before` is an `updated_at` to continue from."""
        return await self._store.sessions(self._tenant, limit=limit, before=before)

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
        """Delete a session with its messages, but not its audit and usage rows; raises Conflict while a turn runs."""
        await self._store.commit(self._tenant, [DropSession(key)])
        self._on_delete(key)

    async def fork(self, key: str, at: str | None = None, *, to: str | None = None) -> Session:
        """Copy the messages up to and including message id `at` (default: all) into a new session.

        A fork at a message with tool calls also includes their results.
        """
        source, rows = await self.get(key), await self.messages(key)
        if at is not None:
            index = next((index for index, row in enumerate(rows) if row.id == at), None)
            if index is None:
                raise NotFound(f"not found: message {at!r} in session {key!r}")
            while index + 1 < len(rows) and rows[index].message.tool_calls:
                index += 1
            rows = rows[: index + 1]
        metadata = {**source.metadata, "forked_from": key, "forked_at": rows[-1].id if rows else None}
        header = SessionHeader(_FORMAT, to or new_id(), source.agent_id, source.label, metadata)
        return await self._write(header, [(row.id, row.body) for row in rows])

    async def export(self, key: str) -> AsyncGenerator[str, None]:
        """Yield the session as JSON lines: a header, then one message per line, byte for byte as stored.

        A message that cannot be read is replaced by a note.
        """
        session = await self.get(key)
        yield encode(
            SessionHeader(_FORMAT, key, session.agent_id, session.label, session.metadata, session.created_at)
        ).decode()
        seq = 0
        while rows := await self._store.messages(self._tenant, key, after=seq, limit=_PAGE):
            for row in rows:
                message = row.message
                yield (message.to_json() if UNREADABLE in message.metadata else row.body).decode()
            seq = rows[-1].seq

    async def load(self, lines: Iterable[str] | AsyncIterable[str], *, key: str | None = None) -> Session:
        """Import exported lines as a new session, under its own key or another; raises Conflict if the key is taken."""
        header: SessionHeader | None = None
        messages: Messages = []
        number = 0
        async for line in _iterate(lines):
            number += 1
            if header is None:
                header = _header(line)
            elif line.strip():
                messages.append(_message(line, number))
        if header is None:
            raise ConfigError("nothing to import: expected a session header in the first line")
        broken = find_unpaired(messages)
        if broken is not None:
            raise BrokenHistory(f"line {broken + 2}: a tool call without its result, or a result without its call")
        header = msgspec.structs.replace(header, key=key or header.key)
        return await self._write(header, [(message.id, message.to_json()) for message in messages])

    async def _write(self, header: SessionHeader, messages: Bodies) -> Session:
        """Create the session in one transaction."""
        if await self._store.session(self._tenant, header.key) is not None:
            raise Conflict(f"session {header.key!r} already exists: choose another key")
        writes: Writes = [PutSession(header.key, header.agent_id, header.label, False, header.metadata)]
        writes += [AddMessage(header.key, id, body) for id, body in messages]
        results = await self._store.commit(self._tenant, writes)
        return await self.get(results[0].key)


async def _iterate(lines: Iterable[str] | AsyncIterable[str]) -> AsyncGenerator[str, None]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    else:
        for line in lines:
            yield line


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
