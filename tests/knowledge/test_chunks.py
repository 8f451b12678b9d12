"""Chunking: documents are split along their structure."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents.knowledge.loaders import MAX_PASSAGE, split_passages


def test_passage_has_its_headings_and_line() -> None:
    text = "# A\n\nfirst\n\n## B\n\nsecond\n\n### C ###\n\nthird\n\n## D\n\nfourth\n"
    assert [(chunk.path, chunk.text, chunk.line) for chunk in split_passages(text)] == [
        (("A",), "first", 3),
        (("A", "B"), "second", 7),
        (("A", "B", "C"), "third", 11),
        (("A", "D"), "fourth", 15),
    ]


def test_underlined_headings_are_recognised() -> None:
    found = split_passages("Title\n=====\n\none\n\nPart\n----\n\ntwo\n")
    assert [(chunk.path, chunk.text) for chunk in found] == [(("Title",), "one"), (("Title", "Part"), "two")]


def test_short_paragraphs_of_a_section_are_joined() -> None:
    (one,) = split_passages("# A\n\nfirst\n\nsecond\n\n- third\n- fourth\n")
    assert one.text == "first\n\nsecond\n\n- third\n- fourth"


def test_code_is_not_split_and_a_comment_is_not_a_heading() -> None:
    code = "```python\n# not a heading\n" + "\n".join(f"line_{n} = {n}" for n in range(100)) + "\n\n| no | table |\n```"
    assert len(code) > MAX_PASSAGE
    (before, block, after) = split_passages(f"# A\n\n{'word ' * 80}\n\n{code}\n\nafter")
    assert block.text == code and {before.path, block.path, after.path} == {("A",)}


def test_long_table_is_split_between_rows_with_its_header_repeated() -> None:
    rows = [f"| name {n} | value {n} |" for n in range(100)]
    found = split_passages("\n".join(["# T", "", "| name | value |", "|---|---|", *rows]))
    assert len(found) > 2
    assert all(chunk.text.startswith("| name | value |\n|---|---|\n| name ") for chunk in found)
    kept = [line for chunk in found for line in chunk.text.split("\n")[2:]]
    assert kept == rows
    assert found[1].line == 5 + found[0].text.count("\n") - 1


def test_long_text_is_split_after_sentences() -> None:
    text = " ".join(f"This is sentence number {n} of a long paragraph." for n in range(60))
    found = split_passages(text)
    assert len(found) > 2 and all(len(chunk.text) <= MAX_PASSAGE for chunk in found)
    assert all(chunk.text.endswith(".") for chunk in found)
    assert " ".join(chunk.text for chunk in found) == text


def test_duplicate_text_under_the_same_heading_is_dropped() -> None:
    assert len(split_passages("# A\n\nsame words\n\n# B\n\nother\n\n# A\n\nsame   words\n")) == 2


def test_front_matter_is_omitted_and_line_numbers_stay() -> None:
    (one,) = split_passages("---\ntitle: x\n---\n# A\n\nwords\n")
    assert (one.path, one.text, one.line) == (("A",), "words", 6)


def test_passages_do_not_span_pages() -> None:
    found = split_passages("[page 1 of 2]\nfirst\n\n[page 2 of 2]\nsecond", plain=True)
    assert [(chunk.page, chunk.text) for chunk in found] == [(1, "first"), (2, "second")]


def test_plain_text_has_neither_headings_nor_code() -> None:
    (one,) = split_passages("# just a line\n```\nno code", plain=True)
    assert (one.path, one.text) == ((), "# just a line\n```\nno code")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a heading", "---", "```", "|", "[page 1 of 1]"])
def test_text_without_content_has_no_empty_passage(text: str) -> None:
    assert all(chunk.text.strip() for chunk in split_passages(text))


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(
        st.sampled_from(
            ["# a", "## b", "text here.", "```", "| x | y |", "", "- item", "word " * 300, "====", "x" * 5000]
        )
    )
)
def test_no_word_is_lost(lines: list[str]) -> None:
    text = "\n".join(lines)
    kept = " ".join(f"{chunk.heading} {chunk.text}" for chunk in split_passages(text))
    for word in ("text here.", "- item", "| x | y |"):
        assert word not in lines or word in kept
    assert "x" * 5000 not in lines or "x" * 100 in kept
