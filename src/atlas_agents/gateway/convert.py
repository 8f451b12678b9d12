"""Conversion between core values and the shapes of the wire protocol."""

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core import events as core
from atlas_agents.core.approvals import Decision as CoreDecision
from atlas_agents.core.approvals import Form, Question
from atlas_agents.core.messages import File, Image, Message, Text, Thinking, ToolCall, ToolResult
from atlas_agents.core.messages import Part as CorePart
from atlas_agents.core.paths import digest
from atlas_agents.core.store import Session, StoredMessage
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol import types
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.providers.base import Provider
from atlas_agents.providers.failover import Route
from atlas_agents.providers.registry import Model, Registry

DECISIONS: dict[CoreDecision, types.Decision] = {
    "once": "allow-once",
    "session": "allow-session",
    "always": "allow-always",
    "no": "deny",
    "dismiss": "dismiss",
}
ANSWERS: dict[types.Decision, CoreDecision] = {wire_decision: decision for decision, wire_decision in DECISIONS.items()}
_PAGE_BYTES = 512 * 1024
_CURSOR_TIME = re.compile("[0-9]{1,18}")
WireEvent: TypeAlias = wire.RunEvent | None


class Translator:
    """Converts the events of one run to wire events. It keeps the usage until the terminal event."""

    __slots__ = ("_hide", "_model", "_model_notice", "_usage")

    def __init__(self, model: str, model_notice: Callable[[str], str], hide: Callable[[str], str] = str) -> None:
        self._model = model
        self._model_notice = model_notice
        self._hide = hide
        self._usage = core.Usage()

    def convert(self, event: core.Event) -> WireEvent:
        """Return the wire event for a core event, or None if the protocol has none."""
        if type(event) is core.StreamChunk:
            return wire.ChatDelta(event.stream_id, event.text)
        match event:
            case core.StreamThinking(id, text):
                return wire.ChatReasoning(id, text)
            case core.StreamReset(id, attempt):
                return wire.ChatReset(id, attempt)
            case core.StreamStart(id, agent_id):
                return wire.ChatStarted(id, agent_id, self._model, self._model_notice(agent_id))
            case core.PlanUpdated(id, steps):
                return wire.PlanChanged(id, tuple([types.PlanStepShape(step.text, step.status) for step in steps]))
            case core.HandedOff(id, before, now):
                return wire.RunHandoff(id, before, now)
            case core.SessionCompacted(id, summary, messages, before, after):
                return wire.SessionSummarized(id, message_shape(summary, id), messages, before, after)
            case core.MessageStored(id, message):
                return wire.ChatMessage(id, message_shape(message, id))
            case (
                core.ToolCalled()
                | core.ToolProgress()
                | core.ToolAnswered()
                | core.StateChanged()
                | core.ApprovalAsked()
                | core.ApprovalAnswered()
                | core.ClientToolsCalled()
            ):
                return self._convert_tool_event(event)
            case _:
                return self._convert_end(event)

    def _convert_tool_event(self, event: core.Event) -> WireEvent:
        match event:
            case core.ToolCalled(id, name, arguments, call_id):
                return wire.ToolCalling(id, call_id, name, arguments)
            case core.ToolProgress(id, _, call_id, message):
                return wire.ToolProgressing(id, call_id, message)
            case core.ToolAnswered(id, name, _, call_id, status, error, result, took):
                return wire.ToolSettled(id, call_id, name, status, result, took, error)
            case core.StateChanged(id, state):
                return wire.StateUpdated(id, state)
            case core.ApprovalAsked(_, question):
                return approval_event(question)
            case core.ApprovalAnswered(id, approval_id, decision, by):
                return wire.ApprovalResolved(id, approval_id, DECISIONS[decision], by)
            case core.ClientToolsCalled(id, calls):
                return wire.ToolsPending(id, tuple(map(_client_call, calls)))
            case _:
                return None

    def _convert_end(self, event: core.Event) -> WireEvent:
        match event:
            case core.MessageSteered(id, entered):
                return wire.ChatFinal(id, usage_shape(self._usage), entered_run_id=entered)
            case core.StreamEnd(id, usage, cancelled):
                self._usage = usage
                return wire.ChatFinal(id, usage_shape(usage), cancelled=True) if cancelled else None
            case core.MessageReceived(id, message):
                return wire.ChatFinal(id, usage_shape(self._usage), message_shape(message, id))
            case core.ErrorRaised(id, message, kind):
                return wire.ChatError(id, self._hide(message), kind)
            case _:
                return None


