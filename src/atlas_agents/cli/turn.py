"""One turn, shown while it runs and stopped by Ctrl-C; a second Ctrl-C leaves."""

import asyncio
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from atlas_agents.cli.words import answered, called, one_line
from atlas_agents.client.client import GatewayClient, SessionEvent, SessionFeed
from atlas_agents.core.errors import GatewayError
from atlas_agents.gateway.protocol.events import (
    ApprovalRequested,
    ApprovalResolved,
    ChatDelta,
    ChatError,
    ChatFinal,
    ChatReasoning,
    ChatReset,
    PlanChanged,
    RunHandoff,
    ToolCalling,
    ToolProgressing,
    ToolSettled,
)
from atlas_agents.gateway.protocol.sessions import RunPosition
from atlas_agents.gateway.protocol.types import (
    ApprovalShape,
    MessageShape,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    UsageShape,
)

Asked: TypeAlias = ApprovalRequested | ApprovalShape
Decide: TypeAlias = Callable[[Asked], Awaitable[None]]
"""Answers a question about a call. It is cancelled when somebody else has answered."""


class Left(Exception):
    """The person has had enough, and wants to leave at once."""


class Screen(Protocol):
    """Where a turn is shown."""

    def begin(self) -> None: ...
    def say(self, text: str, voice: Literal["text", "thinking"] = "text") -> None: ...
    def withdraw(self) -> None: ...
    def line(self, words: str, style: str = "") -> None: ...
    def hint(self, words: str) -> None: ...
    def end(self) -> None: ...


class Notes:
    """A screen where nothing can be taken back: only the lines are shown, on standard error."""

    def begin(self) -> None:
        """Nothing to prepare."""

    def say(self, text: str, voice: Literal["text", "thinking"] = "text") -> None:
        """The answer is printed when it is complete."""

    def withdraw(self) -> None:
        """Nothing was shown."""

    def line(self, words: str, style: str = "") -> None:
        print(words, file=sys.stderr, flush=True)

    def hint(self, words: str) -> None:
        """How things stand at the moment is nothing to keep."""

    def end(self) -> None:
        """Nothing to put away."""


class Step(msgspec.Struct, frozen=True, rename="camel"):
    """A call of the turn and what came of it."""

    name: str
    arguments: dict[str, Any]
    status: str
    result: Any
    duration_ms: int
    error: str | None = None


class Ending(msgspec.Struct, frozen=True):
    """How a turn ended: with a message, cancelled, or with an error and its kind."""

    run_id: str
    model: str
    usage: UsageShape
    steps: list[Step]
    message: MessageShape | None = None
    cancelled: bool = False
    error: str | None = None
    kind: str = ""

    @property
    def text(self) -> str:
        parts = self.message.parts if self.message else ()
        return "".join(part.text for part in parts if isinstance(part, TextPart))

    @property
    def unfinished(self) -> bool:
        """The model still wanted tools when its rounds were spent."""
        return any(isinstance(part, ToolCallPart) for part in (self.message.parts if self.message else ()))


_MARKS = {"pending": "·", "running": "→", "done": "✓", "failed": "✗", "changed": "↷", "dropped": "–"}


