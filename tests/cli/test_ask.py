"""`atlas ask`: one answer, as a script gets it."""

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from atlas_command import ATLAS, PATIENCE, Home

from model_server import ModelServer, Reply, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each starts processes of its own


# A model alone


def test_the_demo_answers_and_says_what_it_is(bare: Home) -> None:
    done = bare.run("ask", "Add 2 and 40", "--model", "demo")
    assert done.returncode == 0
    assert done.stdout == "(A scripted demo answers here, not a model.)\n\n2 + 40 = **42**\n"
    lines = done.stderr.splitlines()
    assert lines[:2] == ["a scripted demo answers, not a model (--model)", "→ add(a=2.0, b=40.0)"]
    assert re.fullmatch(r"✓ add: 42\.0 · \d+ ms", lines[2])
    assert not bare.path.exists(), "nothing of it is kept"


def test_a_server_needs_neither_key_nor_model_and_its_tools_are_run(bare: Home, server: ModelServer) -> None:
    done = bare.run("ask", "--base-url", server.url, "--system", "Be a croupier.", "Roll a die with 8 sides")
    assert done.returncode == 0
    assert re.fullmatch(r"It came out: [1-8]\n", done.stdout)
    assert done.stderr.splitlines()[0] == f"the first model of {server.url} answers (--base-url)"
    assert re.search(r"^→ roll_dice\(sides=8\)\n✓ roll_dice: [1-8] · \d+ ms$", done.stderr, re.MULTILINE)
    first, second = server.asked
    assert first.model == "rules-1"
    assert "authorization" not in first.headers
    assert first.body["messages"][0] == {"role": "system", "content": "Be a croupier."}
    assert set(first.tools) == {"now", "roll_dice", "add"}
    assert second.results


def test_tools_can_be_left_out(bare: Home, server: ModelServer) -> None:
    done = bare.run("ask", "--no-tools", "--base-url", server.url, "--model", "rules-2", "Hello")
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert (server.asked[0].tools, server.asked[0].model) == ({}, "rules-2")


def test_a_tool_that_is_called_wrongly_is_told_to_the_model(bare: Home, server: ModelServer) -> None:
    done = bare.run("ask", "--base-url", server.url, "Roll a die with 1 sides")
    assert done.returncode == 0
    assert re.search(
        r"^✗ roll_dice: bad_arguments: sides: 1 is less than the minimum of 2 · \d+ ms$", done.stderr, re.M
    )


def test_words_that_were_withdrawn_are_not_printed(bare: Home) -> None:
    replies = [Reply("These words will not last", breaks=True), Reply("These will.")]
    with serving(lambda _: replies.pop(0)) as server:
        done = bare.run("ask", "--base-url", server.url, "Hello")
    assert (done.returncode, done.stdout) == (0, "These will.\n")


@pytest.mark.parametrize(
    ("settings", "headline", "model"),
    [
        (["ATLAS_MODEL", "ANTHROPIC_API_KEY"], "openai/gpt-mine answers (ATLAS_MODEL)", "gpt-mine"),
        (["ANTHROPIC_API_KEY"], "anthropic/claude-opus-4-6 answers (ANTHROPIC_API_KEY is set)", "claude-opus-4-6"),
        (["OPENAI_API_KEY"], "the first model of {url} answers (OPENAI_BASE_URL is set)", "rules-1"),
    ],
)
def test_it_says_which_model_answers_alone_and_why(
    bare: Home, server: ModelServer, settings: list[str], headline: str, model: str
) -> None:
    known = {"ATLAS_MODEL": "openai/gpt-mine", **server.settings}
    chosen = {name: value for name, value in known.items() if name.endswith("BASE_URL") or name in settings}
    if "ATLAS_MODEL" in settings:
        chosen["OPENAI_API_KEY"] = "key-for-tests"
    done = bare.run("ask", "Hello", "--no-tools", **chosen)
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert done.stderr == headline.format(url=server.url) + "\n"
    assert server.asked[0].model == model


# An agent of the workspace


