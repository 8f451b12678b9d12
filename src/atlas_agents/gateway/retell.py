"""From the wire's words back to the engine's: what a run says elsewhere, for those here who listen to a stream."""

from collections.abc import Callable
from typing import Any

import msgspec

from atlas_agents.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ErrorRaised,
    Event,
    HandedOver,
    MessageKept,
    MessageReceived,
    PlanStep,
    PlanUpdated,
    StreamChunk,
    StreamEnd,
    StreamReset,
    StreamStart,
    StreamThinking,
    ToolAnswered,
    ToolCalled,
    ToolProgress,
    Usage,
)
from atlas_agents.core.forms import Form
from atlas_agents.core.messages import Message, Thinking, ToolCall, ToolResult
from atlas_agents.core.messages import Part as CorePart
from atlas_agents.core.questions import Question
from atlas_agents.gateway.protocol import events as wire
from atlas_agents.gateway.protocol.shapes import (
    MessageShape,
    Part,
    ThinkingPart,
    ToolCallPart,
    ToolResultPart,
    UsageShape,
)
from atlas_agents.gateway.translate import ANSWERS, core_part


class Retelling:
    """One run's events for one listener. What the wire does not say (bindings, costs) is not said here either."""

    def __init__(self, session: str, hear: Callable[[Event], None]) -> None:
        self._session = session
        self._hear = hear
        self._calls: dict[str, wire.ToolCalling] = {}

    def tell(self, event: wire.RunEvent) -> None:
        for said in self._of(event):
            self._hear(said)

    def _of(self, event: wire.RunEvent) -> list[Event]:
        match event:
            case wire.ChatDelta(id, text):
                return [StreamChunk(id, text)]
            case wire.ChatReasoning(id, text):
                return [StreamThinking(id, text)]
            case wire.ChatReset(id, attempt):
                return [StreamReset(id, attempt)]
            case wire.ChatStarted(id, agent_id):
                return [StreamStart(id, agent_id)]
            case wire.PlanChanged(id, steps):
                return [PlanUpdated(id, tuple([PlanStep(step.text, step.status) for step in steps]))]
            case wire.RunHandoff(id, before, now):
                return [HandedOver(id, before, now)]
            case wire.ChatMessage(id, message):
                return [MessageKept(id, core_message(message))]
            case wire.ChatFinal() | wire.ChatError():
                return _end(event)
            case _:
                return self._of_tool(event)

    def _of_tool(self, event: wire.RunEvent) -> list[Event]:
        match event:
            case wire.ToolCalling(id, call_id, name, arguments):
                self._calls[call_id] = event
                return [ToolCalled(id, name, arguments, call_id)]
            case wire.ToolProgressing(id, call_id, message):
                call = self._calls.get(call_id)
                return [ToolProgress(id, call.name if call else "", call_id, message)]
            case wire.ToolSettled(id, call_id, name, status, result, took, error):
                call = self._calls.get(call_id)
                known: Any = error
                return [ToolAnswered(id, name, call.arguments if call else {}, call_id, status, known, result, took)]
            case wire.ApprovalRequested(run_id=id):
                return [ApprovalAsked(id, _question(event, self._session))]
            case wire.ApprovalResolved(id, approval_id, decision, by):
                return [ApprovalAnswered(id, approval_id, ANSWERS[decision], by)]
            case _:
                return []


def _end(event: wire.ChatFinal | wire.ChatError) -> list[Event]:
    if isinstance(event, wire.ChatError):
        return [StreamEnd(event.run_id, Usage(), error=event.message), _error(event)]
    ended = StreamEnd(event.run_id, _usage(event.usage), cancelled=event.cancelled)
    if event.cancelled or event.message is None:
        return [ended]
    return [ended, MessageReceived(event.run_id, core_message(event.message))]


def _error(event: wire.ChatError) -> ErrorRaised:
    return ErrorRaised(event.run_id, event.message, event.kind)


def _usage(usage: UsageShape) -> Usage:
    return Usage(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.estimated)


def core_message(shape: MessageShape) -> Message:
    """The message, without what is a vendor's own."""
    return Message(shape.role, tuple(map(_part, shape.parts)), shape.id, shape.created_at, shape.metadata)


def _part(part: Part) -> CorePart:
    match part:
        case ThinkingPart(text):
            return Thinking(text)
        case ToolCallPart(id, name, arguments):
            return ToolCall(id, name, arguments)
        case ToolResultPart(call_id, status, result, error):
            known: Any = error
            return ToolResult(call_id, status, result, known)
        case _:
            return core_part(part)


def _question(event: wire.ApprovalRequested, session: str) -> Question:
    return Question(
        title=event.summary,
        message="About to execute:",
        tool=event.tool_name,
        arguments=event.details,
        binding="",
        call_id=event.tool_call_id,
        run_id=event.run_id,
        agent_id="",
        session=session,
        asked_by="",
        expires_at=event.expires_at / 1000,
        working_directory=event.working_dir,
        reason=event.risk,
        options=tuple([ANSWERS[option] for option in event.options]),
        id=event.approval_id,
        preview=event.preview,
        form=msgspec.convert(event.form, Form, from_attributes=True) if event.form is not None else None,
    )
