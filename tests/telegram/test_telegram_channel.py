"""The Telegram channel: pairing, answers, approvals, and that no message is lost or sent twice."""

import asyncio
import logging
import stat
from pathlib import Path

import pytest
from channel_setup import channel_setup

from atlas_agents import ConfigError, Tool, tool
from atlas_agents.channels.telegram.approvals import CLOSED, NOT_ALLOWED
from atlas_agents.channels.telegram.state import PendingDelivery
from atlas_agents.testing import calls, refuses, says
from bot_double import TOKEN, Fault, Posted

LONG = "\n\n".join(f"Paragraph {number} " + "word " * 120 for number in range(12))


def acting() -> tuple[Tool, list[str]]:
    """Create a tool that requires approval, and the list of commands it has run."""
    done: list[str] = []

    async def act(command: str) -> str:
        """Do something."""
        done.append(command)
        return f"did {command}"

    return Tool("act", act, parameters={"command": {"type": "string"}}, confirm=True), done


async def test_unpaired_user_gets_a_code_and_nothing_else(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Hello.")) as setup, setup.channel():
        eve = setup.double.person(66, "Eve")
        for text in ("hi", "/agents", "/stop", "let me in"):
            eve.says(text)
        await setup.double.until(lambda: setup.state_file.state.offset == 505)
        (only,) = eve.sees
        code = only.text.split()[-1]
        assert only.text == (
            f"I only answer people that my owner has paired. To pair you, the owner runs:\n\natlas telegram pair {code}"
        )
        assert len(code) == 8 and setup.model.requests == []
        with pytest.raises(ConfigError, match="unknown or expired pairing code 'AAAAAAAA'"):
            setup.pairing.pair("AAAAAAAA")
        assert setup.pairing.pairs() == {}


async def test_paired_user_talks_to_an_agent(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Hello, **Ana**."), says("Bye.")) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        ana.says("hi")
        await setup.double.until(lambda: [each.text for each in ana.sees] == ["Hello, Ana."])
        assert ana.sees[0].marked("bold") == ["Ana"]
        assert setup.double.count("sendChatAction") >= 1
        ana.says("good bye")
        await setup.double.until(lambda: [each.text for each in ana.sees] == ["Hello, Ana.", "Bye."])
        assert await setup.sent_texts() == ["hi", "good bye"]
        async with setup.owner() as owner:
            found = await owner.call("sessions.list")
            runs = await owner.call("runs.list")
        assert [each["sessionKey"] for each in found["sessions"]] == ["@telegram-42/chat"]
        assert {each["user"] for each in runs["runs"]} == {"telegram-42"}
        await setup.double.until(lambda: setup.state_file.state.deliveries == {})


async def test_refusal_is_sent_to_the_user_with_its_reason(tmp_path: Path) -> None:
    script = (refuses("cyber"), says("First,") + refuses("cyber"))
    async with channel_setup(tmp_path, *script) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        for text in ("hi", "and now?"):
            ana.says(text)
        shown = ["The model refused to answer: cyber", "First,\n\nThe model refused to continue: cyber"]
        await setup.double.until(lambda: [each.text for each in ana.sees] == shown)


async def test_answers_of_a_session_are_sent_in_order(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("One."), says("Two.")) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        setup.double.faults.append(Fault("sendMessage", retry_after=1))
        ana.says("first")
        await setup.double.until(lambda: not setup.double.faults)
        ana.says("second")
        await setup.double.until(lambda: len(ana.sees) == 2)
        assert [each.text for each in ana.sees] == ["One.", "Two."]


async def test_users_token_opens_only_their_own_sessions(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Hello.")) as setup:
        tokens = setup.gateway.hub.tokens
        secret = tokens.issue("telegram-42", ("read", "write", "approve"))
        grant = tokens.find_grant(secret.reveal())
        assert grant is not None and grant.prefix == "@telegram-42/"
        assert grant.principal.scopes == ("read", "write", "approve")
        assert secret.reveal() not in "".join(path.read_text() for path in setup.home.iterdir() if path.is_file())
        tokens.revoke("telegram-42")
        assert tokens.find_grant(secret.reveal()) is None and not tokens.is_valid(grant)


async def test_forwarded_message_is_untrusted_and_no_command(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Spam."), says("Hello.")) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        ana.says("/stop", forward_origin={"type": "hidden_user", "date": 1, "sender_user_name": "Eve"})
        await setup.double.until(lambda: [each.text for each in ana.sees] == ["Spam."])
        ana.says("Is that spam?")
        await setup.double.until(lambda: [each.text for each in ana.sees] == ["Spam.", "Hello."])
        sent = [message for message in setup.model.requests[-1].messages if message.role == "user"]
        assert [message.untrusted for message in sent] == [("telegram: forwarded message",), ()]


async def test_messages_in_a_group_are_ignored(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Hello.")) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        setup.double.groups[-100] = "a group"
        ana.says("hi", chat=-100)
        ana.says("/agents@atlas_test_bot", chat=-100)
        last = setup.double.person(66, "Eve").says("let me in", chat=-100)
        await setup.double.until(lambda: setup.state_file.state.offset == last + 1)
        assert setup.double.chats[-100] == [] and setup.model.requests == []


@pytest.mark.slow
async def test_long_answer_grows_in_place_and_ends_in_several_messages(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says(LONG), pause=0.0002) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        last = ana.says("tell me")
        await setup.double.until(lambda: setup.state_file.state.offset > last and not setup.state_file.state.deliveries)
        assert " ".join(" ".join(each.text for each in ana.sees).split()) == " ".join(LONG.split())
        assert len(ana.sees) == 2 and ana.sees[0].edits > 1
        assert setup.double.count("sendMessage") == 2 + 2, "two of them about pairing"


async def test_approval_request_shows_exact_arguments_and_is_answered_by_a_button(tmp_path: Path) -> None:
    tool, done = acting()
    command = "rm -rf `x` <b>&amp; \u202e*y*"
    replies = (calls("act", command=command), says("It is done."))
    async with channel_setup(tmp_path, *replies, tools=(tool,)) as setup, setup.channel():
        ana, eve = setup.double.person(42, "Ana"), setup.double.person(66, "Eve")
        await setup.pair(ana)
        ana.says("do it")
        await setup.double.until(lambda: ana.sees and ana.sees[0].buttons)
        asked = ana.sees[0]
        assert asked.marked("pre") == ['command = "rm -rf `x` <b>&amp; \\u202e*y*"']
        assert list(asked.buttons) == ["Allow once", "Deny"]
        eve.presses(asked, "Allow once", chat=42)
        await setup.double.until(lambda: list(setup.double.queries.values()) == [NOT_ALLOWED])
        assert done == []
        ana.presses(asked, "Allow once")
        ana.presses(asked, "Allow once")
        await setup.double.until(lambda: [each.text for each in ana.sees][1:] == ["It is done."])
        await setup.double.until(lambda: not asked.buttons and None not in setup.double.queries.values())
        assert done == [command]
        assert asked.text == "Confirm execution of act\n\nAllowed once by you."
        assert list(setup.double.queries.values()) == [NOT_ALLOWED, "Allowed once.", CLOSED]


@pytest.mark.slow
async def test_closed_approval_request_shows_its_outcome(tmp_path: Path) -> None:
    tool, done = acting()
    replies = [each for word in "abc" for each in (calls("act", command=word), says("Well."))]
    async with channel_setup(tmp_path, *replies, tools=(tool,)) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)

        async def asked() -> Posted:
            before = len(ana.sees)
            ana.says("do it")
            await setup.double.until(lambda: any(each.buttons for each in ana.sees[before:]))
            return next(each for each in ana.sees if each.buttons)

        first = await asked()
        ana.presses(first, "Deny")
        await setup.double.until(lambda: "Denied by you." in first.text)
        second = await asked()
        async with setup.owner() as owner:
            (pending,) = (await owner.call("approvals.list"))["approvals"]
            await owner.call("exec.approve", approval_id=pending["approvalId"])
        await setup.double.until(lambda: "Allowed once by owner." in second.text)
        setup.approvals.deadline = 1.0
        third = await asked()
        await setup.double.until(lambda: "Denied: no answer in time." in third.text)
        assert third.buttons == {} and done == ["b"]


async def test_request_that_is_too_long_to_show_cannot_be_allowed(tmp_path: Path) -> None:
    tool, done = acting()
    long, longer = "x " * 4000 + "END", "y" * 40_000
    replies = (calls("act", command=long), says("Once."), calls("act", command=longer), says("Twice."))
    async with channel_setup(tmp_path, *replies, tools=(tool,)) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        ana.says("do it")
        await setup.double.until(lambda: ana.sees and ana.sees[-1].buttons)
        assert "".join(each.marked("pre")[0] for each in ana.sees[:-1]) == f'command = "{long}"'
        ana.presses(ana.sees[-1], "Allow once")
        await setup.double.until(lambda: ana.sees[-1].text == "Once.")
        ana.says("do it again")
        await setup.double.until(lambda: ana.sees[-1].buttons)
        assert list(ana.sees[-1].buttons) == ["Deny"] and "Too long to show here" in ana.sees[-1].text
        ana.presses(ana.sees[-1], "Deny")
        await setup.double.until(lambda: ana.sees[-1].text == "Twice.")
        assert done == [long]


async def test_commands_stop_new_and_agents(tmp_path: Path) -> None:
    replies = (says("word " * 400), says("Again."), says("New."))
    async with channel_setup(tmp_path, *replies, pause=0.01) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        ana.says("/stop")
        await setup.double.until(lambda: ana.sees and ana.sees[-1].text == "Nothing is running.")
        ana.says("tell me")
        await setup.double.until(lambda: ana.sees[-1].text.startswith("word word"))
        ana.says("/stop")
        await setup.double.until(lambda: any(each.text.endswith("(Stopped.)") for each in ana.sees))
        ana.says("/agents")
        await setup.double.until(lambda: ana.sees[-1].text == "→ assistant")
        ana.says("/agent unknown")
        await setup.double.until(lambda: ana.sees[-1].text == "Send /agent NAME with one of: assistant")
        ana.says("/agent Assistant")
        await setup.double.until(lambda: ana.sees[-1].text == "assistant will answer from now on.")
        ana.says("and now?")
        await setup.double.until(lambda: ana.sees[-1].text == "Again.")
        ana.says("/new")
        await setup.double.until(lambda: ana.sees[-1].text == "Started a new session.")
        ana.says("who am I?")
        await setup.double.until(lambda: ana.sees[-1].text == "New.")
        assert [message.text for message in setup.model.requests[-1].messages] == ["who am I?"]
        ana.says(None, photo=[{"file_id": "x", "file_unique_id": "y", "width": 1, "height": 1}])
        await setup.double.until(lambda: ana.sees[-1].text == "I can only read text messages.")


async def test_message_during_a_turn_steers_it_and_is_answered_below(tmp_path: Path) -> None:
    started, released = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look something up."""
        started.set()
        await released.wait()
        return "found"

    replies, tools = (says("I look.") + calls("look"), says("It is blue.")), (look,)
    async with channel_setup(tmp_path, *replies, tools=tools) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        ana.says("which colour?")
        await started.wait()
        ana.says("the sky")
        await setup.double.until(lambda: len(setup.state_file.state.deliveries) == 2)
        released.set()
        await setup.double.until(lambda: [each.text for each in ana.sees] == ["I look.", "It is blue."])
        await setup.double.until(lambda: setup.state_file.state.deliveries == {})
        assert [each.text for each in ana.sees] == ["I look.", "It is blue."], "the second message has no own answer"
        assert [each.text for each in setup.model.requests[-1].messages if each.role == "user"] == [
            "which colour?",
            "the sky",
        ]


@pytest.mark.slow
async def test_restarted_channel_continues_in_the_same_message(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(150)]
    async with channel_setup(tmp_path, says("".join(words)), pause=0.01) as setup:
        ana = setup.double.person(42, "Ana")
        async with setup.channel():
            await setup.pair(ana)
            ana.says("tell me")
            await setup.double.until(lambda: ana.sees and ana.sees[0].edits > 2)
        assert list(setup.state_file.state.deliveries.values()) == [PendingDelivery(42, "chat", [ana.sees[0].id])]
        async with setup.channel():
            await setup.double.until(lambda: not setup.state_file.state.deliveries)
        assert [each.text for each in ana.sees] == ["".join(words).strip()]
        assert len(setup.model.requests) == 1


async def test_answer_that_ended_while_the_channel_was_down_is_delivered(tmp_path: Path) -> None:
    tool, done = acting()
    async with channel_setup(tmp_path, calls("act", command="x"), says("It is done."), tools=(tool,)) as setup:
        ana = setup.double.person(42, "Ana")
        async with setup.channel():
            await setup.pair(ana)
            ana.says("do it")
            await setup.double.until(lambda: setup.state_file.state.questions)
        async with setup.owner() as owner:
            (pending,) = (await owner.call("approvals.list"))["approvals"]
            await owner.call("exec.approve", approval_id=pending["approvalId"])
            await owner.call("chat.wait", run_id=pending["runId"])
        async with setup.channel():
            await setup.double.until(
                lambda: not setup.state_file.state.deliveries and not setup.state_file.state.questions
            )
        assert [each.text for each in ana.sees][1:] == ["It is done."] and done == ["x"]
        assert ana.sees[0].buttons == {}


async def test_repeated_update_starts_no_second_turn(tmp_path: Path) -> None:
    """Covers a crash after a message was sent to the gateway and before the offset was saved."""
    async with channel_setup(tmp_path, says("Hello."), says("Never sent.")) as setup:
        ana = await setup.paired_person()
        before = setup.state_file.state.offset
        ana.says("hi")
        async with setup.channel():
            await setup.double.until(lambda: [each.text for each in ana.sees] == ["Hello."])
        state_file = setup.state_file
        state_file.state.offset = before
        await state_file.save()
        setup.double.repeat_updates(before)
        async with setup.channel():
            await setup.double.until(lambda: setup.state_file.state.offset == before + 1)
            await setup.double.until(lambda: not setup.state_file.state.deliveries)
        assert len(setup.model.requests) == 1


async def test_repeated_update_of_a_delivered_answer_leaves_nothing_to_deliver(tmp_path: Path) -> None:
    """Covers an update that Telegram repeats after the resumed delivery of its answer has ended."""
    async with channel_setup(tmp_path, says("Hello."), says("Never sent.")) as setup:
        ana = await setup.paired_person()
        before = setup.state_file.state.offset
        ana.says("hi")
        async with setup.channel():
            await setup.double.until(lambda: setup.state_file.state.deliveries)
            deliveries = dict(setup.state_file.state.deliveries)
            await setup.double.until(lambda: not setup.state_file.state.deliveries)
        state_file = setup.state_file
        state_file.state.offset, state_file.state.deliveries = before, deliveries
        await state_file.save()
        async with setup.channel():
            await setup.double.until(lambda: not setup.state_file.state.deliveries)
            setup.double.repeat_updates(before)
            await setup.double.until(lambda: setup.state_file.state.offset == before + 1)
            await setup.double.until(lambda: not setup.state_file.state.deliveries)
        assert len(setup.model.requests) == 1


async def test_message_that_may_have_been_sent_before_says_so(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Hello.")) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        setup.double.faults += [Fault("sendMessage", retry_after=1), Fault("sendMessage", done=True)]
        ana.says("hi")
        await setup.double.until(lambda: len(ana.sees) == 2)
        assert [each.text for each in ana.sees] == [
            "Hello.",
            "(Sent again: the first attempt may have arrived too.)\n\nHello.",
        ]


async def test_unpaired_user_is_disconnected_and_gets_a_code_again(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Hello.")) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        ana.says("hi")
        await setup.double.until(lambda: ana.sees and ana.sees[-1].text == "Hello.")
        assert setup.pairing.unpair("42").name == "Ana"
        await setup.double.until(lambda: not setup.gateway.hub.connections)
        ana.says("hi again")
        await setup.double.until(lambda: "atlas telegram pair" in ana.sees[-1].text)
        assert len(setup.model.requests) == 1


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("webhook", "a webhook of this bot receives its messages"),
        ("other", "another program receives the messages of this bot"),
        ("token", "copy it again from @BotFather"),
        ("away", "Telegram server error"),
    ],
)
async def test_polling_error_is_reported_and_cleared(tmp_path: Path, cause: str, message: str) -> None:
    async with channel_setup(tmp_path, says("Hello.")) as setup:
        if cause == "webhook":
            setup.double.webhook = True
        elif cause == "other":
            setup.double.faults += [Fault("getUpdates", 409, "Conflict: terminated by other getUpdates request")] * 99
        elif cause == "away":
            setup.double.faults += [Fault("getUpdates", 502, "Bad Gateway")] * 99
        async with setup.channel("7000001:AAwrong" if cause == "token" else TOKEN):
            await setup.double.until(lambda: message in setup.state_file.state.error)
            if cause != "token":
                setup.double.webhook = False
                setup.double.faults.clear()
                await setup.double.until(lambda: not setup.state_file.state.error)


async def test_token_appears_in_no_log_and_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with channel_setup(tmp_path, says("Hello.")) as setup, setup.channel():
            ana = setup.double.person(42, "Ana")
            await setup.pair(ana)
            setup.double.faults += [Fault("getUpdates"), Fault("getUpdates", 502, "x"), Fault("sendMessage")]
            ana.says("hi")
            await setup.double.until(lambda: ana.sees)
            files = [path for path in (setup.home / "telegram").iterdir() if path.suffix == ".json"]
            assert files and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
            kept = "".join(path.read_text() for path in files)
    assert TOKEN not in kept + caplog.text and TOKEN.partition(":")[2] not in kept + caplog.text


async def test_unreadable_list_of_pairs_admits_no_user(tmp_path: Path) -> None:
    async with channel_setup(tmp_path, says("Hello.")) as setup, setup.channel():
        ana = setup.double.person(42, "Ana")
        await setup.pair(ana)
        (setup.home / "telegram" / "pairs.json").write_text("{half")
        await asyncio.sleep(0)
        last = ana.says("hi")
        await setup.double.until(lambda: setup.state_file.state.offset == last + 1)
        assert setup.model.requests == []