@pytest.mark.parametrize("running", [False, True], ids=["embedded", "through a gateway"])
def test_an_agent_answers_and_a_session_is_kept(home: Home, server: ModelServer, running: bool) -> None:
    def asked() -> None:
        first = home.run("ask", "Hello", "--session", "mine")
        assert (first.returncode, first.stdout) == (0, "You said: Hello\n")
        assert first.stderr == "assistant answers with http/rules-1\n"
        second = home.run("ask", "And?", "-s", "mine", "--agent", "poet", "--json")
        answer = json.loads(second.stdout)
        assert (second.returncode, answer["answer"], answer["sessionKey"]) == (0, "You said: And?", "mine")
        assert answer["model"] == "http/rules-2"
        assert answer["usage"]["outputTokens"] > 0
        assert answer["steps"] == []
        said = [message["content"] for message in server.asked[-1].body["messages"] if message["role"] != "system"]
        assert said == ["Hello", "You said: Hello", "And?"]

    if running:
        with home.gateway() as gateway:
            asked()
            assert gateway.process is not None and gateway.process.poll() is None
    else:
        asked()


@pytest.mark.parametrize("arguments", [["ask"], ["ask", "-"]])
def test_a_message_can_be_piped_in(home: Home, arguments: list[str]) -> None:
    done = home.run(*arguments, stdin="ein schöner Tag\n")
    assert (done.returncode, done.stdout) == (0, "You said: ein schöner Tag\n")


def test_all_that_was_done_is_in_the_json(home: Home) -> None:
    done = home.run("ask", "What time is it?", "--json")
    answer = json.loads(done.stdout)
    (step,) = answer["steps"]
    assert (step["name"], step["arguments"], step["status"]) == ("current_time", {}, "ok")
    assert answer["answer"] == f"It came out: {step['result']}"
    assert re.fullmatch(r"[0-9a-f-]{36}", answer["runId"])


def test_a_call_that_needs_a_yes_is_denied_unless_it_is_allowed_by_name(home: Home) -> None:
    denied = home.run("ask", "act ls \u202e-l")
    assert denied.returncode == 0
    assert denied.stdout == 'It came out: {"cancelled":true,"reason":"nobody was there to ask"}\n'
    assert (
        'atlas: denied: demo/act(command="ls \\u202e-l") needs a person\'s yes; '
        "atlas chat asks you, and --yes-to demo/act allows it\n"
    ) in denied.stderr
    assert not (home.folder / "acted").exists()
    other = home.run("ask", "act ls", "--yes-to", "current_time")
    assert "denied: demo/act" in other.stderr
    allowed = home.run("ask", "act ls \u202e-l", "--yes-to", "demo/act")
    assert "denied" not in allowed.stderr
    assert (home.folder / "acted").read_text() == "'ls \\u202e-l' 1\n"


def test_settings_are_read_from_dotenv(home: Home, server: ModelServer) -> None:
    del home.env["OPENAI_BASE_URL"]
    lines = [f'export OPENAI_BASE_URL="{server.url}"', "OPENAI_API_KEY=secret-in-a-file  # mine"]
    (home.folder / ".env").write_text("\n".join(lines))
    done = home.run("ask", "Hello")
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert server.asked[0].headers["authorization"] == "Bearer secret-in-a-file"


def test_an_agent_without_its_key_is_spoken_for_and_that_is_said(home: Home, server: ModelServer) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## assistant\nModel: anthropic/claude-opus-4-6\n")
    done = home.run("ask", "Hello", ATLAS_MODEL="http/rules-2")
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert done.stderr == (
        "assistant answers with http/rules-2 (agent 'assistant': anthropic/claude-opus-4-6 cannot answer (Anthropic "
        "needs a key: set ANTHROPIC_API_KEY (in the environment or in .env)); http/rules-2 answers instead)\n"
    )


