"""How a turn looks on the screen: Markdown as it grows, words that are taken back, lines between messages."""

import asyncio
import io

import pytest
from atlas_agents.cli.page import Page
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from checks import until
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


class Seen:
    """A page and the screen that shows it."""

    def __init__(self, rows: int = 40, columns: int = 60) -> None:
        self._file = io.StringIO()
        self.page = Page(Console(file=self._file, force_terminal=True, width=columns, height=rows, highlight=False))
        self._screen = Screen(rows, columns)

    @property
    def text(self) -> str:
        self._screen.feed(self._file.getvalue().replace("\n", "\r\n"))
        self._file.seek(0)
        self._file.truncate()
        return self._screen.text


async def drawn(seen: Seen, expected: str) -> str:
    """Wait until the page has drawn its end; return what is seen then."""
    await until(lambda: seen.text.endswith(expected))
    return seen.text


async def show(pieces: list[str]) -> str:
    seen = Seen()
    seen.page.begin()
    for piece in pieces:
        seen.page.say(piece)
        seen.page._draw()  # pyright: ignore[reportPrivateUsage] - as often as can be
    seen.page.end()
    return seen.text


def test_an_answer_is_dressed_and_nothing_of_it_is_lost() -> None:
    shown = asyncio.run(show([ANSWER]))
    assert "A Vec<T> is a list.\nIt grows." in shown
    assert "docs (https://example.invalid/x)" in shown
    for words in ("Rust", "1 Make one", "let list = Vec::new();", "2 Fill it", "The end."):
        assert words in shown
    assert "\n\n\n" not in shown


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(ANSWER)), max_size=30).map(sorted))
def test_an_answer_looks_the_same_however_it_came(cuts: list[int]) -> None:
    pieces = [ANSWER[start:end] for start, end in zip([0, *cuts], [*cuts, len(ANSWER)], strict=True)]
    assert asyncio.run(show(pieces)) == asyncio.run(show(list(ANSWER)))


async def test_words_are_seen_before_their_paragraph_is_complete() -> None:
    seen = Seen()
    seen.page.begin()
    seen.page.say("First **paragraph**.\n\nThe seco")
    assert await drawn(seen, "The seco") == "First paragraph.\n\nThe seco"
    seen.page.say("nd *one*")
    assert await drawn(seen, "*one*") == "First paragraph.\n\nThe second *one*"
    seen.page.end()
    assert seen.text == "First paragraph.\n\nThe second one"


async def test_a_withdrawn_message_leaves_the_lines_before_it() -> None:
    seen = Seen()
    seen.page.begin()
    seen.page.say("Let me see.")
    seen.page.line("→ now()")
    seen.page.say("hm", "thinking")
    seen.page.say("It is\n\nten o'clock and")
    assert await drawn(seen, "and") == "Let me see.\n→ now()\n\nhm\n\nIt is\n\nten o'clock and"
    seen.page.withdraw()
    assert seen.text == "Let me see.\n→ now()"
    seen.page.say("It is noon.")
    seen.page.end()
    assert seen.text == "Let me see.\n→ now()\n\nIt is noon."


async def test_what_has_scrolled_away_is_declared_void() -> None:
    seen = Seen(rows=8)
    seen.page.begin()
    for number in range(12):
        seen.page.say(f"Paragraph {number}.\n\n")
    await drawn(seen, "Paragraph 11.")
    seen.page.withdraw()
    shown = seen.text
    assert shown.startswith("Paragraph 0.")
    assert shown.endswith("\n(the words above are withdrawn; the answer starts again)")
    assert "Paragraph 11." not in shown


async def test_a_terminal_that_cannot_move_its_cursor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    seen = Seen()
    seen.page.begin()
    seen.page.say("One.\n\nTwo.\n\nThr")
    assert await drawn(seen, "Two.") == "One.\n\nTwo."
    seen.page.withdraw()
    seen.page.say("Again.")
    seen.page.end()
    assert seen.text == "One.\n\nTwo.\n(the words above are withdrawn; the answer starts again)\n\nAgain."


async def test_a_model_cannot_steer_the_terminal() -> None:
    seen = Seen()
    seen.page.begin()
    seen.page.say("safe\x1b[2J\x1b]0;title\x07\r\x9b1A")
    seen.page.end()
    assert seen.text == "safe␛[2J␛]0;title␇\ufffd1A"
