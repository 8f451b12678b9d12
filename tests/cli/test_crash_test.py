"""`atlas test crash`: the fault simulator for the user's own agent, from the command line."""

import json

import pytest
from atlas_command import Home

from atlas_agents.cli.crash_test import example_value

SHOP = '''\
from pathlib import Path
from pathlib import Path
from typing import Literal

from atlas_agents import Agent, ToolContext, tool
from atlas_agents.testing import Scripted, Simulation, calls, says


@tool
def mail(to: str, kind: Literal["letter", "card"], copies: int = 1) -> str:
    """Send a mail."""
    with Path("mailed").open("a") as file:
        file.write(to)
    return "sent"


@tool(effect="keyed")
async def charge(amount: int) -> str:
    """Charge the card."""
    return "charged"


shop = Agent("shop", model="openai/gpt-5.2", tools=[mail, charge])
only_charge = Scripted(calls("charge", amount=5), says("Done."))


def make_shop() -> Agent:
    return shop


def careless(simulation: Simulation) -> Agent:
    @tool(effect="keyed")
    async def pay() -> str:
        """Pay."""
        simulation.ledger.record("payment")
        return "paid"

    return Agent("shop", model="openai/gpt-5.2", tools=[pay])
'''


@pytest.fixture
def shop(bare: Home) -> Home:
    (bare.folder / "shop.py").write_text(SHOP)
    return bare


def test_agent_without_faults_in_its_tools_passes_and_no_tool_runs(shop: Home) -> None:
    done = shop.run("test", "crash", "./shop.py:shop", "--seeds", "5")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["EFFECT", "HAPPENED", "LOST", "REPEATED", "UNKNOWN"]
    assert [row[0] for row in rows[1:]] == ["charge", "mail"] and rows[1][2:] == ["0", "0", "0"]
    assert "nothing was lost or repeated" in done.stderr
    assert not (shop.folder / "mailed").exists()
    strict = shop.run("test", "crash", "./shop.py:make_shop", "--seeds", "0", "--strict")
    assert strict.returncode == 1 and "unknown: mail" in strict.stderr


def test_tools_run_only_if_asked_for(shop: Home) -> None:
    done = shop.run("test", "crash", "./shop.py:shop", "--run-tools", "--only", "crash@1")
    assert done.returncode == 0, done.stderr
    assert (shop.folder / "mailed").exists()


def test_repeated_effect_is_reported_with_its_replay(shop: Home) -> None:
    done = shop.run("test", "crash", "./shop.py:careless", "--seeds", "0")
    assert done.returncode == 1 and "repeated: payment" in done.stderr
    case = done.stderr.split("--only ")[1].split()[0]
    again = shop.run("test", "crash", "./shop.py:careless", "--only", case, "--json")
    found = json.loads(again.stdout)
    assert again.returncode == 1 and not found["ok"] and found["repeated"] == 1
    assert [failure["case"] for failure in found["failures"]] == [case]


def test_script_of_the_module_and_several_messages_are_used(shop: Home) -> None:
    done = shop.run("test", "crash", "./shop.py:shop", "--script", "only_charge", "--seeds", "0", "--json")
    assert done.returncode == 0 and list(json.loads(done.stdout)["effects"]) == ["charge"]
    two = shop.run(
        "test", "crash", "./shop.py:shop", "--seeds", "0", "--message", "Buy", "--message", "Thanks", "--json"
    )
    assert two.returncode == 0 and json.loads(two.stdout)["points"] > json.loads(done.stdout)["points"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shop", "invalid target 'shop': expected package.module:name or path/to/file.py:name"),
        ("other_shop:shop", "no installed module 'other_shop'; name the file instead: ./other_shop.py:…"),
        ("nowhere.at.all:shop", "no installed module 'nowhere.at.all'; install its package, or name a .py file"),
        ("./nowhere.py:shop", "not found: file 'nowhere.py'"),
        ("./shop.py:ship", "module 'shop' has no attribute 'ship'"),
        ("./shop.py:mail", "expected an Agent, a list of agents, or a function that returns them"),
        ("./broken.py:shop", "cannot import './broken.py': RuntimeError: out of order"),
        ("./empty.py:shop", "module 'empty' has no attribute 'shop'"),
    ],
)
def test_wrong_target_is_explained_in_one_line(shop: Home, target: str, message: str) -> None:
    (shop.folder / "broken.py").write_text("raise RuntimeError('out of order')")
    (shop.folder / "empty.py").write_text("")
    (shop.folder / "other_shop.py").write_text(SHOP)
    done = shop.run("test", "crash", target)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("\n") == 1


