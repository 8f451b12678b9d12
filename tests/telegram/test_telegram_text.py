"""What a model writes becomes messages that Telegram takes: whole, marked as it was meant, cut where one pauses."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents.builtin_tools.telegram_api import BotApi, send
from atlas_agents.builtin_tools.telegram_format import entities, pieces, styled, units
from atlas_agents.channels.telegram.approvals import sheet
from atlas_agents.core.paths import Secret
from atlas_agents.gateway.protocol.types import ApprovalShape, FieldShape, FormShape
from bot_double import TOKEN, BotDouble, bot_double

SIGNS = st.text(st.sampled_from(list("ab *_`~[]()#-\\\n!>.\u200d🦊é")), max_size=60)


@pytest.mark.parametrize(
    ("markdown", "text", "marks"),
    [
        ("plain", "plain", []),
        ("**bold** and *not so*", "bold and not so", [("bold", "bold"), ("italic", "not so")]),
        ("__b__ _i_ ~~s~~", "b i s", [("bold", "b"), ("italic", "i"), ("strikethrough", "s")]),
        ("**bold *and* italic**", "bold and italic", [("bold", "bold and italic"), ("italic", "and")]),
        ("snake_case_name and 2*3*4", "snake_case_name and 2*3*4", None),
        ("a * b * c", "a * b * c", []),
        ("`x = *y*`", "x = *y*", [("code", "x = *y*")]),
        ("``a`b``", "a`b", [("code", "a`b")]),
        ("an `open one", "an `open one", []),
        ("**open", "**open", []),
        ("*a **b* c**", "a **b c**", [("italic", "a **b")]),
        ("# Title", "Title", [("bold", "Title")]),
        ("- one\n- two", "• one\n• two", []),
        ("```python\nx = 1\n\ny\n```\nafter", "x = 1\n\ny\nafter", [("pre", "x = 1\n\ny")]),
        ("```\nno end", "no end", [("pre", "no end")]),
        (r"\*not\* \_this\_", "*not* _this_", []),
        ("[here](https://evil.example)", "here (https://evil.example)", []),
        ("![](https://a.example/x.png)", "https://a.example/x.png", []),
        ("1 < 2 & <b>x</b>", "1 < 2 & <b>x</b>", []),
    ],
)
def test_markdown_is_read_and_what_is_none_stays(markdown: str, text: str, marks: list[tuple[str, str]] | None) -> None:
    found = styled(markdown)
    assert found.text == text
    if marks is not None:
        assert [(mark.kind, found.text[mark.start : mark.end]) for mark in found.marks] == marks


@given(SIGNS)
@settings(max_examples=400, deadline=None)
def test_no_letter_is_lost_whatever_is_written(markdown: str) -> None:
    found = styled(markdown)
    text = found.text
    for mark in reversed(found.marks):
        if mark.language != text[mark.start : mark.end]:
            text = text[: mark.start] + mark.language + text[mark.start :]
    assert re.sub(r"[^ab🦊é]", "", text) == re.sub(r"[^ab🦊é]", "", markdown)


@pytest.mark.parametrize("markdown", ["```é", "``` a b", "```\na b", "```a\nb\n```", "```a b\nb", "~~~ é 🦊"])
def test_a_fence_shows_what_stands_beside_it(markdown: str) -> None:
    found = styled(markdown)
    assert re.sub(r"[^ab🦊é]", "", found.text) in ("é", "ab", "b", "abb", "é🦊")
    assert all(mark.kind == "pre" for mark in found.marks)


@given(st.lists(SIGNS, max_size=12).map("\n".join), st.integers(8, 40))
@settings(max_examples=300, deadline=None)
def test_every_piece_fits_and_together_they_are_the_text(markdown: str, most: int) -> None:
    whole = styled(markdown)
    found = pieces(whole, most)
    assert all(0 < units(piece.text) <= most and piece.text == piece.text.strip() for piece in found)
    assert "".join("".join(piece.text for piece in found).split()) == "".join(whole.text.split())
    for piece in found:
        for mark in entities(piece):
            assert mark["length"] > 0 and mark["offset"] + mark["length"] <= units(piece.text)


def test_texts_are_cut_at_paragraphs_then_lines_then_words() -> None:
    def cut(text: str) -> list[str]:
        return [piece.text for piece in pieces(styled(text), 20)]

    assert cut("one two three\n\nfour five six") == ["one two three", "four five six"]
    assert cut("one two three\nfour five six") == ["one two three", "four five six"]
    assert cut("one two three four five six") == ["one two three four", "five six"]
    assert cut("x" * 45) == ["x" * 20, "x" * 20, "x" * 5]
    assert cut("🦊" * 11) == ["🦊" * 10, "🦊"]
    assert cut("x" * 18 + "👩‍💻👩‍💻") == ["x" * 18, "👩‍💻👩‍💻"]
    assert cut("one two\n```\nlet a = 1\nlet b = 2\n```") == ["one two", "let a = 1\nlet b = 2"]
    assert cut(" \n ") == []


def test_a_mark_over_a_cut_goes_on_in_the_next_piece() -> None:
    first, second = pieces(styled("**one two three four five six**"), 20)
    assert [entities(each) for each in (first, second)] == [
        [{"type": "bold", "offset": 0, "length": 18}],
        [{"type": "bold", "offset": 0, "length": 8}],
    ]


@pytest.mark.parametrize(
    "text", ["*" * 60_000, "`" * 60_000, "[a](" * 15_000, "_a" * 30_000, "[" * 60_000, "` `` " * 9000]
)
def test_a_long_text_of_signs_is_read_in_one_pass(text: str) -> None:
    pieces(styled(text))  # the test's own timeout is the measure


async def test_telegram_takes_all_of_it() -> None:
    """The double refuses marks that cut a character, cross each other or reach beyond the text."""
    texts: list[str] = []

    @given(st.lists(SIGNS, max_size=8).map("\n".join))
    @settings(max_examples=60, deadline=None, database=None)
    def gather(text: str) -> None:
        texts.append(text)

    gather()
    async with bot_double() as double:
        await _all_taken(double, texts)


async def _all_taken(double: BotDouble, texts: list[str]) -> None:
    ana, api = double.person(42, "Ana"), BotApi(Secret(TOKEN), double.url)
    expected: list[str] = []
    for text in texts:
        for piece in pieces(styled(text), 50):
            expected.append(piece.text)
            await send(api, 42, piece)
    await api.close()
    assert [message.text for message in ana.sees] == expected
    assert double.count("sendMessage") == len(expected), "nothing had to be sent again without its marks"


def asked_for(*fields: FieldShape) -> ApprovalShape:
    form = FormShape("the MCP server shop", "Which \u202eone?", fields)
    return ApprovalShape(
        approval_id="q1",
        run_id="r",
        session_key="s",
        tool_call_id="c",
        tool_name="shop/order",
        summary="The MCP server shop asks you",
        details={},
        command=form.message,
        working_dir="",
        risk="",
        options=("allow-once", "deny", "dismiss"),
        expires_at=0,
        preview="Which \u202eone?\nsize (text, required)\nYour answer is sent to the MCP server shop.",
        form=form,
    )


def test_a_form_can_be_declined_and_accepted_only_where_nothing_must_be_filled_in() -> None:
    needs = sheet(asked_for(FieldShape("size", "text", required=True)))
    assert [button["text"] for button in needs.buttons["inline_keyboard"][0]] == ["Deny"]
    assert "give them on the page, or with atlas approvals" in needs.last.text
    assert r"Which \u202eone?" in needs.last.text and "sent to the MCP server shop" in needs.last.text
    free = sheet(asked_for(FieldShape("size", "text", required=True, default="small"), FieldShape("gift", "boolean")))
    assert [button["text"] for button in free.buttons["inline_keyboard"][0]] == ["Accept", "Deny"]
