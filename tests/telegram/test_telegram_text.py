"""Markdown as Telegram messages: complete text, correct entities, and cuts where a reader would pause."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents.builtin_tools.telegram_api import BotApi, send_message
from atlas_agents.builtin_tools.telegram_format import encode_entities, parse_markdown, split_message, utf16_length
from atlas_agents.channels.telegram.approvals import format_request
from atlas_agents.core.paths import Secret
from atlas_agents.gateway.protocol.types import ApprovalShape, FieldShape, FormShape
from bot_double import TOKEN, BotDouble, bot_double

DELIMITERS = st.text(st.sampled_from(list("ab *_`~[]()#-\\\n!>.\u200d🦊é")), max_size=60)


@pytest.mark.parametrize(
    ("markdown", "text", "entities"),
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
def test_markdown_becomes_entities_and_other_text_stays(
    markdown: str, text: str, entities: list[tuple[str, str]] | None
) -> None:
    found = parse_markdown(markdown)
    assert found.text == text
    if entities is not None:
        assert [(entity.kind, found.text[entity.start : entity.end]) for entity in found.entities] == entities


@given(DELIMITERS)
@settings(max_examples=400, deadline=None)
def test_no_letter_is_lost(markdown: str) -> None:
    found = parse_markdown(markdown)
    text = found.text
    for entity in reversed(found.entities):
        if entity.language != text[entity.start : entity.end]:
            text = text[: entity.start] + entity.language + text[entity.start :]
    assert re.sub(r"[^ab🦊é]", "", text) == re.sub(r"[^ab🦊é]", "", markdown)


@pytest.mark.parametrize("markdown", ["```é", "``` a b", "```\na b", "```a\nb\n```", "```a b\nb", "~~~ é 🦊"])
def test_code_fence_keeps_its_info_string(markdown: str) -> None:
    found = parse_markdown(markdown)
    assert re.sub(r"[^ab🦊é]", "", found.text) in ("é", "ab", "b", "abb", "é🦊")
    assert all(entity.kind == "pre" for entity in found.entities)


@given(st.lists(DELIMITERS, max_size=12).map("\n".join), st.integers(8, 40))
@settings(max_examples=300, deadline=None)
def test_every_message_fits_and_together_they_are_the_text(markdown: str, max_length: int) -> None:
    whole = parse_markdown(markdown)
    found = split_message(whole, max_length)
    assert all(0 < utf16_length(piece.text) <= max_length and piece.text == piece.text.strip() for piece in found)
    assert "".join("".join(piece.text for piece in found).split()) == "".join(whole.text.split())
    for piece in found:
        for entity in encode_entities(piece):
            assert entity["length"] > 0 and entity["offset"] + entity["length"] <= utf16_length(piece.text)


def test_text_is_cut_at_paragraphs_then_lines_then_words() -> None:
    def cut(text: str) -> list[str]:
        return [piece.text for piece in split_message(parse_markdown(text), 20)]

    assert cut("one two three\n\nfour five six") == ["one two three", "four five six"]
    assert cut("one two three\nfour five six") == ["one two three", "four five six"]
    assert cut("one two three four five six") == ["one two three four", "five six"]
    assert cut("x" * 45) == ["x" * 20, "x" * 20, "x" * 5]
    assert cut("🦊" * 11) == ["🦊" * 10, "🦊"]
    assert cut("x" * 18 + "👩‍💻👩‍💻") == ["x" * 18, "👩‍💻👩‍💻"]
    assert cut("one two\n```\nlet a = 1\nlet b = 2\n```") == ["one two", "let a = 1\nlet b = 2"]
    assert cut(" \n ") == []


def test_entity_over_a_cut_continues_in_the_next_message() -> None:
    first, second = split_message(parse_markdown("**one two three four five six**"), 20)
    assert [encode_entities(each) for each in (first, second)] == [
        [{"type": "bold", "offset": 0, "length": 18}],
        [{"type": "bold", "offset": 0, "length": 8}],
    ]


@pytest.mark.parametrize(
    "text", ["*" * 60_000, "`" * 60_000, "[a](" * 15_000, "_a" * 30_000, "[" * 60_000, "` `` " * 9000]
)
def test_long_text_of_delimiters_is_parsed_in_linear_time(text: str) -> None:
    split_message(parse_markdown(text))  # the test's own timeout is the measure


async def test_telegram_accepts_every_message() -> None:
    """The double rejects entities that cut a character, overlap partially or reach beyond the text."""
    texts: list[str] = []

    @given(st.lists(DELIMITERS, max_size=8).map("\n".join))
    @settings(max_examples=60, deadline=None, database=None)
    def collect(text: str) -> None:
        texts.append(text)

    collect()
    async with bot_double() as double:
        await _send_all(double, texts)


async def _send_all(double: BotDouble, texts: list[str]) -> None:
    ana, api = double.person(42, "Ana"), BotApi(Secret(TOKEN), double.url)
    expected: list[str] = []
    for text in texts:
        for piece in split_message(parse_markdown(text), 50):
            expected.append(piece.text)
            await send_message(api, 42, piece)
    await api.close()
    assert [message.text for message in ana.sees] == expected
    assert double.count("sendMessage") == len(expected), "no message was sent again without its entities"


def form_request(*fields: FieldShape) -> ApprovalShape:
    form = FormShape("the MCP server shop", "Which \u202eone?", fields)
    return ApprovalShape(
        approval_id="q1",
        run_id="r",
        session_key="s",
        tool_call_id="c",
        tool_name="shop/order",
        summary="The MCP server shop requests your input",
        details={},
        command=form.message,
        working_dir="",
        risk="",
        options=("allow-once", "deny", "dismiss"),
        expires_at=0,
        preview="Which \u202eone?\nsize (text, required)\nYour answer is sent to the MCP server shop.",
        form=form,
    )


def test_form_with_required_fields_can_only_be_denied() -> None:
    needs = format_request(form_request(FieldShape("size", "text", required=True)))
    assert [button["text"] for button in needs.buttons["inline_keyboard"][0]] == ["Deny"]
    assert "complete it in the web UI, or run: atlas approvals" in needs.last.text
    assert r"Which \u202eone?" in needs.last.text and "sent to the MCP server shop" in needs.last.text
    free = format_request(
        form_request(FieldShape("size", "text", required=True, default="small"), FieldShape("gift", "boolean"))
    )
    assert [button["text"] for button in free.buttons["inline_keyboard"][0]] == ["Accept", "Deny"]
