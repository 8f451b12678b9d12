"""Terminal view of a turn, and the input line below it.

Finished paragraphs are printed once, and only the unfinished tail is redrawn.
"""

import asyncio
import re
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from atlas_agents.cli.output import one_line, printable

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding.key_processor import KeyPress

TextKind: TypeAlias = Literal["text", "thinking"]
_FRAME_SECONDS = 0.06
_TICK_SECONDS = 1.0
_ANSI_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


class TerminalView:
    """Shows a turn as it runs. A message that the provider restarts is erased from the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._can_redraw = console.is_terminal and not console.is_dumb_terminal
        self._kind: TextKind = "text"
        self._tail = ""
        self._finished = ""
        self._message_rows = 0
        self._tail_rows = 0
        self._has_output = False
        self._status = ""
        self._input: Sequence[str] = ()
        self._waiting_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add_text(self, text: str, kind: TextKind = "text") -> None:
        """Append text to the current message."""
        if kind != self._kind:
            self._finish_blocks(all=True)
            self._kind = kind
        self._tail += text
        self._waiting_since = time.monotonic()
        self._draw_in(_FRAME_SECONDS)

    def discard_message(self) -> None:
        """Erase the current message. If part of it has scrolled away, print that it is withdrawn."""
        shown, reachable = self._message_rows + self._tail_rows, self._console.height - 1
        void = shown > reachable or (shown and not self._can_redraw)
        self._write(self._move_up(min(shown, reachable)))
        self._tail = self._finished = ""
        self._message_rows = self._tail_rows = 0
        if void:
            self.print_line("(the text above was discarded; the answer starts again)", "dim")
        self._draw()

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line between messages; the message before it is complete."""
        self.finish_message()
        self._finished += self._render(Text(printable(text), style=style))
        self.finish_message()

    def show_status(self, status: str) -> None:
        """Show a status line at the bottom until it changes; an empty one removes it.

        A terminal that cannot redraw shows it once, without each change of a percentage.
        """
        if not self._can_redraw:
            if status and status.partition("…")[0] != self._status.partition("…")[0]:
                self.print_line(status)
            self._status = status
        elif status != self._status:
            self._status = status
            self._draw()

    @property
    def columns(self) -> int:
        return self._console.width

    def show_input(self, lines: Sequence[str]) -> None:
        """Show the user's input during the turn at the bottom, until it changes or the turn ends."""
        if self._can_redraw and lines != self._input:
            self._input = lines
            self._draw()

    def accept_pastes(self, accept: bool) -> None:
        """Let the terminal mark pasted text, so that its line breaks are not read as the Enter key."""
        if self._can_redraw:
            self._write("\x1b[?2004h" if accept else "\x1b[?2004l")

    def finish_message(self) -> None:
        """Complete the current message: its text stays on the screen."""
        self._finish_blocks(all=True)
        self._draw()
        self._has_output = self._has_output or self._message_rows > 0
        self._message_rows = 0
        self._kind = "text"

    def begin(self) -> None:
        """Begin a turn: from now on, show how long nothing was received."""
        self._waiting_since = time.monotonic()
        self._has_output = False
        self._draw_in(_FRAME_SECONDS if self._input else _TICK_SECONDS)

    def end(self) -> None:
        """End the turn and stop redrawing."""
        self._waiting_since = None
        self._status = ""
        self.finish_message()
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _draw_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer and self._timer.when() > loop.time() + seconds:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._draw()
        if self._waiting_since is not None:
            self._draw_in(_TICK_SECONDS)

    def _draw(self) -> None:
        """Replace the tail on the screen by the blocks finished since, followed by the current tail."""
        self._finish_blocks()
        tail = [*self._tail_lines(), *self._bottom_lines()] if self._can_redraw else []
        self._write(self._move_up(self._tail_rows) + self._finished + "".join(tail))
        self._message_rows += self._finished.count("\n")
        self._tail_rows, self._finished = len(tail), ""

    def _finish_blocks(self, *, all: bool = False) -> None:
        starts = _block_starts(self._tail)
        ends = [*starts[1:], len(self._tail)] if all else starts[1:]
        for start, end in zip(starts, ends, strict=False):
            rendered = _trimmed(self._render(self._format(self._tail[start:end].strip("\n"))))
            self._finished += self._gap() + rendered if rendered else ""
        self._tail = self._tail[ends[-1] :] if ends else self._tail

    def _gap(self) -> str:
        """Return a blank row, except before the first output of a turn."""
        return "\n" if self._message_rows or self._finished or self._has_output else ""

    def _format(self, block: str) -> RenderableType:
        if self._kind == "thinking":
            return Text(printable(block), style="dim italic")
        return _markdown(printable(block))

    def _tail_lines(self) -> list[str]:
        """Return the end of the tail as plain text, as much as fits, or how long nothing was received."""
        rows = max(1, self._console.height - 3 - len(self._input))
        if self._tail.strip():
            style = "dim italic" if self._kind == "thinking" else ""
            text = printable(self._tail.lstrip("\n"))[-rows * self._console.width :]
            return (self._gap() + self._render(Text(text, style=style))).splitlines(keepends=True)[-rows:]
        if self._waiting_since is None or (waited := int(time.monotonic() - self._waiting_since)) < 1:
            return []
        return [self._render(Text(f"… {waited} s (Ctrl-C stops)", style="dim"))]

    def _bottom_lines(self) -> list[str]:
        """Return the status and, unless another prompt is shown, the end of the input."""
        width = self._console.width - 1
        lines = [Text(line, style="dim")] if (line := one_line(self._status, width)) else []
        if self._waiting_since is not None:
            lines += [Text(_end_of(line, width)) for line in self._input[-5:]]
        return [row for line in lines for row in self._render(line).splitlines(keepends=True)]

    def _render(self, renderable: RenderableType) -> str:
        with self._console.capture() as captured:
            self._console.print(renderable)
        return captured.get()

    def _move_up(self, rows: int) -> str:
        return f"\r\x1b[{rows}A\x1b[J" if rows and self._can_redraw else ""

    def _write(self, text: str) -> None:
        if text:
            self._console.file.write(text)
            self._console.file.flush()


