"""The Telegram channel: who is let in, what they are answered, and that nothing is lost or said twice."""

import asyncio
import logging
import stat
from pathlib import Path

import pytest
from channel_room import room

from atlas_agents import ConfigError, Tool
from atlas_agents.channels.telegram.approvals import CLOSED, NOT_YOURS
from atlas_agents.channels.telegram.state import PendingDelivery
from atlas_agents.testing import calls, says
from bot_double import TOKEN, Fault, Posted

LONG = "\n\n".join(f"Paragraph {number} " + "word " * 120 for number in range(12))


def acting() -> tuple[Tool, list[str]]:
    """A tool that needs a yes, and what it has done."""
    done: list[str] = []

    async def act(command: str) -> str:
        """Do something."""
        done.append(command)
        return f"did {command}"

    return Tool("act", act, parameters={"command": {"type": "string"}}, confirm=True), done


async def test_a_stranger_gets_a_code_and_nothing_else(tmp_path: Path) -> None:
    async with room(tmp_path, says("Hello.")) as here, here.channel():
        eve = here.double.person(66, "Eve")
        for words in ("hi", "/agents", "/stop", "let me in"):
            eve.says(words)
        await here.double.until(lambda: here.notebook.notes.offset == 505)
        (only,) = eve.sees
        code = only.text.split()[-1]
        assert only.text == (
            f"I talk only to people whom my owner lets in. To let you in, they say:\n\natlas telegram pair {code}"
        )
        assert len(code) == 8 and here.model.requests == []
        with pytest.raises(ConfigError, match="nobody was told"):
            here.pairing.pair("AAAAAAAA")
        assert here.pairing.pairs() == {}


async def test_who_was_let_in_talks_to_an_agent(tmp_path: Path) -> None:
    async with room(tmp_path, says("Hello, **Ana**."), says("Bye.")) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        ana.says("hi")
        await here.double.until(lambda: [each.text for each in ana.sees] == ["Hello, Ana."])
        assert ana.sees[0].marked("bold") == ["Ana"]
        assert here.double.count("sendChatAction") >= 1
        ana.says("good bye")
        await here.double.until(lambda: [each.text for each in ana.sees] == ["Hello, Ana.", "Bye."])
        assert await here.said() == ["hi", "good bye"]
        async with here.owner() as owner:
            found = await owner.call("sessions.list")
            runs = await owner.call("runs.list")
        assert [each["sessionKey"] for each in found["sessions"]] == ["@telegram-42/chat"]
        assert {each["user"] for each in runs["runs"]} == {"telegram-42"}
        await here.double.until(lambda: here.notebook.notes.owed == {})


async def test_a_token_that_was_lent_opens_its_own_sessions_only(tmp_path: Path) -> None:
    async with room(tmp_path, says("Hello.")) as here:
        tokens = here.gateway.hub.tokens
        secret = tokens.lend("telegram-42", ("read", "write", "approve"))
        grant = tokens.who(secret.reveal())
        assert grant is not None and grant.prefix == "@telegram-42/"
        assert grant.principal.scopes == ("read", "write", "approve")
        assert secret.reveal() not in "".join(path.read_text() for path in here.home.iterdir() if path.is_file())
        tokens.take_back("telegram-42")
        assert tokens.who(secret.reveal()) is None and not tokens.holds(grant)


async def test_in_a_group_nobody_is_let_in_whoever_they_are(tmp_path: Path) -> None:
    async with room(tmp_path, says("Hello.")) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        here.double.groups[-100] = "a group"
        ana.says("hi", chat=-100)
        ana.says("/agents@atlas_test_bot", chat=-100)
        last = here.double.person(66, "Eve").says("let me in", chat=-100)
        await here.double.until(lambda: here.notebook.notes.offset == last + 1)
        assert here.double.chats[-100] == [] and here.model.requests == []


@pytest.mark.slow
async def test_a_long_answer_grows_in_place_and_ends_in_several_messages(tmp_path: Path) -> None:
    async with room(tmp_path, says(LONG), pause=0.0002) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        last = ana.says("tell me")
        await here.double.until(lambda: here.notebook.notes.offset > last and not here.notebook.notes.owed)
        assert " ".join(" ".join(each.text for each in ana.sees).split()) == " ".join(LONG.split())
        assert len(ana.sees) == 2 and ana.sees[0].edits > 1
        assert here.double.count("sendMessage") == 2 + 2, "two of them about letting in"


