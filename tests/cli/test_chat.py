"""`atlas chat`, as a person in front of a terminal sees it."""

import re
import signal
import time

import pytest
from atlas_command import CTRL_C, CTRL_D, ENTER, PATIENCE, Home

from model_server import ModelServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each starts processes of its own


# A model alone


def test_an_answer_is_seen_while_it_comes_and_can_be_stopped(bare: Home, server: ModelServer) -> None:
    with bare.terminal("chat", "--base-url", server.url) as person:
        person.see(r"Atlas .*: the first model of .* answers \(--base-url\)(.|\n)*\n>$")
        person.type("a story" + ENTER)
        person.see("there was word 9")
        person.type(CTRL_C)
        stopped = person.see(r"stopped(.|\n)*\n>$", after="> a story")
        assert "word 149" not in stopped
        person.type("still there?" + ENTER)
        person.see(r"You said: still there\?(.|\n)*\n>$")
        person.type("/exit" + ENTER)
        assert person.leave() == 0
    said = [message["content"] for message in server.asked[-1].body["messages"] if message["role"] == "user"]
    assert said == ["a story", "still there?"]
    assert "Traceback" not in person.text


def test_calls_are_shown_as_lines_and_kept_in_the_history(bare: Home, server: ModelServer) -> None:
    with bare.terminal("chat", "--base-url", server.url) as person:
        person.see("\n>$")
        person.type("Roll a die with 8 sides" + ENTER)
        person.see(
            r"> Roll a die with 8 sides\n"
            r"Let me see\.\n"
            r"→ roll_dice\(sides=8\)\n"
            r"✓ roll_dice: [1-8] · \d+ ms\n"
            r"\n"
            r"It came out: [1-8]\n"
            r"\n"
            r">$"
        )
        person.type("/history" + ENTER)
        person.see(
            r"you: Roll a die with 8 sides\n"
            r"assistant: Let me see\.\n"
            r"→ roll_dice\(sides=8\)\n"
            r"✓ roll_dice: [1-8]\n"
            r"assistant: It came out: [1-8]\n\n>$",
            after="/history",
        )
        person.type("/agents" + ENTER)
        person.see(r"\* assistant: http/rules-1 \(--base-url\); tools: now, roll_dice, add\n\n>$")
        person.type("/new" + ENTER + "Hello" + ENTER)
        person.see(r"You said: Hello\n\n>$")
        person.type(CTRL_D)
        assert person.leave() == 0
    assert [message["role"] for message in server.asked[-1].body["messages"]] == ["system", "user"]


def test_words_that_are_withdrawn_leave_the_screen(bare: Home) -> None:
    with bare.terminal("chat", "--model", "demo") as person:
        person.see(r"a scripted demo answers, not a model \(--model\)(.|\n)*\n>$")
        person.type("Stumble" + ENTER)
        person.see("These words will not last")
        shown = person.see(r"second try\.\n\n>$")
        assert "These words" not in shown
        assert shown.endswith(
            "> Stumble\n"
            "(A scripted demo answers here, not a model.)\n\n"
            "The line broke; the words that had come were taken back, and this is the second try.\n\n>"
        )
        person.type("half a line" + CTRL_C)
        person.see(r"\n>$")
        person.type(CTRL_C)
        assert person.leave() == 0


def test_trouble_is_a_sentence_and_the_prompt_comes_back(bare: Home, server: ModelServer) -> None:
    with bare.terminal("chat", "--base-url", server.url) as person:
        person.see("\n>$")
        person.type("HTTP 401" + ENTER)
        person.see(r"the key was refused at .*: HTTP 401: no luck\n\n>$")
        person.type("/nonsense" + ENTER)
        person.see(r"There is no command /nonsense: /help lists them\.\n\n>$")
        person.type("/help" + ENTER)
        person.see(r"/new +begin a new conversation(.|\n)*\n>$")
        person.type("/etc/hosts is a path" + ENTER)
        person.see(r"You said: /etc/hosts is a path\n\n>$")
        person.type("/quit" + ENTER)
        assert person.leave() == 0


