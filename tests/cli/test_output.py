"""How tool calls are shown: every character visible, each call on its own line."""

import errno
import json
import os
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas_agents.cli.output import (
    describe_error,
    fit_columns,
    format_call,
    format_result,
    one_line,
    print_table,
    printable,
)
from atlas_agents.core.text import escape_invisible

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_escaped_value_is_equal_json_in_visible_characters(value: Any) -> None:
    shown = escape_invisible(value)
    assert json.loads(shown) == value
    assert all(char == " " or (char.isprintable() and not char.isspace()) for char in shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ls ", '"ls "'),
        ("ls\u00a0-l", '"ls\\u00a0-l"'),
        ("\u202egnp.exe", '"\\u202egnp.exe"'),
        ("a\u200bb\u200cc\u200dd\ufeffe", '"a\\u200bb\\u200cc\\u200dd\\ufeffe"'),
        ("\x1b[2K\r\n\x00\x7f\x9b", '"\\u001b[2K\\r\\n\\u0000\\u007f\\u009b"'),
        ("rm\u3164\u115f\u2800x", '"rm\\u3164\\u115f\\u2800x"'),
        ("x\ufe0f\ufe01", '"x\\ufe0f\\ufe01"'),
        ("\U000e0041\U000e0100", '"\\udb40\\udc41\\udb40\\udd00"'),
        ("\u2028\u2029\u2003", '"\\u2028\\u2029\\u2003"'),
        ("back\\slash \\u202e", '"back\\\\slash \\\\u202e"'),
        ("größer 東京 🙂", '"größer 東京 🙂"'),
    ],
)
def test_invisible_character_is_escaped(text: str, shown: str) -> None:
    assert escape_invisible(text) == shown
    assert json.loads(shown) == text


def test_call_and_result_take_one_line_each() -> None:
    line = format_call("bash", {"command": "ls\n✓ bash: all is well\x1b[1A", "\u202ekey": 1})
    assert "\n" not in line and "\x1b" not in line and "\u202e" not in line
    line = format_result("bash", "ok", "x\r\n> \x1b]0;title\x07\u202etxt", None, 0.001)
    assert not {"\n", "\r", "\x1b", "\x07", "\u202e"} & set(line)


@given(st.text())
def test_model_output_cannot_control_the_terminal(text: str) -> None:
    for char in printable(text):
        assert char in "\t\n" or unicodedata.category(char) != "Cc"
        assert unicodedata.bidirectional(char) not in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    assert "\n" not in one_line(text)


@pytest.mark.parametrize(
    ("code", "file", "expected"),
    [
        (errno.EACCES, "/a/t", "cannot access /a/t: Permission denied; check that /a exists, and its permissions"),
        (errno.EROFS, "/a/t", "cannot access /a/t: Read-only file system; check that /a exists, and its permissions"),
        (errno.ENOSPC, "/a/t", "cannot write /a/t: No space left on device; free some space and try again"),
        (errno.ENOSPC, None, "cannot write the output: No space left on device; free some space and try again"),
    ],
)
def test_error_of_the_system_names_the_file_and_a_remedy(code: int, file: str | None, expected: str) -> None:
    assert describe_error(OSError(code, os.strerror(code), file)) == expected


def test_image_in_a_result_is_shown_as_its_size() -> None:
    image = {"type": "image", "media_type": "image/png", "data": "iVBORw0K" * 100, "name": "plot.png"}
    line = format_result("code_interpreter", "ok", {"value": "1", "images": [image]}, None)
    assert line == '✓ code_interpreter: {"value": "1", "images": ["(image/png, 600 bytes)"]}'


def test_columns_fit_the_terminal_and_the_first_stays_whole() -> None:
    assert fit_columns([8, 6, 30, 40], 80) == [8, 6, 30, 30]
    assert fit_columns([12, 40, 40], 60) == [12, 22, 22]
    assert fit_columns([70, 40, 40], 60) == [70, 8, 8]


def test_row_that_does_not_fit_is_printed_as_a_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    rows = [
        ("a-key-of-a-session-to-copy", "just now", "", "About roses and tulips"),
        ("b", "1 h ago", "poet", "Verses"),
    ]
    headers = ("session", "changed", "agent", "name")
    print_table(headers, rows, "")
    assert capsys.readouterr().out.startswith("SESSION  "), "a pipe gets a table"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(headers, rows, "")
    assert capsys.readouterr().out.splitlines() == [
        "a-key-of-a-session-to-copy",
        "  changed: just now · name:",
        "  About roses and tulips",
        "b",
        "  changed: 1 h ago · agent:",
        "  poet · name: Verses",
    ]
