"""Message model: frozen values that every layer uses.

No I/O and nothing specific to a vendor. Equal content means equal values, and JSON round-trips byte for byte: data that
looks like one of these types stays plain data.
"""

import base64
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec

from atlas_agents.core.errors import ConfigError, ErrorKind
from atlas_agents.core.json import LARGE, check_memory, encode, parse_object
from atlas_agents.core.text import clean

_VARIANTS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""The variant digit of a UUID, by a random digit."""
_T = TypeVar("_T")
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
_ROLES: tuple[str, ...] = get_args(Role)
_KNOWN_ROLES = frozenset(_ROLES)
Status: TypeAlias = Literal["ok", "error", "unknown"]
Ids: TypeAlias = tuple[str, ...]
_STRAY_CALL: Ids = ("\0 call outside an assistant message",)
_STRAY_RESULT: Ids = ("\0 result outside a tool message",)
_encoder = msgspec.json.Encoder()
_CHARACTERS_PER_TOKEN = 3.6
_ESTIMATE = "approximate_tokens"
_CONTEXT = "context_tokens"
_MEDIA_TOKENS = 1600
_MAX_DEPTH = 6
_MAX_IMAGES = 12
OUTPUT = "output"
"""Cache key of an answer's parsed value."""
UNTRUSTED = "untrusted"
"""Metadata key of a message with the sources of untrusted content that led to it, as a list."""
ROUNDS_EXHAUSTED = "the turn reached its limit of rounds (max_rounds) before the model was done"
"""Why the answer of a turn whose last message is unfinished is incomplete."""
_MEDIA_TYPE_KEYS = ("media_type", "mimeType", "mediaType")


def new_id() -> str:
    """Return a random UUID (version 4) as text; three times as fast as the standard library."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANTS[digits[16]]}{digits[17:20]}-{digits[20:]}"


def new_ordered_id() -> str:
    """Return a UUID of version 7 as text: its beginning is the time, the rest is random.

    Rows created at about the same time are neighbours in an index, so that inserts change few pages.
    """
    digits = ((time.time_ns() // 1_000_000).to_bytes(6) + os.urandom(10)).hex()
    return f"{digits[:8]}-{digits[8:12]}-7{digits[13:16]}-{_VARIANTS[digits[16]]}{digits[17:20]}-{digits[20:]}"


class Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """Text.

    Attributes:
        text: The text.
    """

    text: str
    type: ClassVar[Literal["text"]] = "text"


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call", tag_field="type", omit_defaults=True):
    """A tool call by the model. `malformed` holds the raw arguments if they were not valid JSON.

    `signature` is the vendor's proof of the reasoning that led to the call; it is returned unchanged.

    Attributes:
        id: Id of the call; its result has the same.
        name: Name of the tool.
        arguments: Arguments by name.
        malformed: The raw arguments, if they were not valid JSON.
        signature: The vendor's proof of the reasoning that led to the call; it is returned unchanged.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    malformed: str | None = None
    signature: str = ""
    type: ClassVar[Literal["tool_call"]] = "tool_call"


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type", omit_defaults=True):
    """The result of one tool call, as the model reads it. `error` is the kind of fault, never a stack trace.

    `untrusted` names the source of content that someone else wrote, such as `web: https://example.org/`; several are
    separated by `; `.

    Attributes:
        call_id: Id of the call.
        status: `ok`, `error`, or `unknown` if the call may have taken effect.
        result: What the model reads.
        error: Kind of fault; None if there was none.
        untrusted: Source of content that someone else wrote; empty if there is none.
    """

    call_id: str
    status: Status
    result: Any
    error: ErrorKind | None = None
    untrusted: str = ""
    type: ClassVar[Literal["tool_result"]] = "tool_result"


class Thinking(msgspec.Struct, frozen=True, tag="thinking", tag_field="type", omit_defaults=True):
    """The model's reasoning, stored verbatim with the vendor's signature.

    Attributes:
        text: The reasoning; empty if the vendor hides it.
        signature: The vendor's signature, which is returned unchanged.
    """

    text: str
    signature: str = ""
    type: ClassVar[Literal["thinking"]] = "thinking"


