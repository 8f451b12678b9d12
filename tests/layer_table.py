"""The layer table of CONTRIBUTING.md, generated from the import contracts in pyproject.toml (`make texts`)."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
_BLOCK = re.compile(r"(<!-- layers: .*? -->\n).*?(<!-- end of layers -->)", re.DOTALL)


def filled(page: str) -> str:
    """Return the page with the table and the rules as the contracts have them now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, Any]] = project["tool"]["importlinter"]["contracts"]
    lines = [*_table(contracts[0]["layers"]), "", *(_rule(contract) for contract in contracts[1:])]
    return _BLOCK.sub(lambda block: f"{block[1]}\n" + "\n".join(lines) + f"\n\n{block[2]}", page)


def _table(layers: list[str]) -> list[str]:
    rows = [
        f"| {len(layers) - at} | `{name.strip()}` | {_purpose(name.strip())} |"
        for at, layer in enumerate(layers)
        for name in layer.split("|")
    ]
    return ["| layer | package | contents |", "|---|---|---|", *rows]


def _purpose(name: str) -> str:
    """The first sentence of the package's docstring."""
    folder = ROOT / "src/atlas_agents"
    package = folder / name / "__init__.py"
    module = package if package.exists() else folder / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", " ".join(docstring.partition("\n\n")[0].split()))[0]


def _rule(contract: dict[str, Any]) -> str:
    sources, forbidden = (_names(contract[key]) for key in ("source_modules", "forbidden_modules"))
    return f"- {contract['name']}: {sources} must not import {forbidden}, directly or through others."


def _names(modules: list[str]) -> str:
    names = [f"`{module.removeprefix('atlas_agents.')}`" for module in modules]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
