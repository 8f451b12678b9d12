"""`atlas ask`: one answer, as a script gets it."""

import json
import os
import re
import signal
import socket
import subprocess

import pytest
from atlas_command import ATLAS, TIMEOUT, Home, eventually

from atlas_agents.cli import ask
from model_server import ModelServer, Reply, run_model_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


# A model used directly


def test_demo_answers_and_names_itself(bare: Home) -> None:
    done = bare.run("ask", "Add 2 and 40", "--model", "demo")
    assert done.returncode == 0
    assert done.stdout.endswith("2 + 40 = **42**\n") and "scripted demo" in done.stdout
    lines = done.stderr.splitlines()
    assert lines[:2] == ["using a scripted demo, not a model (--model)", "→ add(a=2.0, b=40.0)"]
    assert re.fullmatch(r"✓ add: 42\.0 · \d+ ms", lines[2])
    assert not bare.path.exists(), "nothing is stored"


def test_server_needs_neither_key_nor_model_and_can_call_tools(bare: Home, server: ModelServer) -> None:
    done = bare.run("ask", "--base-url", server.url, "--system", "Be a croupier.", "Roll a die with 8 sides")
    assert done.returncode == 0
    assert re.fullmatch(r"It came out: [1-8]\n", done.stdout)
    assert done.stderr.splitlines()[0] == f"using the first model of {server.url} (--base-url)"
    assert re.search(r"^→ roll_dice\(sides=8\)\n✓ roll_dice: [1-8] · \d+ ms$", done.stderr, re.MULTILINE)
    first, second = server.requests
    assert first.model == "rules-1"
    assert "authorization" not in first.headers
    assert first.body["messages"][0] == {"role": "system", "content": "Be a croupier."}
    assert set(first.tools) == {"now", "roll_dice", "add"}
    assert second.results


def test_piped_input_is_added_to_the_question(bare: Home, server: ModelServer) -> None:
    done = bare.run("ask", "Summarise", "--base-url", server.url, stdin="All is well.\n")
    assert done.stdout == "You wrote: Summarise\n\nAll is well.\n"