class Turn:
    """A run on a screen."""

    def __init__(self, run_id: str, screen: Screen) -> None:
        self._run_id = run_id
        self._screen = screen
        self._calls: dict[str, ToolCalling] = {}
        self._steps: list[Step] = []
        self._plan_lines: list[str] = []
        self._model = ""

    def show(self, event: SessionEvent) -> None:
        """Show an event, if there is something to see."""
        screen = self._screen
        match event:
            case ChatDelta():
                screen.say(event.text)
            case ChatReasoning():
                screen.say(event.text, "thinking")
            case ChatReset():
                screen.withdraw()
            case RunPosition():
                self._catch_up(event)
            case ToolCalling():
                self._calls[event.tool_call_id] = event
                screen.line(called(event.name, event.arguments), "cyan")
            case ToolProgressing():
                name = self._calls[event.tool_call_id].name if event.tool_call_id in self._calls else "?"
                screen.line(one_line(f"  {name}: {event.message}"), "dim")
            case RunHandoff():
                screen.line(f"{event.from_} hands over to {event.to}", "cyan")
            case PlanChanged():
                self._plan(event)
            case ToolSettled():
                self._settle(event)
            case _:
                self._model = getattr(event, "model", "") or self._model

    def ending(self, last: ChatFinal | ChatError) -> Ending:
        if isinstance(last, ChatError):
            nothing = UsageShape(0, 0)
            return Ending(self._run_id, self._model, nothing, self._steps, error=last.message, kind=last.kind)
        return Ending(self._run_id, self._model, last.usage, self._steps, last.message, last.cancelled)

    def _settle(self, event: ToolSettled) -> None:
        call = self._calls.get(event.tool_call_id)
        arguments = call.arguments if call else {}
        self._steps.append(Step(event.name, arguments, event.status, event.result, event.duration_ms, event.error))
        words = answered(event.name, event.status, event.result, event.error, event.duration_ms / 1000)
        self._screen.line(words, "green" if event.status == "ok" else "red")

    def _plan(self, event: PlanChanged) -> None:
        """The whole plan when it is made; afterwards the step that changed."""
        lines = [f"  {_MARKS[step.status]} {number}. {step.text}" for number, step in enumerate(event.steps, 1)]
        changed = [line for line in lines if line not in self._plan_lines]
        self._plan_lines = lines
        for line in changed:
            self._screen.line(one_line(line), "cyan")

    def _catch_up(self, found: RunPosition) -> None:
        """Show what a run has said that was under way before we came."""
        self._screen.withdraw()
        for part in found.parts or ():
            if isinstance(part, TextPart | ThinkingPart):
                self._screen.say(part.text, "text" if isinstance(part, TextPart) else "thinking")


async def take_turn(client: GatewayClient, feed: SessionFeed, run_id: str, screen: Screen, decide: Decide) -> Ending:
    """Show a run to its end. Ctrl-C stops it; pressed twice it raises Left."""
    turn = Turn(run_id, screen)
    deciding: dict[str, asyncio.Task[None]] = {}
    screen.begin()
    try:
        with _on_interrupt(client, run_id), _keyboard_unseen():
            async for event in feed.of(run_id):
                turn.show(event)
                if isinstance(event, ChatFinal | ChatError):
                    return turn.ending(event)
                _ask(event, deciding, decide)
        raise GatewayError("the turn was heard no further")
    finally:
        for task in deciding.values():
            task.cancel()
        if deciding:
            await asyncio.wait(deciding.values())
        screen.end()


def _ask(event: SessionEvent, deciding: dict[str, asyncio.Task[None]], decide: Decide) -> None:
    """Have a question decided beside the turn; one that is answered needs no deciding."""
    asked = event if isinstance(event, ApprovalRequested) else None
    if isinstance(event, RunPosition):
        asked = event.pending_approval
    if asked is not None and asked.approval_id not in deciding:
        deciding[asked.approval_id] = asyncio.create_task(_decided(decide, asked))
    elif isinstance(event, ApprovalResolved) and event.approval_id in deciding:
        deciding[event.approval_id].cancel()


async def _decided(decide: Decide, asked: Asked) -> None:
    with suppress(GatewayError):  # somebody was faster, and the turn says who
        await decide(asked)


def remark(ending: Ending, screen: Screen) -> None:
    """Say what the words alone don't: that the reply is not all there could be."""
    if ending.unfinished:
        screen.line("(stopped: the model still wanted tools after all its rounds)", "yellow")
    elif ending.message is not None and ending.message.metadata.get("truncated"):
        screen.line("(cut off: the answer reached the limit of tokens)", "yellow")
    elif not ending.text.strip():
        screen.line("(the model said nothing)", "yellow")


@contextmanager
def _on_interrupt(client: GatewayClient, run_id: str) -> Generator[None]:
    """The first Ctrl-C stops the run, the second the waiting for it."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    stopping: list[asyncio.Task[Any]] = []

    async def abort() -> None:
        with suppress(GatewayError):
            await client.call("chat.abort", run_id=run_id)

    def stop() -> None:
        if stopping and main is not None:
            stopping.append(stopping[0])
            main.cancel()
        else:
            stopping.append(asyncio.create_task(abort()))

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    except asyncio.CancelledError:
        if len(stopping) < 2 or main is None:
            raise
        main.uncancel()
        raise Left from None
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if stopping:
            stopping[0].cancel()


@contextmanager
def _keyboard_unseen() -> Generator[None]:
    """Keys pressed while the model speaks wait for the prompt and are not shown among its words."""
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
