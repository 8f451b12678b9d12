"""Ten common tasks: each is a script of a few lines that runs as it is, against a model server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fork_server
from checks import TIMEOUT
from model_server import ModelRequest, ModelServer, Reply, run_model_server

FOLDER = Path(__file__).parent.parent / "examples/ten_tasks"
MAX_LINES = 67
"""Lines of the same ten scripts with pydantic-ai."""
PRINTED = {
    "one_question": "Because of Rayleigh scattering.\n",
    "one_tool": "It is sunny in Lima.\n",
    "typed_answer": "name='London' country='United Kingdom'\n",
    "stream_text": "One two three",
    "two_turns": "Your name is Ana.\n",
    "database_and_user": "You have 42 euros.\n",
    "fallback": "Because of Rayleigh scattering.\n",
    "ask_a_person": "The file is deleted.\n",
    "agent_as_tool": "In 753 BC.\n",
    "thinking_and_caching": "Yes, it is prime.",
}


CALLS: dict[str, tuple[str, dict[str, str]]] = {
    "How is the weather in Lima?": ("weather", {"city": "Lima"}),
    "What is my balance?": ("balance", {}),
    "Delete notes.txt": ("delete", {"path": "notes.txt"}),
    "When was Rome founded?": ("ask_historian", {"request": "Rome?"}),
}
ANSWERS = {
    "Sunny in Lima": "It is sunny in Lima.",
    "42": "You have 42 euros.",
    "notes.txt is deleted": "The file is deleted.",
    "Rome?": "In 753 BC.",
    "In 753 BC.": "In 753 BC.",
    "Where were the Olympics in 2012?": '{"name": "London", "country": "United Kingdom"}',
    "Count to three.": "One two three",
    "What is my name?": "Your name is Ana.",
    "Is 2^31 - 1 prime?": "Yes, it is prime.",
}
REQUIRED = {"What is my balance?": "Help Ana.", "What is my name?": "My name is Ana."}
"""What the prompt must contain besides the question."""


def respond(request: ModelRequest) -> Reply:
    """Answer as a model would that knows the ten tasks."""
    asked = request.results[-1] if request.results else request.text
    if REQUIRED.get(asked, "") not in str(request.body):
        return Reply("I do not know.")
    if asked in CALLS:
        return Reply(calls=(CALLS[asked],))
    return Reply(ANSWERS.get(asked, "Because of Rayleigh scattering."))


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with run_model_server(respond) as server:
        yield server


def run_task(name: str, server: ModelServer, folder: Path, **settings: str) -> str:
    kept = {key: value for key, value in os.environ.items() if not key.endswith(("_API_KEY", "_BASE_URL"))}
    env = {**kept, **server.settings, **settings, "PYTHONWARNINGS": "error"}
    path = str(FOLDER / f"{name}.py")
    if name != "ask_a_person":
        done = fork_server.run(path, cwd=folder, env=env, timeout=TIMEOUT)
    else:
        command = [sys.executable, path]
        done = subprocess.run(
            command, cwd=folder, env=env, input="y\n", capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_task_runs_as_it_is(name: str, server: ModelServer, tmp_path: Path) -> None:
    before = len(server.requests)
    printed = run_task(name, server, tmp_path)
    assert printed.endswith(PRINTED[name]) if name != "thinking_and_caching" else printed.startswith(PRINTED[name])
    body = server.requests[before].body
    if name == "ask_a_person":
        assert "notes.txt" in printed and "(y/n)" in printed
    if name == "thinking_and_caching":
        assert "thinking" in body and "'ttl': '1h'" in str(body)


def test_task_with_a_second_vendor_uses_it(server: ModelServer, tmp_path: Path) -> None:
    before = len(server.requests)
    printed = run_task("fallback", server, tmp_path, OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    assert printed == PRINTED["fallback"] and server.requests[before].path == "/v1/messages"


def test_ten_tasks_take_few_lines() -> None:
    scripts = sorted(FOLDER.glob("*.py"))
    assert [script.stem for script in scripts] == sorted(PRINTED)
    lines = [line for script in scripts for line in script.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= MAX_LINES