def test_where_there_is_no_terminal_it_says_what_to_use(bare: Home) -> None:
    done = bare.run("chat", stdin="Hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "atlas: there is no terminal here to talk in: atlas ask answers one message, also in a pipe\n"


# Sessions


def test_a_conversation_goes_on_the_next_day(home: Home, server: ModelServer) -> None:
    with home.terminal("chat") as person:
        person.see(r"Atlas .*: assistant answers with http/rules-1\n(.|\n)*\n>$")
        person.type("My name is Ana" + ENTER)
        person.see(r"You said: My name is Ana\n\n>$")
        person.type(CTRL_D)
        assert person.leave() == 0
    with home.terminal("chat", "--continue") as person:
        person.see(
            r"\(session [0-9a-f-]{36}: My name is Ana\)\nyou: My name is Ana\nassistant: You said: My name is Ana\n\n>$"
        )
        person.type("\x1b[A" + ENTER)  # the key that brings back what was typed before
        person.see(r"> My name is Ana\nYou said: My name is Ana\n\n>$")
        person.type("/fork" + ENTER)
        person.see(r"From here on in a copy: session [0-9a-f-]{36}\. The other one stays as it is\.\n\n>$")
        person.type("/agent poet" + ENTER)
        person.see(r"poet answers with http/rules-2\.\n\n>$")
        person.type("Who am I?" + ENTER)
        person.see(r"You said: Who am I\?\n\n>$")
        person.type("/usage" + ENTER)
        person.see(r"1 turn: \d+ tokens in, \d+ out\n\n>$")
        person.type("/sessions" + ENTER)
        person.see(r"\n\* [0-9a-f-]{36}  .*  My name is Ana\n  [0-9a-f-]{36}  .*  My name is Ana\n\n>$")
        person.type("/quit" + ENTER)
        assert person.leave() == 0
    assert server.asked[-1].model == "rules-2"
    assert len([each for each in server.asked[-1].body["messages"] if each["role"] == "user"]) == 3
    assert (home.path / "typed").stat().st_mode & 0o077 == 0


def test_a_session_of_a_name_is_begun_and_found_again(home: Home) -> None:
    for number in range(2):
        with home.terminal("chat", "--session", "garden") as person:
            person.see(r"\n>$")
            assert ("(session garden: Roses" in person.text) == (number == 1)
            person.type("Roses" + ENTER)
            person.see(r"You said: Roses\n\n>$", after="> Roses")
            person.type(CTRL_D)
            assert person.leave() == 0
    with home.terminal("chat", "--session", "other") as person:
        person.see(r"\n>$")
        person.type("/session garden" + ENTER)
        person.see(r"\(session garden: Roses\)(.|\n)*\n>$")
        person.type("/session nowhere" + ENTER)
        person.see(r"there is no such session\n\n>$")
        person.type("/agent nobody" + ENTER)
        person.see(r"there is no agent 'nobody'; there are assistant, poet\n\n>$")


def test_a_narrow_terminal_without_colours_is_no_trouble(home: Home) -> None:
    with home.terminal("chat", columns=28, rows=10, NO_COLOR="1") as person:
        person.see(r"\n>$")
        person.type("a story" + ENTER)
        person.see("word 30")
        person.type(CTRL_C)
        person.see(r"stopped(.|\n)*\n>$")
        person.type(CTRL_D)
        assert person.leave() == 0
    assert "Traceback" not in person.text


# Stopping, and lines that break


def test_ctrl_c_twice_leaves(home: Home) -> None:
    with home.gateway() as gateway, home.terminal("chat", "--session", "s") as person:
        person.see(r"\n>$")
        person.type("a story" + ENTER)
        person.see("there was word 9")
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGSTOP)  # it cannot say that it has stopped
        try:
            person.type(CTRL_C)
            time.sleep(0.3)
            person.type(CTRL_C)
            begun = time.monotonic()
            gateway.process.send_signal(signal.SIGCONT)
            assert person.leave() == 0
            assert time.monotonic() - begun < PATIENCE
        finally:
            gateway.process.send_signal(signal.SIGCONT)
    assert "Traceback" not in person.text


def test_an_answer_goes_on_after_the_gateway_was_killed_in_its_middle(home: Home) -> None:
    with home.gateway("--port", "0") as gateway, home.terminal("chat", "--session", "s") as person:
        port = str(gateway.port)
        person.see(r"\n>$")
        person.type("a story" + ENTER)
        person.see("there was word 20")
        gateway.kill()
        person.see("the line to the gateway broke; trying again")
        with home.gateway("--port", port):
            told = person.see(r"there was word 149\n\n>$")
            assert len(re.findall(r"word 3\b", told)) == 1, "the words of the first try are gone"
            assert "broke" not in told
            person.type("Still there?" + ENTER)
            person.see(r"You said: Still there\?\n\n>$")
            person.type(CTRL_D)
            assert person.leave() == 0


def test_a_turn_that_was_cut_short_with_its_command_goes_on_at_the_next_start(home: Home) -> None:
    with home.terminal("chat", "--session", "s") as person:
        person.see(r"\n>$")
        person.type("a story" + ENTER)
        person.see("there was word 9")
    with home.terminal("chat", "--continue") as person:
        told = person.see(r"there was word 149\n\n>$")
        assert "you: a story" in told
        person.type("/history" + ENTER)
        person.see(r"you: a story\nassistant: Once(.|\n)*word 149\n\n>$", after="/history")


def test_it_goes_on_by_itself_when_the_gateway_is_gone_for_good(home: Home) -> None:
    with home.gateway() as gateway, home.terminal("chat", "--session", "s") as person:
        person.see(r"\n>$")
        person.type("Hello" + ENTER)
        person.see(r"You said: Hello\n\n>$")
        gateway.kill(signal.SIGTERM)
        person.type("Alone?" + ENTER)
        person.see(r"You said: Alone\?\n\n>$")


# Questions


