"""`atlas agents` and `atlas policy`: the same edits as in the page."""

import json

import pytest
from atlas_command import Home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_agents_are_created_changed_and_removed(bare: Home) -> None:
    made = bare.run("agents", "put", "cleo", "--model", "demo", "--tool", "current_time", "--role", "finance")
    assert made.returncode == 0, made.stderr
    assert "+## cleo" in made.stdout and made.stderr.endswith("cleo: saved. New chats use it now.\n")
    tried = bare.run("agents", "put", "cleo", "--description", "Counts.", "--dry-run")
    assert "+Description: Counts." in tried.stdout and tried.stderr.endswith("Nothing was changed.\n")
    shown = json.loads(bare.run("agents", "show", "cleo", "--json").stdout)
    assert shown["draft"] == {"id": "cleo", "model": "demo", "tools": ["current_time"], "role": "finance"}
    assert bare.run("agents", "put", "cleo", "--fallback", "ollama/qwen3", "--hand-off", "assistant").returncode == 0
    assert bare.run("agents", "put", "cleo", "--description", "Counts.").returncode == 0
    changed = json.loads(bare.run("agents", "show", "cleo", "--json").stdout)["draft"]
    lists = {"tools": ["current_time"], "fallbacks": ["ollama/qwen3"], "handsOffTo": ["assistant"]}
    assert changed == shown["draft"] | {"description": "Counts."} | lists
    emptied = bare.run("agents", "put", "cleo", "--tool", "none", "--fallback", "none", "--hand-off", "none")
    assert emptied.returncode == 0, emptied.stderr
    assert not lists.keys() & json.loads(bare.run("agents", "show", "cleo", "--json").stdout)["draft"].keys() - {
        "tools"
    }
    assert bare.run("agents", "try", "cleo", "Hello").stdout
    assert "cleo" in bare.run("agents").stdout
    assert "unknown tool 'no_such'" in bare.run("agents", "put", "cleo", "--tool", "no_such").stderr
    assert bare.run("agents", "remove", "cleo", "--yes").stderr.endswith("cleo: removed.\n")
    assert "cleo" not in bare.run("agents").stdout
    assert "unknown agent 'cleo'; agents: assistant" in bare.run("agents", "show", "cleo").stderr


def test_permission_is_changed_after_its_effect_was_shown(bare: Home) -> None:
    changed = bare.run("policy", "set", "file_write", "assistant", "no")
    assert changed.returncode == 0, changed.stderr
    assert "Of 0 calls in the last 7 days" in changed.stderr and '+no = ["assistant"]' in changed.stdout
    lines = [line.split() for line in bare.run("policy").stdout.splitlines()]
    assert ["file_write", "ask", "no"] in lines and ["bash", "yes", ".yes"] in lines
    refused = bare.run("policy", "set", "file_write", "assistant", "yes")
    assert refused.returncode != 0 and "This allows assistant more than now" in refused.stderr
    assert bare.run("policy", "set", "file_write", "assistant", "inherit", "--yes").returncode == 0
    assert bare.run("policy", "set", "file_write", "assistant", "maybe").returncode == 2
