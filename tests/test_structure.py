"""Structure of the code: no import cycle, no evaded layer, one caller of tool functions, private names stay private."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter

import structure

_PUBLIC = {"_exit", "_asdict", "_make", "_lib"}
"""Documented names of `os` and of named tuples, and the module of sandlock that calls its library."""


def test_no_import_cycle() -> None:
    """Imports inside functions count, those for type checkers do not."""
    imports = {module: set(_imported(tree)) - {module} for module, tree in structure.trees().items()}
    assert sum(map(len, imports.values())) > len(imports)
    TopologicalSorter(imports).prepare()


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the package that a module imports."""
    modules = structure.trees().keys()
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from inner & modules
            if inner - modules:
                yield str(node.module)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a module, in functions and classes too, but those for type checkers only."""
    pending = [tree]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                continue
            if not isinstance(node, ast.expr):  # an expression contains no statement
                yield node
                pending.append(node)


def test_no_layer_is_evaded_by_a_module_name_in_a_string() -> None:
    project = tomllib.loads((structure.PACKAGE.parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    layers: list[str] = project["tool"]["importlinter"]["contracts"][0]["layers"]
    height = {name.strip(): at for at, layer in enumerate(reversed(layers)) for name in layer.split("|")}
    evasions = [
        f"{module} names {node.value}"
        for module, nodes in structure.nodes().items()
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (target := re.fullmatch(r"atlas_agents\.(\w+)(\.\w+)*", node.value)) and target[1] in height
        if (own := module.partition(".")[2].partition(".")[0]) in height
        if own != target[1] and height[target[1]] >= height[own]
    ]
    assert evasions == []


def test_class_name_is_defined_once() -> None:
    """A name that begins with _ is a module's own."""
    names = Counter(
        node.name for tree in structure.trees().values() for node in tree.body if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1 and not name.startswith("_")] == []


def test_tool_functions_are_called_in_one_place_only() -> None:
    """A call anywhere else would bypass permissions and audit. `FunctionTool.__call__` is for the developer's code."""
    callers = [
        name
        for name, nodes in structure.nodes().items()
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "function"
    ]
    assert sorted(callers) == ["atlas_agents.tools.execute", "atlas_agents.tools.tool"]


def test_private_names_are_used_only_in_their_module() -> None:
    assert [use for module, nodes in structure.nodes().items() for use in _foreign(module, nodes)] == []


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
