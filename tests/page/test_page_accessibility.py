"""Accessibility: axe finds no serious violation in any view, in both themes; focus is visible and restored."""

from typing import Any

import pytest
from browser import VIEWS, Tab, script
from playwright.sync_api import expect

pytestmark = pytest.mark.slow
TEXT = "# Title\n\nSome **bold** text, `code` and a [link](https://example.org).\n\n| a | b |\n|-|-|\n| 1 | 2 |\n\n"
CODE = "```python\nx = 1  # one\n```\n\n> quoted\n\n- [x] done\n- [ ] to do"
COLOURFUL = ("chat", "edit arguments", "form", "search", "runs, details")
"""States that are checked in the dark theme as well, which changes nothing but colours."""


class AxeReport:
    """Collects the serious and critical violations of each state of the page that is checked."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.violations: dict[str, list[dict[str, str]]] = {}

    def check(self, state: str, within: str = "html") -> None:
        """Check this state, or what differs from states before, with every rule; with many colours in both themes."""
        self._check(state, within)
        if state not in COLOURFUL:
            return
        self.tab.set_system_theme("dark")
        self._check(f"{state}, dark", within, rules=["color-contrast", "link-in-text-block"])
        self.tab.set_system_theme("light")

    def _check(self, state: str, within: str, rules: list[str] | None = None) -> None:
        if found := self.tab.axe_violations(rules, within=within):
            self.violations[state] = found


def fill_chat(tab: Tab) -> None:
    """Produce text, successful and failed tool calls, an image, a failed run and a pending approval."""
    calls: list[Any] = [
        ["call", "get_weather", {"city": "Oslo"}],
        ["call", "always_fail", {}],
        ["call", "draw", {"title": "Sales"}],
    ]
    tab.send(script([["reasoning", "hm"], ["text", TEXT + CODE], *calls], [["text", "Clear."]]))
    tab.wait_for_answer("Clear.")
    tab.wait_until_idle()
    for toggle in tab.page.locator(".tool-call > button, .reasoning > button").all():
        toggle.click()
    tab.send(script([["text", "Half"], ["fail", "the key is not valid"]]))
    tab.page.locator(".failed").wait_for()
    tab.send(script([["call", "run_command", {"command": "ls\u202e -l"}]]))
    tab.page.locator(".approval").wait_for()


@pytest.mark.timeout(600)
def test_axe_finds_nothing_serious_in_any_view(tab: Tab) -> None:
    report = AxeReport(tab)
    report.check("welcome")
    fill_chat(tab)
    report.check("chat")
    tab.button("Deny…").click()
    report.check("deny", ".approval")
    tab.button("Cancel", exact=True).click()
    tab.button("Edit", exact=True).click()
    report.check("edit arguments", ".approval")
    tab.button("Enlarge").click()
    tab.page.locator("dialog[open] img").wait_for()
    report.check("image", "dialog")
    tab.page.keyboard.press("Escape")
    tab.button("Try again").first.click()
    tab.page.get_by_role("menuitem", name="With another agent").wait_for()
    report.check("menu", ".ant-dropdown")
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_placeholder("Search chats and messages").fill("clear")
    tab.page.locator(".hit").first.wait_for()
    report.check("search", ".ant-modal")
    tab.page.keyboard.press("Escape")
    for view in VIEWS:
        tab.open_view(view)
        report.check(view, "main")
        check_details(tab, view, report)
    assert report.violations == {}


def test_axe_finds_nothing_serious_in_an_elicitation_form(tab: Tab) -> None:
    report = AxeReport(tab)
    tab.send(script([["call", "order", {"what": "tea"}]]))
    tab.page.get_by_label("Count").fill("11")
    report.check("form")
    assert report.violations == {}


def check_details(tab: Tab, view: str, report: AxeReport) -> None:
    """Open and check what a view shows for one of its rows."""
    if view == "audit":
        tab.page.locator("tbody tr.ant-table-row").first.click()
        tab.page.get_by_role("link", name="View run").wait_for()
    elif view == "runs":
        tab.page.locator("tbody a").first.click()
        tab.page.locator(".timeline li").first.wait_for()
    else:
        return
    report.check(f"{view}, details", "main")


CONTROLS = ".sender, .password, .ant-select, .ant-input-affix-wrapper, .ant-segmented-item, .ant-radio-wrapper"
FOCUSED = """(controls) => {
  const element = document.activeElement;
  if (!element || element === document.body) return "";
  const visible = [element, element.closest(controls) ?? element].map((each) => getComputedStyle(each))
    .some(({ outlineStyle, outlineWidth, boxShadow }) =>
      (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none");
  const text = element.getAttribute("aria-label") || element.textContent.trim() || element.placeholder;
  const name = text || element.labels?.[0]?.textContent || element.title;
  return `${visible ? "" : "INVISIBLE "}${element.tagName} ${name.slice(0, 60)}`;
}"""


def press_tab_through(tab: Tab, limit: int = 90) -> list[str]:
    """Return the elements that the Tab key reaches, from the top of the page until it starts over."""
    tab.wait_for_animations()
    tab.page.locator(".skip-link").focus()
    reached: list[str] = []
    for _ in range(limit):
        tab.page.keyboard.press("Tab")
        element = tab.page.evaluate(FOCUSED, CONTROLS)
        if not element or (reached and element == reached[0] and len(reached) > 5):
            break
        reached.append(element)
    return reached


def test_tab_key_reaches_every_control_with_a_visible_focus(tab: Tab) -> None:
    tab.send(script([["call", "draw", {"title": "x"}]], [["text", "```python\nx = 1\n```"]]))
    tab.wait_for_answer("x = 1")
    tab.wait_until_idle()
    reached = press_tab_through(tab)
    assert [element for element in reached if element.startswith("INVISIBLE")] == []
    for name in (
        "New chat",
        "Approvals",
        "Edit message",
        "Fork from here",
        "Enlarge Image",
        "Copy code",
        "Try again",
        "View run timeline",
        "Attach files",
        "Agent",
        "Chat options",
    ):
        assert any(name in element for element in reached), (name, reached)
    for view in VIEWS:
        tab.open_view(view)
        assert [element for element in press_tab_through(tab) if element.startswith("INVISIBLE")] == [], view


def test_focus_returns_to_the_button_when_its_menu_or_dialog_closes(tab: Tab) -> None:
    tab.send("hello")
    tab.wait_for_answer("You wrote: hello")
    tab.wait_until_idle()
    for button in (tab.button("Try again"), tab.button("Chat options"), tab.button("Search").first):
        button.focus()
        tab.page.keyboard.press("Enter")
        tab.page.locator(".ant-dropdown:not(.ant-dropdown-hidden), .ant-modal").first.wait_for()
        expect(button).not_to_be_focused()
        tab.wait_for_animations()
        tab.page.keyboard.press("Escape")
        expect(button).to_be_focused()