def test_files_are_attached_as_text_image_and_document(bare: Home, server: ModelServer) -> None:
    (bare.folder / "notes.md").write_text("# Notes")
    (bare.folder / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (bare.folder / "paper.pdf").write_bytes(b"%PDF-1.7")
    files = ["-f", "notes.md", "--file", "dot.png", "-fpaper.pdf"]
    assert bare.run("ask", "Compare", "--base-url", server.url, *files).returncode == 0
    *_, question = server.requests[0].body["messages"]
    kinds = [part["type"] for part in question["content"]]
    assert kinds == ["text", "text", "image_url", "file"]
    assert question["content"][1]["text"] == "File notes.md:\n\n# Notes"
    (bare.folder / "blob.bin").write_bytes(b"\xff\xfe")
    for name, problem in ("blob.bin", "expected text, a PDF, or an image"), ("gone.txt", "No such file"):
        failed = bare.run("ask", "Compare", "--base-url", server.url, "-f", name)
        assert failed.returncode == 2 and problem in failed.stderr


def test_piped_answer_cannot_control_the_terminal(bare: Home) -> None:
    answer = "done\x1b[2J\x1b]0;title\x07 \x9b31m\x7f \u202etxt.exe\r\tend"
    with run_model_server(lambda _: Reply(answer)) as server:
        plain = bare.run("ask", "Hello", "--base-url", server.url)
        as_json = bare.run("ask", "Hello", "--base-url", server.url, "--json")
    for output in (plain.stdout, plain.stderr, as_json.stdout):
        assert not {"\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\r"} & set(output)
    assert plain.stdout == "done\u241b[2J\u241b]0;title\u2407 \ufffd31m\u2421 \\u202etxt.exe\tend\n"
    assert json.loads(as_json.stdout)["answer"] == answer


def test_refusal_is_reported_with_its_reason(bare: Home) -> None:
    notice = "The model refused to answer: the vendor's content filter stopped it"
    with run_model_server(lambda _: Reply(filtered=True)) as server:
        plain = bare.run("ask", "Hello", "--base-url", server.url)
        as_json = bare.run("ask", "Hello", "--base-url", server.url, "--json")
    assert (plain.returncode, plain.stdout, plain.stderr.splitlines()[-1]) == (0, "\n", notice)
    assert json.loads(as_json.stdout)["refusal"] == notice


def test_turn_without_budget_prints_what_there_is_and_why_it_ended(home: Home) -> None:
    with run_model_server(lambda _: Reply("Let me look.", calls=(("current_time", {}),))) as server:
        limits = {"ATLAS_BUDGETS": "turn requests=1", "OPENAI_BASE_URL": server.url}
        plain = home.run("ask", "What time is it?", **limits)
        as_json = json.loads(home.run("ask", "What time is it?", "--json", **limits).stdout)
    ended = "the budget of the turn of 1 model requests is used up (1 used)"
    assert (plain.returncode, plain.stdout, plain.stderr.splitlines()[-1]) == (1, "Let me look.\n", f"atlas: {ended}")
    assert (as_json["answer"], as_json["partial"], as_json["error"]["message"]) == (None, "Let me look.", ended)


def test_turn_at_its_round_limit_prints_what_there_is_and_fails(home: Home) -> None:
    with run_model_server(lambda _: Reply("Let me look.", calls=(("current_time", {}),))) as server:
        plain = home.run("ask", "What time is it?", OPENAI_BASE_URL=server.url)
        as_json = home.run("ask", "What time is it?", "--json", OPENAI_BASE_URL=server.url)
    reason = "the turn reached its limit of rounds (max_rounds) before the model was done"
    assert (plain.returncode, plain.stdout, as_json.returncode) == (1, "Let me look.\n", 1)
    assert plain.stderr.splitlines()[-1] == f"(stopped: {reason})"
    assert json.loads(as_json.stdout)["incomplete"] == reason


def test_no_tools_sends_no_tools(bare: Home, server: ModelServer) -> None:
    done = bare.run("ask", "--no-tools", "--base-url", server.url, "--model", "rules-2", "Hello")
    assert (done.returncode, done.stdout) == (0, "You wrote: Hello\n")
    assert (server.requests[0].tools, server.requests[0].model) == ({}, "rules-2")


def test_model_settings_are_sent_and_one_that_is_not_is_reported(bare: Home, server: ModelServer) -> None:
    settings = ["--effort", "high", "--set", "top_p=0.5", "--set", "seed=7", "--set", "stop=END"]
    done = bare.run("ask", "--base-url", server.url, "--model", "gpt-4.1", *settings, "Hello")
    assert done.returncode == 0
    body = server.requests[0].body
    assert (body["top_p"], body["seed"], body["stop"]) == (0.5, 7, ["END"])
    assert "reasoning_effort" not in body
    warning = "atlas: model setting not sent: model=gpt-4.1 setting=effort reason=the model does not reason"
    assert done.stderr.splitlines().count(warning) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--set", "effrt=high"],
            "--set: unknown model setting 'effrt'; known settings: temperature, top_p, max_tokens",
        ),
        (["--set", "seed"], "--set: expected NAME=VALUE, got 'seed'"),
        (
            ["--effort", "huge"],
            "effort must be one of none, minimal, low, medium, high, xhigh, max or a number of tokens, got 'huge'",
        ),
        (["--set", "top_p=2"], "invalid model settings: top_p must be above 0 and at most 1, got 2.0"),
    ],
)
def test_invalid_model_setting_is_reported_with_code_2(bare: Home, options: list[str], message: str) -> None:
    done = bare.run("ask", "--model", "demo", *options, "Hello")
    assert (done.returncode, done.stderr.startswith(f"atlas: {message}")) == (2, True), done.stderr


def test_model_receives_the_error_of_a_bad_tool_call(bare: Home, server: ModelServer) -> None:
    done = bare.run("ask", "--base-url", server.url, "Roll a die with 1 sides")
    assert done.returncode == 0
    assert re.search(
        r"^✗ roll_dice: bad_arguments: sides: 1 is less than the minimum of 2 · \d+ ms$", done.stderr, re.M
    )


