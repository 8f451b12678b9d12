"""`send_telegram_message`: what is sent, how errors are reported, and that the token is never shown."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, Interceptor
from atlas_agents.agents.hooks import offered_on
from atlas_agents.builtin_tools.telegram import KEYWORDS, NAME, telegram_tool
from atlas_agents.builtin_tools.telegram_api import BotApi
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret
from atlas_agents.testing import Scripted, VirtualClock, calls, says
from bot_double import TOKEN, BotDouble, Fault, Person, bot_double


@pytest.fixture
async def double() -> AsyncGenerator[BotDouble, None]:
    async with bot_double() as found:
        yield found


@pytest.fixture
def ana(double: BotDouble) -> Person:
    return double.person(42, "Ana")


async def call_tool(double: BotDouble | str, *, chat: str | None = "42", token: str = TOKEN, **arguments: Any) -> Any:
    """Call the tool once and return the step."""
    url = double if isinstance(double, str) else double.url
    clock = VirtualClock()
    api = BotApi(Secret(token), url, clock)
    model = Scripted(calls(NAME, **arguments), says("Done."))
    async with Atlas([Agent("a", model=model, tools=[telegram_tool(api, chat)])], clock=clock) as atlas:
        turn = asyncio.ensure_future(atlas.run("Notify me"))
        while not (await asyncio.wait([turn], timeout=0.002))[0]:
            await clock.advance(0.5)
        result = turn.result()
        await api.close()
        assert TOKEN not in repr(result) + repr(await atlas.audit.records("default"))
        return result.steps[0]


async def test_message_goes_to_the_default_chat_with_entities_and_without_link_preview(
    double: BotDouble, ana: Person
) -> None:
    step = await call_tool(double, message="**Deployed** to https://a.example/?secret=1 `v1.2`")
    assert step.output == {"chat_id": "42", "message_ids": [ana.sees[0].id], "parts": 1}
    assert ana.sees[0].text == "Deployed to https://a.example/?secret=1 v1.2"
    assert (ana.sees[0].marked("bold"), ana.sees[0].marked("code")) == (["Deployed"], ["v1.2"])
    assert double.previews == []


async def test_chat_can_be_chosen(double: BotDouble, ana: Person) -> None:
    double.channels["@news"] = -1001
    assert (await call_tool(double, chat=None, message="x", chat_id="42")).status == "ok"
    assert (await call_tool(double, message="x", chat_id="@news")).status == "ok"
    assert len(double.chats[-1001]) == 1
    wrong = await call_tool(double, message="x", chat_id="../getMe")
    assert wrong.status == "error" and "chat_id" in wrong.output


async def test_long_message_is_sent_in_parts(double: BotDouble, ana: Person) -> None:
    text = "\n\n".join(f"Paragraph {number}: " + "word " * 150 for number in range(14))
    step = await call_tool(double, message=text)
    assert step.output["parts"] == len(ana.sees) == 3
    assert " ".join(" ".join(each.text for each in ana.sees).split()) == " ".join(text.split())


async def test_rate_limited_message_is_retried_after_the_requested_time(double: BotDouble, ana: Person) -> None:
    double.faults += [Fault("sendMessage", retry_after=3), Fault("sendMessage", retry_after=20)]
    assert (await call_tool(double, message="x")).status == "ok"
    assert (len(ana.sees), double.count("sendMessage")) == (1, 3)
    double.faults.append(Fault("sendMessage", retry_after=3600))
    long = await call_tool(double, message="x")
    assert (long.status, len(ana.sees)) == ("error", 1)
    assert "retry after 3600 s" in long.output and "Nothing was sent." in long.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chat_id": "7"}, "Chat not found"),
        ({"chat_id": "43"}, "The bot cannot write to this chat (Forbidden: bot was blocked by the user)"),
        ({"token": "7000001:AAwrong"}, "copy it again from @BotFather"),
        ({"chat": None}, "pass chat_id, pair one person with the bot, or set"),
        ({"message": " \n "}, "the message is blank"),
    ],
)
async def test_rejected_message_explains_what_to_do(
    double: BotDouble, ana: Person, arguments: dict[str, Any], message: str
) -> None:
    double.person(43, "Ben")
    double.blocked.add(43)
    step = await call_tool(double, **{"message": "x", **arguments})
    assert step.status == "error" and message in step.output
    assert double.chats[42] == []


async def test_failure_reports_the_parts_that_were_sent(double: BotDouble, ana: Person) -> None:
    context_calls = 0
    original = double._send

    async def block_after_one(params: dict[str, Any]) -> Any:
        nonlocal context_calls
        context_calls += 1
        if context_calls == 2:
            double.blocked.add(42)
        return await original(params)

    double._methods["sendmessage"] = block_after_one
    step = await call_tool(double, message="word " * 1500)
    assert step.status == "error"
    assert f"1 of 2 parts were already sent (messages {ana.sees[0].id})." in step.output


async def test_lost_connection_after_sending_is_unknown_and_not_retried(double: BotDouble, ana: Person) -> None:
    double.faults.append(Fault("sendMessage", done=True))
    step = await call_tool(double, message="x")
    assert (step.status, len(ana.sees), double.count("sendMessage")) == ("unknown", 1, 1)
    assert "may have been sent. It was not sent again." in step.output
    double.faults.append(Fault("sendMessage", status=502, description="Bad Gateway"))
    assert (await call_tool(double, message="x")).status == "unknown"


async def test_unreachable_server_is_retried_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with caplog.at_level(logging.DEBUG):
        step = await call_tool(address, message="x")
    assert step.status == "error"
    assert "cannot connect to Telegram" in step.output and "tried 4 times" in step.output
    assert TOKEN not in caplog.text


async def test_rejected_entities_are_left_out(double: BotDouble, ana: Person) -> None:
    double.faults.append(Fault("sendMessage", status=400, description="Bad Request: can't parse entities"))
    assert (await call_tool(double, message="**x**")).status == "ok"
    assert (ana.sees[0].text, ana.sees[0].entities) == ("x", [])


@pytest.mark.parametrize(("token", "url"), [("some words", "http://a"), ("1:a/../b", "http://a"), (TOKEN, "ftp://a")])
def test_invalid_token_or_url_is_rejected_at_once(token: str, url: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        BotApi(Secret(token), url)
    assert token not in str(wrong.value)


async def test_tool_without_a_token_names_the_setting() -> None:
    model = Scripted(calls(NAME, message="x"), says("Done."))
    async with Atlas([Agent("a", model=model, tools=[telegram_tool(None)])]) as atlas:
        result = await atlas.run("telegram")
    assert "set ATLAS_TELEGRAM_TOKEN" in str(result.steps[0].output)


@pytest.mark.parametrize(
    ("message", "offered"),
    [
        ("Send it by Telegram", True),
        ("please NOTIFY ME when it is done", True),
        ("ping me", True),
        ("Alert me!", True),
        ("What is the weather?", False),
        ("I saw a telegrammer", False),
    ],
)
async def test_tool_is_offered_on_its_keywords_in_the_users_message(message: str, offered: bool) -> None:
    model = Scripted(says("Yes."))
    wanted = Interceptor(request=offered_on({NAME: KEYWORDS, "never": ()}))
    async with Atlas([Agent("a", model=model, tools=[telegram_tool(None)])], interceptors=[wanted]) as atlas:
        await atlas.ask(message)
    assert [spec.name for spec in model.requests[0].tools] == ([NAME] if offered else [])


async def test_earlier_call_offers_the_tool_but_results_and_earlier_messages_do_not() -> None:
    model = Scripted(calls("look"), says("ping me"), says("Yes."), calls(NAME, message="x"), says("Sent."), says("Ok."))

    async def look() -> str:
        """Look."""
        return "notify me by telegram"

    wanted = Interceptor(request=offered_on({NAME: KEYWORDS}))
    agent = Agent("a", model=model, tools=[telegram_tool(None), look])
    async with Atlas([agent], interceptors=[wanted]) as atlas:
        for message in ("Look", "And now?", "Ping me", "Thanks"):
            await atlas.ask(message)
    names = [{spec.name for spec in request.tools} for request in model.requests]
    assert names == [{"look"}, {"look"}, {"look"}, {"look", NAME}, {"look", NAME}, {"look", NAME}]
