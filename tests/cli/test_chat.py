"""`atlas chat`, as a user sees it in a terminal."""

import re
import signal
import threading

import pytest
from atlas_command import CTRL_C, CTRL_D, ENTER, Home, eventually, reply_by_rule

from checks import TIMEOUT
from model_server import ModelRequest, ModelServer, Reply

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


# A model used directly


def test_answer_is_shown_while_it_streams_and_can_be_stopped(bare: Home, server: ModelServer) -> None:
    with bare.terminal("chat", "--base-url", server.url) as person:
        person.expect(r"Atlas .*: using the first model of .* \(--base-url\)(.|\n)*\n>$")
        person.type("a story" + ENTER)
        person.expect("there was word 9")
        person.type(CTRL_C)
        stopped = person.expect(r"stopped(.|\n)*\n>$", after="> a story")
        assert "word 149" not in stopped
        person.type("still there?" + ENTER)
        person.expect(r"You wrote: still there\?(.|\n)*\n>$")
        person.type("/exit" + ENTER)
        assert person.wait_for_exit() == 0
    sent = [message["content"] for message in server.requests[-1].body["messages"] if message["role"] == "user"]
    assert sent == ["a story", "still there?"]
    assert "Traceback" not in person.text


def test_tool_calls_are_shown_and_kept_in_the_history(bare: Home, server: ModelServer) -> None:
    with bare.terminal("chat", "--base-url", server.url) as person:
        person.expect("\n>$")
        person.type("Roll a die with 8 sides" + ENTER)
        person.expect(
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
        person.expect(
            r"you: Roll a die with 8 sides\n"
            r"assistant: Let me see\.\n"
            r"→ roll_dice\(sides=8\)\n"
            r"✓ roll_dice: [1-8]\n"
            r"assistant: It came out: [1-8]\n\n>$",
            after="/history",
        )
        person.type("/agents" + ENTER)
        person.expect(r"\* assistant: http/rules-1 \(--base-url\); tools: now, roll_dice, add\n\n>$")
        person.type("/new" + ENTER + "Hello" + ENTER)
        person.expect(r"You wrote: Hello\n\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0
    assert [message["role"] for message in server.requests[-1].body["messages"]] == ["system", "user"]


def test_discarded_text_leaves_the_screen(bare: Home) -> None:
    with bare.terminal("chat", "--model", "demo") as person:
        person.expect(r"using a scripted demo, not a model \(--model\)(.|\n)*\n>$")
        person.type("Stumble" + ENTER)
        shown = person.expect(r"second attempt\.\n\n>$")
        assert any("This text will be withdrawn" in line for line in person.erased) and "This text" not in shown
        assert shown.endswith(
            "> Stumble\n"
            "(This is a scripted demo, not a model.)\n\n"
            "The connection broke, the text so far was withdrawn, and this is the second attempt.\n\n>"
        )
        person.type("half a line" + CTRL_C)
        person.expect(r"\n>$")
        person.type(CTRL_C)
        assert person.wait_for_exit() == 0


def test_error_is_one_line_and_the_prompt_returns(bare: Home, server: ModelServer) -> None:
    with bare.terminal("chat", "--base-url", server.url) as person:
        person.expect("\n>$")
        person.type("HTTP 401" + ENTER)
        person.expect(r"the API key was rejected at .*: HTTP 401: no luck\n\n>$")
        person.type("/nonsense" + ENTER)
        person.expect(r"Unknown command /nonsense; type /help for the list\.\n\n>$")
        person.type("/help" + ENTER)
        person.expect(r"/new +start a new conversation(.|\n)*\n>$")
        person.type("/etc/hosts is a path" + ENTER)
        person.expect(r"You wrote: /etc/hosts is a path\n\n>$")
        person.type("/quit" + ENTER)
        assert person.wait_for_exit() == 0


def test_chat_without_a_terminal_is_rejected(bare: Home) -> None:
    done = bare.run("chat", stdin="Hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "atlas: atlas chat needs a terminal; use atlas ask in a script or a pipe\n"


# Sessions


def test_session_is_continued_by_a_later_process(home: Home, server: ModelServer) -> None:
    with home.terminal("chat") as person:
        person.expect(r"Atlas .*: assistant uses http/rules-1\n(.|\n)*\n>$")
        person.type("My name is Ana" + ENTER)
        person.expect(r"You wrote: My name is Ana\n\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0
    with home.terminal("chat", "--continue") as person:
        person.expect(
            r"\(session [0-9a-f-]{36}: My name is Ana\)\n"
            r"you: My name is Ana\nassistant: You wrote: My name is Ana\n\n>$"
        )
        person.type("\x1b[A" + ENTER)  # arrow up: the previous input
        person.expect(r"> My name is Ana\nYou wrote: My name is Ana\n\n>$")
        person.type("/fork" + ENTER)
        person.expect(r"Continuing in a copy, session [0-9a-f-]{36}\. The original is unchanged\.\n\n>$")
        person.type("/agent poet" + ENTER)
        person.expect(r"poet uses http/rules-2\.\n\n>$")
        person.type("Who am I?" + ENTER)
        person.expect(r"You wrote: Who am I\?\n\n>$")
        person.type("/usage" + ENTER)
        person.expect(r"1 turn: \d+ tokens in, \d+ out\n\n>$")
        person.type("/sessions" + ENTER)
        person.expect(r"\n\* [0-9a-f-]{36}  .*  My name is Ana\n  [0-9a-f-]{36}  .*  My name is Ana\n\n>$")
        person.type("/quit" + ENTER)
        assert person.wait_for_exit() == 0
    assert server.requests[-1].model == "rules-2"
    assert len([each for each in server.requests[-1].body["messages"] if each["role"] == "user"]) == 3
    assert (home.path / "typed").stat().st_mode & 0o077 == 0


def test_named_session_is_created_and_found_again(home: Home) -> None:
    for number in range(2):
        with home.terminal("chat", "--session", "garden") as person:
            person.expect(r"\n>$")
            assert ("(session garden: Roses" in person.text) == (number == 1)
            person.type("Roses" + ENTER)
            person.expect(r"You wrote: Roses\n\n>$", after="> Roses")
            person.type(CTRL_D)
            assert person.wait_for_exit() == 0
    with home.terminal("chat", "--session", "other") as person:
        person.expect(r"\n>$")
        person.type("/session garden" + ENTER)
        person.expect(r"\(session garden: Roses\)(.|\n)*\n>$")
        person.type("/session nowhere" + ENTER)
        person.expect(r"session.*\n\n>$", after="/session nowhere")
        person.type("/agent none" + ENTER)
        person.expect(r"agent not found: 'none'; available: assistant, poet\n\n>$")


def test_narrow_terminal_without_colours_works(home: Home) -> None:
    with home.terminal("chat", columns=28, rows=10, NO_COLOR="1") as person:
        person.expect(r"\n>$")
        person.type("a story" + ENTER)
        person.expect("word 30")
        person.type(CTRL_C)
        person.expect(r"stopped(.|\n)*\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0
    assert "Traceback" not in person.text


# Cancellation and lost connections


def test_second_ctrl_c_quits(home: Home) -> None:
    with home.gateway() as gateway, home.terminal("chat", "--session", "s") as person:
        person.expect(r"\n>$")
        person.type("a story" + ENTER)
        person.expect("there was word 9")
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGSTOP)  # it cannot confirm the cancellation
        try:
            person.type(CTRL_C + CTRL_C)
            gateway.process.send_signal(signal.SIGCONT)
            assert person.wait_for_exit() == 0
        finally:
            gateway.process.send_signal(signal.SIGCONT)
    assert "Traceback" not in person.text


def test_answer_continues_after_the_gateway_was_killed(home: Home) -> None:
    with home.gateway("--port", "0") as gateway, home.terminal("chat", "--session", "s") as person:
        port = str(gateway.port)
        person.expect(r"\n>$")
        person.type("a story" + ENTER)
        person.expect("there was word 20")
        gateway.kill()
        person.expect("gateway.*; reconnecting")
        with home.gateway("--port", port):
            shown = person.expect(r"there was word 149\n\n>$")
            assert len(re.findall(r"word 3\b", shown)) == 1, "the text of the first attempt is erased"
            assert "reconnecting" not in shown
            person.type("Still there?" + ENTER)
            person.expect(r"You wrote: Still there\?\n\n>$")
            person.type(CTRL_D)
            assert person.wait_for_exit() == 0


def test_turn_of_a_killed_process_continues_at_the_next_start(home: Home) -> None:
    with home.terminal("chat", "--session", "s") as person:
        person.expect(r"\n>$")
        person.type("a story" + ENTER)
        person.expect("there was word 9")
    with home.terminal("chat", "--continue") as person:
        shown = person.expect(r"there was word 149\n\n>$")
        assert "you: a story" in shown
        person.type("/history" + ENTER)
        person.expect(r"you: a story\nassistant: Once(.|\n)*word 149\n\n>$", after="/history")


def test_chat_embeds_a_gateway_when_the_running_one_stops(home: Home) -> None:
    with home.gateway() as gateway, home.terminal("chat", "--session", "s") as person:
        person.expect(r"\n>$")
        person.type("Hello" + ENTER)
        person.expect(r"You wrote: Hello\n\n>$")
        gateway.kill(signal.SIGTERM)
        person.type("Alone?" + ENTER)
        person.expect(r"You wrote: Alone\?\n\n>$")


# Input during a turn


def test_message_typed_during_a_turn_steers_it(home: Home, server: ModelServer) -> None:
    with home.terminal("chat", "--session", "s") as person:
        person.expect(r"\n>$")
        person.type("hold on" + ENTER)
        person.expect(r"→ demo/hold\(\)")
        person.type("use bluw\x7fe" + ENTER)
        person.expect(r"\n> use blue \(for the agent's next step\)$")
        person.type("\x1b[200~two\nlines\x1b[201~")
        person.expect(r"next step\)\n> two lines$")
        (home.folder / "released").touch()
        person.expect(
            r"→ demo/hold\(\)\n"
            r"✓ demo/hold: released · \d+ ms\n"
            r"> use blue\n\n"
            r"You wrote: use blue\n\n"
            r"> two\n *lines$"
        )
        person.type(ENTER)
        person.expect(r"You wrote: two\nlines\n\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0
    assert [each["content"] for each in server.requests[-1].body["messages"] if each["role"] == "user"] == [
        "hold on",
        "use blue",
        "two\nlines",
    ]
    assert len(server.requests) == 3, "the steering message has no turn of its own"


def test_message_typed_during_the_final_answer_is_answered_next(home: Home, server: ModelServer) -> None:
    released = threading.Event()

    def respond(asked: ModelRequest) -> Reply:
        assert "slow" not in asked.text or released.wait(TIMEOUT)
        return reply_by_rule(asked)

    server.respond = respond
    with home.gateway(), home.terminal("chat", "--session", "s") as person:
        person.expect(r"\n>$")
        person.type("slow 1" + ENTER)
        eventually(lambda: len(server.requests) == 1)
        person.type("one" + ENTER + "two" + ENTER + "/usage" + ENTER + "three" + ENTER)
        person.expect(r"> one \(for .*\n> two \(for .*\n> /usage \(after this answer\)\n> three \(after this answer\)$")
        released.set()
        person.expect(
            r"You wrote: slow 1\n\n"
            r"> one\nYou wrote: one\n\n"
            r"> two\nYou wrote: two\n\n"
            r"> /usage\n3 turns: .*\n\n"
            r"> three\nYou wrote: three\n\n>$"
        )
        released.clear()
        person.type("slow 2" + ENTER)
        eventually(lambda: len(server.requests) == 5)
        person.type("four" + ENTER)
        person.expect(r"> four \(for .*\)$")
        person.type(CTRL_C + CTRL_D)  # the next message is answered, and then the command quits
        assert person.wait_for_exit() == 0
        released.set()
    assert re.search(r"stopped.*\n\n> four\nYou wrote: four\n\n> /quit$", person.text)
    assert "Traceback" not in person.text


# Approvals


def test_approval_prompt_shows_invisible_characters(home: Home) -> None:
    with home.terminal("chat") as person:
        person.expect(r"\n>$")
        person.type("act rm \u202e\u00a0\u200bx" + ENTER)
        person.expect(
            r"I will\.\n"
            r"→ demo/act\(command=\"rm \\u202e\\u00a0\\u200bx\"\)\n"
            r"\? Confirm execution of demo/act\n"
            r"  command = \"rm \\u202e\\u00a0\\u200bx\"\n"
            r"  in \".*\"\n"
            r"  because of policy\.toml: tools\.demo/act, ask for \*\n"
            r"  denied without an answer in \d+ s\n"
            r"y/n, or once, session, always, edit or no\?$"
        )
        person.type(ENTER)  # an empty answer
        person.expect(r"no\?\ny/n, or once, session, always, edit or no\?$")
        person.type("maybe" + ENTER)  # an unknown answer
        person.expect(r"no\? maybe\ny/n, or once, session, always, edit or no\?$")
        assert not (home.folder / "acted").exists()
        person.type("y")  # without Enter
        person.expect(r"✓ demo/act: did (.|\n)*It came out(.|\n)*\n>$")
    assert (home.folder / "acted").read_text() == "'rm \\u202e\\xa0\\u200bx' 1\n"


def test_call_can_be_denied_edited_and_approved_for_the_session(home: Home) -> None:
    acted = home.folder / "acted"
    with home.terminal("chat") as person:
        person.expect(r"\n>$")
        person.type("act one" + ENTER)
        person.expect(r"or no\?$")
        person.type("n")
        person.expect(r"✗ demo/act: declined(.|\n)*\n>$")
        assert not acted.exists()
        person.type("act two" + ENTER)
        person.expect(r"or no\?$", after="act two")
        person.type("edit" + ENTER)
        person.expect(r"arguments: \{\"command\": \"two\"\}$")
        person.type("\x15" + '{"command": "three", "times": 3}' + ENTER)
        person.expect(r"command = \"three\"\n  times = 3\n(.|\n)*once, edit or no\?$")
        person.type("o" + ENTER)
        person.expect(r"✓ demo/act(.|\n)*\n>$", after="times = 3")
        assert acted.read_text() == "'three' 3\n"
        person.type("act four" + ENTER)
        person.expect(r"or no\?$", after="act four")
        person.type("session" + ENTER)
        person.expect(r"✓ demo/act(.|\n)*\n>$", after="act four")
        person.type("act four" + ENTER)
        person.expect(r"(✓ demo/act(.|\n)*){3}\n>$")
        assert acted.read_text() == "'three' 3\n'four' 1\n'four' 1\n"


def test_keys_typed_before_the_prompt_do_not_answer_it(home: Home, server: ModelServer) -> None:
    with home.terminal("chat") as person:
        person.expect(r"\n>$")
        # before the prompt is shown: a message, and a part of the next
        person.type("act x" + ENTER + "once" + ENTER + "draft")
        person.expect(r"or no\?$")
        assert not (home.folder / "acted").exists()
        person.type(CTRL_C)
        person.expect(r"stopped(.|\n)*> once\nYou wrote: once\n\n> draft$")
        person.type(CTRL_C)
        person.expect(r"\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0


def test_prompt_closes_when_the_request_is_answered_elsewhere(home: Home) -> None:
    with home.gateway(), home.terminal("chat", "--session", "s") as person:
        person.expect(r"\n>$")
        person.type("act x" + ENTER)
        person.expect(r"or no\?$")
        id = home.run("approvals", "list").stdout.splitlines()[1].split()[0]
        assert home.run("approvals", "approve", id[:8]).returncode == 0
        person.expect(r"✓ demo/act(.|\n)*\n>$")
        person.type("act y" + ENTER)
        person.expect(r"or no\?$", after="act y")
        id = home.run("approvals", "list").stdout.splitlines()[1].split()[0]
        assert home.run("approvals", "deny", id, "--reason", "not today").returncode == 0
        person.expect(r"✗ demo/act: declined(.|\n)*\n>$", after="act y")
        again = home.run("approvals", "approve", id)
        assert again.returncode == 2 and "approval not found" in again.stderr
    assert (home.folder / "acted").read_text() == "'x' 1\n"


def test_watch_answers_requests_in_another_terminal(home: Home) -> None:
    with home.gateway(), home.terminal("approvals", "watch") as watcher, home.terminal("chat") as person:
        watcher.expect("Waiting for approval requests")
        person.expect(r"\n>$")
        person.type("act x" + ENTER)
        watcher.expect(r"assistant in session(.|\n)*command = \"x\"(.|\n)*or no\?$")
        watcher.type("once" + ENTER)
        person.expect(r"✓ demo/act(.|\n)*\n>$")
        person.type("act y" + ENTER)
        watcher.expect(r"or no\?$", after='command = "y"')
        person.expect(r"or no\?$", after="act y")
        person.type("no" + ENTER)  # "n" is the answer; the rest is not sent
        watcher.expect("answered elsewhere")
        person.expect(r"✗ demo/act: declined(.|\n)*\n>$", after="act y")
        person.type("Hello" + ENTER)
        assert "You wrote: o\n" not in person.expect(r"You wrote: Hello\n\n>$")
        watcher.type(CTRL_C)
        assert watcher.wait_for_exit() in (0, 130)
    assert "Traceback" not in watcher.text


def test_agent_can_be_chosen(home: Home) -> None:
    with home.terminal("chat", "--agent", "poet") as person:
        person.expect(r"Atlas .*: poet uses http/rules-2(.|\n)*\n>$")
        person.type(CTRL_D)
        assert person.wait_for_exit() == 0
