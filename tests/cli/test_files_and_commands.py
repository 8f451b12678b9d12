"""File changes and shell commands that a user approves, denies and stops in a terminal."""

import json
import re
import secrets
from collections.abc import Generator
from pathlib import Path

import pytest
from atlas_command import CTRL_C, ENTER, Home, eventually

from checks import is_running
from model_server import ModelRequest, ModelServer, Reply, run_model_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
AGENTS = "# Agents\n\n## assistant\n\nModel: http/rules-1\nDescription: Works.\n"


def follow_instruction(asked: ModelRequest) -> Reply:
    """A model that makes the call in the message, and repeats its result."""
    if asked.results:
        return Reply(f"It came out: {asked.results[0]}")
    found = re.fullmatch(r"(\w+) (\{.*\})", asked.text)
    return Reply(calls=((found[1], json.loads(found[2])),)) if found else Reply("?")


@pytest.fixture
def server() -> Generator[ModelServer]:
    with run_model_server(follow_instruction) as model:
        yield model


@pytest.fixture
def home(tmp_path: Path, server: ModelServer) -> Home:
    """A home without a policy."""
    made = Home(tmp_path, {"OPENAI_BASE_URL": server.url})
    made.path.mkdir(mode=0o700)
    workspace(made).mkdir()
    (workspace(made) / "AGENTS.md").write_text(AGENTS)
    return made


def workspace(home: Home) -> Path:
    return home.path / "workspace"


def test_file_change_is_shown_before_it_is_made(home: Home) -> None:
    (workspace(home) / "tea.txt").write_text("green\nblack\n")
    with home.terminal("chat") as person:
        person.expect(r"\n>$")
        person.type('file_edit {"path": "tea.txt", "old": "black", "new": "white"}' + ENTER)
        person.expect(
            r"\? Confirm execution of file_edit\n"
            r"  path = \"tea\.txt\"\n  old = \"black\"\n  new = \"white\"\n"
            r"  │ --- tea\.txt\n  │ \+\+\+ tea\.txt\n  │ @@ -1,2 \+1,2 @@\n  │  green\n  │ -black\n  │ \+white\n"
            r"(.|\n)*or no\?$"
        )
        assert (workspace(home) / "tea.txt").read_text() == "green\nblack\n"
        person.type("once" + ENTER)
        person.expect(r"✓ file_edit: changed 1 place in tea\.txt, line 2(.|\n)*\n>$")
        assert (workspace(home) / "tea.txt").read_text() == "green\nwhite\n"
        person.type('file_write {"path": "AGENTS.md", "content": "mine"}' + ENTER)
        person.expect(r"│ AGENTS\.md \w.*\n(.|\n)*or no\?$")
        person.type("no" + ENTER)
        person.expect(r"✗ file_write: declined(.|\n)*\n>$")
        assert (workspace(home) / "AGENTS.md").read_text() == AGENTS


def test_command_can_be_approved_denied_and_stopped(home: Home) -> None:
    command = f"sleep 60.{secrets.randbelow(10**9):09}"
    with home.terminal("chat") as person:
        person.expect(r"\n>$")
        person.type('bash {"command": "echo hello | tr a-z A-Z > greeting; cat greeting"}' + ENTER)
        person.expect(r"│ Sandbox: \w+ \(no network(.|\n)*│ Shell: /(.|\n)*or no\?$")
        person.type("once" + ENTER)
        person.expect(r"✓ bash: HELLO \[exit code 0(.|\n)*\n>$")
        assert (workspace(home) / "greeting").read_text() == "HELLO\n"

        person.type('bash {"command": "rm greeting"}' + ENTER)
        person.expect(r"or no\?$", after="rm greeting")
        person.type("no" + ENTER)
        person.expect(r"✗ bash: declined(.|\n)*\n>$", after="rm greeting")
        assert (workspace(home) / "greeting").exists()

        person.type(json.dumps({"command": f"touch begun; {command} & {command}"}).join(["bash ", ENTER]))
        person.expect(r"or no\?$", after="touch begun")
        person.type("once" + ENTER)
        eventually(lambda: (workspace(home) / "begun").exists())
        person.type(CTRL_C)
        person.expect(r"stopped(.|\n)*\n>$", after="touch begun")
        eventually(lambda: not is_running(command), 3)


def test_call_without_a_user_to_approve_it_is_not_made(home: Home) -> None:
    done = home.run("ask", 'bash {"command": "touch made"}')
    assert "needs approval; use atlas chat, or pass --yes-to bash" in done.stderr
    listed = home.run("ask", 'file_list {"path": "."}')
    assert "AGENTS.md" in listed.stdout
    assert not (workspace(home) / "made").exists()
