"""Show one turn while it runs. Ctrl-C cancels it; a second Ctrl-C stops waiting for it."""

import asyncio
import signal
import sys
import termios
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from atlas_agents.cli.output import format_call, format_result, one_line, printable
from atlas_agents.client import GatewayClient, SessionEvent, SessionFeed
from atlas_agents.core.errors import GatewayError
from atlas_agents.core.messages import ROUNDS_EXHAUSTED
from atlas_agents.gateway.protocol import events, types
from atlas_agents.gateway.protocol.sessions import RunPosition

ApprovalRequest: TypeAlias = events.ApprovalRequested | types.ApprovalShape
Decide: TypeAlias = Callable[[ApprovalRequest], Awaitable[None]]
"""Answers an approval request. It is cancelled when the request is answered elsewhere."""
_STEP_SIGNS = {"pending": "·", "running": "→", "done": "✓", "failed": "✗", "changed": "↷", "dropped": "–"}


class QuitRequested(Exception):
    """The user pressed Ctrl-C twice and wants to quit without waiting for the turn."""


class TurnView(Protocol):
    """View on which a turn is shown."""

    def begin(self) -> None: ...
    def add_text(self, text: str, kind: Literal["text", "thinking"] = "text") -> None: ...
    def discard_message(self) -> None: ...
    def print_line(self, text: str, style: str = "") -> None: ...
    def show_status(self, status: str) -> None: ...
    def end(self) -> None: ...


class StderrView:
    """A view for output that is not a terminal: tool calls and notices go to standard error, the answer is omitted."""

    def begin(self) -> None:
        """Do nothing."""

    def add_text(self, text: str, kind: Literal["text", "thinking"] = "text") -> None:
        """Skip the text: the caller prints the complete answer."""

    def discard_message(self) -> None:
        """Do nothing: no text was shown."""

    def print_line(self, text: str, style: str = "") -> None:
        print(printable(text), file=sys.stderr, flush=True)

    def show_status(self, status: str) -> None:
        """Skip the status: it would be out of date in a log."""

    def end(self) -> None:
        """Do nothing."""


class ToolStep(msgspec.Struct, frozen=True, rename="camel"):
    """A tool call of the turn and its result."""

    name: str
    arguments: dict[str, Any]
    status: str
    result: Any
    duration_ms: int
    error: str | None = None


class TurnOutcome(msgspec.Struct, frozen=True):
    """Outcome of a turn: a message, a cancellation or an error."""

    run_id: str
    model: str
    usage: types.UsageShape
    steps: list[ToolStep]
    message: types.MessageShape | None = None
    cancelled: bool = False
    error: str | None = None
    error_kind: str = ""
    partial: str = ""
    """Text of a turn that ran out of a budget."""

    @property
    def text(self) -> str:
        return message_text(self.message) if self.message else ""

    @property
    def warnings(self) -> list[str]:
        """Model settings that were not sent as given, with the reason."""
        return [str(each) for each in self.message.metadata.get("warnings", ())] if self.message else []

    @property
    def incomplete(self) -> bool:
        """Whether the turn reached its limit of rounds before the model was done: it called tools, or paused."""
        if self.message is None:
            return False
        called = any(isinstance(part, types.ToolCallPart) for part in self.message.parts)
        return called or self.message.metadata.get("stop_reason") == "pause"

    @property
    def incomplete_reason(self) -> str:
        """Why the answer is not complete; empty if it is."""
        if self.incomplete:
            return ROUNDS_EXHAUSTED
        if self.message is None or not self.message.metadata.get("truncated"):
            return ""
        return str(self.message.metadata.get("budget") or "the answer reached the token limit")


def message_text(message: types.MessageShape) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, types.TextPart))


