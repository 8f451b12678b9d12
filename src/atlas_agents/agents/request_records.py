"""Request records: what a model was sent in each round, in few bytes, so that a replay can name what has changed.

A reply's step in the journal has two digests: one of the messages, and one of everything else, its outline. What the
outline stands for is stored once per tenant under its own digest. Text that belongs to one turn is stored only in the
turn's own journal, and is deleted with it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from atlas_agents.core.aio import Clock, utc_day
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolSpec, memo
from atlas_agents.core.store import PutRecord, Store
from atlas_agents.providers.base import Request

KIND = "request"
"""Kind of the records under which contents are stored."""
MAX_TAIL = 4000
"""Characters of turn-specific text in the system prompt that are stored; of longer text only the digest is."""
_DIGEST = "request_digest"
_KNOWN = 10_000


class RequestRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a round sent. `outline` and `messages` are digests, `count` is the number of messages.

    `tail` is the digest of the part of the system prompt that belongs to the turn, and `text` the part itself, unless
    the round before had the same one. `limit` are the tokens of a request before it that was too long for the model,
    and `cleared` is the message up to which large results were left out.
    """

    outline: str
    messages: str
    count: int
    tail: str = ""
    text: str = ""
    limit: int = 0
    cleared: str = ""


class RequestOutline(msgspec.Struct, frozen=True):
    """Everything in a request but its messages and its turn-specific text: digests of the prompt and of each tool."""

    system: str
    tools: tuple[tuple[str, str], ...]
    tool_choice: str
    settings: dict[str, Any]
    output: str = ""


class StoredContent(msgspec.Struct, frozen=True):
    """A content as it is stored: its text, and the day on which a process last stored it."""

    day: str
    text: str


class SentRequest(msgspec.Struct, frozen=True):
    """A request with what is needed to record it. `fixed` is the part of the system prompt that turns share."""

    request: Request
    fixed: str = ""
    limit: int = 0
    cleared: str = ""


def digest(content: bytes) -> str:
    """Return the digest under which a content is stored."""
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def messages_digest(messages: Sequence[Message]) -> str:
    """Return the digest of what a model reads of messages: roles and parts, but neither ids nor times."""
    return hashlib.blake2b(b"".join([_message_digest(each) for each in messages]), digest_size=8).hexdigest()


def _message_digest(message: Message) -> bytes:
    found: bytes | None = getattr(message, _DIGEST, None)
    if found is None:
        try:
            content = encode([message.role, message.parts])
        except (TypeError, ValueError):  # a provider of your own may yield values that JSON does not have
            content = repr((message.role, message.parts)).encode()
        found = memo(message)[_DIGEST] = hashlib.blake2b(content, digest_size=8).digest()
    return found


class RequestContents:
    """The digests of a request's parts, and the contents that they stand for."""

    def __init__(self, sent: SentRequest, redact: Callable[[str], str]) -> None:
        self.sent = sent
        request = sent.request
        fixed = sent.fixed if request.system.startswith(sent.fixed) else ""
        self.system, self.tail = redact(fixed), redact(request.system[len(fixed) :])
        settings: dict[str, Any] = msgspec.to_builtins(request.settings)
        if headers := settings.pop("extra_headers", None):
            settings["extra_headers"] = sorted(headers)  # the values may be keys
        self.output = encode(request.output).decode() if request.output is not None else ""
        self.outline = RequestOutline(
            digest(self.system.encode()),
            tuple([(tool.name, _tool_digest(tool)) for tool in request.tools]),
            request.tool_choice,
            settings,
            digest(self.output.encode()) if self.output else "",
        )
        self.key = digest(encode(self.outline))

    def record(self, previous_tail: str = "") -> RequestRecord:
        """Return the record; `previous_tail` is the digest of the turn-specific text of the round before."""
        messages, sent = self.sent.request.messages, self.sent
        tail = digest(self.tail.encode()) if self.tail else ""
        text = self.tail if tail != previous_tail and len(self.tail) <= MAX_TAIL else ""
        return RequestRecord(
            self.key, messages_digest(messages), len(messages), tail, text, int(sent.limit), sent.cleared
        )

    @property
    def texts(self) -> dict[str, str]:
        """The contents by digest, without those of tools."""
        found = {self.key: encode(self.outline).decode(), self.outline.system: self.system}
        return {**found, self.outline.output: self.output} if self.output else found

    def tool(self, name: str) -> str:
        """Return the definition of a tool as JSON."""
        return next(encode(tool).decode() for tool in self.sent.request.tools if tool.name == name)


def _tool_digest(tool: ToolSpec) -> str:
    found: str | None = getattr(tool, _DIGEST, None)
    if found is None:
        found = memo(tool)[_DIGEST] = digest(encode(tool))
    return found


class RequestRecorder:
    """Records requests. It knows which contents the store has, so that each is written once a day at most."""

    def __init__(self, clock: Clock, redact: Callable[[str], str]) -> None:
        self._clock = clock
        self._redact = redact
        self._known: dict[str, str] = {}

    def record(self, sent: SentRequest, previous_tail: str) -> tuple[RequestRecord, list[PutRecord]]:
        """Return the record of a request, and the writes of contents that this process has not stored today."""
        contents, day = RequestContents(sent, self._redact), utc_day(self._clock.time())
        writes: list[PutRecord] = []
        if self._known.get(contents.key) != day:
            texts = contents.texts
            texts |= {key: contents.tool(name) for name, key in contents.outline.tools if self._known.get(key) != day}
            new = {key: text for key, text in texts.items() if self._known.get(key) != day}
            writes = [PutRecord(KIND, key, encode(StoredContent(day, text))) for key, text in new.items()]
        return contents.record(previous_tail), writes

    def mark_stored(self, writes: Sequence[PutRecord]) -> None:
        """Remember contents that were committed."""
        if len(self._known) > _KNOWN:
            self._known.clear()
        day = utc_day(self._clock.time())
        self._known.update({write.key: day for write in writes})


class _ReplyStep(msgspec.Struct, frozen=True):
    request: RequestRecord | None = None


def read_request_record(payload: bytes) -> RequestRecord | None:
    """Return the record in a reply's step; None for the step of an older version, or a reply that a hook gave."""
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
