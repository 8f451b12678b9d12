"""Run records: a finished run with everything that a replay needs, read from a store or from a file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from atlas_agents.agents.history import RequestRecord, read_contents, read_request_record
from atlas_agents.agents.run import decode_options
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.errors import AtlasError, UnreadableRow
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolCall, ToolResult
from atlas_agents.core.store import (
    OPEN,
    UNREADABLE,
    AcceptRun,
    AddJournal,
    AddMessage,
    ClaimRun,
    JournalKind,
    JournalRow,
    PutSession,
    RunRow,
    Store,
    StoredMessage,
    Write,
)
from atlas_agents.storage.hash_chain import find_journal_break
from atlas_agents.tools.audit import AuditEntry
from atlas_agents.tools.journal import EndRecord, HookRecord, SteerRecord, read_answering_run, read_first_messages
from atlas_agents.tools.redact import Redactor, find_secrets

T = TypeVar("T")
FORMAT = 1
"""Version of the file format of a record."""
_PAGE = 500
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_CLOCK_SKEW = 60_000
_TYPES: dict[JournalKind, Any] = {
    "accepted": tuple[str, ...],
    "resumed": Any,
    "summary": Any,
    "reply": Message,
    "steer": SteerRecord,
    "hook": HookRecord,
    "intent": ToolCall,
    "outcome": ToolResult,
    "state": Any,
    "asked": Question,
    "answered": Answer,
    "ended": EndRecord,
}
_NOT_SEEDED: tuple[JournalKind, ...] = ("resumed", "ended", "state")
_entries = msgspec.json.Decoder(AuditEntry)
_accepted = msgspec.json.Decoder(tuple[str, ...])


class ReplayError(AtlasError):
    """The run cannot be replayed; the message says why and what to do."""


class RecordedStep(msgspec.Struct, frozen=True):
    """One step of the journal. `at` is in milliseconds since 1970."""

    kind: JournalKind
    key: str
    payload: msgspec.Raw
    at: int

    def decode(self, kind: type[T]) -> T:
        return msgspec.json.decode(self.payload, type=kind)


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run: its request, the messages of its session up to its end, its journal and its audit rows.

    Args:
        format: Version of the file format.
        id: Id of the run.
        tenant: Owner of the run.
        session: Key of its session.
        agent_id: Agent that answered.
        user: User for whom it ran.
        status: How it ended.
        error: Why it failed; None if it did not.
        created_at: When it was accepted, in milliseconds since 1970.
        request: The options with which it was accepted, as JSON.
        metadata: Metadata of its session when the run began; the current one if that was not recorded.
        history: Messages of the session before the run, as JSON.
        messages: Messages of the run, as JSON.
        steps: The steps of its journal.
        verdicts: Audit data of its calls, by call id.
        texts: Contents that its requests refer to, by digest.
    """

    format: int = FORMAT
    id: str
    tenant: str
    session: str
    agent_id: str
    user: str
    status: str
    error: str | None
    created_at: int
    request: msgspec.Raw
    metadata: dict[str, Any]
    history: tuple[msgspec.Raw, ...]
    messages: tuple[msgspec.Raw, ...]
    steps: tuple[RecordedStep, ...]
    verdicts: dict[str, dict[str, Any]]
    texts: dict[str, str]

    @classmethod
    async def read(cls, store: Store, run_id: str, tenant: str = "default") -> "RunRecord":
        """Read a run from a store; raises ReplayError if it is unknown, not finished, or cannot be read."""
        row = await store.run(tenant, run_id)
        if row is None:
            raise ReplayError(f"not found: run {run_id!r}")
        if row.status in OPEN:
            raise ReplayError(f"run {run_id!r} has not ended: its status is {row.status!r}; replay it when it has")
        steps = await _read_steps(store, row)
        history, own = await _read_messages(store, row, steps)
        session = await store.session(tenant, row.session)
        sent = [each for each in map(_request_of, steps) if each is not None]
        return cls(
            id=row.id,
            tenant=tenant,
            session=row.session,
            agent_id=row.agent_id,
            user=row.user,
            status=row.status,
            error=row.error,
            created_at=row.created_at,
            request=msgspec.Raw(row.request),
            metadata=_first_metadata(sent, session.metadata if session is not None else {}),
            history=tuple([msgspec.Raw(each.body) for each in history]),
            messages=tuple([msgspec.Raw(each.body) for each in own]),
            steps=tuple([RecordedStep(each.kind, each.key, msgspec.Raw(each.payload), each.at) for each in steps]),
            verdicts=await _read_verdicts(store, row, steps[-1].at),
            texts=dict(await read_contents(store, tenant, sent)),
        )

    @classmethod
    def load(cls, path: Path | str) -> "RunRecord":
        """Read a record from a file that `save` wrote."""
        try:
            found = msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except OSError as error:
            raise ReplayError(f"cannot read the recorded run {path}: {error.strerror}") from error
        except _UNREADABLE as error:
            raise ReplayError(f"the recorded run {path} cannot be read: {error}; save it again") from error
        if found.format != FORMAT:
            raise ReplayError(
                f"the recorded run {path} has the format {found.format}, expected {FORMAT}: save it again"
            )
        try:
            found._check()
        except (*_UNREADABLE, AtlasError) as error:
            raise ReplayError(f"the recorded run {path} cannot be read: {error}; save it again") from error
        return found

    def _check(self) -> None:
        """Decode every part, so that a damaged record is refused before it is replayed."""
        _check_steps(self.id, [(at, step.kind, bytes(step.payload)) for at, step in enumerate(self.steps, 1)])
        row = RunRow(self.id, self.session, self.agent_id, "done", request=bytes(self.request))
        decode_options(row)
        read_first_messages(row)
        own = [Message.from_json(bytes(body)).id for body in self.messages]
        if not own or not all(each in own for each in _first_ids(bytes(self.steps[0].payload))):
            raise ReplayError(f"messages of run {self.id!r} are missing")
        for body in self.history:
            Message.from_json(bytes(body))

    def to_json(self) -> bytes:
        """Return the record as readable JSON."""
        return msgspec.json.format(encode(self), indent=1) + b"\n"

    @property
    def end(self) -> EndRecord:
        """Outcome of the turn."""
        return self.steps[-1].decode(EndRecord)

    def of_kind(self, kind: JournalKind) -> list[RecordedStep]:
        """Return the steps of a kind, in order."""
        return [step for step in self.steps if step.kind == kind]

    @property
    def requests(self) -> list[RequestRecord | None]:
        """Request of each round; None where it was not recorded."""
        return [read_request_record(bytes(step.payload)) for step in self.of_kind("reply")]

    async def seed(self, store: Store, upto: int | None = None) -> RunRow:
        """Write the run to an empty store as if its process had crashed, and return its row.

        With `upto`, only the steps with lower numbers are written; the first step has the number 1.
        """
        steps = [step for step in self.steps if step.kind not in _NOT_SEEDED] if upto is None else self._before(upto)
        writes: list[Write] = [PutSession(self.session, self.agent_id, metadata=self.metadata)]
        writes += [AddMessage(self.session, _id_of(body), bytes(body)) for body in self.history]
        accepted = AcceptRun(self.id, self.session, self.agent_id, self.user, request=bytes(self.request))
        writes += [msgspec.structs.replace(accepted, at_once=True), ClaimRun(self.id)]
        own = self.messages if upto is None else self._messages_before(steps)
        writes += [AddMessage(self.session, _id_of(body), bytes(body), self.id) for body in own]
        writes += [AddJournal(self.id, 1, step.kind, step.key, bytes(step.payload)) for step in steps]
        await store.commit(self.tenant, writes)
        row = await store.run(self.tenant, self.id)
        if row is None:
            raise ReplayError(f"run {self.id!r} was not copied")
        return row

    def with_requests(self, requests: Sequence[RequestRecord | None], texts: Mapping[str, str]) -> "RunRecord":
        """Return the record with the current requests of its rounds in place of the recorded ones."""
        sent = iter(requests)
        steps = [
            msgspec.structs.replace(step, payload=_with_request(step.payload, next(sent, None)))
            if step.kind == "reply"
            else step
            for step in self.steps
        ]
        return msgspec.structs.replace(self, steps=tuple(steps), texts=dict(texts))

    def _before(self, number: int) -> list[RecordedStep]:
        """Return the steps before a number, without those of calls that have no outcome yet, which are made again."""
        steps = self.steps[: number - 1]
        settled = {step.key for step in steps if step.kind == "outcome"}
        asked = {step.key: step.decode(Question).call_id for step in self.of_kind("asked")}
        kept: list[RecordedStep] = []
        for step in steps:
            call = asked.get(step.key, "") if step.kind in ("asked", "answered") else step.key
            if step.kind not in ("intent", "hook", "asked", "answered") or call in settled:
                kept.append(step)
        return [step for step in kept if step.kind not in _NOT_SEEDED]

    def _messages_before(self, steps: Sequence[RecordedStep]) -> list[msgspec.Raw]:
        """Return the first messages of the run, and those that entered it or were replied before these steps."""
        known = {_id_of(step.payload) for step in steps if step.kind == "reply"}
        for step in steps:
            if step.kind == "steer":
                known.update(step.decode(SteerRecord).messages)
            elif step.kind == "reply":
                known.update(step.decode(Message).metadata.get("added", ()))
        return [body for body in self.messages if _id_of(body) in known or body in self.first_messages]

    @property
    def first_messages(self) -> list[msgspec.Raw]:
        """The messages that the run was accepted with."""
        ids = _first_ids(bytes(self.steps[0].payload))
        return [body for body in self.messages if _id_of(body) in ids]


