"""Makes the pictures of the page for README and docs: `python tests/page/pictures.py [FOLDER]`."""

import sys
import tempfile
from pathlib import Path

from browser import HERE, House, Tab, launched, living, tabs
from playwright.sync_api import Browser

FOLDER = HERE.parent.parent / "docs" / "images"
PHONE = {"viewport": {"width": 390, "height": 780}, "device_scale_factor": 1.5, "has_touch": True, "is_mobile": True}
SESSIONS = ("What does the policy say about refunds?", "Plan the release", "Clean up the old builds")


FONTS = """\
<?xml version="1.0"?>
<fontconfig>
  <dir>/usr/share/fonts/truetype/liberation</dir>
  <dir>/usr/share/fonts/truetype/dejavu</dir>
  <cachedir>{cache}</cachedir>
  <match><edit name="family" mode="append_last"><string>Liberation Sans</string></edit></match>
  <alias><family>sans-serif</family><prefer><family>Liberation Sans</family></prefer></alias>
  <alias><family>ui-monospace</family><prefer><family>Liberation Mono</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>Liberation Mono</family></prefer></alias>
</fontconfig>
"""
"""The fonts that come with Chromium: a picture does not depend on what else somebody has put on their machine."""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="atlas-") as home,
        launched(**fonts(Path(home))) as browser,
        living(Path(home), HERE / "picture_process.py") as house,
    ):
        fill(browser, house, folder)
        for look in ("light", "dark"):
            views(next(tabs(browser, house, color_scheme=look)), folder, look)
        on_phone(browser, house, folder)


def fonts(folder: Path) -> dict[str, str]:
    """Where the browser looks for fonts; where those that come with it are elsewhere, it looks where it always does."""
    if not Path("/usr/share/fonts/truetype/liberation").is_dir():
        return {}
    (folder / "fonts.conf").write_text(FONTS.format(cache=folder / "fonts"))
    return {"FONTCONFIG_FILE": str(folder / "fonts.conf")}


def fill(browser: Browser, house: House, folder: Path) -> None:
    """A few sessions: some answered, some that wait for a person."""
    tab = next(tabs(browser, house, color_scheme="light")).open()
    tab.page.locator(".ideas").wait_for()
    shoot(tab, folder / "welcome.png")
    for words in SESSIONS:
        tab.page.get_by_role("button", name="New chat").first.click()
        tab.say(words)
        tab.page.locator(".answer .foot, .approval").first.wait_for(state="attached")
    tab.page.get_by_role("button", name="New chat").first.click()
    tab.say("Send the weekly report to the team")
    tab.page.locator(".approval").wait_for()
    tab.page.get_by_role("button", name="New chat").first.click()
    tab.say("How did orders do this month?")
    tab.shows("Shall I draft")
    tab.quiet()
    tab.page.context.close()


def views(tab: Tab, folder: Path, look: str) -> None:
    tab.open()
    tab.page.get_by_text("How did orders do this month?").first.click()
    tab.shows("Shall I draft")
    tab.page.wait_for_timeout(600)
    tab.page.mouse.move(0, 0)
    shoot(tab, folder / f"chat-{look}.png")
    tab.page.get_by_text("Send the weekly report").first.click()
    tab.page.locator(".approval").wait_for()
    shoot(tab, folder / f"question-{look}.png")
    for view in ("approvals", "agents", "jobs", "audit", "usage"):
        tab.page.locator(f"a[href='/{view}']").first.click()
        tab.page.locator(".view h1").wait_for()
        tab.page.wait_for_timeout(700)
        shoot(tab, folder / f"{view}-{look}.png")
    tab.page.locator("a[href='/runs']").first.click()
    tab.page.locator("tr", has_text="How did orders do").first.click()
    tab.page.locator(".timeline li").first.wait_for()
    shoot(tab, folder / f"run-{look}.png")
    tab.page.context.close()


def on_phone(browser: Browser, house: House, folder: Path) -> None:
    tab = next(tabs(browser, house, color_scheme="light", **PHONE)).open()
    tab.page.get_by_role("button", name="Menu").click()
    tab.page.wait_for_timeout(500)
    shoot(tab, folder / "phone-menu.png")
    tab.page.locator(".ant-drawer .session", has_text="Send the weekly report").click()
    tab.page.locator(".approval").wait_for()
    tab.page.wait_for_timeout(500)
    shoot(tab, folder / "phone-question.png")
    tab.page.get_by_role("button", name="Menu").click()
    tab.page.locator(".ant-drawer .session", has_text="How did orders do").click()
    tab.shows("Shall I draft")
    tab.page.wait_for_timeout(500)
    shoot(tab, folder / "phone-chat.png")


def shoot(tab: Tab, path: Path) -> None:
    assert tab.errors == [], tab.errors
    tab.page.mouse.move(640, 798)  # nothing looks as if it were pointed at
    tab.page.wait_for_timeout(300)
    tab.page.screenshot(path=path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
