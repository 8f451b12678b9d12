"""One turn, shown while it runs and stopped by Ctrl-C."""

import asyncio
import signal
import sys
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal, Protocol

from atlas_agents.cli.words import answered, called, one_line
from atlas_agents.core.events import (
    Event,
    StreamChunk,
    StreamReset,
    StreamThinking,
    ToolAnswered,
    ToolCalled,
    ToolProgress,
)
from atlas_agents.core.messages import Message
from atlas_agents.engine.stream import AtlasStream


class Screen(Protocol):
    """Where a turn is shown."""

    def begin(self) -> None: ...
    def say(self, text: str, voice: Literal["text", "thinking"] = "text") -> None: ...
    def withdraw(self) -> None: ...
    def line(self, words: str, style: str = "") -> None: ...
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

    def end(self) -> None:
        """Nothing to put away."""


async def take_turn(stream: AtlasStream, screen: Screen) -> Message:
    """Show the turn to its end, then give back the reply or raise what the turn raised."""
    began: dict[str, float] = {}
    screen.begin()
    try:
        with _on_interrupt(stream.cancel), _keyboard_unseen():
            async for event in stream:
                _show(event, screen, began)
            return _remark(await stream.reply(), screen)
    finally:
        screen.end()


def _show(event: Event, screen: Screen, began: dict[str, float]) -> None:
    match event:
        case StreamChunk():
            screen.say(event.text)
        case StreamThinking():
            screen.say(event.text, "thinking")
        case StreamReset():
            screen.withdraw()
        case ToolCalled():
            began[event.call_id] = time.monotonic()
            screen.line(called(event), "cyan")
        case ToolProgress():
            screen.line(one_line(f"  {event.name}: {event.message}"), "dim")
        case ToolAnswered():
            seconds = time.monotonic() - began.get(event.call_id, time.monotonic())
            screen.line(answered(event.name, event, seconds), "green" if event.status == "ok" else "red")
        case _:
            pass


def _remark(reply: Message, screen: Screen) -> Message:
    """Say what the words alone don't: that the reply is not all there could be."""
    if reply.tool_calls:
        screen.line("(stopped: the model still wanted tools after all its rounds)", "yellow")
    elif reply.metadata.get("truncated"):
        screen.line("(cut off: the answer reached the limit of tokens)", "yellow")
    elif not reply.text.strip():
        screen.line("(the model said nothing)", "yellow")
    return reply


@contextmanager
def _on_interrupt(stop: Callable[[], None]) -> Generator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


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
