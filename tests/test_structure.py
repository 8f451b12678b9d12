"""The structure of the code stays within its bars: few modules, no cycles, short paths through the code."""

import ast
from pathlib import Path

import pytest

import structure

ROOT = Path(__file__).parent.parent


def test_modules_and_imports_stay_within_their_bars() -> None:
    assert len(structure.sources_of(ROOT).product_modules) <= 260
    assert structure.sources_of(ROOT).import_lines / structure.sources_of(ROOT).lines <= 0.06


def test_no_import_cycle() -> None:
    assert structure.sources_of(ROOT).cycles == []


def test_no_layer_is_evaded_by_a_module_name_in_a_string() -> None:
    assert structure.sources_of(ROOT).evasions == []


def test_tool_functions_are_called_in_one_place_only() -> None:
    """A call anywhere else would bypass permissions and audit. `FunctionTool.__call__` is for the developer's code."""
    callers = [
        name
        for name, tree in structure.sources_of(ROOT).trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "function"
    ]
    assert sorted(callers) == ["atlas_agents.tools.execute", "atlas_agents.tools.tool"]


@pytest.mark.slow
def test_turns_cross_few_files() -> None:
    crossed = structure.traced(ROOT)
    assert len(crossed["chat"]) <= 45, crossed["chat"]
    assert len(crossed["ask"]) <= 30, crossed["ask"]
