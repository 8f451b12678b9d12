"""The `atlas` command, run as a person or a script runs it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path

import pytest

from help_texts import PAGE, filled
from model_server import Asked, ModelServer, Reply, serving
from terminal import Terminal

pytestmark = pytest.mark.slow  # each starts a process of its own

ATLAS = str(Path(sys.executable).parent / "atlas")
PATIENCE = 30
CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
STORY = "Once upon a time " + " ".join(f"there was word {number}" for number in range(400))


def environment(**env: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8", **env}


def atlas(*arguments: str, cwd: Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command where there is no terminal."""
    return subprocess.run(
        [ATLAS, *arguments],
        cwd=cwd,
        env=environment(**env),
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )


def terminal(*arguments: str, cwd: Path, rows: int = 30, **env: str) -> Terminal:
    return Terminal([ATLAS, *arguments], environment(**env), cwd, rows=rows)


def mind(asked: Asked) -> Reply:
    """A model that rolls dice, tells a long story, stumbles, and otherwise repeats what it heard."""
    if asked.results:
        return Reply(f"The die shows {asked.results[0]}.")
    if "story" in asked.text:
        return Reply(STORY, pause=0.01)
    if sides := re.search(r"die with (\d+) sides", asked.text):
        return Reply("Let me see.", (("roll_dice", {"sides": int(sides[1])}),))
    if status := re.search(r"HTTP (\d+)", asked.text):
        return Reply("no luck", status=int(status[1]))
    return Reply(f"You said: {asked.text}")


@pytest.fixture
def server() -> Generator[ModelServer]:
    with serving(mind) as model:
        yield model


# Help and version


def test_both_ways_of_starting_it_tell_the_same_version(tmp_path: Path) -> None:
    as_module = [sys.executable, "-m", "atlas_agents", "--version"]
    done = subprocess.run(as_module, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=PATIENCE)
    assert atlas("--version", cwd=tmp_path).stdout == done.stdout == f"atlas {version('atlas-agents')}\n"


def test_without_a_command_it_shows_its_help(tmp_path: Path) -> None:
    alone = atlas(cwd=tmp_path)
    assert (alone.returncode, alone.stdout) == (0, atlas("--help", cwd=tmp_path).stdout)


def test_the_docs_show_the_help_texts_as_they_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count('--help"\nUsage: atlas') == 2
    assert filled(page) == page, "say: make texts"


