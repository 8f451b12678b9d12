"""The words of a conversation: frozen values that every floor above speaks in.

Nothing here does I/O or knows a vendor. Equal content means equal value, and JSON goes out and comes
back byte-equal: data that looks like one of our own types stays plain data.
"""

import base64
import os
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias, cast

import msgspec

from atlas_agents.core.errors import ErrorKind
from atlas_agents.core.json import encode
from atlas_agents.core.text import clean

_VARIANT = "89ab"


def new_id() -> str:
    """A random UUID (version 4) as it is usually written; three times as fast as the standard library's."""
    digits = os.urandom(16).hex()
    variant = _VARIANT[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Status: TypeAlias = Literal["ok", "error", "unknown"]
Ids: TypeAlias = tuple[str, ...]
_STRAY_CALL: Ids = ("\0 a call that is not the assistant's",)
_STRAY_RESULT: Ids = ("\0 a result outside a tool message",)


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """Words."""

    text: str
    type: ClassVar[Literal["text"]] = "text"


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call", tag_field="type", omit_defaults=True):
    """The model asks for a tool. `malformed` is what it wrote where its arguments should be, if that was no JSON."""

    id: str
    name: str
    arguments: dict[str, Any]
    malformed: str | None = None
    type: ClassVar[Literal["tool_call"]] = "tool_call"


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type", omit_defaults=True):
    """What the model is told about one call; `error` is the kind of the fault, never a stack trace."""

    call_id: str
    status: Status
    result: Any
    error: ErrorKind | None = None
    type: ClassVar[Literal["tool_result"]] = "tool_result"


class Thinking(msgspec.Struct, frozen=True, tag="thinking", tag_field="type", omit_defaults=True):
    """The model's reasoning, kept as it came with the vendor's signature."""

    text: str
    signature: str = ""
    type: ClassVar[Literal["thinking"]] = "thinking"


class Image(msgspec.Struct, frozen=True, tag="image", tag_field="type", omit_defaults=True):
    """A picture: base64 data, or an address that the model's vendor fetches (we never do)."""

    media_type: str
    data: str = ""
    url: str = ""
    type: ClassVar[Literal["image"]] = "image"

    @classmethod
    def of(cls, content: bytes, media_type: str = "image/png") -> "Image":
        """A picture from its bytes."""
        return cls(media_type, base64.b64encode(content).decode())


class File(msgspec.Struct, frozen=True, tag="file", tag_field="type", omit_defaults=True):
    """A document: base64 data, or an address that the model's vendor fetches (we never do)."""

    name: str
    media_type: str
    data: str = ""
    url: str = ""
    type: ClassVar[Literal["file"]] = "file"

    @classmethod
    def of(cls, content: bytes, name: str, media_type: str = "application/pdf") -> "File":
        """A document from its bytes."""
        return cls(name, media_type, base64.b64encode(content).decode())


class Opaque(msgspec.Struct, frozen=True, tag="opaque", tag_field="type"):
    """A vendor's block that we do not know: kept verbatim and shown only to that vendor."""

    vendor: str
    block: dict[str, Any]
    type: ClassVar[Literal["opaque"]] = "opaque"


Part: TypeAlias = Text | ToolCall | ToolResult | Thinking | Image | File | Opaque


def _now() -> int:
    return int(time.time() * 1000)


class Message(msgspec.Struct, frozen=True, dict=True):
    """One entry of a conversation. `created_at` is in milliseconds since 1970.

    Its `__dict__` holds what was worked out from it once (its tool calls, its bytes on a vendor's wire) and
    is no part of its value.
    """

    role: Role
    parts: tuple[Part, ...]
    id: str = msgspec.field(default_factory=new_id)
    created_at: int = msgspec.field(default_factory=_now)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    @cached_property
    def text(self) -> str:
        """All text parts, joined in order."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @cached_property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if type(part) is ToolCall])

    @cached_property
    def tool_results(self) -> tuple[ToolResult, ...]:
        return tuple([part for part in self.parts if type(part) is ToolResult])

    @cached_property
    def pairing(self) -> tuple[Ids, Ids]:
        """(ids of the calls it makes, ids of the calls it answers), sorted.

        A call that is not the assistant's, or a result outside a tool message, matches nothing.
        """
        asks = tuple(sorted([call.id for call in self.tool_calls]))
        answers = tuple(sorted([result.call_id for result in self.tool_results]))
        return (
            asks if self.role == "assistant" or not asks else _STRAY_CALL,
            answers if self.role == "tool" or not answers else _STRAY_RESULT,
        )

    def with_text(self, text: str) -> "Message":
        """The same message saying this instead; its other parts stay where they are."""
        kept = [part for part in self.parts if type(part) is not Text]
        place = next((place for place, part in enumerate(self.parts) if type(part) is Text), 0)
        said = [Text(clean(text))] if text else []
        return msgspec.structs.replace(self, parts=(*kept[:place], *said, *kept[place:]))

    def to_json(self) -> bytes:
        return _encoder.encode(self)

    @staticmethod
    def from_json(data: bytes | str) -> "Message":
        """Read a message back; msgspec.ValidationError says where the data does not fit."""
        return _decoder.decode(data)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


def _parts(content: tuple[str | Part, ...]) -> tuple[Part, ...]:
    return tuple([Text(clean(item)) if isinstance(item, str) else item for item in content])


def user(*content: str | Part, **metadata: Any) -> Message:
    """What a person says: text, images and files in any order."""
    return Message("user", _parts(content), metadata=metadata)


def assistant(*content: str | Part, **metadata: Any) -> Message:
    """What the model says: text, thinking and tool calls in any order."""
    return Message("assistant", _parts(content), metadata=metadata)


def system(*content: str | Part, **metadata: Any) -> Message:
    """An instruction."""
    return Message("system", _parts(content), metadata=metadata)


def tool(*results: ToolResult, **metadata: Any) -> Message:
    """The answers to the calls of the assistant message just before."""
    return Message("tool", results, metadata=metadata)


def broken_at(messages: Sequence[Message]) -> int | None:
    """Where a call has no result in the next message, or a result no call in the one before; None if nowhere."""
    awaited: Ids = ()
    for place, message in enumerate(messages):
        asks, answers = message.pairing
        if answers != awaited:
            return place
        awaited = asks
    return len(messages) if awaited else None


class Conversation:
    """An ordered list of messages with a name of its own. Turns append to it; nothing is ever changed in it."""

    __slots__ = ("__weakref__", "id", "messages", "metadata")

    def __init__(
        self, messages: Iterable[Message] = (), *, id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        self.id = id or new_id()
        self.messages = list(messages)
        self.metadata: dict[str, Any] = dict(metadata or {})

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"Conversation({self.id!r}, {len(self.messages)} messages)"

    def fork(self, at: Message | str | None = None) -> "Conversation":
        """A new conversation with all messages up to and with `at` (a message or its id); with none, all of them."""
        if at is None:
            kept = self.messages
        else:
            wanted = at if isinstance(at, str) else at.id
            ends = [place for place, message in enumerate(self.messages) if message.id == wanted]
            if not ends:
                raise KeyError(f"conversation {self.id!r} has no message {wanted!r}")
            kept = self.messages[: ends[0] + 1]
        return Conversation(kept, metadata={**self.metadata, "forked_from": self.id})


class ToolSpec(msgspec.Struct, frozen=True, dict=True):
    """Name, description and the JSON schema of the parameters. `__dict__` holds its bytes on a vendor's wire."""

    name: str
    description: str
    parameters: dict[str, Any]


def memo(value: msgspec.Struct) -> dict[str, Any]:
    """The scratch pad of a struct that has one (`dict=True`): not compared, not encoded, gone with the value."""
    return cast(dict[str, Any], value.__dict__)


_CHARACTERS_PER_TOKEN = 3.6
_TOKENS = "approximate_tokens"


def approximate_tokens(message: Message) -> int:
    """A message's tokens by the length of its JSON; counted once per message."""
    found: int | None = getattr(message, _TOKENS, None)
    if found is None:
        found = memo(message)[_TOKENS] = round(len(encode(message.parts)) / _CHARACTERS_PER_TOKEN) + 4
    return found


_DEEPEST = 6
_MOST = 12
_NAMES = ("media_type", "mimeType", "mediaType")


def parted(result: Any) -> tuple[Any, list[Image]]:
    """The result with a note in the place of each picture, and the pictures, in order."""
    found: list[Image] = []
    rest = _without(result, found, 0)
    return rest if found else result, found


def _without(value: Any, found: list[Image], depth: int) -> Any:
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_without(item, found, depth + 1) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    picture = _picture(fields)
    if picture is None:
        return {key: _without(item, found, depth + 1) for key, item in fields.items()}
    if len(found) < _MOST:
        found.append(picture)
    name = f"{fields['name']}, " if isinstance(fields.get("name"), str) else ""
    return f"({name}{picture.media_type}, {len(picture.data) * 3 // 4:,} bytes)"


def _picture(fields: dict[str, Any]) -> Image | None:
    """As our own tools give it, and as tools of the Model Context Protocol do."""
    kind = next((fields[name] for name in _NAMES if isinstance(fields.get(name), str)), None)
    data = fields.get("data")
    if (
        fields.get("type") != "image"
        or kind is None
        or not kind.startswith("image/")
        or not isinstance(data, str)
        or not data
    ):
        return None
    return Image(kind, data)
