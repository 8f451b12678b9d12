"""The settings table of docs/reference/configuration.md, generated from the settings (`make texts`)."""

import re
from pathlib import Path

from atlas_agents.config import SETTINGS, Setting

PAGE = Path(__file__).parent.parent / "docs/reference/configuration.md"
_BLOCK = re.compile(r"(<!-- settings: .*? -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def filled(page: str) -> str:
    """Return the page with the table as the settings are now."""
    rows = [_row(setting) for setting in SETTINGS.values()]
    table = ["| key | variable | value | default | description |", "|---|---|---|---|---|", *rows]
    return _BLOCK.sub(lambda block: f"{block[1]}\n" + "\n".join(table) + f"\n\n{block[2]}", page)


def _row(setting: Setting) -> str:
    name = f"`{setting.key}`" if setting.in_files and setting.hides != "all" else f"(`{setting.key}`)"
    default = f"`{setting.default}`" if setting.default and " " not in setting.default else setting.default
    return f"| {name} | `{setting.variable}` | {setting.takes} | {default} | {setting.description} |"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
