"""The sessions of a store: to list, name, read, fork, carry elsewhere and remove."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.errors import BrokenHistory, ConfigError, Conflict, NotStored
from atlas_agents.core.ids import new_id
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, broken_at
from atlas_agents.core.store import AddMessage, DropSession, PutSession, Session, Store, StoredMessage, Write

Listed: TypeAlias = list[Session]
Rows: TypeAlias = list[StoredMessage]
Messages: TypeAlias = list[Message]
Writes: TypeAlias = list[Write]
Bodies: TypeAlias = list[tuple[str, bytes]]
_FORMAT = 1
_PAGE = 500


class Header(msgspec.Struct, frozen=True):
    """The first line of an exported session."""

    atlas_session: int
    key: str
    agent_id: str = ""
    label: str = ""
    metadata: dict[str, Any] = {}
    created_at: int = 0


class Sessions:
    """What an Atlas keeps, by session. Without a store there is nothing to ask for."""

    def __init__(self, store: Store | None, tenant: str, forget: Callable[[str], None]) -> None:
        self._given = store
        self._tenant = tenant
        self._forget = forget

    @property
    def _store(self) -> Store:
        if self._given is None:
            raise ConfigError("this Atlas keeps nothing: give it a store, Atlas(store=…)")
        return self._given

    async def list(self, *, limit: int = 100, before: int | None = None) -> Listed:
        """The latest changed first; `before` is the `updated_at` to go on from."""
        return await self._store.sessions(self._tenant, limit=limit, before=before)

    async def get(self, key: str) -> Session:
        """NotStored if there is none."""
        found = await self._store.session(self._tenant, key)
        if found is None:
            raise NotStored(f"there is no session {key!r}")
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
        """Make a session, or change one: what is None stays."""
        (session,) = await self._store.commit(
            self._tenant, [PutSession(key or new_id(), agent_id, label, archived, metadata)]
        )
        return session

    async def messages(
        self, key: str, *, before: int | None = None, after: int = 0, limit: int | None = None, last: bool = False
    ) -> Rows:
        """In order; of more than `limit` the first ones, or the `last`."""
        await self.get(key)
        return await self._store.messages(self._tenant, key, after=after, before=before, limit=limit, last=last)

    async def history(self, key: str) -> Messages:
        """The whole conversation."""
        return [Message.from_json(row.body) for row in await self.messages(key)]

    async def delete(self, key: str) -> None:
        """Remove a session and all it said; the audit log and the usage stay. Conflict while a turn is under way."""
        await self._store.commit(self._tenant, [DropSession(key)])
        self._forget(key)

    async def fork(self, key: str, at: str | None = None, *, to: str | None = None) -> Session:
        """A new session with all messages up to and with `at`, a message's id; without one, all of them.

        A fork between a call and its results goes on after the results: no call is left without an answer.
        """
        source, rows = await self.get(key), await self.messages(key)
        if at is not None:
            place = next((place for place, row in enumerate(rows) if row.id == at), None)
            if place is None:
                raise NotStored(f"the session {key!r} has no message {at!r}")
            while place + 1 < len(rows) and Message.from_json(rows[place].body).tool_calls:
                place += 1
            rows = rows[: place + 1]
        metadata = {**source.metadata, "forked_from": key, "forked_at": rows[-1].id if rows else None}
        header = Header(_FORMAT, to or new_id(), source.agent_id, source.label, metadata)
        return await self._write(header, [(row.id, row.body) for row in rows])

    async def export(self, key: str) -> AsyncGenerator[str, None]:
        """The session as JSON lines: one that says what it is, then a message each, byte for byte as it is kept."""
        session = await self.get(key)
        yield encode(
            Header(_FORMAT, key, session.agent_id, session.label, session.metadata, session.created_at)
        ).decode()
        seq = 0
        while rows := await self._store.messages(self._tenant, key, after=seq, limit=_PAGE):
            for row in rows:
                yield row.body.decode()
            seq = rows[-1].seq

    async def load(self, lines: Iterable[str] | AsyncIterable[str], *, key: str | None = None) -> Session:
        """Make a session of exported lines, under its own key or another; one that is there stays as it is."""
        header: Header | None = None
        messages: Messages = []
        number = 0
        async for line in _each(lines):
            number += 1
            if header is None:
                header = _header(line)
            elif line.strip():
                messages.append(_message(line, number))
        if header is None:
            raise ConfigError("there is nothing to import: the first line must say what session it is")
        place = broken_at(messages)
        if place is not None:
            raise BrokenHistory(f"line {place + 2}: a call without its result, or a result without its call")
        header = msgspec.structs.replace(header, key=key or header.key)
        return await self._write(header, [(message.id, message.to_json()) for message in messages])

    async def _write(self, header: Header, messages: Bodies) -> Session:
        """All of it or nothing."""
        if await self._store.session(self._tenant, header.key) is not None:
            raise Conflict(f"there is a session {header.key!r} already: give it another key")
        writes: Writes = [PutSession(header.key, header.agent_id, header.label, False, header.metadata)]
        writes += [AddMessage(header.key, id, body) for id, body in messages]
        results = await self._store.commit(self._tenant, writes)
        return await self.get(results[0].key)


async def _each(lines: Iterable[str] | AsyncIterable[str]) -> AsyncGenerator[str, None]:
    if isinstance(lines, AsyncIterable):
        async for line in lines:
            yield line
    else:
        for line in lines:
            yield line


def _header(line: str) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"line 1: this is no exported session ({error})") from error
    if header.atlas_session != _FORMAT:
        raise ConfigError(f"line 1: the format {header.atlas_session} is not known; this version reads {_FORMAT}")
    return header


def _message(line: str, number: int) -> Message:
    try:
        return Message.from_json(line.encode())
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"line {number}: this is no message ({error})") from error
