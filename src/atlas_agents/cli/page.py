"""The terminal as a page: finished paragraphs are printed for good, and only the tail below them is drawn again."""

import asyncio
import re
import time
from typing import Literal, TypeAlias

from markdown_it import MarkdownIt
from rich.console import Console, RenderableType
from rich.markdown import Markdown
from rich.text import Text

from atlas_agents.cli.words import one_line, printable

Voice: TypeAlias = Literal["text", "thinking"]
_FRAME = 0.06
_TICK = 1.0
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


class Page:
    """Shows a turn as it happens. What was said of a message that starts again is taken off the screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._moves = console.is_terminal and not console.is_dumb_terminal
        self._voice: Voice = "text"
        self._tail = ""
        self._ready = ""
        self._rows = 0
        self._live = 0
        self._follows = False
        self._hint = ""
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def say(self, text: str, voice: Voice = "text") -> None:
        """A few more words of the message under way."""
        if voice != self._voice:
            self._finish_blocks(all=True)
            self._voice = voice
        self._tail += text
        self._since = time.monotonic()
        self._draw_soon(_FRAME)

    def withdraw(self) -> None:
        """Take the message under way back. What has scrolled out of reach is at least declared void."""
        shown, reach = self._rows + self._live, self._console.height - 1
        void = shown > reach or (shown and not self._moves)
        self._write(self._up(min(shown, reach)))
        self._tail = self._ready = ""
        self._rows = self._live = 0
        if void:
            self.line("(the words above are withdrawn; the answer starts again)", "dim")
        self._draw()

    def line(self, words: str, style: str = "") -> None:
        """Something between the messages, on a line of its own; the message before it is complete."""
        self.settle()
        self._ready += self._render(Text(words, style=style))
        self.settle()

    def hint(self, words: str) -> None:
        """How things stand, below all else, until it is said otherwise; an empty text takes it away."""
        if words and not self._moves:
            self.line(words)
        elif words != self._hint:
            self._hint = words
            self._draw()

    def settle(self) -> None:
        """The message under way is complete: what it said stays."""
        self._finish_blocks(all=True)
        self._draw()
        self._follows = self._follows or self._rows > 0
        self._rows = 0
        self._voice = "text"

    def begin(self) -> None:
        """A turn begins: from now on show how long nothing has been heard."""
        self._since = time.monotonic()
        self._follows = False
        self._draw_soon(_TICK)

    def end(self) -> None:
        """The turn is over: nothing moves any more."""
        self._since = None
        self._hint = ""
        self.settle()
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _draw_soon(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer and self._timer.when() > loop.time() + seconds:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = loop.call_later(seconds, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._draw()
        if self._since is not None:
            self._draw_soon(_TICK)

    def _draw(self) -> None:
        """Replace the tail by what has been finished meanwhile and by the tail as it is now."""
        self._finish_blocks()
        tail = [*self._live_lines(), *self._hint_lines()] if self._moves else []
        self._write(self._up(self._live) + self._ready + "".join(tail))
        self._rows += self._ready.count("\n")
        self._live, self._ready = len(tail), ""

    def _finish_blocks(self, *, all: bool = False) -> None:
        begins = _blocks(self._tail)
        ends = [*begins[1:], len(self._tail)] if all else begins[1:]
        for begin, end in zip(begins, ends, strict=False):
            rendered = _trimmed(self._render(self._dressed(self._tail[begin:end].strip("\n"))))
            self._ready += self._gap() + rendered if rendered else ""
        self._tail = self._tail[ends[-1] :] if ends else self._tail

    def _gap(self) -> str:
        """A blank row, unless this is the first thing in the turn."""
        return "\n" if self._rows or self._ready or self._follows else ""

    def _dressed(self, block: str) -> RenderableType:
        if self._voice == "thinking":
            return Text(printable(block), style="dim italic")
        return _markdown(printable(block))

    def _live_lines(self) -> list[str]:
        """The end of the tail, as much as fits on the screen, as plain words; or how long nothing was heard."""
        rows = max(1, self._console.height - 3)
        if self._tail.strip():
            style = "dim italic" if self._voice == "thinking" else ""
            words = printable(self._tail.lstrip("\n"))[-rows * self._console.width :]
            return (self._gap() + self._render(Text(words, style=style))).splitlines(keepends=True)[-rows:]
        if self._since is None or (waited := int(time.monotonic() - self._since)) < 1:
            return []
        return [self._render(Text(f"… {waited} s (Ctrl-C stops)", style="dim"))]

    def _hint_lines(self) -> list[str]:
        return [self._render(Text(one_line(self._hint, self._console.width - 1), style="dim"))] if self._hint else []

    def _render(self, renderable: RenderableType) -> str:
        with self._console.capture() as captured:
            self._console.print(renderable)
        return captured.get()

    def _up(self, rows: int) -> str:
        return f"\r\x1b[{rows}A\x1b[J" if rows and self._moves else ""

    def _write(self, text: str) -> None:
        if text:
            self._console.file.write(text)
            self._console.file.flush()


def _trimmed(rendered: str) -> str:
    """Without the rows at both ends that look blank."""
    rows = rendered.splitlines(keepends=True)
    shown = [place for place, row in enumerate(rows) if _STYLE.sub("", row).strip()]
    return "".join(rows[shown[0] : shown[-1] + 1]) if shown else ""


def _blocks(text: str) -> list[int]:
    """Where each block begins: at the start, and after a blank line. Code and lists are kept whole."""
    *lines, last = text.split("\n")
    if last.strip("0123456789.)-*+ "):  # enough of it to tell what it is
        lines.append(last)
    begins, place = [0], 0
    fence, parted, listed = "", False, False
    for line in lines:
        item = bool(_ITEM.match(line))
        if parted and not fence and line.strip() and not line[0].isspace() and not (item and listed):
            begins.append(place)
            listed = False
        if mark := _FENCE.match(line):
            fence = "" if fence and line.strip().startswith(fence) else fence or mark[1]
        listed = listed or item
        parted = not line.strip()
        place += len(line) + 1
    return begins


def _markdown(text: str) -> Markdown:
    """Markdown without HTML, which would vanish, with line breaks as they were written, and with links spelled out."""
    page = Markdown("", hyperlinks=False, code_theme="ansi_dark")
    page.parsed = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).parse(text)
    for token in page.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return page
