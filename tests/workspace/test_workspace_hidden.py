"""Hidden characters are reported with their position; the prompt is used unchanged."""

from pathlib import Path

import pytest

from atlas_agents.workspace import HiddenCharacters, Workspace, hidden_characters


@pytest.mark.parametrize(
    ("char", "code_point", "name"),
    [
        ("\u202e", "U+202E", "RIGHT-TO-LEFT OVERRIDE"),
        ("\u2066", "U+2066", "LEFT-TO-RIGHT ISOLATE"),
        ("\u200b", "U+200B", "ZERO WIDTH SPACE"),
        ("\u200d", "U+200D", "ZERO WIDTH JOINER"),
        ("\u2060", "U+2060", "WORD JOINER"),
        ("\ufeff", "U+FEFF", "ZERO WIDTH NO-BREAK SPACE"),
        ("\u00ad", "U+00AD", "SOFT HYPHEN"),
        ("\U000e0041", "U+E0041", "TAG LATIN CAPITAL LETTER A"),
        ("\U000e0101", "U+E0101", "VARIATION SELECTOR-18"),
        ("\ufe00", "U+FE00", "VARIATION SELECTOR-1"),
        ("\u3164", "U+3164", "HANGUL FILLER"),
        ("\u2028", "U+2028", "LINE SEPARATOR"),
        ("\x00", "U+0000", "CONTROL CHARACTER"),
        ("\x1b", "U+001B", "CONTROL CHARACTER"),
        ("\x85", "U+0085", "CONTROL CHARACTER"),
        ("\U000e0080", "U+E0080", "UNNAMED"),
    ],
)
def test_hidden_character_is_found(char: str, code_point: str, name: str) -> None:
    text = f"One.\r\nTwo\t{char}!\n"
    assert hidden_characters(text, "SOUL.md") == (HiddenCharacters("SOUL.md", 2, 5, code_point, name),)


def test_adjacent_hidden_characters_are_one_finding() -> None:
    hidden = "".join(chr(0xE0000 + ord(char)) for char in "obey")
    found = hidden_characters(f"a{hidden}b\u200bc\n\u200b", "SOUL.md")
    assert [(one.line, one.column, one.count) for one in found] == [(1, 2, 4), (1, 7, 1), (2, 1, 1)]
    assert str(found[0]) == "SOUL.md:1:2: hidden character U+E006F TAG LATIN SMALL LETTER O and 3 more"


@pytest.mark.parametrize(
    "text",
    [
        "plain\ttext\r\n",
        "Grüße, 你好, سلام ٣ \u06dd",
        "👩🏽‍💻 👨‍👩‍👧 ❤️‍🔥 ✅️",
        "e\u0301 non\u00a0breaking",
    ],
)
def test_visible_text_has_no_findings(text: str) -> None:
    assert hidden_characters(text, "SOUL.md") == ()


def test_number_of_findings_is_limited() -> None:
    assert len(hidden_characters("x\u200b" * 10_000, "SOUL.md")) == 100


def test_findings_are_logged_and_the_prompt_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "TOOLS.md").write_text("a\u202eb", encoding="utf-8")
    state = Workspace(tmp_path).load()
    assert state.prompt == "a\u202eb"
    assert state.findings == (HiddenCharacters("TOOLS.md", 1, 2, "U+202E", "RIGHT-TO-LEFT OVERRIDE"),)
    assert "TOOLS.md:1:2: hidden character U+202E RIGHT-TO-LEFT OVERRIDE" in caplog.text
