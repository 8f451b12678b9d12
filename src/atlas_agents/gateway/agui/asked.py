"""What a page asks for: the last thing its user said, or answers to what it was asked."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from atlas_agents.core.messages import File, Image, Message, Part, Text, user
from atlas_agents.core.text import clean
from atlas_agents.gateway.agui.events import Shape
from atlas_agents.gateway.protocol.chat import Key
from atlas_agents.gateway.trouble import bad

_PARTS = ("image", "document")
_PLAIN = re.compile(r"https?://")


class Source(Shape, frozen=True):
    """Where a picture or a document is: in here as base64, or at an address."""

    type: str
    value: str = ""
    mime_type: str = ""


class InputPart(Shape, frozen=True):
    """Which of the others is set follows from `type`."""

    type: str
    text: str = ""
    source: Source | None = None


class Resume(Shape, frozen=True):
    """An answer to an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class Said(Shape, frozen=True):
    """The last message."""

    role: str
    content: str | list[InputPart] | None = None


class RunInput(Shape, frozen=True):
    """The body of a request. The page's copy of the conversation is read only to the last message: ours is kept here.
    State, context and the page's own tools are left to the page."""

    thread_id: Key
    run_id: Annotated[str, Meta(min_length=1, max_length=190)]
    messages: list[msgspec.Raw]
    resume: list[Resume] | None = None


class Payload(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A person's answer about a tool call; `edited_args` are used instead of the model's."""

    approved: bool
    edited_args: dict[str, Any] | None = None
    reason: Annotated[str, Meta(max_length=1000)] = ""
    remember: Literal["once", "session", "always"] = "once"


PAYLOAD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {
            "type": "object",
            "description": "Used instead of the arguments, not merged with them; or the values for a form.",
        },
        "reason": {"type": "string"},
        "remember": {"enum": ["once", "session", "always"], "description": "How long a yes holds."},
    },
    "required": ["approved"],
    "additionalProperties": False,
}


def last_message(asked: RunInput) -> Message:
    """What the user said."""
    said = _said(asked.messages[-1]) if asked.messages else None
    if said is None or said.role != "user" or not said.content:
        raise bad("the last message must be the user's", "messages")
    if isinstance(said.content, str):
        return user(said.content)
    return user(*[_part(part) for part in said.content])


def snapshot_of(asked: RunInput) -> list[Any]:
    """The messages that the page has, as it sent them."""
    return [msgspec.json.decode(each) for each in asked.messages]


def payload_of(entry: Resume) -> Payload:
    try:
        return msgspec.convert(entry.payload, Payload)
    except msgspec.ValidationError as error:
        raise bad(f"the answer to {entry.interrupt_id} does not fit: {error}", "resume", "bad_payload") from None


def _said(raw: msgspec.Raw) -> Said:
    try:
        return msgspec.json.decode(raw, type=Said)
    except msgspec.ValidationError as error:
        raise bad(f"the last message cannot be read: {error}", "messages") from None


def _part(part: InputPart) -> Part:
    if part.type == "text":
        return Text(clean(part.text))
    source = part.source
    if part.type not in _PARTS or source is None or source.type not in ("data", "url"):
        raise bad(f"content of the type {part.type!r} is not taken here", "messages")
    inline = source.type == "data"
    if not inline and not _PLAIN.match(source.value):
        raise bad("an address begins with https:", "messages")
    data, url = (source.value, "") if inline else ("", source.value)
    if part.type == "image":
        return Image(source.mime_type, data, url)
    return File("document", source.mime_type or "application/pdf", data, url)
