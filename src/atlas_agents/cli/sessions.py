"""`atlas sessions …`: list, show, rename, archive, fork, export, import and delete sessions."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli import output
from atlas_agents.cli.command import Argument, Group, JsonFlag, Option, YesFlag, command, confirm
from atlas_agents.cli.connect import GatewayCall, call, find_id, open_calls
from atlas_agents.core.errors import ConfigError, GatewayError

if TYPE_CHECKING:
    from atlas_agents.gateway.protocol.types import MessageShape

app = Group()
_PAGE = 500
_CHUNK = 128 * 1024
"""Characters of an import that fit into one frame, even if every one is escaped."""
Key = Annotated[str, Argument(metavar="KEY", help="The session key, or a unique prefix of it.")]


@command(app, "list")
def list_sessions(
    limit: Annotated[int, Option(metavar="N", min=1, max=500, help="Maximum number of sessions.")] = 20,
    archived: Annotated[bool, Option(help="List archived sessions.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List sessions, most recent first."""
    found = call("sessions.list", limit=limit, archived=archived)["sessions"]
    if as_json:
        output.print_json(found)
        return
    rows = [
        (each["sessionKey"], output.format_age(each["updatedAt"]), each["agentId"] or "-", each["label"])
        for each in found
    ]
    output.print_table(("session", "changed", "agent", "name"), rows, "There are no sessions.")


@command(app)
def show(key: Key, as_json: JsonFlag = False) -> None:
    """Show a session and its messages."""
    with open_calls() as gateway:
        full_key = _full_key(gateway, key)
        session = gateway("sessions.get", session_key=full_key)["session"]
        messages = _all_messages(gateway, full_key)
    if as_json:
        output.print_json({"session": session, "messages": messages})
        return
    print(f"{full_key}  {output.printable(session['label'])}")
    print(f"created {output.format_time(session['createdAt'])}, changed {output.format_time(session['updatedAt'])}")
    _print_messages(messages)


@command(app)
def rename(key: Key, label: Annotated[str, Argument(metavar="LABEL", help="The new name.")]) -> None:
    """Rename a session."""
    _update(key, f"renamed to {label!r}", label=label)


@command(app)
def archive(key: Key, undo: Annotated[bool, Option("--undo", help="Restore it.")] = False) -> None:
    """Archive a session, or restore it."""
    _update(key, "restored" if undo else "archived", archived=not undo)


def _update(key: str, done: str, **changes: Any) -> None:
    with open_calls() as gateway:
        full_key = _full_key(gateway, key)
        gateway("sessions.update", session_key=full_key, **changes)
    print(f"{full_key}: {output.printable(done)}.", file=sys.stderr)


@command(app)
def fork(
    key: Key,
    at: Annotated[
        str | None, Option(metavar="MESSAGE", help="Copy up to and including the message with this id.")
    ] = None,
) -> None:
    """Copy a session and print the key of the copy."""
    with open_calls() as gateway:
        full_key = _full_key(gateway, key)
        print(gateway("sessions.fork", session_key=full_key, message_id=at)["sessionKey"])


@command(app, "export")
def export(key: Key) -> None:
    """Write a session to standard output as JSON lines."""
    with open_calls() as gateway:
        full_key, after = _full_key(gateway, key), 0
        while after is not None:
            found = gateway("sessions.export", session_key=full_key, after=after)
            for line in found["lines"]:
                sys.stdout.buffer.write(output.escape_json(line).encode() + b"\n")
            after = found.get("next")


@command(app, "import")
def import_session(
    file: Annotated[str, Argument(metavar="FILE", help="An exported session; '-' reads standard input.")],
    key: Annotated[str | None, Option(metavar="KEY", help="Store it under another key.")] = None,
) -> None:
    """Import an exported session and print its key."""
    text = _read(file)
    chunks = [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)] or [""]
    imported: dict[str, Any] = {}
    with open_calls() as gateway:
        for number, chunk in enumerate(chunks):
            more = number + 1 < len(chunks)
            try:
                imported = gateway("sessions.import", text=chunk, session_key=key, piece=number, more=more)
            except GatewayError as error:
                if error.kind == "INVALID_PARAMS":
                    raise ConfigError(str(error)) from error
                raise
    print(imported["sessionKey"])


@command(app)
def delete(key: Key, yes: YesFlag = False) -> None:
    """Delete a session and its messages. With --yes, KEY must be the full key."""
    with open_calls() as gateway:
        full_key = _full_key(gateway, key)
        if yes and full_key != key:
            raise ConfigError(f"--yes requires the full key of the session: expected {full_key!r}, got {key!r}")
        if not yes and not confirm(f"Delete session {full_key} and all its messages?"):
            print("Nothing was deleted.", file=sys.stderr)
            return
        gateway("sessions.delete", session_key=full_key)
    print(f"{full_key}: deleted.", file=sys.stderr)


def _read(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not an exported session: not valid UTF-8") from error


def _full_key(client: GatewayCall, prefix: str) -> str:
    return find_id(client, "session", "session_key", prefix, {"archived": False}, {"archived": True})


def _all_messages(client: GatewayCall, key: str) -> "list[MessageShape]":
    import msgspec

    from atlas_agents.gateway.protocol.chat import ChatHistoryPage

    messages: list[MessageShape] = []
    before: int | None = None
    while True:
        found = msgspec.convert(client("chat.history", session_key=key, limit=_PAGE, before=before), ChatHistoryPage)
        messages = [*found.messages, *messages]
        if not found.has_more or not found.messages:
            return messages
        before = found.messages[0].seq


def _print_messages(messages: "list[MessageShape]") -> None:
    from atlas_agents.gateway.protocol.types import TextPart, ToolCallPart, ToolResultPart

    names: dict[str, str] = {}
    for message in messages:
        for part in message.parts:
            match part:
                case TextPart(text) if text.strip():
                    author = "you" if message.role == "user" else message.role
                    print(f"\n{author} ({message.id}):\n{output.printable(text)}")
                case ToolCallPart(id, name, arguments):
                    names[id] = name
                    print(output.format_call(name, arguments))
                case ToolResultPart(call_id, status, result, error):
                    print(output.format_result(names.get(call_id, "?"), status, result, error))
                case _:
                    pass
        if message.refusal:
            print(f"\n{output.printable(message.refusal)}")