# What goes wrong


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["--model", "gpt"], {}, "--model: 'gpt' is no model ref: write provider/model"),
        (["--model", "acme/gpt"], {}, "--model: there is no provider 'acme'; there are anthropic"),
        (["--no-tools"], {"ATLAS_MODEL": "gpt"}, "ATLAS_MODEL: 'gpt' is no model ref"),
        (["--model", "openai/gpt-5.2"], {}, "OpenAI needs a key: set OPENAI_API_KEY (in the environment or in .env)"),
        (["--model", "http/llama"], {}, "http/… needs OPENAI_BASE_URL"),
        (["--base-url", "localhost:11434"], {}, "--base-url: an address begins with http:// or https://"),
        (["--no-tools"], {"OPENAI_API_KEY": "a\nb"}, "the key for OpenAI is blank or has characters that no key has"),
        (["--model", "demo", "--session", "x"], {}, "begin a conversation that is not kept"),
        ([], {"ATLAS_PORT": "many"}, "environment: ATLAS_PORT: it must be a whole number from 0 to 65535"),
        (["--agent", "nobody"], {"OPENAI_BASE_URL": "http://127.0.0.1:1"}, "there is no agent 'nobody'; there are a"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_code_2(
    bare: Home, arguments: list[str], env: dict[str, str], words: str
) -> None:
    done = bare.run("ask", "Hello", *arguments, **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_a_broken_workspace_is_one_sentence_and_code_2(home: Home) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## assistant\nModle: x\n")
    done = home.run("ask", "Hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"atlas: .*AGENTS\.md:2: Modle: there is no such key; .*\n", done.stderr)


def test_nothing_is_not_answered(home: Home, server: ModelServer) -> None:
    done = home.run("ask")
    assert (done.returncode, done.stdout, server.asked) == (2, "", [])
    assert "nothing to answer" in done.stderr
    assert home.run("ask", " ").returncode == 2


def test_an_input_that_stays_open_and_silent_holds_nobody_up(home: Home) -> None:
    silent, line = os.pipe()
    try:
        done = subprocess.run(
            [ATLAS, "ask"],
            cwd=home.folder,
            env=home.environment(),
            stdin=silent,
            capture_output=True,
            timeout=PATIENCE,
        )
    finally:
        os.close(silent)
        os.close(line)
    assert done.returncode == 2


@pytest.mark.parametrize("as_json", [False, True])
def test_an_unreachable_server_is_one_sentence_and_code_1(bare: Home, as_json: bool) -> None:
    with socket.socket() as taken:  # bound but not listening: nobody else can be there
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        done = bare.run("ask", "Hello", "--base-url", address, *(["--json"] if as_json else []))
    words = f"no server answers at {address}: is it running, and is the address right?"
    assert done.returncode == 1
    if as_json:
        assert json.loads(done.stdout)["error"] == {"kind": "network", "message": words}
        assert json.loads(done.stdout)["answer"] is None
    else:
        assert (done.stdout, done.stderr.splitlines()[1:]) == ("", [f"atlas: {words}"])


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the key was refused at {url}: HTTP 401: no luck"),
        (404, "no such model or address at {url}; most addresses end with /v1 (HTTP 404: no luck)"),
        (400, "HTTP 400: no luck"),
    ],
)
def test_a_refused_request_is_one_sentence_and_code_1(bare: Home, server: ModelServer, status: int, words: str) -> None:
    done = bare.run("ask", f"HTTP {status}", "--base-url", server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == ["atlas: " + words.format(url=server.url)]


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_answer_is_code_130(home: Home, server: ModelServer, times: int) -> None:
    with subprocess.Popen(
        [ATLAS, "ask", "a story", "--session", "s"],
        cwd=home.folder,
        env=home.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        while not server.asked:
            assert process.poll() is None
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert json.loads(home.run("sessions", "show", "s", "--json").stdout)["session"]["running"] is False


def test_a_reader_that_leaves_early_is_no_trouble(bare: Home) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [ATLAS, "ask", "Add 2 and 40", "--model", "demo"],
            cwd=bare.folder,
            env=bare.environment(),
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=PATIENCE,
        )
    finally:
        os.close(write)
    assert [line for line in done.stderr.splitlines() if line[0] not in "a→✓"] == []
    assert "Broken" not in done.stderr


def test_in_a_terminal_the_answer_is_markdown_and_cannot_steer_it(bare: Home) -> None:
    with (
        serving(lambda _: Reply("**Vec<T>** \x1b[2J\x07 is gone? No.")) as server,
        bare.terminal("ask", "Hello", "--base-url", server.url) as person,
    ):
        assert person.leave() == 0
    assert person.text == f"the first model of {server.url} answers (--base-url)\nVec<T> ␛[2J␇ is gone? No."


def test_a_gateway_that_refuses_the_token_is_told_with_what_to_do(home: Home) -> None:
    with home.gateway():
        done = home.run("ask", "Hello", ATLAS_TOKEN="another-one")
    assert done.returncode == 1
    assert "refuses the token" in done.stderr and "ATLAS_TOKEN" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_at_once_share_a_home(home: Home, tmp_path: Path) -> None:
    """The second finds the first one's gateway, or waits until the home is free; both get their answer."""
    commands = [
        subprocess.Popen(
            [ATLAS, "ask", f"question {number}"],
            cwd=home.folder,
            env=home.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for number in range(3)
    ]
    outcomes = [(*command.communicate(timeout=PATIENCE), command.returncode) for command in commands]
    for number, (out, err, code) in enumerate(outcomes):
        assert (code, out) == (0, f"You said: question {number}\n"), err
