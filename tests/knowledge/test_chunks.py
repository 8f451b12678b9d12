"""Documents are cut where their structure allows it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents.knowledge.chunking import MAX_PASSAGE, split_passages


def test_a_passage_knows_the_headings_above_it_and_its_line() -> None:
    text = "# A\n\nfirst\n\n## B\n\nsecond\n\n### C ###\n\nthird\n\n## D\n\nfourth\n"
    assert [(chunk.path, chunk.text, chunk.line) for chunk in split_passages(text)] == [
        (("A",), "first", 3),
        (("A", "B"), "second", 7),
        (("A", "B", "C"), "third", 11),
        (("A", "D"), "fourth", 15),
    ]


def test_headings_may_be_underlined() -> None:
    found = split_passages("Title\n=====\n\none\n\nPart\n----\n\ntwo\n")
    assert [(chunk.path, chunk.text) for chunk in found] == [(("Title",), "one"), (("Title", "Part"), "two")]


def test_short_paragraphs_of_a_section_stand_together() -> None:
    (one,) = split_passages("# A\n\nfirst\n\nsecond\n\n- third\n- fourth\n")
    assert one.text == "first\n\nsecond\n\n- third\n- fourth"


def test_code_is_kept_whole_and_a_hash_in_it_is_no_heading() -> None:
    code = "```python\n# not a heading\n" + "\n".join(f"line_{n} = {n}" for n in range(100)) + "\n\n| no | table |\n```"
    assert len(code) > MAX_PASSAGE
    (before, block, after) = split_passages(f"# A\n\n{'word ' * 80}\n\n{code}\n\nafter")
    assert block.text == code and {before.path, block.path, after.path} == {("A",)}


def test_a_long_table_is_cut_between_rows_and_each_piece_has_its_head() -> None:
    rows = [f"| name {n} | value {n} |" for n in range(100)]
    found = split_passages("\n".join(["# T", "", "| name | value |", "|---|---|", *rows]))
    assert len(found) > 2
    assert all(chunk.text.startswith("| name | value |\n|---|---|\n| name ") for chunk in found)
    kept = [line for chunk in found for line in chunk.text.split("\n")[2:]]
    assert kept == rows
    assert found[1].line == 5 + found[0].text.count("\n") - 1


def test_long_text_is_cut_after_sentences() -> None:
    text = " ".join(f"This is sentence number {n} of a long paragraph." for n in range(60))
    found = split_passages(text)
    assert len(found) > 2 and all(len(chunk.text) <= MAX_PASSAGE for chunk in found)
    assert all(chunk.text.endswith(".") for chunk in found)
    assert " ".join(chunk.text for chunk in found) == text


def test_the_same_words_under_the_same_heading_are_kept_once() -> None:
    assert len(split_passages("# A\n\nsame words\n\n# B\n\nother\n\n# A\n\nsame   words\n")) == 2


def test_front_matter_is_left_out_and_lines_keep_their_numbers() -> None:
    (one,) = split_passages("---\ntitle: x\n---\n# A\n\nwords\n")
    assert (one.path, one.text, one.line) == (("A",), "words", 6)


def test_pages_are_counted_and_not_mixed() -> None:
    found = split_passages("[page 1 of 2]\nfirst\n\n[page 2 of 2]\nsecond", plain=True)
    assert [(chunk.page, chunk.text) for chunk in found] == [(1, "first"), (2, "second")]


def test_plain_text_has_no_headings_and_no_code() -> None:
    (one,) = split_passages("# just a line\n```\nno code", plain=True)
    assert (one.path, one.text) == ((), "# just a line\n```\nno code")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a heading", "---", "```", "|", "[page 1 of 1]"])
def test_what_says_nothing_makes_no_trouble(text: str) -> None:
    assert all(chunk.text.strip() for chunk in split_passages(text))


@settings(deadline=None)  # a busy machine is no fault of a text
@given(
    st.lists(
        st.sampled_from(
            ["# a", "## b", "text here.", "```", "| x | y |", "", "- item", "word " * 300, "====", "x" * 5000]
        )
    )
)
def test_no_word_is_lost_whatever_the_structure(lines: list[str]) -> None:
    text = "\n".join(lines)
    kept = " ".join(f"{chunk.heading} {chunk.text}" for chunk in split_passages(text))
    for word in ("text here.", "- item", "| x | y |"):
        assert word not in lines or word in kept
    assert "x" * 5000 not in lines or "x" * 100 in kept