def _client_call(call: Question) -> wire.ClientCallShape:
    file = call.facts["file"] if call.facts else ""
    return wire.ClientCallShape(call.id, call.call_id, call.tool, call.arguments, int(call.expires_at * 1000), file)


def usage_shape(usage: core.Usage) -> types.UsageShape:
    return types.UsageShape(
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.estimated,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )


def message_shape(message: Message, run_id: str = "", seq: int = 0) -> types.MessageShape:
    """Convert a message to its wire shape, without vendor-specific parts."""
    took: dict[str, int] = message.metadata.get("durations") or {}
    parts = tuple([part for each in message.parts if (part := _part(each, took)) is not None])
    return types.MessageShape(
        message.id,
        message.role,
        parts,
        message.created_at,
        run_id,
        seq,
        message.metadata,
        message.refusal,
        str(message.metadata.get("speaker") or "") if message.role == "assistant" else "",
        _origin(message.metadata) if message.role == "user" else None,
    )


def _origin(metadata: dict[str, Any]) -> types.OriginShape | None:
    match metadata:
        case {"job": str(job), "state": str(state)}:
            return types.OriginShape("job", job, str(metadata.get("agent") or ""), state)
        case {"schedule": str(schedule), "job": str()}:
            return types.OriginShape("schedule", schedule)
        case {"job": str(job)}:
            return types.OriginShape("job", job, str(metadata.get("asked_by") or ""))
        case {"channel": str(channel)}:
            return types.OriginShape("channel", channel)
        case _:
            return None


def fit_in_frame(rows: Sequence[StoredMessage], limit: int) -> Sequence[StoredMessage]:
    """Return the last messages that fit into one frame, by number and by size."""
    size, first = 0, len(rows)
    while first > max(0, len(rows) - limit) and (size := size + len(rows[first - 1].body)) <= _PAGE_BYTES:
        first -= 1
    return rows[min(first, len(rows) - 1) :] if rows else rows


def stored_message_shape(row: StoredMessage) -> types.MessageShape:
    return message_shape(row.message, row.run_id, row.seq)


def _part(part: CorePart, took: dict[str, int]) -> types.Part | None:
    match part:
        case Text(text):
            return types.TextPart(text)
        case ToolCall(id, name, arguments):
            return types.ToolCallPart(id, name, arguments)
        case ToolResult(call_id, status, result, error):
            return types.ToolResultPart(call_id, status, result, error, took.get(call_id))
        case Thinking(text):
            return types.ThinkingPart(text)
        case Image(media_type, data, url):
            return types.ImagePart(media_type, data, url)
        case File(name, media_type, data, url):
            return types.FilePart(name, media_type, data, url)
        case _:
            return None


def core_part(part: types.InputPart) -> CorePart:
    match part:
        case types.TextPart(text):
            return Text(text)
        case types.ImagePart(media_type, data, url):
            return Image(media_type, data, url)
        case types.FilePart(name, media_type, data, url):
            return File(name, media_type, data, url)


def approval_event(question: Question) -> wire.ApprovalRequested:
    fields = msgspec.structs.asdict(approval_shape(question, question.session))
    return wire.ApprovalRequested(**{name: fields[name] for name in wire.ApprovalRequested.__struct_fields__})


def approval_digest(question: Question) -> str:
    """Return the hash of everything in a question that a client shows, except its deadline."""
    return approval_shape(question, question.session).digest


def approval_shape(question: Question, session_key: str) -> types.ApprovalShape:
    shape = types.ApprovalShape(
        approval_id=question.id,
        run_id=question.run_id,
        session_key=session_key,
        tool_call_id=question.call_id,
        tool_name=question.tool,
        summary=question.title,
        details=question.arguments,
        command=_command(question),
        working_dir=_folder(question),
        risk=question.reason,
        options=tuple([DECISIONS[option] for option in question.options]),
        expires_at=int(question.expires_at * 1000),
        agent_id=question.agent_id,
        preview=question.preview,
        form=_form(question.form) if question.form is not None else None,
        kind=_kind(question),
        sandbox=_sandbox(question),
        rule=question.rule,
    )
    shown = msgspec.structs.replace(shape, session_key="", expires_at=0)
    return msgspec.structs.replace(shape, digest=digest(msgspec.json.encode(shown, order="deterministic")))


