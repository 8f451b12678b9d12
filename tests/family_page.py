"""The table of docs/reference/model-families.md, generated from tests/vendors/test_model_families.py (`make texts`)."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/reference/model-families.md"
TESTS = "tests/vendors/test_model_families.py"
_BLOCK = re.compile(r"(<!-- families -->\n).*?(<!-- end of families -->)", re.DOTALL)
_LINK = f"https://github.com/atlas-agents/atlas-agents/blob/main/{TESTS}"
"""Of every test; the case of a cell is `test[family]`."""


def filled(page: str, families: Iterable[Any], columns: Mapping[str, Callable[..., Any]]) -> str:
    """Return the page with its tables as the tests are now."""
    lines = [f"| family | tried as | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    notes: list[str] = []
    for family in families:
        cells: list[str] = []
        for name in columns:
            text, note = ("no", family.missing[name]) if name in family.missing else ("yes", family.notes.get(name))
            if note:
                if note not in notes:
                    notes.append(note)
                text = f"{text} ({notes.index(note) + 1})"
            cells.append(text)
        lines.append(f"| {family.name} | `{family.model}` | {' | '.join(cells)} |")
    lines += ["", *(f"{number}. {note[0].upper()}{note[1:]}." for number, note in enumerate(notes, 1))]
    lines += ["", "| column | what is tested | test |", "|---|---|---|"]
    lines += [
        f"| {name} | {' '.join((test.__doc__ or '').split())} | [`{test.__name__}`]({_LINK}) |"
        for name, test in columns.items()
    ]
    return _BLOCK.sub(lambda block: f"{block[1]}\n" + "\n".join(lines) + f"\n\n{block[2]}", page)


if __name__ == "__main__":
    from vendors.test_model_families import COLUMNS, FAMILIES

    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), FAMILIES.values(), COLUMNS), encoding="utf-8")