def test_discarded_text_is_not_printed(bare: Home) -> None:
    replies = [Reply("These words will not last", disconnects=True), Reply("These will.")]
    with run_model_server(lambda _: replies.pop(0)) as server:
        done = bare.run("ask", "--base-url", server.url, "Hello")
    assert (done.returncode, done.stdout) == (0, "These will.\n")


@pytest.mark.parametrize("variable", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
def test_google_key_chooses_a_gemini_model(bare: Home, server: ModelServer, variable: str) -> None:
    done = bare.run("ask", "Hello", "--no-tools", **{variable: "key-for-tests", "GOOGLE_BASE_URL": server.root})
    assert (done.returncode, done.stdout) == (0, "You wrote: Hello\n")
    assert f"using google/gemini-3.8-flash ({variable} is set)" in done.stderr
    assert server.requests[0].headers["x-goog-api-key"] == "key-for-tests"


def test_model_named_on_the_command_line_uses_a_stored_key(bare: Home, server: ModelServer) -> None:
    bare.path.mkdir(0o700)
    stored = {"google": {"key": "stored-key", "base_url": server.root}}
    (bare.path / "secrets.json").write_text(json.dumps({"providers": stored}))
    done = bare.run("ask", "Hello", "--model", "google/gemini-3.8-flash")
    assert (done.returncode, done.stdout) == (0, "You wrote: Hello\n")
    assert server.requests[0].headers["x-goog-api-key"] == "stored-key"


@pytest.mark.parametrize(
    ("settings", "headline", "model"),
    [
        (["ATLAS_MODEL", "ANTHROPIC_API_KEY"], "using openai/gpt-mine (ATLAS_MODEL)", "gpt-mine"),
        (["ANTHROPIC_API_KEY"], "using anthropic/claude-opus-4-6 (ANTHROPIC_API_KEY is set)", "claude-opus-4-6"),
        (["OPENAI_API_KEY"], "using the first model of {url} (OPENAI_BASE_URL is set)", "rules-1"),
    ],
)
def test_first_line_names_the_model_and_what_chose_it(
    bare: Home, server: ModelServer, settings: list[str], headline: str, model: str
) -> None:
    known = {"ATLAS_MODEL": "openai/gpt-mine", **server.settings}
    chosen = {name: value for name, value in known.items() if name.endswith("BASE_URL") or name in settings}
    if "ATLAS_MODEL" in settings:
        chosen["OPENAI_API_KEY"] = "key-for-tests"
    done = bare.run("ask", "Hello", "--no-tools", **chosen)
    assert (done.returncode, done.stdout) == (0, "You wrote: Hello\n")
    assert done.stderr == headline.format(url=server.url) + "\n"
    assert server.requests[0].model == model


# An agent of the workspace


@pytest.mark.parametrize("running", [False, True], ids=["embedded", "through a gateway"])
def test_agent_answers_and_the_session_is_stored(home: Home, server: ModelServer, running: bool) -> None:
    def ask_twice() -> None:
        first = home.run("ask", "Hello", "--session", "mine")
        assert (first.returncode, first.stdout) == (0, "You wrote: Hello\n")
        assert first.stderr == "assistant uses http/rules-1\n"
        second = home.run("ask", "And?", "-s", "mine", "--agent", "poet", "--json")
        answer = json.loads(second.stdout)
        assert (second.returncode, answer["answer"], answer["sessionKey"]) == (0, "You wrote: And?", "mine")
        assert answer["model"] == "http/rules-2"
        assert answer["usage"]["outputTokens"] > 0
        assert answer["steps"] == []
        sent = [message["content"] for message in server.requests[-1].body["messages"] if message["role"] != "system"]
        assert sent == ["Hello", "You wrote: Hello", "And?"]

    if running:
        with home.gateway() as gateway:
            ask_twice()
            assert gateway.process is not None and gateway.process.poll() is None
    else:
        ask_twice()


def test_command_works_as_a_process(home: Home) -> None:
    with home.start("ask", "-", stdin=subprocess.PIPE) as process:
        answer, _ = process.communicate("Hello", timeout=TIMEOUT)
    assert (process.returncode, answer) == (0, "You wrote: Hello\n")


@pytest.mark.parametrize("arguments", [["ask"], ["ask", "-"]])
def test_message_can_be_piped_in(home: Home, arguments: list[str]) -> None:
    done = home.run(*arguments, stdin="ein schöner Tag\n")
    assert (done.returncode, done.stdout) == (0, "You wrote: ein schöner Tag\n")


def test_json_contains_the_tool_calls(home: Home) -> None:
    done = home.run("ask", "What time is it?", "--json")
    answer = json.loads(done.stdout)
    (step,) = answer["steps"]
    assert (step["name"], step["arguments"], step["status"]) == ("current_time", {}, "ok")
    assert answer["answer"] == f"It came out: {step['result']}"
    assert re.fullmatch(r"[0-9a-f-]{36}", answer["runId"])


def test_call_that_needs_approval_is_denied_unless_the_tool_is_named(home: Home) -> None:
    denied = home.run("ask", "act ls \u202e-l")
    assert denied.returncode == 0
    assert denied.stdout == 'It came out: {"cancelled":true,"reason":"no one was available to approve it"}\n'
    assert (
        'atlas: denied: demo/act(command="ls \\u202e-l") needs approval; use atlas chat, or pass --yes-to demo/act\n'
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
    assert (done.returncode, done.stdout) == (0, "You wrote: Hello\n")
    assert server.requests[0].headers["authorization"] == "Bearer secret-in-a-file"


def test_replacement_for_a_model_without_key_is_explained(home: Home, server: ModelServer) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## assistant\nModel: anthropic/claude-opus-4-6\n")
    done = home.run("ask", "Hello", ATLAS_MODEL="http/rules-2")
    assert (done.returncode, done.stdout) == (0, "You wrote: Hello\n")
    assert done.stderr == "assistant uses http/rules-2: no Anthropic key.\n"


# Errors


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        (["--model", "gpt"], {}, "--model: "),
        (["--model", "acme/gpt"], {}, "'acme'"),
        (["--no-tools"], {"ATLAS_MODEL": "gpt"}, "ATLAS_MODEL: "),
        (["--model", "openai/gpt-5.2"], {}, "OPENAI_API_KEY"),
        (["--model", "http/llama"], {}, "OPENAI_BASE_URL"),
        (["--base-url", "localhost:11434"], {}, "--base-url: invalid URL 'localhost:11434': expected http:// or"),
        (["--no-tools"], {"OPENAI_API_KEY": "a\nb"}, "OpenAI"),
        (["--model", "demo", "--session", "x"], {}, "cannot be combined with --session, --continue or --agent"),
        ([], {"ATLAS_PORT": "many"}, "ATLAS_PORT: "),
        (["--agent", "none"], {"OPENAI_BASE_URL": "http://127.0.0.1:1"}, "agent not found: 'none'; available: a"),
    ],
    ids=str,
)
def test_invalid_setting_is_reported_in_one_line_with_code_2(
    bare: Home, arguments: list[str], env: dict[str, str], message: str
) -> None:
    done = bare.run("ask", "Hello", *arguments, **env)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_invalid_workspace_is_reported_in_one_line_with_code_2(home: Home) -> None:
    (home.path / "workspace" / "AGENTS.md").write_text("## assistant\nModle: x\n")
    done = home.run("ask", "Hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"atlas: .*AGENTS\.md:2: .*Modle.*\n", done.stderr)


def test_empty_message_is_not_sent(home: Home, server: ModelServer) -> None:
    done = home.run("ask")
    assert (done.returncode, done.stdout, server.requests) == (2, "", [])
    assert "the question is empty" in done.stderr
    assert home.run("ask", " ").returncode == 2


def test_input_that_stays_open_and_silent_counts_as_empty(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_STDIN_SECONDS", 0.05)
    silent, other_end = os.pipe()
    try:
        with os.fdopen(silent) as silent_input:
            monkeypatch.setattr("sys.stdin", silent_input)
            assert ask._read_stdin(wait=False) == ""
    finally:
        os.close(other_end)


@pytest.mark.parametrize("as_json", [False, True])
def test_unreachable_server_is_reported_in_one_line_with_code_1(bare: Home, as_json: bool) -> None:
    with socket.socket() as taken:  # bound but not listening, so that no other program listens there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        done = bare.run("ask", "Hello", "--base-url", url, *(["--json"] if as_json else []))
    message = f"cannot connect to the model server at {url}; check the URL and that the server is running"
    assert done.returncode == 1
    if as_json:
        assert json.loads(done.stdout)["error"] == {"kind": "network", "message": message}
        assert json.loads(done.stdout)["answer"] is None
    else:
        assert (done.stdout, done.stderr.splitlines()[1:]) == ("", [f"atlas: {message}"])


@pytest.mark.parametrize(("scheme", "code"), [("http", 1), ("ftp", 2)])
def test_password_of_a_base_url_is_not_printed(bare: Home, scheme: str, code: int) -> None:
    done = bare.run("ask", "Hello", "--base-url", f"{scheme}://ana:hush@127.0.0.1:1/v1")
    assert (done.returncode, done.stdout) == (code, "")
    assert f"{scheme}://ana:[REDACTED]@127.0.0.1:1/v1" in done.stderr and "hush" not in done.stderr


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "the API key was rejected at {url}: HTTP 401: no luck"),
        (404, "model or URL not found at {url}; most base URLs end with /v1 (HTTP 404: no luck)"),
        (400, "HTTP 400: no luck"),
    ],
)
def test_rejected_request_is_reported_in_one_line_with_code_1(
    bare: Home, server: ModelServer, status: int, message: str
) -> None:
    done = bare.run("ask", f"HTTP {status}", "--base-url", server.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == ["atlas: " + message.format(url=server.url)]


def test_rejected_token_is_reported_with_a_remedy(home: Home) -> None:
    with home.gateway():
        done = home.run("ask", "Hello", ATLAS_TOKEN="another-one")
    assert done.returncode == 1
    assert "token" in done.stderr and "set ATLAS_TOKEN to a valid token" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# Signals, pipes, terminals and several processes


@pytest.mark.parametrize("times", [1, 2])
def test_interrupted_answer_exits_with_code_130(home: Home, server: ModelServer, times: int) -> None:
    with home.start("ask", "a story", "--session", "s") as process:
        assert process.stderr is not None
        process.stderr.readline()
        eventually(lambda: bool(server.requests) or process.poll() is not None)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, output, errors) == (130, "", "")
    assert json.loads(home.run("sessions", "show", "s", "--json").stdout)["session"]["running"] is False