def test_the_help_loads_nothing_heavy(tmp_path: Path) -> None:
    look = """
import json, sys
from atlas_agents.cli.main import main
sys.argv = ["atlas", "--help"]
try:
    main()
finally:
    heavy = {"aiohttp", "griffe", "jsonschema_rs", "markdown_it", "prompt_toolkit", "pydantic", "rich"}
    print(json.dumps(sorted(heavy & set(sys.modules))), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", look], cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=PATIENCE
    )
    assert json.loads(done.stderr) == []


# One answer


def test_without_a_key_the_demo_answers_and_says_what_it_is(tmp_path: Path) -> None:
    done = atlas("chat", "Add 2 and 40", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "(A scripted demo answers here, not a model.)\n\n2 + 40 = **42**\n"
    lines = done.stderr.splitlines()
    assert lines[:2] == ["a scripted demo answers, not a model (no key is set)", "→ add(a=2.0, b=40.0)"]
    assert re.fullmatch(r"✓ add: 42\.0 · \d+ ms", lines[2])


def test_where_nothing_comes_in_the_demo_shows_itself_and_ends(tmp_path: Path) -> None:
    done = atlas("chat", cwd=tmp_path)
    assert done.returncode == 0
    assert "The clock says" in done.stdout
    assert "→ now()" in done.stderr


@pytest.mark.slow
def test_an_input_that_stays_open_and_silent_holds_nobody_up(tmp_path: Path) -> None:
    silent, line = os.pipe()
    try:
        done = subprocess.run(
            [ATLAS, "chat"], cwd=tmp_path, env=environment(), stdin=silent, capture_output=True, timeout=PATIENCE
        )
    finally:
        os.close(silent)
        os.close(line)
    assert done.returncode == 0
    assert b"The clock says" in done.stdout


def test_a_real_model_is_not_asked_about_nothing(tmp_path: Path, server: ModelServer) -> None:
    done = atlas("chat", "--base-url", server.url, cwd=tmp_path)
    assert (done.returncode, done.stdout, server.asked) == (0, "", [])
    assert "nothing to answer" in done.stderr


@pytest.mark.parametrize("arguments", [["chat"], ["chat", "-"]])
def test_a_message_can_be_piped_in(tmp_path: Path, server: ModelServer, arguments: list[str]) -> None:
    done = atlas(*arguments, "--base-url", server.url, cwd=tmp_path, stdin="ein schöner Tag\n")
    assert (done.returncode, done.stdout) == (0, "You said: ein schöner Tag\n")


def test_a_server_needs_neither_key_nor_model_and_its_tools_are_run(tmp_path: Path, server: ModelServer) -> None:
    done = atlas(
        "chat", "--base-url", server.url, "--system", "Be a croupier.", "Roll a die with 8 sides", cwd=tmp_path
    )
    assert done.returncode == 0
    assert re.fullmatch(r"The die shows [1-8]\.\n", done.stdout)
    assert done.stderr.splitlines()[0] == f"the first model of {server.url} answers (--base-url)"
    assert re.search(r"^→ roll_dice\(sides=8\)\n✓ roll_dice: [1-8] · \d+ ms$", done.stderr, re.MULTILINE)
    first, second = server.asked
    assert first.model == "rules-1"
    assert "authorization" not in first.headers
    assert first.body["messages"][0] == {"role": "system", "content": "Be a croupier."}
    assert set(first.tools) == {"now", "roll_dice", "add"}
    assert second.results


def test_tools_can_be_left_out(tmp_path: Path, server: ModelServer) -> None:
    done = atlas("chat", "--no-tools", "--base-url", server.url, "--model", "rules-2", "Hello", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert (server.asked[0].tools, server.asked[0].model) == ({}, "rules-2")


def test_a_tool_that_is_called_wrongly_is_told_to_the_model(tmp_path: Path, server: ModelServer) -> None:
    done = atlas("chat", "--base-url", server.url, "Roll a die with 1 sides", cwd=tmp_path)
    assert done.returncode == 0
    assert re.search(
        r"^✗ roll_dice: bad_arguments: sides: 1 is less than the minimum of 2 · \d+ ms$", done.stderr, re.M
    )


def test_words_that_were_withdrawn_are_not_printed(tmp_path: Path) -> None:
    replies = [Reply("These words will not last", breaks=True), Reply("These will.")]
    with serving(lambda _: replies.pop(0)) as server:
        done = atlas("chat", "--base-url", server.url, "Hello", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "These will.\n")


def test_a_reader_that_leaves_early_is_no_trouble(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [ATLAS, "chat", "Add 2 and 40"],
            cwd=tmp_path,
            env=environment(),
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


# Who answers


@pytest.mark.parametrize(
    ("settings", "headline", "model"),
    [
        (["ATLAS_MODEL", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"], "openai/gpt-mine answers (ATLAS_MODEL)", "gpt-mine"),
        (
            ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"],
            "anthropic/claude-opus-4-6 answers (ANTHROPIC_API_KEY is set)",
            "claude-opus-4-6",
        ),
        (["OPENAI_API_KEY"], "the first model of {url} answers (OPENAI_BASE_URL is set)", "rules-1"),
        ([], "the first model of {url} answers (OPENAI_BASE_URL is set)", "rules-1"),
    ],
)
def test_it_says_which_model_answers_and_why(
    tmp_path: Path, server: ModelServer, settings: list[str], headline: str, model: str
) -> None:
    known = {"ATLAS_MODEL": "openai/gpt-mine", **server.settings}
    addresses = {name: value for name, value in known.items() if name.endswith("BASE_URL")}
    done = atlas("chat", "Hello", cwd=tmp_path, **addresses, **{name: known[name] for name in settings})
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert done.stderr == headline.format(url=server.url) + "\n"
    assert server.asked[0].model == model


def test_an_option_beats_every_setting(tmp_path: Path, server: ModelServer) -> None:
    done = atlas("chat", "Hello", "--model", "openai/o-9", cwd=tmp_path, ATLAS_MODEL="x/y", **server.settings)
    assert done.stderr == "openai/o-9 answers (--model)\n"
    demo = atlas("chat", "Hello", "--model", "demo", cwd=tmp_path, ATLAS_MODEL="x/y", **server.settings)
    assert demo.stderr == "a scripted demo answers, not a model (--model)\n"


def test_settings_are_read_from_dotenv(tmp_path: Path, server: ModelServer) -> None:
    lines = [f'export OPENAI_BASE_URL="{server.url}"', "OPENAI_API_KEY=secret-in-a-file  # mine"]
    (tmp_path / ".env").write_text("\n".join(lines))
    done = atlas("chat", "Hello", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "You said: Hello\n")
    assert server.asked[0].headers["authorization"] == "Bearer secret-in-a-file"


# What goes wrong


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (["--model", "gpt"], {}, "--model: 'gpt' is no model ref: write provider/model"),
        (["--model", "acme/gpt"], {}, "--model: there is no provider 'acme'; there are anthropic, http, openai"),
        ([], {"ATLAS_MODEL": "gpt"}, "ATLAS_MODEL: 'gpt' is no model ref"),
        (["--model", "openai/gpt-5.2"], {}, "OpenAI needs a key: set OPENAI_API_KEY (in the environment or in .env)"),
        (["--model", "anthropic/claude-opus-4-6"], {}, "Anthropic needs a key: set ANTHROPIC_API_KEY (in the envi"),
        (["--model", "http/llama"], {}, "http/… needs OPENAI_BASE_URL"),
        (["--base-url", "localhost:11434"], {}, "--base-url: an address begins with http:// or https://"),
        ([], {"OPENAI_API_KEY": "a\nb"}, "the key for OpenAI is blank or has characters that no key has"),
        ([], {"OPENAI_API_KEY_FILE": "/nowhere"}, "OPENAI_API_KEY_FILE points to /nowhere, which cannot be read"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_code_2(
    tmp_path: Path, arguments: list[str], env: dict[str, str], words: str
) -> None:
    done = atlas("chat", "Hello", *arguments, cwd=tmp_path, **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_an_unknown_option_is_code_2(tmp_path: Path) -> None:
    done = atlas("chat", "--modle", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "--model" in done.stderr


def test_an_unreachable_server_is_one_sentence_and_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound but not listening: nobody else can be there
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        done = atlas("chat", "Hello", "--base-url", address, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == [
        f"atlas: no server answers at {address}: is it running, and is the address right?"
    ]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "the key was refused at {url}: HTTP 401: no luck"),
        (404, "no such model or address at {url}; most addresses end with /v1 (HTTP 404: no luck)"),
        (400, "HTTP 400: no luck"),
    ],
)
def test_a_refused_request_is_one_sentence_and_code_1(
    tmp_path: Path, server: ModelServer, status: int, words: str
) -> None:
    done = atlas("chat", f"HTTP {status}", "--base-url", server.url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == ["atlas: " + words.format(url=server.url)]


def test_an_interrupted_answer_is_code_130(tmp_path: Path, server: ModelServer) -> None:
    command = [ATLAS, "chat", "a story", "--base-url", server.url]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        while not server.asked:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, b"", b"")


# At the prompt


@pytest.mark.slow
def test_an_answer_is_seen_while_it_comes_and_can_be_stopped(tmp_path: Path, server: ModelServer) -> None:
    with terminal("chat", "--base-url", server.url, cwd=tmp_path) as person:
        person.see(r"Atlas .*: the first model of .* answers \(--base-url\)(.|\n)*\n>$")
        person.type("a story" + ENTER)
        person.see("there was word 9")
        person.type(CTRL_C)
        stopped = person.see(r"stopped(.|\n)*\n>$", after="> a story")
        assert "word 399" not in stopped
        person.type("still there?" + ENTER)
        person.see(r"You said: still there\?(.|\n)*\n>$")
        person.type("/exit" + ENTER)
        assert person.leave() == 0
    said = [message["content"] for message in server.asked[-1].body["messages"] if message["role"] == "user"]
    assert said == ["a story", "still there?"]
    assert "Traceback" not in person.text


@pytest.mark.slow
def test_calls_are_shown_as_lines_and_kept_in_the_history(tmp_path: Path, server: ModelServer) -> None:
    with terminal("chat", "--base-url", server.url, cwd=tmp_path) as person:
        person.see("\n>$")
        person.type("Roll a die with 8 sides" + ENTER)
        person.see(
            r"> Roll a die with 8 sides\n"
            r"Let me see\.\n"
            r"→ roll_dice\(sides=8\)\n"
            r"✓ roll_dice: [1-8] · \d+ ms\n"
            r"\n"
            r"The die shows [1-8]\.\n"
            r"\n"
            r">$"
        )
        person.type("/history" + ENTER)
        person.see(
            r"you: Roll a die with 8 sides\n"
            r"assistant: Let me see\.\n"
            r"→ roll_dice\(sides=8\)\n"
            r"✓ roll_dice: [1-8]\n"
            r"assistant: The die shows [1-8]\.\n\n>$",
            after="/history",
        )
        person.type("/agents" + ENTER)
        person.see(r"assistant: http/rules-1 \(--base-url\); tools: now, roll_dice, add\n\n>$")
        person.type("/reset" + ENTER + "Hello" + ENTER)
        person.see(r"You said: Hello\n\n>$")
        person.type(CTRL_D)
        assert person.leave() == 0
    assert [message["role"] for message in server.asked[-1].body["messages"]] == ["system", "user"]


@pytest.mark.slow
def test_words_that_are_withdrawn_leave_the_screen(tmp_path: Path) -> None:
    with terminal("chat", cwd=tmp_path) as person:
        person.see(r"a scripted demo answers, not a model \(no key is set\)(.|\n)*\n>$")
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


@pytest.mark.slow
def test_trouble_is_a_sentence_and_the_prompt_comes_back(tmp_path: Path, server: ModelServer) -> None:
    with terminal("chat", "--base-url", server.url, cwd=tmp_path) as person:
        person.see("\n>$")
        person.type("HTTP 401" + ENTER)
        person.see(r"the key was refused at .*: HTTP 401: no luck\n\n>$")
        person.type("/nonsense" + ENTER)
        person.see(r"There is no command /nonsense: /help lists them\.\n\n>$")
        person.type("/help" + ENTER)
        person.see(r"/reset +begin a new conversation(.|\n)*\n>$")
        person.type("/etc/hosts is a path" + ENTER)
        person.see(r"You said: /etc/hosts is a path\n\n>$")
        person.type("/quit" + ENTER)
        assert person.leave() == 0


@pytest.mark.slow
def test_a_message_is_answered_once_in_a_terminal_too(tmp_path: Path) -> None:
    with (
        serving(lambda _: Reply("**Vec<T>** \x1b[2J\x07 is gone? No.")) as server,
        terminal("chat", "Hello", "--base-url", server.url, cwd=tmp_path) as person,
    ):
        assert person.leave() == 0
    assert person.text == f"the first model of {server.url} answers (--base-url)\nVec<T> ␛[2J␇ is gone? No."