class TurnRenderer:
    """Renders the events of one run in a view."""

    def __init__(self, run_id: str, view: TurnView) -> None:
        self._run_id = run_id
        self._view = view
        self._calls: dict[str, events.ToolCalling] = {}
        self._steps: list[ToolStep] = []
        self._plan_lines: list[str] = []
        self._model = ""
        self._texts: list[str] = []
        self._draft: list[str] = []

    def show(self, event: SessionEvent) -> None:
        """Show an event, if it has something to show."""
        view = self._view
        match event:
            case events.ChatDelta():
                self._draft.append(event.text)
                view.add_text(event.text)
            case events.ChatReasoning():
                view.add_text(event.text, "thinking")
            case events.ChatReset():
                self._draft.clear()
                view.discard_message()
            case RunPosition():
                self._show_position(event)
            case events.ToolCalling():
                self._texts, self._draft = [*self._texts, "".join(self._draft)], []
                self._calls[event.tool_call_id] = event
                view.print_line(format_call(event.name, event.arguments), "cyan")
            case events.ToolProgressing():
                name = self._calls[event.tool_call_id].name if event.tool_call_id in self._calls else "?"
                view.print_line(one_line(f"  {name}: {event.message}"), "dim")
            case events.RunHandoff() | events.SessionSummarized():
                view.print_line(_describe(event), "cyan")
            case events.PlanChanged():
                self._show_plan(event)
            case events.ToolSettled():
                self._show_result(event)
            case _:
                self._model = getattr(event, "model", "") or self._model

    def outcome(self, event: events.ChatFinal | events.ChatError) -> TurnOutcome:
        if isinstance(event, events.ChatError):
            usage, exceeded = types.UsageShape(0, 0), event.kind == "BudgetExceeded"
            partial = "\n\n".join([text for text in (*self._texts, "".join(self._draft)) if text]) if exceeded else ""
            return TurnOutcome(
                self._run_id,
                self._model,
                usage,
                self._steps,
                error=event.message,
                error_kind=event.kind,
                partial=partial,
            )
        return TurnOutcome(self._run_id, self._model, event.usage, self._steps, event.message, event.cancelled)

    def _show_result(self, event: events.ToolSettled) -> None:
        call = self._calls.get(event.tool_call_id)
        arguments = call.arguments if call else {}
        self._steps.append(ToolStep(event.name, arguments, event.status, event.result, event.duration_ms, event.error))
        line = format_result(event.name, event.status, event.result, event.error, event.duration_ms / 1000)
        self._view.print_line(line, "green" if event.status == "ok" else "red")

    def _show_plan(self, event: events.PlanChanged) -> None:
        """Show a new plan whole, and later only the steps that changed."""
        lines = [f"  {_STEP_SIGNS[step.status]} {number}. {step.text}" for number, step in enumerate(event.steps, 1)]
        changed = [line for line in lines if line not in self._plan_lines]
        self._plan_lines = lines
        for line in changed:
            self._view.print_line(one_line(line), "cyan")

    def _show_position(self, position: RunPosition) -> None:
        """Show the text that a run produced before we subscribed to it."""
        self._view.discard_message()
        for part in position.parts or ():
            if isinstance(part, types.TextPart | types.ThinkingPart):
                self._view.add_text(part.text, "text" if isinstance(part, types.TextPart) else "thinking")


class TurnKeys(Protocol):
    """Reads the keys that are typed during a turn, and receives all events of the session."""

    def reading(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]: ...
    def observe(self, event: SessionEvent) -> None: ...