class Image(msgspec.Struct, frozen=True, tag="image", tag_field="type", omit_defaults=True):
    """An image: data, or an address. `Image.of(bytes)` encodes the data.

    Args:
        media_type: Such as `image/png`.
        data: The image in base64.
        url: Address from which the model's vendor fetches it; Atlas never does.
    """

    media_type: str
    data: str = ""
    url: str = ""
    type: ClassVar[Literal["image"]] = "image"

    @classmethod
    def of(cls, content: bytes, media_type: str = "image/png") -> "Image":
        """Make an image from bytes."""
        return cls(media_type, base64.b64encode(content).decode())


class File(msgspec.Struct, frozen=True, tag="file", tag_field="type", omit_defaults=True):
    """A document: data, or an address. `File.of(bytes, name)` encodes the data.

    Args:
        name: Name of the file.
        media_type: Such as `application/pdf`.
        data: The document in base64.
        url: Address from which the model's vendor fetches it; Atlas never does.
    """

    name: str
    media_type: str
    data: str = ""
    url: str = ""
    type: ClassVar[Literal["file"]] = "file"

    @classmethod
    def of(cls, content: bytes, name: str, media_type: str = "application/pdf") -> "File":
        """Make a document from bytes."""
        return cls(name, media_type, base64.b64encode(content).decode())


class Opaque(msgspec.Struct, frozen=True, tag="opaque", tag_field="type"):
    """A vendor-specific block of unknown type, stored verbatim and sent only to that vendor.

    Attributes:
        vendor: Id of the vendor.
        block: The block as the vendor sent it.
    """

    vendor: str
    block: dict[str, Any]
    type: ClassVar[Literal["opaque"]] = "opaque"


Part: TypeAlias = Text | ToolCall | ToolResult | Thinking | Image | File | Opaque
"""A part of a message."""
_PARTS = frozenset(get_args(Part))
_WITHOUT_SOURCE = _PARTS - {File, Image}
"""Part types that never make a message untrusted, except in tool messages."""


def _now() -> int:
    return int(time.time() * 1000)


