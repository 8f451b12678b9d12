"""`atlas sessions …`: what was said, listed, read, changed, copied, carried and removed."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.cli import options as given
from atlas_agents.cli import show as shown
from atlas_agents.cli.border import confirmed, one_of, quiet, run
from atlas_agents.cli.reach import within_reach
from atlas_agents.cli.when import ago, moment
from atlas_agents.cli.words import answered, called, printable
from atlas_agents.client.client import GatewayClient
from atlas_agents.core.errors import ConfigError, GatewayError
from atlas_agents.gateway.protocol.chat import ChatHistoryPage
from atlas_agents.gateway.protocol.types import MessageShape, TextPart, ToolCallPart, ToolResultPart

_PAGE = 500
_PIECE = 128 * 1024
"""Characters that fit into a frame, however they are written."""


def list_sessions(limit: int, *, archived: bool, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            found = await here.client.call("sessions.list", limit=limit, archived=archived)
        if as_json:
            shown.as_json(found["sessions"])
            return
        rows = [
            (each["sessionKey"], ago(each["updatedAt"]), each["agentId"] or "-", each["label"])
            for each in found["sessions"]
        ]
        shown.table(("session", "changed", "agent", "name"), rows, "There are no sessions.")

    quiet()
    return run(work)


def show(key: str, *, as_json: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            whole = await _whole_key(here.client, key)
            session = (await here.client.call("sessions.get", session_key=whole))["session"]
            messages = await _all_messages(here.client, whole)
        if as_json:
            shown.as_json({"session": session, "messages": messages})
            return
        print(f"{whole}  {printable(session['label'])}")
        print(f"begun {moment(session['createdAt'])}, changed {moment(session['updatedAt'])}")
        _print(messages)

    quiet()
    return run(work)


def change(key: str, words: str, **changes: Any) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            whole = await _whole_key(here.client, key)
            await here.client.call("sessions.update", session_key=whole, **changes)
        print(f"{whole} is {printable(words)}.", file=sys.stderr)

    quiet()
    return run(work)


def delete(key: str, *, yes: bool) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            whole = await _whole_key(here.client, key)
            if not yes and not confirmed(f"Remove the session {whole} and all that was said in it?"):
                print("Nothing was removed.", file=sys.stderr)
                return
            await here.client.call("sessions.delete", session_key=whole)
        print(f"{whole} is removed.", file=sys.stderr)

    quiet()
    return run(work)


def fork(key: str, at: str | None) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            whole = await _whole_key(here.client, key)
            print((await here.client.call("sessions.fork", session_key=whole, message_id=at))["sessionKey"])

    quiet()
    return run(work)


def write_out(key: str) -> int:
    async def work() -> None:
        async with within_reach(given.settings(), idle=True) as here:
            whole, after = await _whole_key(here.client, key), 0
            while after is not None:
                found = await here.client.call("sessions.export", session_key=whole, after=after)
                for line in found["lines"]:
                    sys.stdout.buffer.write(line.encode() + b"\n")
                after = found.get("next")

    quiet()
    return run(work)


def read_in(file: str, key: str | None) -> int:
    async def work() -> None:
        text = _text(file)
        pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)] or [""]
        async with within_reach(given.settings(), idle=True) as here:
            made: dict[str, Any] = {}
            for number, piece in enumerate(pieces):
                more = number + 1 < len(pieces)
                made = await _carried(here.client, text=piece, session_key=key, piece=number, more=more)
            print(made["sessionKey"])

    quiet()
    return run(work)


async def _carried(client: GatewayClient, **params: Any) -> dict[str, Any]:
    try:
        return await client.call("sessions.import", **params)
    except GatewayError as error:
        if error.kind == "INVALID_PARAMS":  # what was given is no session
            raise ConfigError(str(error)) from error
        raise


def _text(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: it is not UTF-8, so it is no exported session") from error


async def _whole_key(client: GatewayClient, start: str) -> str:
    found: list[str] = []
    for archived in (False, True):
        page = await client.call("sessions.list", limit=_PAGE, archived=archived)
        found += [each["sessionKey"] for each in page["sessions"]]
    return one_of(start, found, "session")


async def _all_messages(client: GatewayClient, key: str) -> list[MessageShape]:
    messages: list[MessageShape] = []
    before: int | None = None
    while True:
        found = msgspec.convert(
            await client.call("chat.history", session_key=key, limit=_PAGE, before=before), ChatHistoryPage
        )
        messages = [*found.messages, *messages]
        if not found.has_more or not found.messages:
            return messages
        before = found.messages[0].seq


def _print(messages: list[MessageShape]) -> None:
    names: dict[str, str] = {}
    for message in messages:
        for part in message.parts:
            match part:
                case TextPart(text) if text.strip():
                    print(f"\n{'you' if message.role == 'user' else message.role} ({message.id}):\n{printable(text)}")
                case ToolCallPart(id, name, arguments):
                    names[id] = name
                    print(called(name, arguments))
                case ToolResultPart(call_id, status, result, error):
                    print(answered(names.get(call_id, "?"), status, result, error))
                case _:
                    pass