class IgnoredKeys:
    """Keys typed during a turn are not echoed; they stay in the input buffer for the next program."""

    def reading(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        return _echo_off()

    def observe(self, event: SessionEvent) -> None:
        """Do nothing."""


async def follow_turn(
    client: GatewayClient,
    feed: SessionFeed,
    run_id: str,
    view: TurnView,
    decide: Decide,
    keys: TurnKeys | None = None,
) -> TurnOutcome:
    """Show a run until it ends. Ctrl-C cancels the run; pressed twice, it raises QuitRequested."""
    renderer, keys = TurnRenderer(run_id, view), keys or IgnoredKeys()
    view.begin()
    try:
        with _cancel_on_interrupt(client, run_id) as interrupt, keys.reading(interrupt):
            async with _tasks_of_turn(client, view) as decisions:
                async for event in feed.run_events(run_id, keys.observe):
                    keys.observe(event)
                    renderer.show(event)
                    if isinstance(event, events.ChatError) or (
                        isinstance(event, events.ChatFinal) and event.entered_run_id is None
                    ):
                        return renderer.outcome(event)
                    _handle_approval(event, decisions, decide)
        raise GatewayError("the event stream ended before the turn did")
    finally:
        view.end()


@asynccontextmanager
async def _tasks_of_turn(client: GatewayClient, view: TurnView) -> AsyncGenerator[dict[str, asyncio.Task[None]]]:
    """Show that the model is loading, and yield the running decisions; all end with the turn."""
    decisions: dict[str, asyncio.Task[None]] = {}
    loading = asyncio.create_task(_show_loading(client, view))
    try:
        yield decisions
    finally:
        tasks = [loading, *decisions.values()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _show_loading(client: GatewayClient, view: TurnView) -> None:
    """Show that a local model is downloaded or loaded, until cancelled."""
    async for event in client.server_events():
        if isinstance(event, events.ModelProgress):
            view.show_status(describe_progress(event))


def describe_progress(event: events.ModelProgress) -> str:
    """Describe the progress of a local model in one line; empty if it is ready."""
    verb = {"loading": "Loading", "downloading": "Downloading"}.get(event.state)
    if verb is None:
        return ""
    return f"{verb} the model…" + (f" {100 * event.done // event.total} %" if event.total else "")


def _describe(event: events.RunHandoff | events.SessionSummarized) -> str:
    if isinstance(event, events.RunHandoff):
        return f"{event.from_} hands off to {event.to}"
    return f"{event.messages} older messages were summarised for the model"


def _handle_approval(event: SessionEvent, decisions: dict[str, asyncio.Task[None]], decide: Decide) -> None:
    """Start deciding a new approval request; cancel the decision of one that was answered elsewhere."""
    requests: Sequence[ApprovalRequest] = [event] if isinstance(event, events.ApprovalRequested) else []
    if isinstance(event, RunPosition):
        requests = event.pending_approvals
    for request in requests:
        if request.approval_id not in decisions:
            decisions[request.approval_id] = asyncio.create_task(_decide_safely(decide, request))
    if isinstance(event, events.ApprovalResolved) and event.approval_id in decisions:
        decisions[event.approval_id].cancel()


async def _decide_safely(decide: Decide, request: ApprovalRequest) -> None:
    with suppress(GatewayError):  # the request was answered elsewhere first
        await decide(request)


def show_outcome_notice(outcome: TurnOutcome, view: TurnView) -> None:
    """Show why an answer is not complete, if it is not."""
    if outcome.incomplete:
        view.print_line(f"(stopped: {outcome.incomplete_reason})", "yellow")
    elif outcome.message is not None and outcome.message.refusal:
        view.print_line(printable(outcome.message.refusal), "yellow")
    elif outcome.incomplete_reason:
        view.print_line(f"(truncated: {printable(outcome.incomplete_reason)})", "yellow")
    elif not outcome.text.strip():
        view.print_line("(the answer is empty)", "yellow")


@contextmanager
def _cancel_on_interrupt(client: GatewayClient, run_id: str) -> Generator[Callable[[], None]]:
    """Cancel the run at the first SIGINT or call of the yielded function, and this task at the second."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    aborts: list[asyncio.Task[Any]] = []

    async def abort() -> None:
        with suppress(GatewayError):
            await client.call("chat.abort", run_id=run_id)

    def on_interrupt() -> None:
        if aborts and main is not None:
            aborts.append(aborts[0])
            main.cancel()
        else:
            aborts.append(asyncio.create_task(abort()))

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield on_interrupt
    except asyncio.CancelledError:
        if len(aborts) < 2 or main is None:
            raise
        main.uncancel()
        raise QuitRequested from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if aborts:
            aborts[0].cancel()


@contextmanager
def _echo_off() -> Generator[None]:
    """Turn off the echo of keys pressed during the answer; they stay in the input buffer for the next prompt."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