async def test_a_question_is_put_exactly_and_answered_by_a_button(tmp_path: Path) -> None:
    tool, done = acting()
    command = "rm -rf `x` <b>&amp; \u202e*y*"
    replies = (calls("act", command=command), says("It is done."))
    async with room(tmp_path, *replies, tools=(tool,)) as here, here.channel():
        ana, eve = here.double.person(42, "Ana"), here.double.person(66, "Eve")
        await here.pair(ana)
        ana.says("do it")
        await here.double.until(lambda: ana.sees and ana.sees[0].buttons)
        asked = ana.sees[0]
        assert asked.marked("pre") == ['command = "rm -rf `x` <b>&amp; \\u202e*y*"']
        assert list(asked.buttons) == ["Once", "Deny"]
        eve.presses(asked, "Once", chat=42)
        await here.double.until(lambda: list(here.double.queries.values()) == [NOT_YOURS])
        assert done == []
        ana.presses(asked, "Once")
        ana.presses(asked, "Once")
        await here.double.until(lambda: [each.text for each in ana.sees][1:] == ["It is done."])
        await here.double.until(lambda: not asked.buttons and None not in here.double.queries.values())
        assert done == [command]
        assert asked.text == "Confirm execution of act\n\nAllowed once, by you."
        assert list(here.double.queries.values()) == [NOT_YOURS, "Allowed once.", CLOSED]


@pytest.mark.slow
async def test_a_question_that_is_denied_answered_elsewhere_or_too_late_says_so(tmp_path: Path) -> None:
    tool, done = acting()
    replies = [each for word in "abc" for each in (calls("act", command=word), says("Well."))]
    async with room(tmp_path, *replies, tools=(tool,), deadline=3.0) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)

        async def asked() -> Posted:
            before = len(ana.sees)
            ana.says("do it")
            await here.double.until(lambda: any(each.buttons for each in ana.sees[before:]))
            return next(each for each in ana.sees if each.buttons)

        first = await asked()
        ana.presses(first, "Deny")
        await here.double.until(lambda: "Denied, by you." in first.text)
        second = await asked()
        async with here.owner() as owner:
            (pending,) = (await owner.call("approvals.list"))["approvals"]
            await owner.call("exec.approve", approval_id=pending["approvalId"])
        await here.double.until(lambda: "Allowed once, by owner." in second.text)
        third = await asked()
        await here.double.until(lambda: "Nobody answered in time, so it was no." in third.text)
        assert third.buttons == {} and done == ["b"]


async def test_what_is_too_long_to_be_shown_cannot_be_allowed(tmp_path: Path) -> None:
    tool, done = acting()
    long, longer = "x " * 4000 + "END", "y" * 40_000
    replies = (calls("act", command=long), says("Once."), calls("act", command=longer), says("Twice."))
    async with room(tmp_path, *replies, tools=(tool,)) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        ana.says("do it")
        await here.double.until(lambda: ana.sees and ana.sees[-1].buttons)
        assert "".join(each.marked("pre")[0] for each in ana.sees[:-1]) == f'command = "{long}"'
        ana.presses(ana.sees[-1], "Once")
        await here.double.until(lambda: ana.sees[-1].text == "Once.")
        ana.says("do it again")
        await here.double.until(lambda: ana.sees[-1].buttons)
        assert list(ana.sees[-1].buttons) == ["Deny"] and "too long to be shown" in ana.sees[-1].text
        ana.presses(ana.sees[-1], "Deny")
        await here.double.until(lambda: ana.sees[-1].text == "Twice.")
        assert done == [long]


async def test_stop_new_and_agents(tmp_path: Path) -> None:
    replies = (says("word " * 400), says("Again."), says("New."))
    async with room(tmp_path, *replies, pause=0.01) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        ana.says("/stop")
        await here.double.until(lambda: ana.sees and ana.sees[-1].text == "There is nothing to stop.")
        ana.says("tell me")
        await here.double.until(lambda: ana.sees[-1].text.startswith("word word"))
        ana.says("/stop")
        await here.double.until(lambda: any(each.text.endswith("(Stopped.)") for each in ana.sees))
        ana.says("/agents")
        await here.double.until(lambda: ana.sees[-1].text == "→ assistant")
        ana.says("/agent nobody")
        await here.double.until(lambda: ana.sees[-1].text == "Choose one of them: assistant")
        ana.says("/agent Assistant")
        await here.double.until(lambda: ana.sees[-1].text == "assistant answers from now on.")
        ana.says("and now?")
        await here.double.until(lambda: ana.sees[-1].text == "Again.")
        ana.says("/new")
        await here.double.until(lambda: ana.sees[-1].text == "This is a new session.")
        ana.says("who am I?")
        await here.double.until(lambda: ana.sees[-1].text == "New.")
        assert [message.text for message in here.model.requests[-1].messages] == ["who am I?"]
        ana.says(None, photo=[{"file_id": "x", "file_unique_id": "y", "width": 1, "height": 1}])
        await here.double.until(lambda: ana.sees[-1].text == "I can only read text.")


@pytest.mark.slow
async def test_a_channel_that_was_cut_off_goes_on_in_the_same_message(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(150)]
    async with room(tmp_path, says("".join(words)), pause=0.01) as here:
        ana = here.double.person(42, "Ana")
        async with here.channel():
            await here.pair(ana)
            ana.says("tell me")
            await here.double.until(lambda: ana.sees and ana.sees[0].edits > 2)
        assert list(here.notebook.notes.owed.values()) == [PendingDelivery(42, "chat", [ana.sees[0].id])]
        async with here.channel():
            await here.double.until(lambda: not here.notebook.notes.owed)
        assert [each.text for each in ana.sees] == ["".join(words).strip()]
        assert len(here.model.requests) == 1


