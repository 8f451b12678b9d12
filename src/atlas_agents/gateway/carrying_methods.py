"""`sessions.export` and `sessions.import`: a session as lines of text, carried from one place to another."""

import msgspec

from atlas_agents.core.errors import BrokenHistory, Conflict, NotStored
from atlas_agents.engine.sessions import Header
from atlas_agents.gateway.connection import Connection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.protocol.chat import Key
from atlas_agents.gateway.protocol.faults import Fault, not_found
from atlas_agents.gateway.protocol.sessions import Exported, Imported, SessionsExport, SessionsImport

_PAGE_BYTES = 512 * 1024
_LARGEST = 64 * 1024 * 1024


def add_carrying_methods(methods: Methods) -> None:
    methods.add("sessions.export")(write_out)
    methods.add("sessions.import")(read_in)


async def write_out(caller: Connection, params: SessionsExport) -> Exported:
    """As many lines as fit into a frame; the first of all says what session it is, by the caller's name for it."""
    key, lines, size, number = caller.who.prefix + params.session_key, list[str](), 0, 0
    try:
        async for line in caller.hub.atlas.sessions.export(key):
            number += 1
            if number <= params.after:
                continue
            if lines and size + len(line) > _PAGE_BYTES:
                return Exported(tuple(lines), number - 1)
            lines.append(_renamed(line, params.session_key) if number == 1 else line)
            size += len(line)
    except NotStored:
        raise not_found("SESSION") from None
    return Exported(tuple(lines))


async def read_in(caller: Connection, params: SessionsImport) -> Imported:
    """Take a piece; with the last one the session is made, all of it or nothing."""
    held = caller.incoming
    if params.piece != len(held):
        held.clear()
        raise Fault("INVALID_PARAMS", "sessions.import: a piece is missing; begin with the first one")
    held.append(params.text)
    if sum(map(len, held)) > _LARGEST:
        held.clear()
        raise Fault("LIMIT_EXCEEDED", f"sessions.import: more than {_LARGEST:,} characters are not taken")
    if params.more:
        return Imported()
    lines = "".join(held).split("\n")
    held.clear()
    return Imported(await _made(caller, lines, params.session_key))


async def _made(caller: Connection, lines: list[str], key: str | None) -> str:
    hub, prefix = caller.hub, caller.who.prefix
    key = key or _own_key(lines[0])
    try:
        made = await hub.atlas.sessions.load(lines, key=prefix + key)
    except Conflict:
        raise Fault("CONFLICT", f"there is a session {key!r} already: give it another key") from None
    except BrokenHistory as broken:
        raise Fault("INVALID_PARAMS", str(broken)) from None
    hub.news.tell(made)
    return key


def _own_key(line: str) -> str:
    """The name that the session had where it comes from, if it can be one here."""
    try:
        return msgspec.convert(msgspec.json.decode(line, type=Header).key, Key)
    except msgspec.MsgspecError as error:
        raise Fault("INVALID_PARAMS", f"line 1: this is no exported session ({error})") from None


def _renamed(line: str, key: str) -> str:
    header = msgspec.json.decode(line, type=Header)
    return msgspec.json.encode(msgspec.structs.replace(header, key=key)).decode()
