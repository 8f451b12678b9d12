"""The modules of the package, parsed once for all tests of a process: parsing them takes seconds."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src/atlas_agents"


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module, by its dotted name."""
    return {_name(file): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}


def _name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """All nodes of each module. To walk through the trees takes longer than to look at each node."""
    return {name: list(ast.walk(tree)) for name, tree in trees().items()}
