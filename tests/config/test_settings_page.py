"""The page of the settings names all of them, as they are."""

from atlas_agents.config import SETTINGS
from settings_table import PAGE, filled


def test_the_page_shows_the_settings_that_there_are() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "say make texts"
    assert [key for key in SETTINGS if page.count(f"| `{key}` |") + page.count(f"| (`{key}`) |") != 1] == []