def _kind(question: Question) -> types.ApprovalKind:
    """Classify a request by the tool's declarations about the call."""
    match question:
        case Question(form=Form()):
            return "form"
        case Question(facts={"file": str()}):
            return "file"
        case Question(facts={"sandbox": str(), "argv": _}) | Question(arguments={"command": str()}):
            return "command"
        case Question(facts={"sandbox": str()}, arguments={"code": str()}):
            return "code"
        case _:
            return "tool"


def _sandbox(question: Question) -> str:
    """Return the name of the sandbox that the approval is bound to; empty if the tool does not declare one."""
    match question.facts:
        case {"sandbox": str(name)}:
            return name
        case _:
            return ""


def _form(form: Form) -> types.FormShape:
    fields = [
        types.FieldShape(
            field.name,
            field.kind,
            field.title,
            field.description,
            field.required,
            field.default,
            tuple([types.ChoiceShape(choice.value, choice.title) for choice in field.choices]),
            field.format,
            field.pattern,
            field.least,
            field.most,
        )
        for field in form.fields
    ]
    return types.FormShape(form.asker, form.message, tuple(fields), form.url)


def _folder(question: Question) -> str:
    """Return the folder the call would run in: the tool's own, else the working directory."""
    match question.facts:
        case {"folder": str(folder)}:
            return folder
        case _:
            return question.working_directory


def _command(question: Question) -> str:
    """Summarise the request in one line: a shell command, a tool call, or the purpose of a form."""
    if question.form is not None:
        return question.message
    command: Any = question.arguments.get("command")
    if isinstance(command, str):
        return command
    return f"{question.tool}({', '.join(f'{name}={value!r}' for name, value in question.arguments.items())})"


def session_shape(session: Session, key: str, *, running: bool) -> types.SessionShape:
    return types.SessionShape(
        session_key=key,
        label=session.label,
        agent_id=session.agent_id,
        archived=session.archived,
        running=running,
        created_at=session.created_at,
        updated_at=session.updated_at,
        metadata=session.metadata,
        **_choices(session.metadata.get(CHOICES)),
    )


CHOICES = "choices"
"""Metadata key of a person's choices for a session: model, effort, pinned and folder."""


def _choices(stored: Any) -> dict[str, Any]:
    """Return the choices of a session; a client may have stored anything under the key."""
    match stored:
        case {"model": str(), "effort": str(), "pinned": bool(), "folder": str()}:
            return {name: stored[name] for name in ("model", "effort", "pinned", "folder")}
        case _:
            return {}


def agent_model(agent: Agent, registry: Registry) -> str:
    """Return the name of an agent's primary model."""
    return model_name(agent.models[0]) if agent.models else registry.default_model or ""


def list_model_users(agents: Iterable[Agent], registry: Registry) -> dict[str, list[str]]:
    """Return the name of every model that agents use, with the ids of these agents."""
    found: dict[str, list[str]] = {}
    for agent in agents:
        for model in agent.models or (registry.default_model or "",):
            if name := model_name(model):
                found.setdefault(name, []).append(agent.id)
    return found


def model_name(model: Model) -> str:
    if isinstance(model, str):
        return model
    if isinstance(model, Route):
        return model.label
    if hasattr(model, "stream"):  # a provider; `isinstance` would look at each of its members, for every turn
        return cast(Provider, model).id
    return getattr(model, "__name__", "function")


def build_cursor(at: int, id: str) -> str:
    """Return an opaque cursor for the rows of a list, latest first, that follow the row with this time and id."""
    return base64.urlsafe_b64encode(f"{at} {id}".encode()).decode().rstrip("=")


def parse_cursor(cursor: str | None) -> tuple[int | None, str]:
    """Return the time and id of the row after which a page starts."""
    if cursor is None:
        return None, ""
    try:
        at, space, id = (
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode().partition(" ")
        )
        if not space or not _CURSOR_TIME.fullmatch(at) or "\0" in id:
            raise ValueError(cursor)
    except ValueError:
        raise ProtocolError("INVALID_PARAMS", "invalid cursor: expected a cursor returned by this method") from None
    return int(at), id
