"""How a turn looks in a terminal: streaming Markdown, discarded text, lines between messages."""

import asyncio
import io
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from atlas_agents.cli.terminal import TerminalView, TurnInput
from checks import wait_until
from terminal import Screen

ANSWER = """\
# Rust

A `Vec<T>` is a list.
It grows.

1. Make one

   ```rust
   let list = Vec::new();

   let more = list;
   ```

2. Fill it

- [docs](https://example.invalid/x)

```text
a

b
```

| a | b |
|---|---|
| 1 | 2 |

The end.
"""


class ShownView:
    """A view and the screen that shows it."""

    def __init__(self, rows: int = 40, columns: int = 60) -> None:
        self._file = io.StringIO()
        console = Console(file=self._file, force_terminal=True, width=columns, height=rows, highlight=False)
        self.view = TerminalView(console)
        self._screen = Screen(rows, columns)

    @property
    def text(self) -> str:
        self._screen.feed(self._file.getvalue().replace("\n", "\r\n"))
        self._file.seek(0)
        self._file.truncate()
        return self._screen.text


async def drawn(shown: ShownView, expected: str) -> str:
    """Wait until the screen ends with this text, and return all that it shows."""
    await wait_until(lambda: shown.text.endswith(expected))
    return shown.text


async def show(pieces: list[str]) -> str:
    shown = ShownView()
    shown.view.begin()
    for piece in pieces:
        shown.view.add_text(piece)
        shown.view._draw()  # after every piece
    shown.view.end()
    return shown.text


def test_answer_is_formatted_and_complete() -> None:
    shown = asyncio.run(show([ANSWER]))
    assert "A Vec<T> is a list.\nIt grows." in shown
    assert "docs (https://example.invalid/x)" in shown
    for text in ("Rust", "1 Make one", "let list = Vec::new();", "2 Fill it", "The end."):
        assert text in shown
    assert "\n\n\n" not in shown


@cache
def shown_by_characters() -> str:
    return asyncio.run(show(list(ANSWER)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(ANSWER)), max_size=30).map(sorted))
def test_answer_looks_the_same_however_it_was_split(cuts: list[int]) -> None:
    pieces: list[str] = [ANSWER[start:end] for start, end in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True)]
    assert asyncio.run(show(pieces)) == shown_by_characters()


async def test_text_is_shown_before_its_paragraph_is_complete() -> None:
    shown = ShownView()
    shown.view.begin()
    shown.view.add_text("First **paragraph**.\n\nThe seco")
    assert await drawn(shown, "The seco") == "First paragraph.\n\nThe seco"
    shown.view.add_text("nd *one*")
    assert await drawn(shown, "*one*") == "First paragraph.\n\nThe second *one*"
    shown.view.end()
    assert shown.text == "First paragraph.\n\nThe second one"


async def test_discarded_message_keeps_the_lines_before_it() -> None:
    shown = ShownView()
    shown.view.begin()
    shown.view.add_text("Let me see.")
    shown.view.print_line("→ now()")
    shown.view.add_text("hm", "thinking")
    shown.view.add_text("It is\n\nten o'clock and")
    assert await drawn(shown, "and") == "Let me see.\n→ now()\n\nhm\n\nIt is\n\nten o'clock and"
    shown.view.discard_message()
    assert shown.text == "Let me see.\n→ now()"
    shown.view.add_text("It is noon.")
    shown.view.end()
    assert shown.text == "Let me see.\n→ now()\n\nIt is noon."


async def test_discarded_text_that_scrolled_away_is_marked() -> None:
    shown = ShownView(rows=8)
    shown.view.begin()
    for number in range(12):
        shown.view.add_text(f"Paragraph {number}.\n\n")
    await drawn(shown, "Paragraph 11.")
    shown.view.discard_message()
    text = shown.text
    assert text.startswith("Paragraph 0.")
    assert text.endswith("\n(the text above was discarded; the answer starts again)")
    assert "Paragraph 11." not in text


async def test_dumb_terminal_marks_discarded_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    shown = ShownView()
    shown.view.begin()
    shown.view.add_text("One.\n\nTwo.\n\nThr")
    assert await drawn(shown, "Two.") == "One.\n\nTwo."
    shown.view.discard_message()
    shown.view.add_text("Again.")
    shown.view.end()
    assert shown.text == "One.\n\nTwo.\n(the text above was discarded; the answer starts again)\n\nAgain."


async def test_model_output_cannot_control_the_terminal() -> None:
    shown = ShownView()
    shown.view.begin()
    shown.view.add_text("safe\x1b[2J\x1b]0;title\x07\r\x9b1A")
    shown.view.end()
    assert shown.text == "safe␛[2J␛]0;title␇\ufffd1A"


async def test_input_takes_one_row_however_wide_its_characters_are() -> None:
    shown = ShownView(columns=40)
    shown.view.begin()
    shown.view.show_input(["> " + "東京" * 60 + "end"])
    row = shown.text
    assert row.startswith("…") and row.endswith("京end") and cell_len(row) <= 39 and "\n" not in row
    shown.view.add_text("An answer.\n\n")
    shown.view.show_input(())
    assert shown.text == "An answer."
    shown.view.end()


async def test_waiting_message_is_shortened_at_its_end() -> None:
    shown = ShownView(columns=40)
    shown.view.begin()
    typed = TurnInput(shown.view, print)
    typed.waiting = [("a message that is much longer than the terminal", "sending")]
    typed.show()
    assert shown.text == "> a message that is much lo… (sending)"
    shown.view.end()
