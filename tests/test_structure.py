"""The structure of the code stays within its bars: few modules, no cycles, short paths through the code."""

import ast
from pathlib import Path

import pytest

import structure

ROOT = Path(__file__).parent.parent
_PUBLIC = {"_exit", "_asdict", "_make", "_lib"}
"""Documented names of `os` and of named tuples, and the module of sandlock that calls its library."""


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
        for name, nodes in structure.sources_of(ROOT).nodes.items()
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "function"
    ]
    assert sorted(callers) == ["atlas_agents.tools.execute", "atlas_agents.tools.tool"]


def test_private_names_are_used_only_in_their_module() -> None:
    assert [use for module, nodes in structure.sources_of(ROOT).nodes.items() for use in _foreign(module, nodes)] == []


def _foreign(module: str, nodes: list[ast.AST]) -> list[str]:
    """Return the uses of private names that a module imports, or reads from an object, and does not define itself."""
    own, used = set[str](), list[tuple[str, int]]()
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name("self" | "cls"), name):
                own.add(name)
            case ast.Attribute(_, name):
                used.append((name, node.lineno))
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name) | ast.Name(name):
                own.add(name)
            case ast.ImportFrom(_, names):
                used += [(each.name, node.lineno) for each in names]
            case _:
                pass
    private = [(name, line) for name, line in used if name.startswith("_") and not name.endswith("_")]
    return [f"{module}:{line}: {name}" for name, line in private if name not in own | _PUBLIC]


@pytest.mark.slow
def test_turns_cross_few_files() -> None:
    crossed = structure.traced(ROOT)
    assert len(crossed["chat"]) <= 45, crossed["chat"]
    assert len(crossed["ask"]) <= 30, crossed["ask"]
