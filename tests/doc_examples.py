"""Code blocks of the documentation, copied from files that the tests run. `make texts` writes them into the pages.

A page shows a file between `<!-- example: docs/examples/weather.py -->` and `<!-- end of example -->`. Paths are
relative to the root of the repository.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".txt": 'text title="Output"'}
BLOCK = re.compile(r"^<!-- example: (\S+) -->\n.*?^<!-- end of example -->$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted((ROOT / "docs").rglob("*.md"))


def filled(page: str) -> str:
    """Return the page with each example block as its file is now."""
    return BLOCK.sub(lambda block: _block(block[1]), page)


def _block(name: str) -> str:
    path = ROOT / name
    text = path.read_text(encoding="utf-8").removesuffix("\n")
    return f"<!-- example: {name} -->\n```{FENCES[path.suffix]}\n{text}\n```\n<!-- end of example -->"


if __name__ == "__main__":
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
