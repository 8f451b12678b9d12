"""History: selects the messages of a conversation that are sent to the model.

A tool call is never separated from its result, and the newest user message is always included. Older messages may be
replaced by a summary, and large tool results by a note; the stored conversation stays complete.

`RequestRecorder` records requests, so that a replay can name what has changed. A reply's step in the journal has
two digests: one of the messages, and one of everything else, its outline. The contents of the outline are stored once
per tenant, by digest. Text of one turn is stored only in the turn's own journal, and is deleted with it.
"""

import hashlib
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, cast

import msgspec

from atlas_agents.core.aio import Clock, utc_day
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.events import FailedAttempt
from atlas_agents.core.json import encode
from atlas_agents.core.messages import (
    Conversation,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    context_tokens,
    find_unpaired,
    memo,
    tool,
    total_tokens,
)
from atlas_agents.core.store import PutRecord, Store
from atlas_agents.providers.base import Request
from atlas_agents.providers.catalogue import parse_model_ref

_INTERRUPTED = "This call was interrupted; it may have happened. It was not retried."
SUMMARY = "summary"
"""Metadata key of a message that summarises older messages: a `SummaryInfo`."""
PINNED = "pinned"
"""Metadata key of a message that compaction keeps."""
_CHARACTERS_PER_TOKEN = 3
_SHORTENED = "shortened"
_CLEARED = "cleared"
_LARGE_RESULT = 400
"""Minimum size, in tokens, of a tool result that is cleared."""
_WITHOUT_REASONING = "without_reasoning"
_REASONING_BLOCKS = ("thinking", "redacted_thinking", "reasoning")


class Compaction(msgspec.Struct, frozen=True):
    """When and how older messages are replaced by a summary; the stored conversation stays complete.

    Args:
        threshold: Share of the available tokens at which a conversation is compacted.
        keep: Share of them for the newest messages, which stay as they are.
        model: Reference of the model that writes the summary; by default the agent's own.
        window: Context window of the agent's models in tokens, instead of the one in the model catalogue.
        clear_results: Whether old large tool results are cleared before anything is summarised.
    """

    threshold: float = 0.8
    keep: float = 0.4
    model: str = ""
    window: int | None = None
    clear_results: bool = True

    def __post_init__(self) -> None:
        if not 0.1 <= self.threshold <= 1:
            raise ConfigError(f"Compaction(threshold=…) must be between 0.1 and 1, got {self.threshold}")
        if not 0 <= self.keep < self.threshold:
            raise ConfigError(f"Compaction(keep=…) must be at least 0 and below the threshold, got {self.keep}")
        if self.window is not None and self.window < 1000:
            raise ConfigError(f"Compaction(window=…) must be at least 1000 tokens, got {self.window}")
        if self.model:
            parse_model_ref(self.model)


