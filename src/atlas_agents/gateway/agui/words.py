"""From our events to AG-UI's: what is open is closed before something else begins, as their rules say."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from atlas_agents.core.events import (
    ApprovalAsked,
    ErrorRaised,
    Event,
    HandedOver,
    MessageKept,
    PlanUpdated,
    StreamChunk,
    StreamEnd,
    StreamReset,
    StreamThinking,
    ToolAnswered,
    ToolCalled,
    ToolProgress,
    Usage,
)
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolResult
from atlas_agents.core.questions import Question
from atlas_agents.gateway.agui import events as agui
from atlas_agents.gateway.agui.asked import PAYLOAD_SCHEMA
from atlas_agents.gateway.translate import asked as wire_question
from atlas_agents.gateway.trouble import Hide
from atlas_agents.providers.base import spoken


class _Draft:
    """A message of the page that is still being told."""

    __slots__ = ("calls", "id", "words")

    def __init__(self, id: str) -> None:
        self.id = id
        self.words: list[str] = []
        self.calls: list[agui.CallShape] = []

    def shape(self) -> agui.AssistantShape:
        return agui.AssistantShape(self.id, "assistant", "".join(self.words), tuple(self.calls))


class Words:
    """One run of a page. `over` once it has said its last word. `page` are the messages that the page has; those of
    this run join them, so that one can be taken back."""

    def __init__(self, thread_id: str, run_id: str, model: str, page: list[Any], hide: Hide = str) -> None:
        self.over = False
        self._thread_id = thread_id
        self._run_id = run_id
        self._model = model
        self._page = page
        self._hide = hide
        self._numbers = 0
        self._text_id = ""
        self._thought_id = ""
        self._drafts: list[_Draft] = []
        """What the model has said since its last message was complete."""

    def start(self) -> list[agui.AgUiEvent]:
        return [agui.RunStarted(self._thread_id, self._run_id, agui.VERSION)]

    def of(self, event: Event) -> list[agui.AgUiEvent]:
        """AG-UI's words for an event of a turn; none where it has no word for it."""
        match event:
            case StreamChunk(_, text):
                return self._say(text) if text else []
            case StreamThinking(_, text):
                return self._think(text) if text else []
            case StreamReset():
                return self._take_back()
            case ToolCalled(_, name, arguments, call_id):
                return self._call(call_id, name, arguments)
            case ToolProgress(_, name, call_id, message):
                value = {"toolCallId": call_id, "name": name, "message": message}
                return [agui.Custom("tool.progress", value)]
            case PlanUpdated(_, steps):
                return [agui.Custom("plan.updated", {"steps": msgspec.to_builtins(steps)})]
            case HandedOver(_, before, now):
                return [agui.Custom("run.handoff", {"from": before, "to": now})]
            case ToolAnswered(call_id=call_id, status=status, result=result, error=error):
                return self._result(ToolResult(call_id, status, result, error))
            case MessageKept(_, message) if message.role == "assistant" and not message.tool_calls:
                return self._complete()
            case _:
                return self._end(event)

    def replay(self, message: Message) -> list[agui.AgUiEvent]:
        """What a message of the past would have said."""
        said = self._complete()
        if message.role == "assistant" and message.text:
            said += self._say(message.text)
        for call in message.tool_calls:
            said += self._call(call.id, call.name, call.arguments)
        for result in message.tool_results:
            said += self._result(result)
        return said

    def ask(self, questions: tuple[Question, ...]) -> list[agui.AgUiEvent]:
        """The run ends here for the page; the turn waits for the answer."""
        outcome = agui.Outcome("interrupt", tuple([_interrupt(each) for each in questions]))
        return self._finish(outcome)

    def done(self, usage: Usage | None = None, *, cancelled: bool = False) -> list[agui.AgUiEvent]:
        return self._finish(agui.Outcome("cancelled" if cancelled else "success"), usage)

    def fail(self, message: str, code: str) -> list[agui.AgUiEvent]:
        closed = self._close()
        self.over = True
        return [*closed, agui.RunError(message, code)]

    def _end(self, event: Event) -> list[agui.AgUiEvent]:
        match event:
            case StreamEnd(_, usage, cancelled, None):
                return self.done(usage, cancelled=cancelled)
            case ApprovalAsked(_, question):
                return self.ask((question,))
            case ErrorRaised(_, message, kind):
                return self.fail(self._hide(message), kind)
            case _:
                return []

    def _finish(self, outcome: agui.Outcome, usage: Usage | None = None) -> list[agui.AgUiEvent]:
        closed = self._close()
        self.over = True
        counted = (_usage(usage, self._model),) if usage is not None else ()
        return [*closed, agui.RunFinished(self._thread_id, self._run_id, outcome, counted)]

    def _say(self, text: str) -> list[agui.AgUiEvent]:
        opened: list[agui.AgUiEvent] = []
        if not self._text_id:
            opened = self._close()
            self._text_id = self._draft().id
            opened.append(agui.TextMessageStart(self._text_id, "assistant"))
        self._drafts[-1].words.append(text)
        return [*opened, agui.TextMessageContent(self._text_id, text)]

    def _think(self, text: str) -> list[agui.AgUiEvent]:
        opened: list[agui.AgUiEvent] = []
        if not self._thought_id:
            opened = self._close()
            id = self._thought_id = self._new_id()
            opened += [agui.ReasoningStart(id), agui.ReasoningMessageStart(id, "reasoning")]
        return [*opened, agui.ReasoningMessageContent(self._thought_id, text)]

    def _call(self, id: str, name: str, arguments: dict[str, Any]) -> list[agui.AgUiEvent]:
        closed, written = self._close(), encode(arguments).decode()
        parent = self._drafts[-1] if self._drafts else self._draft()
        parent.calls.append(agui.CallShape(id, "function", agui.FunctionShape(name, written)))
        start = agui.ToolCallStart(id, name, parent.id)
        return [*closed, start, agui.ToolCallArgs(id, written), agui.ToolCallEnd(id)]

    def _result(self, result: ToolResult) -> list[agui.AgUiEvent]:
        closed = self._complete()
        id, content = self._new_id(), spoken(result)
        self._page.append(agui.ToolShape(id, "tool", content, result.call_id))
        return [*closed, agui.ToolCallResult(id, result.call_id, content, "tool")]

    def _take_back(self) -> list[agui.AgUiEvent]:
        """The message under way was withdrawn: the page is told what it should have, which is all but that."""
        seen, closed = bool(self._drafts), self._close()
        self._drafts.clear()
        return [*closed, agui.MessagesSnapshot(tuple(self._page))] if seen else closed

    def _close(self) -> list[agui.AgUiEvent]:
        """End what is open."""
        closed: list[agui.AgUiEvent] = []
        if self._text_id:
            closed.append(agui.TextMessageEnd(self._text_id))
        if self._thought_id:
            closed += [agui.ReasoningMessageEnd(self._thought_id), agui.ReasoningEnd(self._thought_id)]
        self._text_id = self._thought_id = ""
        return closed

    def _complete(self) -> list[agui.AgUiEvent]:
        """The model's message is complete: it stands."""
        closed = self._close()
        self._page += [draft.shape() for draft in self._drafts]
        self._drafts.clear()
        return closed

    def _draft(self) -> "_Draft":
        self._drafts.append(_Draft(self._new_id()))
        return self._drafts[-1]

    def _new_id(self) -> str:
        self._numbers += 1
        return f"{self._run_id}-{self._numbers}"


def _interrupt(question: Question) -> agui.Interrupt:
    shown = wire_question(question)
    expires = datetime.fromtimestamp(question.expires_at, UTC).isoformat(timespec="milliseconds")
    metadata = {
        "toolName": shown.tool_name,
        "arguments": shown.details,
        "workingDir": shown.working_dir,
        "risk": shown.risk,
    }
    if shown.form is not None:
        metadata["form"] = msgspec.to_builtins(shown.form)
    message = f"{shown.summary}: {shown.command}"
    return agui.Interrupt(
        question.id, "tool_call", message, question.call_id, PAYLOAD_SCHEMA, expires.replace("+00:00", "Z"), metadata
    )


def _usage(usage: Usage, model: str) -> agui.TokenUsage:
    total = usage.input_tokens + usage.output_tokens
    return agui.TokenUsage(usage.input_tokens, usage.output_tokens, total, usage.cached_tokens, model)