def _with_request(payload: msgspec.Raw, request: RequestRecord | None) -> msgspec.Raw:
    reply: dict[str, Any] = msgspec.json.decode(payload)
    return msgspec.Raw(encode({**reply, "request": request}))


class _Identified(msgspec.Struct, frozen=True):
    id: str


def _id_of(body: msgspec.Raw) -> str:
    return msgspec.json.decode(body, type=_Identified).id


def _first_ids(payload: bytes) -> tuple[str, ...]:
    """Return the ids of the messages that a run was accepted with."""
    return _accepted.decode(payload)


def _first_metadata(sent: Sequence[RequestRecord], current: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of the session when the run began; the current one if it was not recorded."""
    return current if not sent or sent[0].metadata is None else sent[0].metadata


def _request_of(row: JournalRow) -> RequestRecord | None:
    return read_request_record(row.payload) if row.kind == "reply" else None


async def _read_steps(store: Store, row: RunRow) -> list[JournalRow]:
    """Return the steps of a run; raises ReplayError if they are missing, changed or cannot be decoded."""
    steps = await store.journal(row.tenant, row.id)
    if not steps:
        answering = await read_answering_run(store, row)
        if answering.id != row.id:
            raise ReplayError(f"the message of run {row.id!r} entered run {answering.id!r}: replay that one")
        why = "it never started" if row.status == "cancelled" else "its steps were deleted by retention (keep_journals)"
        raise ReplayError(f"run {row.id!r} has no journal: {why}")
    if (broken := find_journal_break(steps)) is not None:
        raise ReplayError(f"step {broken} of run {row.id!r} was changed after it was written; run: atlas store check")
    _check_steps(row.id, [(step.seq, step.kind, step.payload) for step in steps])
    return steps


def _check_steps(run_id: str, steps: Sequence[tuple[int, JournalKind, bytes]]) -> None:
    """Check the number, kind and payload of each step; raises ReplayError if one cannot be used."""
    for number, kind, payload in steps:
        if kind not in _TYPES:
            raise ReplayError(f"step {number} of run {run_id!r} is of the unknown kind {kind!r}: update Atlas")
        try:
            msgspec.json.decode(payload, type=_TYPES[kind])
            if kind == "reply":
                read_request_record(payload)
        except (*_UNREADABLE, AtlasError) as error:
            raise ReplayError(f"step {number} ({kind}) of run {run_id!r} cannot be read: {error}") from error
    last = steps[-1][1] if steps else "none"
    if last != "ended":
        raise ReplayError(f"the journal of run {run_id!r} has no end: its last step is {last!r}")


async def _read_messages(
    store: Store, row: RunRow, steps: Sequence[JournalRow]
) -> tuple[list[StoredMessage], list[StoredMessage]]:
    """Return the messages of the session before the run, and those of the run."""
    try:
        decode_options(row)
        read_first_messages(row)
    except UnreadableRow as error:
        raise ReplayError(str(error)) from error
    found = await store.messages(row.tenant, row.session)
    own = [each for each in found if each.run_id == row.id]
    if not own or not {each.id for each in own}.issuperset(_first_ids(steps[0].payload)):
        raise ReplayError(f"the messages of run {row.id!r} were deleted from session {row.session!r}")
    history = [each for each in found if each.seq < own[0].seq]
    for each in (*history, *own):
        if UNREADABLE in each.message.metadata:
            raise ReplayError(f"message {each.seq} of session {row.session!r} cannot be read; run: atlas store check")
    return history, own


async def _read_verdicts(store: Store, row: RunRow, ended_at: int) -> dict[str, dict[str, Any]]:
    """Return the audit data of a run's calls by call id, reading the log from where the run began."""
    found: dict[str, dict[str, Any]] = {}
    after = await _first_row_since(store, row.tenant, row.created_at - _CLOCK_SKEW)
    while rows := await store.audit(row.tenant, after=after, limit=_PAGE):
        after = rows[-1].seq
        entries = [_entries.decode(each.entry) for each in rows]
        for entry in entries:
            if entry.meta.get("run_id") == row.id:
                found[str(entry.meta.get("call_id"))] = entry.meta
        if entries[0].timestamp > ended_at + _CLOCK_SKEW:
            break
    return found


async def _first_row_since(store: Store, tenant: str, time: int) -> int:
    """Return the number of the last audit row before a time, by binary search."""
    last = await store.audit(tenant, limit=1, last=True)
    low, high = 0, last[0].seq if last else 0
    while low < high:
        middle = (low + high) // 2
        (row,) = await store.audit(tenant, after=middle, limit=1)
        if _entries.decode(row.entry).timestamp < time:
            low = middle + 1
        else:
            high = middle
    return low


_IDENTIFIERS = frozenset(
    ("id", "call_id", "run_id", "key", "kind", "session", "tenant", "agent_id", "messages", "role", "type", "status")
)
"""Fields by which parts of a record refer to each other; lists of messages are not texts themselves."""


_DATA = frozenset(("arguments", "edited_arguments", "result", "metadata", "requested", "notes"))
"""Fields with data of tools and callers, in which the name of a value may mark it as a secret."""
_TEXTS = frozenset(("text", "error", "message", "reason"))


def redact_record(record: RunRecord, hide: Callable[[Any], Any]) -> RunRecord:
    """Return the record without secrets: `hide` is applied to everything that people, models and tools wrote.

    A value that is a secret by its name, such as a password in the arguments of a call, is removed wherever it occurs,
    also in URL, JSON, hex and base64 encoding. Shared states are left out, because a replay does not use them.
    """
    steps = tuple([step for step in record.steps if step.kind != "state"])
    whole: Any = msgspec.json.decode(encode(msgspec.structs.replace(record, steps=steps, texts={})))
    sent = [secret for text in record.texts.values() for secret in find_secrets(text, levels=0)]
    copy = _RedactedRecord(hide, [*_named_secrets(whole), *sent])
    cleaned = msgspec.json.decode(encode(copy.clean(whole)), type=RunRecord)
    return msgspec.structs.replace(cleaned, texts={key: copy.hide_text(text) for key, text in record.texts.items()})


class _RedactedRecord:
    """Copies the parts of a record without secrets."""

    def __init__(self, hide: Callable[[Any], Any], secrets: Sequence[str]) -> None:
        self._hide, self._named = hide, Redactor(secrets, environment={})

    def hide_text(self, text: str) -> str:
        return str(self._hide(self._named.remove_known(text)))

    def clean(self, value: Any, name: str = "", data: bool = False) -> Any:
        """Return a value without secrets; in data of tools and callers, names of fields are texts like any other."""
        if isinstance(value, dict):
            found = cast(dict[str, Any], self._hide(value) if name in _DATA and not data else value)
            inside = data or name in _DATA
            hide_key = self.hide_text if inside else str
            return {hide_key(key): self.clean(item, key, inside) for key, item in found.items()}
        if isinstance(value, list):
            items = cast(list[Any], self._hide(value) if name in _DATA and not data else value)
            inside = data or name in _DATA
            return self._join_texts(items, [self.clean(item, _name_in_list(name), inside) for item in items])
        return self.hide_text(value) if isinstance(value, str) and (data or name not in _IDENTIFIERS) else value

    def _join_texts(self, items: list[Any], cleaned: list[Any]) -> list[Any]:
        """Return the cleaned parts of a message; its texts are joined if a secret is split over several of them."""
        places = [at for at, item in enumerate(items) if _text_of(item) is not None]
        if len(places) < 2:
            return cleaned
        whole = self.hide_text("".join([_text_of(items[at]) or "" for at in places]))
        if whole == "".join([_text_of(cleaned[at]) or "" for at in places]):
            return cleaned
        first, *others = places
        return [
            {**cast(dict[str, Any], item), "text": whole} if at == first else item
            for at, item in enumerate(cleaned)
            if at not in others
        ]


def _text_of(part: Any) -> str | None:
    """Return the text of a text part of a message; None if it is something else."""
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return None


def _named_secrets(value: Any, name: str = "") -> list[str]:
    """Return the values in the data and texts of a record that are secrets by their names or by their format."""
    if name in _DATA or name in _TEXTS:
        return find_secrets(value)
    if isinstance(value, dict):
        return [each for key, item in cast(dict[str, Any], value).items() for each in _named_secrets(item, key)]
    if isinstance(value, list):
        return [each for item in cast(list[Any], value) for each in _named_secrets(item, _name_in_list(name))]
    return []


def _name_in_list(name: str) -> str:
    """Return the field name of the items of a list; the only object in a request record is the session's metadata."""
    return "metadata" if name == "request" else name