TEAM = """\
import socket

from atlas_agents import Agent, tool
from atlas_agents.builtin_tools.team import delegate_task


@tool(effect="keyed")
async def publish(text: str) -> str:
    \"\"\"Publish a text.\"\"\"
    raise AssertionError("not run")


def calls_home(context) -> str:
    socket.create_connection(("127.0.0.1", 9))


editor = Agent("editor", model="openai/gpt-5.2", tools=[delegate_task])
writer = Agent("writer", model="openai/gpt-5.2", tools=[publish])
team = [editor, writer]
talkative = Agent("talkative", model="openai/gpt-5.2", tools=[publish], system_prompt=calls_home)
"""


def test_delegated_task_and_the_tools_of_the_other_agent_are_tested_too(shop: Home) -> None:
    (shop.folder / "newsroom.py").write_text(TEAM)
    done = shop.run("test", "crash", "./newsroom.py:team", "--seeds", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["points"] > 50 and sorted(report["effects"]) == ["delegate_task", "publish"]
    assert report["effects"]["publish"]["happened"] >= report["points"]


def test_conversation_is_stored_in_sqlite(shop: Home) -> None:
    done = shop.run("test", "crash", "./shop.py:shop", "--store", "sqlite", "--only", "crash@20", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] and report["points"] > 20 and sorted(report["effects"]) == ["charge", "mail"]


def test_unknown_store_is_refused(shop: Home) -> None:
    done = shop.run("test", "crash", "./shop.py:shop", "--store", "paper")
    assert done.returncode == 2 and "unknown store 'paper': expected 'memory', 'sqlite'" in done.stderr


def test_point_that_the_conversation_does_not_have_is_refused(shop: Home) -> None:
    done = shop.run("test", "crash", "./shop.py:shop", "--only", "crash@99999")
    assert done.returncode == 2 and "unknown case 'crash@99999': the conversation has the points" in done.stderr


def test_prompt_function_reaches_no_network(shop: Home) -> None:
    (shop.folder / "newsroom.py").write_text(TEAM)
    done = shop.run("test", "crash", "./newsroom.py:talkative", "--seeds", "0")
    assert done.returncode == 2 and "fails without any fault" in done.stderr
    assert "was called during a replay or a crash test" in done.stderr


def test_module_of_the_current_folder_does_not_replace_an_installed_one(shop: Home) -> None:
    (shop.folder / "msgspec.py").write_text("raise SystemExit('run')")
    done = shop.run("test", "crash", "./shop.py:shop", "--seeds", "0", "--only", "crash@1")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "minLength": 9}, "examplexx"),
        ({"type": "string", "format": "date"}, "2026-01-31"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, 0.5),
        ({"type": ["null", "boolean"]}, True),
        ({"anyOf": [{"type": "null"}, {"enum": ["a", "b"]}]}, "a"),
        ({"type": "array", "items": {"const": 4}, "minItems": 2}, [4, 4]),
        (
            {
                "type": "object",
                "properties": {"at": {"$ref": "#/$defs/place"}, "left": {"type": "string"}},
                "required": ["at"],
                "$defs": {"place": {"type": "object", "properties": {"x": {"default": 7}}, "required": ["x"]}},
            },
            {"at": {"x": 7}},
        ),
    ],
)
def test_example_matches_its_schema(schema: dict[str, object], value: object) -> None:
    assert example_value(schema) == value