async def test_an_answer_that_ended_meanwhile_is_delivered_after_all(tmp_path: Path) -> None:
    tool, done = acting()
    async with room(tmp_path, calls("act", command="x"), says("It is done."), tools=(tool,)) as here:
        ana = here.double.person(42, "Ana")
        async with here.channel():
            await here.pair(ana)
            ana.says("do it")
            await here.double.until(lambda: here.notebook.notes.questions)
        async with here.owner() as owner:
            (pending,) = (await owner.call("approvals.list"))["approvals"]
            await owner.call("exec.approve", approval_id=pending["approvalId"])
            await owner.call("chat.wait", run_id=pending["runId"])
        async with here.channel():
            await here.double.until(lambda: not here.notebook.notes.owed and not here.notebook.notes.questions)
        assert [each.text for each in ana.sees][1:] == ["It is done."] and done == ["x"]
        assert ana.sees[0].buttons == {}


async def test_an_update_that_comes_again_is_the_same_message(tmp_path: Path) -> None:
    """As after a sudden end between handing a message over and writing that down."""
    async with room(tmp_path, says("Hello."), says("Never said.")) as here:
        ana = here.double.person(42, "Ana")
        async with here.channel():
            await here.pair(ana)
        before = here.notebook.notes.offset
        ana.says("hi")
        async with here.channel():
            await here.double.until(lambda: [each.text for each in ana.sees] == ["Hello."])
        notebook = here.notebook
        notebook.notes.offset = before
        await notebook.save()
        here.double.again(before)
        async with here.channel():
            await here.double.until(lambda: here.notebook.notes.offset == before + 1)
            await here.double.until(lambda: not here.notebook.notes.owed)
        assert len(here.model.requests) == 1


async def test_a_message_of_which_nobody_knows_whether_it_was_sent_says_so(tmp_path: Path) -> None:
    async with room(tmp_path, says("Hello.")) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        here.double.faults += [Fault("sendMessage", retry_after=1), Fault("sendMessage", done=True)]
        ana.says("hi")
        await here.double.until(lambda: len(ana.sees) == 2)
        assert [each.text for each in ana.sees] == [
            "Hello.",
            "(Once more: it is not known whether this was sent before.)\n\nHello.",
        ]


async def test_who_is_not_let_in_any_more_is_a_stranger_again(tmp_path: Path) -> None:
    async with room(tmp_path, says("Hello.")) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        ana.says("hi")
        await here.double.until(lambda: ana.sees and ana.sees[-1].text == "Hello.")
        assert here.pairing.unpair("42").name == "Ana"
        await here.double.until(lambda: not here.gateway.hub.connections)
        ana.says("hi again")
        await here.double.until(lambda: "atlas telegram pair" in ana.sees[-1].text)
        assert len(here.model.requests) == 1


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("webhook", "this bot has a webhook"),
        ("other", "another program asks for the messages of this bot"),
        ("token", "set ATLAS_TELEGRAM_TOKEN to the token that @BotFather gave"),
        ("away", "Telegram has trouble of its own"),
    ],
)
async def test_what_is_in_the_way_is_said_and_gone_when_it_is_over(tmp_path: Path, cause: str, words: str) -> None:
    async with room(tmp_path, says("Hello.")) as here:
        if cause == "webhook":
            here.double.webhook = True
        elif cause == "other":
            here.double.faults.append(Fault("getUpdates", 409, "Conflict: terminated by other getUpdates request"))
        elif cause == "away":
            here.double.faults.append(Fault("getUpdates", 502, "Bad Gateway"))
        async with here.channel("7000001:AAwrong" if cause == "token" else TOKEN):
            await here.double.until(lambda: words in here.notebook.notes.trouble)
            if cause != "token":
                here.double.webhook = False
                await here.double.until(lambda: not here.notebook.notes.trouble)


async def test_the_token_is_told_to_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with room(tmp_path, says("Hello.")) as here, here.channel():
            ana = here.double.person(42, "Ana")
            await here.pair(ana)
            here.double.faults += [Fault("getUpdates"), Fault("getUpdates", 502, "x"), Fault("sendMessage")]
            ana.says("hi")
            await here.double.until(lambda: ana.sees)
            files = [path for path in (here.home / "telegram").iterdir() if path.suffix == ".json"]
            assert files and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
            kept = "".join(path.read_text() for path in files)
    assert TOKEN not in kept + caplog.text and TOKEN.partition(":")[2] not in kept + caplog.text


async def test_a_broken_list_of_pairs_lets_nobody_in(tmp_path: Path) -> None:
    async with room(tmp_path, says("Hello.")) as here, here.channel():
        ana = here.double.person(42, "Ana")
        await here.pair(ana)
        (here.home / "telegram" / "pairs.json").write_text("{half")
        await asyncio.sleep(0)
        last = ana.says("hi")
        await here.double.until(lambda: here.notebook.notes.offset == last + 1)
        assert here.model.requests == []