def test_a_person_is_asked_with_everything_that_could_hide_made_visible(home: Home) -> None:
    with home.terminal("chat") as person:
        person.see(r"\n>$")
        person.type("act rm \u202e\u00a0\u200bx" + ENTER)
        person.see(
            r"I will\.\n"
            r"→ demo/act\(command=\"rm \\u202e\\u00a0\\u200bx\"\)\n"
            r"\? Confirm execution of demo/act\n"
            r"  command = \"rm \\u202e\\u00a0\\u200bx\"\n"
            r"  in \".*\"\n"
            r"  because of policy\.toml: tools\.demo/act, ask for \*\n"
            r"  without an answer it is no, in \d+ s\n"
            r"once, session, always, edit or no\?$"
        )
        person.type(ENTER)  # no answer at all
        person.see(r"no\?\nonce, session, always, edit or no\?$")
        person.type("maybe" + ENTER)  # and one that is none
        person.see(r"no\? maybe\nonce, session, always, edit or no\?$")
        assert not (home.folder / "acted").exists()
        person.type("once" + ENTER)
        person.see(r"✓ demo/act: did (.|\n)*It came out(.|\n)*\n>$")
    assert (home.folder / "acted").read_text() == "'rm \\u202e\\xa0\\u200bx' 1\n"


def test_no_edited_and_for_the_session_are_answers_too(home: Home) -> None:
    acted = home.folder / "acted"
    with home.terminal("chat") as person:
        person.see(r"\n>$")
        person.type("act one" + ENTER)
        person.see(r"or no\?$")
        person.type("n" + ENTER)
        person.see(r"✗ demo/act: declined(.|\n)*\n>$")
        assert not acted.exists()
        person.type("act two" + ENTER)
        person.see(r"or no\?$", after="act two")
        person.type("edit" + ENTER)
        person.see(r"arguments: \{\"command\": \"two\"\}$")
        person.type("\x15" + '{"command": "three", "times": 3}' + ENTER)
        person.see(r"command = \"three\"\n  times = 3\n(.|\n)*once, edit or no\?$")
        person.type("o" + ENTER)
        person.see(r"✓ demo/act(.|\n)*\n>$", after="times = 3")
        assert acted.read_text() == "'three' 3\n"
        person.type("act four" + ENTER)
        person.see(r"or no\?$", after="act four")
        person.type("session" + ENTER)
        person.see(r"✓ demo/act(.|\n)*\n>$", after="act four")
        person.type("act four" + ENTER)
        person.see(r"(✓ demo/act(.|\n)*){3}\n>$")
        assert acted.read_text() == "'three' 3\n'four' 1\n'four' 1\n"


def test_what_was_typed_before_the_question_is_no_answer_to_it(home: Home, server: ModelServer) -> None:
    with home.terminal("chat") as person:
        person.see(r"\n>$")
        person.type("act x" + ENTER)
        person.type("once" + ENTER)  # in haste, or by who hoped for it
        person.see(r"or no\?$")
        assert not (home.folder / "acted").exists()
        person.type(CTRL_C)
        person.see(r"stopped(.|\n)*\n>$")
        person.type(CTRL_D)
        assert person.leave() == 0


def test_a_question_that_is_answered_elsewhere_is_not_asked_any_more(home: Home) -> None:
    with home.gateway(), home.terminal("chat", "--session", "s") as person:
        person.see(r"\n>$")
        person.type("act x" + ENTER)
        person.see(r"or no\?$")
        id = home.run("approvals", "list").stdout.splitlines()[1].split()[0]
        assert home.run("approvals", "approve", id[:8]).returncode == 0
        person.see(r"✓ demo/act(.|\n)*\n>$")
        person.type("act y" + ENTER)
        person.see(r"or no\?$", after="act y")
        id = home.run("approvals", "list").stdout.splitlines()[1].split()[0]
        assert home.run("approvals", "deny", id, "--reason", "not today").returncode == 0
        person.see(r"✗ demo/act: declined(.|\n)*\n>$", after="act y")
        again = home.run("approvals", "approve", id)
        assert again.returncode == 2 and "there is no approval" in again.stderr
    assert (home.folder / "acted").read_text() == "'x' 1\n"


def test_questions_are_watched_for_and_answered_in_another_terminal(home: Home) -> None:
    with home.gateway(), home.terminal("approvals", "watch") as watcher, home.terminal("chat") as person:
        watcher.see("Waiting for questions")
        person.see(r"\n>$")
        person.type("act x" + ENTER)
        watcher.see(r"assistant in session(.|\n)*command = \"x\"(.|\n)*or no\?$")
        watcher.type("once" + ENTER)
        person.see(r"✓ demo/act(.|\n)*\n>$")
        person.type("act y" + ENTER)
        watcher.see(r"or no\?$", after='command = "y"')
        person.type("no" + ENTER)
        watcher.see("answered elsewhere")
        watcher.type(CTRL_C)
        assert watcher.leave() in (0, 130)
    assert "Traceback" not in watcher.text


def test_another_agent_can_be_asked_for(home: Home) -> None:
    with home.terminal("chat", "--agent", "poet") as person:
        person.see(r"Atlas .*: poet answers with http/rules-2(.|\n)*\n>$")
        person.type(CTRL_D)
        assert person.leave() == 0