class _cached(Generic[_T]):
    """Like `functools.cached_property`, without its lock of Python 3.11: every turn uses a dozen of them."""

    def __init__(self, function: Callable[[Any], _T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> _T:
        value = instance.__dict__[self._name] = self._function(instance)
        return value


class Message(msgspec.Struct, frozen=True, dict=True):
    """One message of a conversation; `user(…)`, `assistant(…)`, `system(…)` and `tool_message(…)` make one.

    Its `__dict__` caches derived data (tool calls, the encoded form for a vendor) and is not part of its value.

    Args:
        role: `system`, `user`, `assistant` or `tool`.
        parts: Text, images, files, thinking, tool calls and tool results, in order.
        id: Unique id; a new one by default.
        created_at: Milliseconds since the Unix epoch; now by default.
        metadata: Values that are stored with the message and not sent to a model.
    """

    role: Role
    parts: tuple[Part, ...]
    id: str = msgspec.field(default_factory=new_ordered_id)
    created_at: int = msgspec.field(default_factory=_now)
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        # called for every stored message that is read: one expression is three times as fast as a loop
        if self.role in _KNOWN_ROLES and type(self.parts) is tuple and _PARTS.issuperset(map(type, self.parts)):
            return
        raise ConfigError(self._find_mistake())

    def _find_mistake(self) -> str:
        if self.role not in _KNOWN_ROLES:
            return f"invalid role {self.role!r}: expected one of {', '.join(_ROLES)}"
        subject = f"of a {self.role} message: expected"
        if type(self.parts) is not tuple:
            return f"invalid parts {self.parts!r} {subject} a tuple of parts, as user(…) makes it"
        part: object = next(part for part in self.parts if type(part) not in _PARTS)
        wanted = "Text(…)" if isinstance(part, str) else "text"
        return f"invalid part {part!r} {subject} {wanted}, Image(…), File(…) or another part"

    @_cached
    def text(self) -> str:
        """All text parts, joined in order."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @_cached
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the message, in order."""
        if ToolCall not in map(type, self.parts):  # as most messages, and faster than a loop
            return ()
        return tuple([part for part in self.parts if type(part) is ToolCall])

    @_cached
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of tool calls in the message, in order."""
        return tuple([part for part in self.parts if type(part) is ToolResult])

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing in the message, or only white space."""
        return not any([type(part) is not Text or part.text.strip() for part in self.parts])

    @property
    def output(self) -> Any:
        """The value of an answer that was requested with `output=`; None otherwise. It is not stored."""
        return self.__dict__.get(OUTPUT)

    @property
    def untrusted(self) -> tuple[str, ...]:
        """Sources of content in this message that someone else wrote: tool results, attachments, other agents."""
        if self.role == "tool":
            marked = [part.untrusted for part in self.parts if type(part) is ToolResult and part.untrusted]
            return tuple([source for each in marked for source in each.split("; ")])
        named: Any = self.metadata.get(UNTRUSTED)
        if named is None and _WITHOUT_SOURCE.issuperset(map(type, self.parts)):  # nearly all messages
            return ()
        sources = [each for each in cast(list[Any], named) if isinstance(each, str)] if isinstance(named, list) else []
        sources += [f"attachment: {part.name}" for part in self.parts if type(part) is File]
        return (*sources, *["attachment: image" for part in self.parts if type(part) is Image])

    @property
    def refusal(self) -> str:
        """Notice that the model refused, and why; empty if it answered, or refused in its own words."""
        reason = self.metadata.get("refusal")
        if not self.metadata.get("refused") or (self.text and not reason):
            return ""
        return f"The model refused to {'continue' if self.text else 'answer'}{f': {reason}' if reason else '.'}"

    @property
    def is_unfinished(self) -> bool:
        """Whether the model wanted to continue after this message: it called tools, or it paused.

        The last message of a turn is unfinished if the turn reached its limit of rounds.
        """
        return bool(self.tool_calls) or self.metadata.get("stop_reason") == "pause"

    @property
    def incomplete(self) -> str:
        """Why this answer is not complete: the turn reached its limit of rounds, or the answer reached the token limit;
        empty if it is complete."""
        if self.is_unfinished:
            return ROUNDS_EXHAUSTED
        return (
            str(self.metadata.get("budget") or "it reached the token limit") if self.metadata.get("truncated") else ""
        )

    @_cached
    def pairing(self) -> tuple[Ids, Ids]:
        """Return the sorted ids of the calls this message makes and of the calls it answers.

        A call outside an assistant message, or a result outside a tool message, matches nothing.
        """
        types = set(map(type, self.parts))
        call_ids = tuple(sorted([call.id for call in self.tool_calls])) if ToolCall in types else ()
        answered_ids = tuple(sorted([each.call_id for each in self.tool_results])) if ToolResult in types else ()
        return (
            call_ids if self.role == "assistant" or not call_ids else _STRAY_CALL,
            answered_ids if self.role == "tool" or not answered_ids else _STRAY_RESULT,
        )

    def with_text(self, text: str) -> "Message":
        """Return a copy with different text; the other parts keep their positions."""
        others = [part for part in self.parts if type(part) is not Text]
        index = next((index for index, part in enumerate(self.parts) if type(part) is Text), 0)
        text_parts = [Text(clean(text))] if text else []
        return msgspec.structs.replace(self, parts=(*others[:index], *text_parts, *others[index:]))

    def to_json(self) -> bytes:
        """Encode the message as JSON; raises MemoryError if it is large and there is not enough memory left."""
        for part in self.parts:
            if type(part) is Text and len(part.text) > LARGE:
                check_memory(len(part.text))
        return _encoder.encode(self)

    @staticmethod
    def from_json(data: bytes | str) -> "Message":
        """Decode a message; msgspec.ValidationError names the place that does not match."""
        return _decoder.decode(data)


_decoder = msgspec.json.Decoder(Message)


def _parts(content: tuple[str | Part, ...]) -> tuple[Part, ...]:
    return tuple([Text(clean(item)) if isinstance(item, str) else item for item in content])


def user(*content: str | Part, **metadata: Any) -> Message:
    """Make a user message of text, images and files."""
    return Message("user", _parts(content), metadata=metadata)


def assistant(*content: str | Part, **metadata: Any) -> Message:
    """Make an assistant message of text, thinking and tool calls."""
    return Message("assistant", _parts(content), metadata=metadata)


def system(*content: str | Part, **metadata: Any) -> Message:
    """Make a system message."""
    return Message("system", _parts(content), metadata=metadata)


def tool(*results: ToolResult, **metadata: Any) -> Message:
    """Make a tool message with the results of the preceding assistant message's calls."""
    return Message("tool", results, metadata=metadata)


MessageLike: TypeAlias = str | Message | Mapping[str, Any]
"""Accepted forms of a message: text of the user, a `Message`, or a dict in the format of chat completions."""


class _ChatFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str = "{}"


class _ChatCall(msgspec.Struct, frozen=True):
    id: str
    function: _ChatFunction


class _ChatUrl(msgspec.Struct, frozen=True):
    url: str


class _ChatPart(msgspec.Struct, frozen=True):
    type: Literal["text", "image_url"]
    text: str = ""
    image_url: _ChatUrl = _ChatUrl("")


class _ChatMessage(msgspec.Struct, frozen=True):
    """A message in the format of chat completions."""

    role: Role
    content: str | tuple[_ChatPart, ...] | None = None
    tool_calls: tuple[_ChatCall, ...] | None = None
    tool_call_id: str = ""


def read_messages(values: Iterable[MessageLike]) -> list[Message]:
    """Convert messages from any accepted form. Consecutive tool results become one message."""
    found: list[Message] = []
    for number, value in enumerate(values, start=1):
        message = read_message(value, f"message {number}")
        if message.role == "tool" and found and found[-1].role == "tool":
            message = tool(*found.pop().tool_results, *message.tool_results)
        found.append(message)
    return found


def read_message(value: MessageLike, subject: str = "the message") -> Message:
    """Convert a text, a message or a dict; raises ConfigError, which names the `subject`."""
    if isinstance(value, Message):
        return value
    if isinstance(value, str):
        return user(value)
    try:
        if not isinstance(cast(object, value), Mapping):
            kind = type(value).__name__
            raise ConfigError(f"expected a text, a Message or a dict with role and content, got {kind}")
        return msgspec.convert(value, Message) if "parts" in value else _read_chat_message(value)
    except (msgspec.ValidationError, ConfigError) as error:
        raise ConfigError(f"{subject} is invalid: {error}") from error


def _read_chat_message(value: Mapping[str, Any]) -> Message:
    given = msgspec.convert(value, _ChatMessage)
    content = (given.content,) if isinstance(given.content, str) else [_read_part(each) for each in given.content or ()]
    if given.role == "tool":
        text = "".join([part if isinstance(part, str) else "" for part in content])
        return tool(ToolResult(given.tool_call_id, "ok", text))
    calls = [_read_call(each) for each in given.tool_calls or ()]
    return Message(given.role, (*_parts(tuple(content)), *calls))


def read_prompt(value: MessageLike) -> Message:
    """Convert the message that starts a turn; raises ConfigError if there is nothing in it."""
    message = read_message(value)
    if message.role == "user" and message.is_blank:
        raise ConfigError("the message is empty: expected some text, an image or a file")
    return message


def split_messages(messages: MessageLike | Sequence[MessageLike]) -> tuple[Sequence[Message], Message | None]:
    """Split into the history and the new user message; None if the last message is not the user's."""
    if isinstance(messages, (str, Message, Mapping)):
        return (), read_prompt(messages)
    found = read_messages(messages)
    if not found:
        raise ConfigError("a turn requires at least one message")
    return (found[:-1], read_prompt(found[-1])) if found[-1].role == "user" else (found, None)


def _read_part(part: _ChatPart) -> str | Part:
    if part.type == "text":
        return part.text
    header, comma, data = part.image_url.url.removeprefix("data:").partition(";base64,")
    return Image(header, data) if comma else Image("", url=part.image_url.url)


def _read_call(call: _ChatCall) -> ToolCall:
    try:
        return ToolCall(call.id, call.function.name, parse_object(call.function.arguments or "{}"))
    except ValueError:
        return ToolCall(call.id, call.function.name, {}, malformed=call.function.arguments)


def find_unpaired(messages: Sequence[Message]) -> int | None:
    """Return the index of the first call without a result in the next message, or result without a call; else None."""
    expected_ids: Ids = ()
    for index, message in enumerate(messages):
        call_ids, answered_ids = message.pairing
        if answered_ids != expected_ids:
            return index
        expected_ids = call_ids
    return len(messages) if expected_ids else None


class ConversationIndex:
    """Index of a conversation's content. Each update reads only the messages that were added since the last one.

    Indexed messages are compared with those in the conversation by identity, which is cheap.
    """

    __slots__ = (
        *("_call_ids", "_expected_ids", "_marked", "_matched", "_paired", "_seen", "_summed", "_tokens", "_untrusted"),
    )

    def __init__(self) -> None:
        self._seen: list[Message] = []
        self._reset()

    def _reset(self) -> None:
        self._seen.clear()
        self._expected_ids: Ids = ()
        self._summed = self._marked = self._matched = self._tokens = 0
        self._call_ids: set[str] = set()
        self._untrusted: dict[str, None] = {}
        self._paired = True

    def update(self, messages: list[Message]) -> None:
        seen = self._seen
        if messages[: len(seen)] != seen:
            self._reset()
        seen += messages[len(seen) :]

    def _match(self) -> None:
        """Match the calls and results of new messages."""
        for message in self._seen[self._matched :]:
            call_ids, answered_ids = message.pairing
            if answered_ids != self._expected_ids:
                self._paired = False
            if call_ids:
                self._call_ids.update([call.id for call in message.tool_calls])
            self._expected_ids = call_ids
        self._matched = len(self._seen)

    @property
    def is_paired(self) -> bool:
        """Whether each call has its result in the next message, and each result a call."""
        self._match()
        return self._paired and not self._expected_ids

    @property
    def call_ids(self) -> set[str]:
        """Ids of all tool calls."""
        self._match()
        return self._call_ids

    @property
    def tokens(self) -> int:
        """Estimate of the tokens of all messages."""
        self._tokens += sum([approximate_tokens(message) for message in self._seen[self._summed :]])
        self._summed = len(self._seen)
        return self._tokens

    @property
    def untrusted(self) -> Iterable[str]:
        """Sources of untrusted content, oldest first."""
        for message in self._seen[self._marked :]:
            if sources := message.untrusted:
                self._untrusted.update(dict.fromkeys(sources))
        self._marked = len(self._seen)
        return self._untrusted


_MESSAGE = frozenset((Message,))


class _StoredConversation(msgspec.Struct):
    id: str
    messages: list[Message]
    metadata: dict[str, Any] = {}


class Conversation:
    """An append-only list of messages; iterate it, or read `messages`.

    Args:
        messages: The first messages.
        id: Key of the conversation; a new one by default.
        metadata: Values for tools, rules and prompts, which belong to this conversation.
    """

    __slots__ = ("__weakref__", "_index", "id", "messages", "metadata")

    def __init__(
        self, messages: Iterable[Message] = (), *, id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        self.id = id or new_id()
        self.messages = list(messages)
        if not _MESSAGE.issuperset(map(type, self.messages)):
            for each in self.messages:
                if not isinstance(cast(object, each), Message):
                    raise ConfigError(f"invalid message {each!r} in a Conversation: use user({each!r}) or a Message")
        self.metadata: dict[str, Any] = dict(metadata or {})
        self._index: ConversationIndex | None = None

    @property
    def index(self) -> ConversationIndex:
        """Internal: index of the messages' content."""
        found = self._index
        if found is None:
            found = self._index = ConversationIndex()
        found.update(self.messages)
        return found

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """Return the state for a worker process, without the index."""
        return None, {"id": self.id, "messages": self.messages, "metadata": self.metadata, "_index": None}

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def to_json(self) -> bytes:
        """Encode the conversation as JSON; raises ConfigError if its metadata is not JSON."""
        try:
            return encode(_StoredConversation(self.id, self.messages, self.metadata))
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"conversation {self.id!r} cannot be encoded as JSON: {error}") from error

    @staticmethod
    def from_json(data: bytes | str) -> "Conversation":
        """Decode a conversation that `to_json` encoded; ConfigError has the place that does not match."""
        try:
            found = msgspec.json.decode(data, type=_StoredConversation)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"this is not a conversation as `to_json` encodes it: {error}") from error
        return Conversation(found.messages, id=found.id, metadata=found.metadata)

    def __repr__(self) -> str:
        return f"Conversation({self.id!r}, {len(self.messages)} messages)"

    def fork(self, at: Message | str | None = None) -> "Conversation":
        """Copy the messages up to and including `at` (a message or its id) into a new conversation; by default all."""
        if at is None:
            messages = self.messages
        else:
            wanted_id = at if isinstance(at, str) else at.id
            matches = [index for index, message in enumerate(self.messages) if message.id == wanted_id]
            if not matches:
                raise KeyError(f"conversation {self.id!r} has no message {wanted_id!r}")
            messages = self.messages[: matches[0] + 1]
        return Conversation(messages, metadata={**self.metadata, "forked_from": self.id})


class ToolSpec(msgspec.Struct, frozen=True, dict=True):
    """A tool's name, description and JSON schema of its parameters. `__dict__` caches its encoded form per vendor.

    Attributes:
        name: Name of the tool.
        description: What the model reads about it.
        parameters: JSON schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]


def memo(value: msgspec.Struct) -> dict[str, Any]:
    """Return the cache of a struct that has one (`dict=True`); it is neither compared nor encoded."""
    return value.__dict__


def approximate_tokens(message: Message) -> int:
    """Estimate a message's tokens from the length of its JSON; computed once per message."""
    found: int | None = getattr(message, _ESTIMATE, None)
    if found is None:
        found = memo(message)[_ESTIMATE] = round(_encoded_length(message) / _CHARACTERS_PER_TOKEN) + 4
    return found


def _encoded_length(message: Message) -> int:
    try:
        return len(encode(message.parts))
    except (TypeError, ValueError):  # a provider of your own may yield values that JSON does not have
        return len(repr(message.parts))


def context_tokens(message: Message) -> int:
    """Estimate how much of a model's context window a message takes; computed once per message.

    An image or a document counts the same whatever the size of its data.
    """
    found: int | None = getattr(message, _CONTEXT, None)
    if found is None and len(message.parts) == 1 and type(message.parts[0]) is Text:
        text = message.parts[0].text
        found = memo(message)[_CONTEXT] = text_tokens(len(text) if text.isascii() else len(text.encode())) + 12
    if found is None:
        media = [part.data for part in message.parts if isinstance(part, Image | File)]
        for result in message.tool_results:
            if not isinstance(result.result, str):
                media += [image.data for image in extract_images(result.result)[1]]
        data = sum([len(each) for each in media])
        tokens = approximate_tokens(message) - text_tokens(data) + _MEDIA_TOKENS * len(media)
        found = memo(message)[_CONTEXT] = max(1, tokens)
    return found


def total_tokens(messages: Sequence[Message]) -> int:
    """Return the sum of `context_tokens`; one call per message would be too slow for a long conversation."""
    for message in reversed(messages):
        if hasattr(message, _CONTEXT):
            break
        context_tokens(message)
    try:
        return sum(map(_get_context, messages))
    except AttributeError:
        return sum([context_tokens(message) for message in messages])


_get_context = attrgetter(_CONTEXT)


def text_tokens(characters: int) -> int:
    """Estimate the tokens of a text from its length."""
    return round(characters / _CHARACTERS_PER_TOKEN)


def extract_images(result: Any) -> tuple[Any, list[Image]]:
    """Split a tool result into the result with a note in place of each image and binary file, and the images in
    order."""
    found: list[Image] = []
    return _strip_images(result, found, 0), found


def _strip_images(value: Any, found: list[Image], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, list):
        return [_strip_images(item, found, depth + 1) for item in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    fields = cast(dict[str, Any], value)
    image = _read_image(fields)
    if image is None and not _is_file(fields):
        return {key: _strip_images(item, found, depth + 1) for key, item in fields.items()}
    if image is not None and len(found) < _MAX_IMAGES:
        found.append(image)
    name = f"{fields['name']}, " if isinstance(fields.get("name"), str) else ""
    media_type = image.media_type if image is not None else fields["media_type"]
    text = _decode_text(media_type, fields["data"])
    return f"({name}{media_type}, {len(fields['data']) * 3 // 4:,} bytes)" if text is None else {**fields, "data": text}


def _decode_text(media_type: str, data: str) -> str | None:
    """Return the text of a base64 file that is text."""
    if media_type.startswith("text/") or media_type in ("application/json", "application/xml"):
        with suppress(ValueError):
            return base64.b64decode(data, validate=True).decode()
    return None


def _is_file(fields: dict[str, Any]) -> bool:
    texts = [fields.get(name) for name in ("name", "media_type", "data")]
    return fields.get("type") == "file" and all(isinstance(text, str) and text for text in texts)


def _read_image(fields: dict[str, Any]) -> Image | None:
    """Read an image from a result, in the format of the built-in tools or of the Model Context Protocol."""
    kind = next((fields[name] for name in _MEDIA_TYPE_KEYS if isinstance(fields.get(name), str)), None)
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


TIMING = "timing"
"""Metadata key of a reply: milliseconds until its first chunk (`first`) and until its end (`total`)."""
STEERING_RUN = "steering_run"
"""Metadata key of a message that steered a running turn: the run under which the message was accepted."""
