"""Every model family against the strict double of its vendor: one column is one test, one cell is one case.

`tests/family_page.py` writes the table of docs/reference/model-families.md from these tests. Where a vendor does not
offer something, the case shows what the user gets instead.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

import family_page
from atlas_agents import Cancelled, Compaction, File, History, Image, ModelSettings, Thinking, tool, user
from checks import TIMEOUT
from vendors.common import Answer
from vendors.families import AUTOMATIC, FAMILIES, TYPES, Family, answer_as, check_long_session, weather

PNG = Image.of(b"\x89PNG", "image/png")
PDF = File.of(b"%PDF", "bill.pdf")
SIGNED = {"thoughts_signed": True}
PARIS = Answer(calls=(("weather", {"city": "Paris"}),), thinking=("I look it up.",), extra=SIGNED)
BOTH = Answer(
    calls=(("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})), thinking=("I look it up.",), extra=SIGNED
)
SUNNY = Answer("Sunny.")
COLUMNS: dict[str, Callable[..., Any]] = {}
"""The test of each column of the table."""


def column(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a test a column of the table, with a case for each family."""

    def mark(test: Callable[..., Any]) -> Callable[..., Any]:
        COLUMNS[name] = test
        return pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)(test)

    return mark


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@column("tools")
async def test_model_calls_a_tool_and_answers_with_its_result(family: Family) -> None:
    """Two turns, each with a call and an answer from its result. No field is sent that the vendor ignores."""
    async with family.open(PARIS, SUNNY, PARIS, SUNNY, tools=[weather]) as (double, atlas):
        for _ in range(2):
            assert (await atlas.ask("Weather?")).text == "Sunny."
    assert double.refusals == []
    assert not getattr(double, "ignored", None), "fields that the vendor ignores are not sent"
    assert [request.raw.count(b"Paris: sunny") for request in double.requests] == [0, 1, 1, 2]


@column("parallel calls")
async def test_calls_of_one_round_run_at_the_same_time_and_are_answered_together(family: Family) -> None:
    """Two calls of one answer run at the same time. Their results are returned together and in order."""
    both = asyncio.Barrier(2)

    @tool(name="weather")
    async def meet(city: str) -> str:
        """Return the weather in a city."""
        async with asyncio.timeout(TIMEOUT):
            await both.wait()
        return f"{city}: sunny"

    async with family.open(BOTH, SUNNY, tools=[meet]) as (double, atlas):
        assert (await atlas.ask("Weather?")).text == "Sunny."
    assert double.refusals == []
    assert -1 < double.requests[1].raw.find(b"Paris: sunny") < double.requests[1].raw.find(b"Rome: sunny")


