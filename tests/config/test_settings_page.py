"""The settings table of the docs matches the settings."""

from atlas_agents.config import SETTINGS
from settings_table import PAGE, filled


def test_settings_table_of_the_docs_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run make texts"
    assert [key for key in SETTINGS if page.count(f"| `{key}` |") + page.count(f"| (`{key}`) |") != 1] == []