class History(msgspec.Struct, frozen=True):
    """Limits on the messages sent to the model; stored conversations stay complete.

    Args:
        max_messages: Maximum number of messages in a request; None for no limit.
        max_tokens: Maximum tokens of messages in a request; None for as many as fit into the model's context window.
        count: Function that counts the tokens of a message.
        compaction: Summarises older messages before they would be left out; None to leave them out.
    """

    max_messages: int | None = None
    max_tokens: int | None = None
    count: Callable[[Message], int] = context_tokens
    compaction: Compaction | None = None

    def __post_init__(self) -> None:
        for name, limit in (("max_messages", self.max_messages), ("max_tokens", self.max_tokens)):
            if limit is not None and limit < 1:
                raise ConfigError(f"History({name}=…) must be at least 1, got {limit}")
        if not isinstance(cast(object, self.compaction), Compaction | None):
            raise ConfigError(f"History(compaction=…): expected a Compaction or None, got {self.compaction!r}")

    def select(self, messages: Sequence[Message], available: float = math.inf) -> Sequence[Message]:
        """Return the newest messages within the limits, always with the newest user message and the newest unit.

        `available` is the number of tokens that fits into the model's context window. A tool result that does not fit
        is shortened.
        """
        limit = available if self.max_tokens is None else min(available, self.max_tokens)
        if self.max_messages is None and (limit == math.inf or self.tokens(messages) <= limit):
            return messages
        units = split_units(messages)
        question = next((index for index in reversed(range(len(units))) if is_user_message(units[index][0])), -1)
        required = {question, len(units) - 1} - {-1}
        if available != math.inf:
            units = [self._fit(unit, available, whole=index == question) for index, unit in enumerate(units)]
        required |= self._pinned(units, limit / 2)
        messages_left = _or_infinite(self.max_messages) - sum(len(units[index]) for index in required)
        tokens_left = limit - sum(self.tokens(units[index]) for index in required)
        selected = set(required)
        for index in reversed(range(len(units))):
            if index in required:
                continue
            messages_left -= len(units[index])
            tokens_left -= self.tokens(units[index])
            if messages_left < 0 or tokens_left < 0:
                break
            selected.add(index)
        return _drop_leading_replies(units, sorted(selected))

    def _fit(self, unit: list[Message], available: float, *, whole: bool) -> list[Message]:
        """Shorten a unit that takes more than half of the available tokens, unless it is the message to answer."""
        if whole or self.tokens(unit) <= available / 2:
            return unit
        return [shorten(message, max(int(available / 2 / len(unit)), 1)) for message in unit]

    def _pinned(self, units: list[list[Message]], available: float) -> set[int]:
        """Return the summary and the pinned messages, as far as they fit."""
        found = {index for index, (first, *_) in enumerate(units) if SUMMARY in first.metadata or is_pinned(first)}
        for index in sorted(found, reverse=True):
            available -= self.tokens(units[index])
            if available < 0:
                found.remove(index)
        return found

    def tokens(self, unit: Sequence[Message]) -> int:
        """Return the tokens of these messages."""
        if self.count is context_tokens:
            return total_tokens(unit)
        return sum([self.count(message) for message in unit])