class TurnInput:
    """Input line during a turn: passes each line to `on_line`, and keeps text without Enter as the draft of the next.

    `waiting` has the entered lines without an answer, each with the reason; they are shown with the draft.
    """

    def __init__(self, view: TerminalView, on_line: Callable[[str], None]) -> None:
        self._view = view
        self._on_line = on_line
        self._draft = ""
        self._source: Input | None = None
        self._interrupt: Callable[[], None] = _ignore
        self._after_answer = False
        self.waiting: list[tuple[str, str]] = []

    @contextmanager
    def reading(self, interrupt: Callable[[], None]) -> Generator[None]:
        """Read keys until the end of the block; Ctrl-C calls `interrupt`."""
        from prompt_toolkit.input import create_input

        self._source, self._interrupt = source, _ = create_input(), interrupt
        try:
            with source.raw_mode(), source.attach(lambda: self._press(source.read_keys())):
                self.resume()
                yield
        finally:
            self._source, self._interrupt = None, _ignore
            self._view.accept_pastes(False)
            self._view.show_input(())

    def resume(self, *, answered: bool = False) -> None:
        """Take over the keys that a prompt read and did not use; `answered` if a single key answered it."""
        from prompt_toolkit.input.typeahead import get_typeahead

        self._after_answer = self._after_answer or answered
        if self._source is not None:
            self._view.accept_pastes(True)
            self._press(get_typeahead(self._source))

    def take_draft(self) -> str:
        """Return the text without Enter, and clear it."""
        draft, self._draft = self._draft, ""
        return "" if self.is_rest_of_answer(draft) else draft

    def is_rest_of_answer(self, line: str) -> bool:
        """Return whether a line is the rest of a "no" or "yes" whose first key was the answer to an approval prompt."""
        rest = self._after_answer and line in ("o", "es")
        self._after_answer = self._after_answer and not line
        return rest

    def show(self) -> None:
        """Show the lines that wait and the draft."""
        width = self._view.columns - len("> …  ()")
        lines = [f"> {one_line(line, max(8, width - len(reason)))} ({reason})" for line, reason in self.waiting]
        self._view.show_input([*lines, f"> {one_line(self._draft, 2000)}"] if self._draft else lines)

    def _press(self, keys: "Iterable[KeyPress]") -> None:
        from prompt_toolkit.keys import Keys

        for pressed in keys:
            match pressed.key:
                case Keys.ControlC:
                    self._interrupt()
                case Keys.ControlM | Keys.ControlJ:
                    self._enter()
                case Keys.ControlD if not self._draft:
                    self._on_line("/quit")
                case Keys.ControlH:
                    self._draft = self._draft[:-1]
                case Keys.ControlW:
                    self._draft = self._draft.rstrip().rpartition(" ")[0]
                case Keys.ControlU:
                    self._draft = ""
                case Keys():
                    self._draft += pressed.data if pressed.key is Keys.BracketedPaste else ""
                case _:
                    self._draft += pressed.data
        self.show()

    def _enter(self) -> None:
        line, self._draft = self._draft.strip(), ""
        if line and not self.is_rest_of_answer(line):
            self._on_line(line)


def _ignore() -> None:
    """Do nothing: there is no turn to interrupt."""


def _end_of(line: str, cells: int) -> str:
    """Return the end of a line that fits into this many cells; some characters take two."""
    if cell_len(line) <= cells:
        return line
    while cell_len(line) >= cells:
        line = line[1:]
    return f"…{line}"


def _trimmed(rendered: str) -> str:
    """Remove blank rows at both ends."""
    rows = rendered.splitlines(keepends=True)
    shown = [at for at, row in enumerate(rows) if _ANSI_STYLE.sub("", row).strip()]
    return "".join(rows[shown[0] : shown[-1] + 1]) if shown else ""


def _block_starts(text: str) -> list[int]:
    """Return where each block starts: at the beginning and after blank lines. Code blocks and lists are not split."""
    *lines, last = text.split("\n")
    if last.strip("0123456789.)-*+ "):  # otherwise it may still become a list item
        lines.append(last)
    starts, offset = [0], 0
    fence, after_blank, in_list = "", False, False
    for line in lines:
        item = bool(_LIST_ITEM.match(line))
        if after_blank and not fence and line.strip() and not line[0].isspace() and not (item and in_list):
            starts.append(offset)
            in_list = False
        if mark := _FENCE.match(line):
            fence = "" if fence and line.strip().startswith(fence) else fence or mark[1]
        in_list = in_list or item
        after_blank = not line.strip()
        offset += len(line) + 1
    return starts


def _markdown(text: str) -> Markdown:
    """Render Markdown with HTML shown as text, line breaks kept, and link targets spelled out."""
    rendered = Markdown("", hyperlinks=False, code_theme="ansi_dark")
    rendered.parsed = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).parse(text)
    for token in rendered.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return rendered
