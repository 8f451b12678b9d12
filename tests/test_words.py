"""The style guide's forbidden words do not appear, and a class name means one class."""

import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

import structure
import words

ROOT = Path(__file__).parent.parent


@cache
def hits() -> list[words.Hit]:
    return [hit for found in structure.forbidden(ROOT).values() for hit in found]


@pytest.mark.timeout(600)  # reads the whole repository
def test_no_forbidden_word_appears() -> None:
    found = [f"{hit.path}:{hit.line}: {hit.word}: {hit.context}" for hit in hits()]
    assert found == []


def test_class_name_is_defined_once() -> None:
    assert structure.sources_of(ROOT).twice == {}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("house_events = 1", "house"),
        ("class ToolDesk: ...", "desk"),
        ('"""Nobody asks."""', "nobody"),
        ("# what is under way", "under way"),
        ('raise Fault("it is no ref")', "is no <noun>"),
        ('raise Fault("say pip install it")', "say <command>"),
    ],
)
def test_a_forbidden_word_is_found_in_code(text: str, word: str) -> None:
    assert [hit.word for hit in words.in_python("module.py", text)] == [word]


@pytest.mark.parametrize(
    "text", ["heartbeat = headroom", "math.floor(2.5)", "# there is no such session", "# it is no longer sent"]
)
def test_an_ordinary_use_is_left_alone(text: str) -> None:
    assert list(words.in_python("module.py", text)) == []


def test_a_forbidden_word_is_found_in_a_page_and_in_the_web_client() -> None:
    assert [hit.word for hit in words.in_text("docs/a.md", "Whoever asks\n`the_house`\n")] == ["whoever", "house"]
    assert [hit.word for hit in words.in_text("web/a.ts", "const theHouse = 1", identifiers=True)] == ["house"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("exemption", words.EXEMPTIONS, ids=lambda each: each.pattern)
def test_exemption_is_used_and_has_a_reason(exemption: words.Exemption) -> None:
    files = [ROOT / path for path in structure.committed(ROOT) if fnmatch(path, exemption.files)]
    texts = (file.read_text(encoding="utf-8") for file in files if file.suffix in (".py", ".ts", ".tsx", ".md"))
    assert exemption.reason
    assert any(re.search(exemption.pattern, text, re.IGNORECASE | re.MULTILINE) for text in texts)