def shorten(message: Message, tokens: int) -> Message:
    """Return the message with the middle of its long texts, arguments and results left out."""
    found: tuple[int, Message] | None = getattr(message, _SHORTENED, None)
    if found is None or found[0] != tokens:
        length = max(tokens * _CHARACTERS_PER_TOKEN // max(len(message.parts), 1), 200)
        parts = tuple([_shorten_part(part, length) for part in message.parts if type(part) is not Thinking])
        shorter = message if parts == message.parts else msgspec.structs.replace(message, parts=parts)
        found = memo(message)[_SHORTENED] = (tokens, shorter)
    return found[1]


def _shorten_part(part: Part, length: int) -> Part:
    match part:
        case Text(text):
            return Text(cut(text, length))
        case ToolResult(result=result):
            text = result if isinstance(result, str) else encode(result).decode()
            return msgspec.structs.replace(part, result=cut(text, length)) if len(text) > length else part
        case ToolCall(arguments=arguments):
            short = {name: cut(value, length) if isinstance(value, str) else value for name, value in arguments.items()}
            return msgspec.structs.replace(part, arguments=short)
        case _:
            return part


def cut(text: str, length: int) -> str:
    """Return the text with its middle left out if it is longer than this."""
    if len(text) <= length:
        return text
    half = max(length // 2 - 40, 40)
    return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters omitted …]\n{text[-half:]}"


class SummaryInfo(msgspec.Struct, frozen=True):
    """Coverage of a summary: it replaces all messages up to `through`, except those in `kept` and pinned ones."""

    through: str
    kept: tuple[str, ...] = ()
    messages: int = 0
    """Number of messages that the conversation had up to there."""
    tokens_before: int = 0
    tokens_after: int = 0


def read_summary(message: Message) -> SummaryInfo | None:
    """Return the coverage of a summary message; None for any other message."""
    given: Any = message.metadata.get(SUMMARY)
    if given is None:
        return None
    try:
        return msgspec.convert(given, SummaryInfo)
    except msgspec.ValidationError:
        return None


def apply_summary(messages: list[Message]) -> list[Message]:
    """Return the conversation with the newest valid summary in place of the messages that it covers."""
    summaries = [index for index, message in enumerate(messages) if SUMMARY in message.metadata]
    if not summaries:
        return messages
    for index in reversed(summaries):
        info = read_summary(messages[index])
        end = next((place for place in range(index) if info and messages[place].id == info.through), None)
        if info is not None and end is not None:
            while end + 1 < index and messages[end + 1].role == "tool":
                end += 1
            kept = [each for each in messages[: end + 1] if is_pinned(each) or each.id in info.kept]
            rest = [each for each in messages[end + 1 :] if SUMMARY not in each.metadata]
            return [messages[index], *kept, *rest]
    return [each for each in messages if SUMMARY not in each.metadata]


class ContextState:
    """Context state of a conversation: its cleared, dropped and summarised parts. Kept in memory with it."""

    __slots__ = ("cleared", "failed_at", "has_summary", "prefix", "scanned", "stale")

    def __init__(self) -> None:
        self.cleared = ""
        """Id of the message up to which large tool results are cleared."""
        self.failed_at = 0
        """Tokens of the conversation when its last summary failed."""
        self.scanned = 0
        """Number of messages that were searched for summaries."""
        self.has_summary = False
        self.prefix: tuple[str, ...] | None = None
        self.stale = ""
        """Id of the message up to which reasoning is bound to a beginning that is no longer sent to the model."""


_states: weakref.WeakKeyDictionary[Conversation, ContextState] = weakref.WeakKeyDictionary()


def has_summary(conversation: Conversation) -> bool:
    """Return whether a conversation has a summary; only messages that are new since the last call are read."""
    state, count = context_state(conversation), len(conversation)
    start = state.scanned if state.scanned <= count else 0
    new = conversation.messages[start:]
    state.has_summary = (state.has_summary and start > 0) or any([SUMMARY in message.metadata for message in new])
    state.scanned = count
    return state.has_summary


def context_state(conversation: Conversation) -> ContextState:
    found = _states.get(conversation)
    if found is None:
        found = _states[conversation] = ContextState()
    return found


def clear_results(messages: list[Message], through: str) -> list[Message]:
    """Return the messages with a note in place of each large tool result, up to and including this message."""
    end = next((index for index, message in enumerate(messages) if message.id == through), -1)
    cleared, names = list(messages), dict[str, str]()
    for index, message in enumerate(messages[: end + 1]):
        names.update({call.id: call.name for call in message.tool_calls})
        if message.role == "tool" and context_tokens(message) > _LARGE_RESULT:
            cleared[index] = _clear(message, names)
    return cleared


def _clear(message: Message, names: dict[str, str]) -> Message:
    found: Message | None = getattr(message, _CLEARED, None)
    if found is None:
        parts = tuple([_clear_part(part, names) for part in message.parts])
        found = memo(message)[_CLEARED] = msgspec.structs.replace(message, parts=parts)
    return found


def _clear_part(part: Part, names: dict[str, str]) -> Part:
    if type(part) is not ToolResult:
        return part
    size = len(part.result if isinstance(part.result, str) else encode(part.result))
    if size <= _LARGE_RESULT:
        return part
    name = names.get(part.call_id, "the tool")
    note = f"[Result of {name} cleared to save space: {size:,} characters. Call the tool again if you need it.]"
    return msgspec.structs.replace(part, result=note)


def drop_stale_reasoning(messages: Sequence[Message], state: ContextState, whole: bool) -> Sequence[Message]:
    """Drop reasoning that its vendor binds to a beginning of the conversation that was changed since.

    `whole` if the messages are the whole conversation, unchanged.
    """
    before, prefix = state.prefix, (state.cleared, *[message.id for message in messages[:2]])
    if messages and (not whole or state.cleared if before is None else prefix[: len(before)] != before):
        state.stale = messages[-1].id
    state.prefix = prefix
    end = next((index for index, message in enumerate(messages) if message.id == state.stale), -1)
    dropped = [without_reasoning(message) for message in messages[: end + 1]]
    return [*[message for message in dropped if message.parts], *messages[end + 1 :]]


def is_pinned(message: Message) -> bool:
    """Return whether a message is always sent. One with tool calls or results never is: the others would be missing."""
    return bool(message.metadata.get(PINNED)) and not any(message.pairing)


def without_reasoning(message: Message) -> Message:
    """Return the message without the reasoning that a vendor binds to everything before it."""
    found: Message | None = getattr(message, _WITHOUT_REASONING, None)
    if found is None:
        parts = tuple([part for part in message.parts if not _is_reasoning(part)])
        found = message if len(parts) == len(message.parts) else msgspec.structs.replace(message, parts=parts)
        memo(message)[_WITHOUT_REASONING] = found
    return found


def _is_reasoning(part: Part) -> bool:
    return type(part) is Thinking or (type(part) is Opaque and part.block.get("type") in _REASONING_BLOCKS)


def is_user_message(message: Message) -> bool:
    """Return whether a person wrote the message; synthetic messages are instructions of the loop itself."""
    return message.role == "user" and not message.metadata.get("synthetic")


def split_units(messages: Sequence[Message]) -> list[list[Message]]:
    """Group messages that must stay together: one with tool calls and its results; any other stands alone."""
    units: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and units and units[-1][-1].tool_calls:
            units[-1].append(message)
        else:
            units.append([message])
    return units


def repair_history(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with a result right after every call, and no result without a call.

    Turns always leave it so; imported or edited conversations may not be.
    """
    if find_unpaired(messages) is None:
        return list(messages)
    repaired: list[Message] = []
    for index, message in enumerate(messages):
        remaining = _without_stray_parts(message) if message.role != "tool" else None
        if remaining is not None:
            repaired.append(remaining)
            if remaining.tool_calls:
                repaired.append(_results_for(remaining, messages, index + 1))
    return repaired


def _without_stray_parts(message: Message) -> Message | None:
    """Remove calls from messages that are not the model's, and results; None if nothing remains."""
    strays = ToolResult if message.role == "assistant" else ToolResult | ToolCall
    parts = tuple([part for part in message.parts if not isinstance(part, strays)])
    if len(parts) == len(message.parts):
        return message
    return msgspec.structs.replace(message, parts=parts) if parts else None


def _results_for(message: Message, messages: Sequence[Message], start: int) -> Message:
    """Return the next message if it answers all calls; else build one from results before the model's next message."""
    wanted = [call.id for call in message.tool_calls]
    after = messages[start] if start < len(messages) else message
    if [result.call_id for result in after.tool_results] == wanted and after.role == "tool" and not after.tool_calls:
        return after
    found: dict[str, ToolResult] = {}
    for later in messages[start:]:
        if later.role == "assistant":
            break
        found.update({result.call_id: result for result in later.tool_results})
    return tool(*(found.get(id) or ToolResult(id, "unknown", _INTERRUPTED, "unknown") for id in wanted))


def _drop_leading_replies(units: list[list[Message]], selected: list[int]) -> list[Message]:
    """Start at a user or system message: a reply without its question only confuses the model."""
    start = next((start for start, index in enumerate(selected) if units[index][0].role in ("user", "system")), 0)
    return [message for index in selected[start:] for message in units[index]]


def _or_infinite(limit: int | None) -> float:
    return float("inf") if limit is None else limit


KIND = "request"
"""Kind of the records under which contents are stored."""
MAX_TAIL = 4000
"""Maximum length of stored turn-specific text of the system prompt; of longer text, only the digest is stored."""
_DIGEST = "request_digest"
_get_digest = attrgetter(_DIGEST)
_KNOWN, _OUTLINES = 10_000, 100


class RequestRecord(msgspec.Struct, frozen=True, array_like=True):
    """Record of the request of one round. `outline` and `messages` are digests, `count` is the number of messages.

    `tail` is the digest of the part of the system prompt that belongs to the turn, and `text` the part itself, unless
    the round before had the same one. `limit` is the number of tokens that was available for the messages, if they did
    not fit, and `cleared` is the message up to which large results were left out. `metadata` is the session's; None if
    it is the same as in the round before. `failed` lists the attempts before the successful one.
    """

    outline: str
    messages: str
    count: int
    tail: str = ""
    text: str = ""
    limit: int = 0
    cleared: str = ""
    metadata: dict[str, Any] | None = None
    failed: tuple[FailedAttempt, ...] = ()


class RequestOutline(msgspec.Struct, frozen=True):
    """Everything in a request but its messages and its turn-specific text: digests of the prompt and of each tool."""

    system: str
    tools: tuple[tuple[str, str], ...]
    tool_choice: str
    settings: dict[str, Any]
    output: str = ""


class StoredContent(msgspec.Struct, frozen=True):
    """Stored content of a request: its text, and the day on which a process last stored it."""

    day: str
    text: str


class SentRequest(msgspec.Struct, frozen=True):
    """A request to record. `fixed` is the part of the system prompt that turns share."""

    request: Request
    fixed: str = ""
    limit: int = 0
    cleared: str = ""
    failed: tuple[FailedAttempt, ...] = ()


def digest(content: bytes) -> str:
    """Return the digest under which a content is stored."""
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def messages_digest(messages: Sequence[Message]) -> str:
    """Return the digest of the parts of messages that a model reads: roles and contents, but neither ids nor times."""
    return MessagesDigest().update(messages)


class MessagesDigest:
    """Incremental digest of a conversation's messages: each update reads only the messages that were added."""

    __slots__ = ("_hash", "_messages")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._hash = hashlib.blake2b(digest_size=8)

    def update(self, messages: Sequence[Message]) -> str:
        """Return the digest of messages, see `messages_digest`."""
        messages, known = list(messages), len(self._messages)
        has_grown = messages[:known] == self._messages
        digests = _join_digests(messages[known:] if has_grown else messages)
        if not has_grown:
            self._hash = hashlib.blake2b(digest_size=8)
        self._hash.update(digests)
        self._messages = messages
        return self._hash.hexdigest()


_digests: "weakref.WeakKeyDictionary[Conversation, MessagesDigest]" = weakref.WeakKeyDictionary()


def digest_conversation(conversation: Conversation) -> MessagesDigest:
    """Return the digest of a conversation's last request."""
    found = _digests.get(conversation)
    if found is None:
        found = _digests[conversation] = MessagesDigest()
    return found


def _join_digests(messages: Sequence[Message]) -> bytes:
    for message in reversed(messages):
        if hasattr(message, _DIGEST):  # and so have those before it, in most cases
            break
        _message_digest(message)
    try:
        return b"".join(map(_get_digest, messages))
    except AttributeError:
        return b"".join([_message_digest(each) for each in messages])


def _message_digest(message: Message) -> bytes:
    found: bytes | None = getattr(message, _DIGEST, None)
    if found is None:
        try:
            content = encode([message.role, message.parts])
        except (TypeError, ValueError):  # a provider of your own may yield values that JSON does not have
            content = repr((message.role, message.parts)).encode()
        found = memo(message)[_DIGEST] = hashlib.blake2b(content, digest_size=8).digest()
    return found


class _KnownOutline(msgspec.Struct, frozen=True):
    """The outline of a request and its digest, with their sources besides the system prompt."""

    parts: tuple[object, ...]
    output: str
    outline: RequestOutline
    key: str

    def is_of(self, parts: tuple[object, ...]) -> bool:
        """Return whether it was made of the same objects. Equal ones may be encoded differently, such as 1 and 1.0."""
        return len(self.parts) == len(parts) and all(map(operator.is_, self.parts, parts))


class RequestContents:
    """Contents of a request's parts, by digest.

    `known` caches outlines by system prompt; the request's outline is added.
    """

    def __init__(
        self, sent: SentRequest, redact: Callable[[str], str], known: dict[str, _KnownOutline] | None = None
    ) -> None:
        self.sent, self._redact = sent, redact
        request = sent.request
        fixed = sent.fixed if request.system.startswith(sent.fixed) else ""
        self.system, self.tail = redact(fixed), redact(request.system[len(fixed) :])
        found = known.get(self.system) if known is not None else None
        parts = (request.settings, request.output, request.tool_choice, *request.tools)
        if found is None or not found.is_of(parts):
            found = self._make_outline(request, parts)
            if known is not None and not request.settings.extra_headers:  # they may be keys
                known[self.system] = found
        self.output, self.outline, self.key = found.output, found.outline, found.key

    def _make_outline(self, request: Request, parts: tuple[object, ...]) -> _KnownOutline:
        settings: dict[str, Any] = msgspec.to_builtins(request.settings)
        if headers := settings.pop("extra_headers", None):
            settings["extra_headers"] = sorted(headers)  # the values may be keys
        output = encode(request.output).decode() if request.output is not None else ""
        outline = RequestOutline(
            digest(self.system.encode()),
            tuple([(tool.name, _tool_digest(tool)) for tool in request.tools]),
            request.tool_choice,
            settings,
            digest(output.encode()) if output else "",
        )
        return _KnownOutline(parts, output, outline, digest(encode(outline)))

    def record(
        self,
        previous_tail: str = "",
        metadata: dict[str, Any] | None = None,
        digest_messages: Callable[[Sequence[Message]], str] = messages_digest,
    ) -> RequestRecord:
        """Return the record; `previous_tail` is the digest of the turn-specific text of the round before."""
        messages, sent = self.sent.request.messages, self.sent
        tail = digest(self.tail.encode()) if self.tail else ""
        text = self.tail if tail != previous_tail and len(self.tail) <= MAX_TAIL else ""
        return RequestRecord(
            *(self.key, digest_messages(messages), len(messages), tail, text, sent.limit, sent.cleared),
            metadata=metadata,
            failed=_redact_failed(sent.failed, self._redact),
        )

    @property
    def texts(self) -> dict[str, str]:
        """The contents by digest, without those of tools."""
        found = {self.key: encode(self.outline).decode(), self.outline.system: self.system}
        return {**found, self.outline.output: self.output} if self.output else found

    def tool(self, name: str) -> str:
        """Return the definition of a tool as JSON."""
        return next(encode(tool).decode() for tool in self.sent.request.tools if tool.name == name)


def _redact_failed(failed: Sequence[FailedAttempt], redact: Callable[[str], str]) -> tuple[FailedAttempt, ...]:
    return tuple([msgspec.structs.replace(each, message=redact(each.message)) for each in failed]) if failed else ()


def _tool_digest(tool: ToolSpec) -> str:
    found: str | None = getattr(tool, _DIGEST, None)
    if found is None:
        found = memo(tool)[_DIGEST] = digest(encode(tool))
    return found


class RequestRecorder:
    """Records requests. It remembers which contents are stored, so that each is written at most once a day."""

    def __init__(self, clock: Clock, redact: Callable[[Any], Any]) -> None:
        self._clock = clock
        self._redact = redact
        self._known: dict[str, str] = {}
        self._outlines: dict[str, _KnownOutline] = {}

    def record(
        self, sent: SentRequest, previous_tail: str, metadata: dict[str, Any] | None, messages: MessagesDigest
    ) -> tuple[RequestRecord, list[PutRecord]]:
        """Return the record of a request, and the writes of contents that this process has not stored today."""
        if len(self._outlines) > _OUTLINES:
            self._outlines.clear()
        contents, day = RequestContents(sent, self._redact, self._outlines), utc_day(self._clock.time())
        writes: list[PutRecord] = []
        if self._known.get(contents.key) != day:
            texts = contents.texts
            texts |= {key: contents.tool(name) for name, key in contents.outline.tools if self._known.get(key) != day}
            new = {key: text for key, text in texts.items() if self._known.get(key) != day}
            writes = [PutRecord(KIND, key, encode(StoredContent(day, text))) for key, text in new.items()]
        metadata = self._redact(metadata) if metadata else metadata
        return contents.record(previous_tail, metadata, messages.update), writes

    def redact_failed(self, failed: Sequence[FailedAttempt]) -> tuple[FailedAttempt, ...]:
        """Return failed attempts without known secrets in their messages."""
        return _redact_failed(failed, self._redact)

    def mark_stored(self, writes: Sequence[PutRecord]) -> None:
        """Remember contents that were committed."""
        if len(self._known) > _KNOWN:
            self._known.clear()
        day = utc_day(self._clock.time())
        self._known.update({write.key: day for write in writes})


class _ReplyStep(msgspec.Struct, frozen=True):
    request: RequestRecord | None = None


def read_request_record(payload: bytes) -> RequestRecord | None:
    """Return the record in a reply's step; None for a reply that a hook gave."""
    return msgspec.json.decode(payload, type=_ReplyStep).request


async def read_contents(store: Store, tenant: str, found: Sequence[RequestRecord]) -> Mapping[str, str]:
    """Return the stored contents of requests by digest; those that are not stored are left out."""
    texts: dict[str, str] = {}

    async def read(key: str) -> str:
        if key and key not in texts and (row := await store.record(tenant, KIND, key)) is not None:
            texts[key] = msgspec.json.decode(row.body, type=StoredContent).text
        return texts.get(key, "")

    for each in {each.outline for each in found}:
        if outline := await read(each):
            parts = msgspec.json.decode(outline, type=RequestOutline)
            for key in (parts.system, parts.output, *[key for _, key in parts.tools]):
                await read(key)
    return texts
