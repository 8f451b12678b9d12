"""The glossary names classes, functions and modules that exist, and lists each term once."""

import ast
import re
from pathlib import Path

import structure

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/design/glossary.md").read_text(encoding="utf-8")
ROWS = [
    (row[1], re.findall(r"`([^`]+)`", row[2]))
    for row in re.finditer(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE)
    if row[1] != "term"
]


def defined() -> set[str]:
    """Names of modules (`gateway.protocol`), classes, functions, constants and attributes (`Tool.effect`)."""
    names: set[str] = set()
    for module, tree in structure.trees().items():
        names.add(module.removeprefix("atlas_agents").removeprefix("."))
        names |= _names(tree)
        for node in structure.nodes()[module]:
            if isinstance(node, ast.ClassDef):
                attributes = _names(node) | _assigned_to_self(node)
                names |= attributes | {f"{node.name}.{name}" for name in attributes}
    return names


def _names(body: ast.Module | ast.ClassDef) -> set[str]:
    found: set[str] = set()
    for node in body.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case _:
                pass
    return found


def _assigned_to_self(body: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
    }


def test_each_term_is_listed_once_with_a_name_from_the_code() -> None:
    terms = [term for term, _ in ROWS]
    assert len(terms) > 50
    assert [term for term in terms if terms.count(term) > 1] == []
    assert [term for term, names in ROWS if not names] == []


def test_the_names_of_every_term_exist() -> None:
    known = defined()
    assert [(term, name) for term, names in ROWS for name in names if name not in known] == []
