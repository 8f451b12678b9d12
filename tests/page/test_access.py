"""Everybody can use the page: what axe finds in every view, in both colours, and where the focus is."""

import json
from collections.abc import Generator
from typing import Any

import pytest
from browser import HERE, House, Tab, tabs
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow
AXE = HERE.parent.parent / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("approvals", "agents", "jobs", "audit", "runs", "usage")
WORDS = "# Title\n\nSome **bold** words, `code` and a [link](https://example.org).\n\n| a | b |\n|-|-|\n| 1 | 2 |\n\n"
CODE = "```python\nx = 1  # one\n```\n\n> quoted\n\n- [x] done\n- [ ] to do"
LOOK = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.id}: ${each.nodes.map((node) => `${node.target} ${node.failureSummary}`).join(" | ")}`);
}"""


class Look:
    """Looks at what is shown, and remembers what is seriously wrong with it."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.wrong: dict[str, list[str]] = {}

    def __call__(self, where: str) -> None:
        page = self.tab.page
        page.wait_for_timeout(350)  # what moves in has come to rest
        if not page.evaluate("'axe' in window"):
            page.evaluate(AXE.read_text(encoding="utf-8"))
        if found := page.evaluate(LOOK):
            self.wrong[where] = found


def worked(tab: Tab) -> None:
    """Turns that leave something to see everywhere: words, calls that went well and badly, a picture, a question."""
    calls: list[Any] = [
        ["call", "look_up", {"city": "Oslo"}],
        ["call", "break_down", {}],
        ["call", "draw", {"title": "Sales"}],
    ]
    tab.say(json.dumps([[["think", "hm"], ["say", WORDS + CODE], *calls], [["say", "Clear."]]]))
    tab.shows("Clear.")
    tab.quiet()
    for each in tab.page.locator(".tool > button, .thinking > button").all():
        each.click()
    tab.say(json.dumps([[["say", "Half"], ["fail", "the key is not valid"]]]))
    tab.page.locator(".failed").wait_for()
    tab.say(json.dumps([[["call", "run_command", {"command": "ls\u202e -l"}]]]))
    tab.page.locator(".approval").wait_for()


@pytest.fixture(params=["light", "dark"])
def coloured(request: pytest.FixtureRequest, browser: Browser, house: House) -> Generator[Tab]:
    tab = next(tabs(browser, house, color_scheme=request.param)).open()
    yield tab
    assert tab.errors == []
    tab.context.close()


@pytest.mark.timeout(180)
def test_axe_finds_nothing_serious_in_any_view(coloured: Tab) -> None:
    tab, look = coloured, Look(coloured)
    look("welcome")
    worked(tab)
    look("chat")
    tab.page.get_by_role("button", name="Deny with a reason").click()
    look("deny")
    tab.page.get_by_role("button", name="Back").click()
    tab.page.get_by_role("button", name="Edit", exact=True).click()
    look("edit")
    tab.page.get_by_role("button", name="Enlarge").click()
    look("a picture")
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("button", name="Try again").first.click()
    look("the menu")
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_placeholder("Search in names and messages").fill("clear")
    tab.page.locator(".hit").first.wait_for()
    look("search")
    tab.page.keyboard.press("Escape")
    for view in VIEWS:
        tab.page.locator(f".places a[href='/{view}']").click()
        tab.page.locator(".view h1").wait_for()
        look(view)
        opened(tab, view, look)
    assert look.wrong == {}


def test_axe_finds_nothing_serious_in_a_form(coloured: Tab) -> None:
    look = Look(coloured)
    coloured.say(json.dumps([[["call", "order", {"what": "tea"}]]]))
    coloured.page.get_by_label("Count").fill("11")
    look("a form")
    assert look.wrong == {}


def opened(tab: Tab, view: str, look: Look) -> None:
    """What opens in a view."""
    if view == "agents":
        tab.page.locator("tr", has_text="run_command").locator("button").click()
        expect(tab.page.locator(".ant-drawer-open")).to_contain_text('"command"')
    elif view == "audit":
        tab.page.locator("tbody tr.ant-table-row").first.click()
        tab.page.get_by_text("The turn behind this line").wait_for()
    elif view == "runs":
        tab.page.locator("tbody a").first.click()
        tab.page.locator(".timeline li").first.wait_for()
    else:
        return
    look(f"{view}, opened")
    if view == "agents":
        tab.page.keyboard.press("Escape")


BOXES = ".ant-sender, .ant-select, .ant-input-affix-wrapper, .ant-segmented-item, .ant-radio-wrapper"
FOCUS = """(boxes) => {
  const each = document.activeElement;
  if (!each || each === document.body) return "";
  const marked = [each, each.closest(boxes) ?? each].map((seen) => getComputedStyle(seen))
    .some((seen) => (seen.outlineStyle !== "none" && parseFloat(seen.outlineWidth) > 0) || seen.boxShadow !== "none");
  const said = each.getAttribute("aria-label") || each.textContent.trim() || each.placeholder;
  const name = said || each.labels?.[0]?.textContent || each.title;
  return `${marked ? "" : "UNMARKED "}${each.tagName} ${name.slice(0, 60)}`;
}"""


def walked(tab: Tab, most: int = 90) -> list[str]:
    """All that the tab key comes by, from the top of the page until it begins anew."""
    tab.page.locator(".skip").focus()
    seen: list[str] = []
    for _ in range(most):
        tab.page.keyboard.press("Tab")
        found = tab.page.evaluate(FOCUS, BOXES)
        if not found or (seen and found == seen[0] and len(seen) > 5):
            break
        seen.append(found)
    return seen


def test_the_tab_key_comes_by_everything_and_shows_where_it_is(tab: Tab) -> None:
    tab.say(json.dumps([[["call", "draw", {"title": "x"}]], [["say", "```python\nx = 1\n```"]]]))
    tab.shows("x = 1")
    tab.quiet()
    seen = walked(tab)
    assert [each for each in seen if each.startswith("UNMARKED")] == []
    wanted = (
        "New chat",
        "Approvals",
        "Edit and send again",
        "Fork from here",
        "Enlarge: Picture",
        "Copy code",
        "Try again",
    )
    for name in (*wanted, "Timeline of this turn", "Add a picture or a file", "Agent", "More for this session"):
        assert any(name in each for each in seen), (name, seen)
    for view in VIEWS:
        tab.page.locator(f".places a[href='/{view}']").click()
        tab.page.locator(".view h1").wait_for()
        tab.page.wait_for_timeout(200)
        assert [each for each in walked(tab) if each.startswith("UNMARKED")] == [], view


def test_the_focus_comes_back_when_something_closes(tab: Tab) -> None:
    tab.say("hello")
    tab.shows("You said: hello")
    tab.quiet()
    opens = (
        tab.page.get_by_role("button", name="Try again"),
        tab.page.get_by_role("button", name="More for this session"),
        tab.page.get_by_role("button", name="Search").first,
    )
    for button in opens:
        button.focus()
        tab.page.keyboard.press("Enter")
        tab.page.locator(".ant-dropdown:not(.ant-dropdown-hidden), .ant-modal").first.wait_for()
        tab.page.wait_for_timeout(400)
        tab.page.keyboard.press("Escape")
        expect(button).to_be_focused()
    tab.page.locator(".places a[href='/agents']").click()
    button = tab.page.locator("tr", has_text="run_command").locator("button")
    button.focus()
    tab.page.keyboard.press("Enter")
    tab.page.locator(".ant-drawer-open").wait_for()
    tab.page.wait_for_timeout(400)
    tab.page.keyboard.press("Escape")
    expect(button).to_be_focused()