@column("thinking kept")
async def test_reasoning_is_returned_unchanged_with_every_later_request(
    family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    """The reasoning of three answers returns unchanged with every later request, also in the next turn."""
    settings = ModelSettings(effort="low")
    async with family.open(PARIS, BOTH, SUNNY, PARIS, SUNNY, tools=[weather], settings=settings) as (double, atlas):
        await atlas.ask("Weather?")
        assert (await atlas.ask("And now?")).text == "Sunny."
        shown = [part for message in atlas.conversation().messages for part in message.parts]
    if "thinking kept" in family.missing:
        assert not [part for part in shown if isinstance(part, Thinking)]
        assert len(warnings(caplog)) == 1
        return
    assert double.refusals == []
    returned = [request.raw.decode().count(family.thinking) for request in double.requests]
    assert all(found >= made for found, made in zip(returned, (0, 1, 2, 2, 3), strict=True)), returned


@column("caching")
async def test_beginning_of_a_conversation_is_read_from_the_cache(family: Family) -> None:
    """The second request reads its beginning from the vendor's cache, and the usage says so."""
    async with family.open(SUNNY, SUNNY, tools=[weather], system_prompt="Be brief. " * 3000) as (double, atlas):
        first, second = [(await atlas.ask("Weather?")).metadata["usage"] for _ in range(2)]
    assert double.refusals == []
    assert first.get("cached", 0) == 0
    assert second["cached"] > 6000
    asks = [b'"prompt_cache_key"' in each.raw or b'"cache_control"' in each.raw for each in double.requests]
    assert asks == [family.notes.get("caching") != AUTOMATIC] * 2


@column("typed output")
async def test_types_are_answered_without_a_refusal_or_a_repair(family: Family) -> None:
    """16 kinds of types, from `int` to recursive models, without a refused schema or a correction."""
    async with family.open() as (double, atlas):
        for name, (wanted, text, value) in TYPES.items():
            double.add(answer_as(family.double, text))
            assert (await atlas.run("Tell", output=wanted, output_retries=0)).output == value, name
            body = double.bodies[-1]
            instructed = "Answer only with JSON" in double.find_system(body)
            assert (double.find_schema(body) is None) == instructed, name
    assert (double.refusals, len(double.requests)) == ([], len(TYPES))


@column("images")
async def test_images_of_the_user_and_of_tools_reach_the_model(
    family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    """An image of the user and one of a tool reach the model, also in the next turn."""

    @tool
    async def photograph() -> dict[str, str]:
        """Take a picture."""
        return {"type": "image", "media_type": PNG.media_type, "data": PNG.data}

    photo = Answer(calls=(("photograph", {}),))
    async with family.open(photo, SUNNY, SUNNY, tools=[photograph]) as (double, atlas):
        assert (await atlas.ask(user("What is this?", PNG))).text == "Sunny."
        assert (await atlas.ask("And now?")).text == "Sunny."
    sent = [request.raw.decode() for request in double.requests]
    if "images" in family.missing:
        assert not any(PNG.data in raw for raw in sent)
        assert all("[not attached: an image; image/png is not accepted]" in raw for raw in sent)
        assert len(warnings(caplog)) == 1
        return
    assert double.refusals == []
    assert [raw.count(PNG.data) for raw in sent] == [1, 2, 2]


@column("PDFs")
async def test_pdf_reaches_the_model(family: Family, caplog: pytest.LogCaptureFixture) -> None:
    """A PDF of the user reaches the model as a file, also in the next turn."""
    async with family.open(SUNNY, SUNNY) as (double, atlas):
        assert (await atlas.ask(user("Read this.", PDF))).text == "Sunny."
        assert (await atlas.ask("And now?")).text == "Sunny."
    accepted = [request.raw.decode() for request in double.requests[len(double.refusals) :]]
    if "PDFs" in family.missing:
        assert len(double.refusals) <= 1, "a refusal is remembered"
        assert not any(PDF.data in raw for raw in accepted)
        assert all("[not attached: the file bill.pdf; application/pdf is not accepted]" in raw for raw in accepted)
        assert len(warnings(caplog)) == 1
        return
    assert double.refusals == []
    assert [raw.count(PDF.data) for raw in accepted] == [1, 1]


@column("long session")
async def test_session_that_exceeds_the_window_is_summarised_and_goes_on(family: Family) -> None:
    """14 turns with tools in a window of 3,000 tokens: older rounds are summarised, no request is refused."""
    history = History(compaction=Compaction(window=3000, clear_results=False))
    assert (await check_long_session(family, history)).summaries


@column("cancel")
async def test_cancelled_turn_ends_the_request_and_the_session_goes_on(family: Family) -> None:
    """Cancelling ends the vendor's request. The next turn continues from a history that the vendor accepts."""
    hanging = Answer("It will be sunny tomorrow. " * 5, thinking=("I know.",), hangs=True)
    async with family.open(PARIS, hanging, SUNNY, tools=[weather]) as (double, atlas):
        stream = atlas.send("Weather?")
        async for event in stream:
            if event.type in ("stream:chunk", "stream:thinking") and len(double.requests) == 2:
                stream.cancel()
                break
        with pytest.raises(Cancelled):
            await stream.reply()
        async with asyncio.timeout(TIMEOUT):
            await double.requests[1].disconnected.wait()
        assert (await atlas.ask("And now?")).text == "Sunny."
    assert double.refusals == []


def test_every_cell_has_a_case_and_no_other_column_is_named() -> None:
    assert len(COLUMNS) == 9
    for test in COLUMNS.values():
        (mark,) = [mark for mark in vars(test)["pytestmark"] if mark.name == "parametrize"]
        assert list(mark.kwargs["ids"]) == list(FAMILIES)
    named = {name for family in FAMILIES.values() for name in (*family.notes, *family.missing)}
    assert named <= set(COLUMNS)
    assert f"{len(TYPES)} kinds" in str(COLUMNS["typed output"].__doc__)


def test_page_shows_every_cell() -> None:
    page = family_page.PAGE.read_text(encoding="utf-8")
    assert page == family_page.filled(page, FAMILIES.values(), COLUMNS), "run `make texts`"