@pytest.mark.parametrize("arguments", [["ask", "Add 2 and 40", "--model", "demo"], ["--help"], ["replay", "--help"]])
def test_closed_pipe_is_not_an_error(bare: Home, arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [ATLAS, *arguments],
            cwd=bare.folder,
            env=bare.environment(),
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            timeout=TIMEOUT,
        )
    finally:
        os.close(write)
    assert [line for line in done.stderr.splitlines() if line[0] not in "u→✓"] == []
    assert "Broken" not in done.stderr


def test_terminal_shows_markdown_without_control_characters(bare: Home) -> None:
    with (
        run_model_server(lambda _: Reply("**Vec<T>** \x1b[2J\x07 is gone? No.")) as server,
        bare.terminal("ask", "Hello", "--base-url", server.url) as person,
    ):
        assert person.wait_for_exit() == 0
    assert person.text == f"using the first model of {server.url} (--base-url)\nVec<T> ␛[2J␇ is gone? No."


def test_processes_that_start_together_share_a_home(home: Home) -> None:
    """Each finds the embedded gateway of another, or waits until the home folder is free; all get their answer."""
    processes = [home.start("ask", f"question {number}") for number in range(2)]
    outcomes = [(*process.communicate(timeout=TIMEOUT), process.returncode) for process in processes]
    for number, (output, errors, code) in enumerate(outcomes):
        assert (code, output) == (0, f"You wrote: question {number}\n"), errors
