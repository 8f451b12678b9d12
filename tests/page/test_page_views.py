"""Views: empty states, data, themes, phone layout, keyboard and reduced motion."""

import subprocess
import sys

import pytest
from browser import PHONE, ROOT, VIEWS, GatewayProcess, Tab, Windows, script
from playwright.sync_api import expect

from checks import scaled

pytestmark = pytest.mark.slow


def complete_run(tab: Tab) -> None:
    """Complete a run with one successful and one failed tool call."""
    tab.send(script([["call", "get_weather", {"city": "Oslo"}], ["call", "always_fail", {}]], [["text", "Clear."]]))
    tab.wait_for_answer("Clear.")
    tab.wait_until_idle()


def test_empty_views_explain_what_they_show(tab: Tab) -> None:
    expect(tab.page.get_by_role("heading", name="Welcome to Atlas")).to_be_visible()
    titles = {
        "approvals": "Nothing needs your approval.",
        "jobs": "No jobs yet",
        "audit": "No entries yet",
        "runs": "No runs yet",
        "usage": "No usage yet",
    }
    for view, title in titles.items():
        tab.open_view(view)
        expect(tab.page.get_by_role("heading", name=title)).to_be_visible()


def test_example_prompt_is_sent_with_one_click(tab: Tab) -> None:
    tab.page.get_by_text("What can you do?").click()
    tab.wait_for_answer("You wrote: What can you do?")


def test_agents_view_lists_the_agents_and_leads_to_the_permissions(tab: Tab) -> None:
    tab.open_view("agents")
    expect(tab.page.locator(".card")).to_have_count(3)
    expect(tab.page.locator("table")).to_have_count(0)
    link = tab.page.get_by_role("link", name="Permissions")
    expect(link).to_have_attribute("href", "/settings/permissions")


def test_audit_log_is_live_filtered_and_verified(gateway: GatewayProcess, windows: Windows) -> None:
    window = windows.tabs(gateway)
    tab, other = next(window).open(), next(window).open()
    other.open_view("audit")
    expect(other.page.get_by_text("No entries yet")).to_be_visible()
    complete_run(tab)
    rows = other.page.locator("tbody tr.ant-table-row")
    expect(rows).to_have_count(2)
    other.button("Verify log").click()
    expect(other.page.get_by_text("Verified: 2 entries, unbroken.")).to_be_visible()
    person, none = other.page.get_by_label("Person"), other.page.get_by_text("No matching entries")
    person.fill("ben")
    person.press("Enter")
    expect(none).to_be_visible()
    person.fill("owner")
    person.press("Enter")
    expect(rows).to_have_count(2)
    first_day, last_day = other.page.get_by_label("From"), other.page.get_by_label("To", exact=True)
    last_day.fill("2020-12-31")
    expect(none).to_be_visible()
    first_day.fill("2021-01-01")
    expect(other.page.get_by_text("invalid range: 'from' is not earlier than 'to'")).to_be_visible()
    last_day.fill("9998-12-31")
    expect(rows).to_have_count(2)
    other.page.get_by_label("Outcome").click()
    other.page.locator(".ant-select-item", has_text="Failed").click()
    expect(rows).to_have_count(1)
    rows.click()
    other.page.get_by_role("link", name="View run").click()
    expect(other.page.locator(".timeline li")).to_have_count(4)


def test_run_details_show_a_timeline(tab: Tab) -> None:
    complete_run(tab)
    tab.open_view("runs")
    tab.page.locator("tbody a").first.click()
    expect(tab.page.locator(".bar.kind-model")).to_have_count(2)
    expect(tab.page.locator(".bar.kind-tool")).to_have_count(2)
    expect(tab.page.locator(".bar.is-failed")).to_have_count(1)
    expect(tab.page.locator(".facts")).to_contain_text("Done")


def test_usage_view_shows_tokens_and_tool_calls(tab: Tab) -> None:
    complete_run(tab)
    tab.open_view("usage")
    expect(tab.page.locator(".stat").first).to_contain_text("1")
    expect(tab.page.get_by_label("Tokens by agent")).to_contain_text("helper")
    expect(tab.page.locator(".totals tr", has_text="always_fail")).to_contain_text("1")
    segment = tab.page.locator(".segment.series-0").first
    assert segment.evaluate("each => getComputedStyle(each).backgroundImage") == "none"
    tab.button("View as table").first.click()
    table = tab.page.get_by_role("table", name="Tokens by agent")
    assert table.locator("thead th").all_inner_texts() == ["Day", "helper"]
    expect(table.locator("tbody td")).to_have_count(1)
    tab.button("View as chart").click()
    tab.page.get_by_text("Model", exact=True).click()
    expect(tab.page.get_by_label("Tokens by model")).to_contain_text("scripted")
    budget = tab.page.locator(".totals tr", has_text="Agent writer per day")
    expect(budget).to_contain_text("1M tokens0 tokens1M tokensin ")


def background(tab: Tab) -> tuple[int, ...]:
    color = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))


def test_theme_follows_the_system_until_one_is_chosen(gateway: GatewayProcess, windows: Windows) -> None:
    tab = next(windows.tabs(gateway, color_scheme="dark")).open()
    assert max(background(tab)) < 60
    tab.page.locator(".user-button").click()
    expect(tab.page.get_by_role("menuitemradio", name="System")).to_be_checked()
    tab.page.get_by_role("menuitemradio", name="Light").click()
    tab.page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")
    assert min(background(tab)) > 200
    tab.page.reload()
    tab.page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")


def test_phone_layout_does_not_scroll_sideways(gateway: GatewayProcess, windows: Windows) -> None:
    tab = next(windows.tabs(gateway, **PHONE)).open()
    text = "a" * 200 + "\n\n```\n" + "long " * 60 + "\n```\n\n| a | b | c | d |\n|-|-|-|-|\n| " + "wide | " * 4
    tab.send(script([["text", text], ["call", "run_command", {"command": "x" * 300}]], [["text", "It continued."]]))
    tab.page.locator(".approval").wait_for()
    assert tab.fits_width()
    assert tab.page.evaluate("document.querySelector('.scroller').scrollWidth <= innerWidth")
    tab.button("Allow once").tap()
    tab.wait_for_answer("It continued.")
    for view in VIEWS:
        tab.open_view(view)
        expect(tab.page.locator(".drawer")).to_have_count(0)
        tab.wait_for_animations()
        assert tab.fits_width(), view
        if view in ("runs", "audit"):
            state = tab.page.locator("tbody .phone-state").first
            expect(state).to_be_in_viewport()
            assert state.evaluate("each => each.getBoundingClientRect().right <= innerWidth"), view


def test_navigation_never_moves_and_names_the_current_view(tab: Tab) -> None:
    entries = tab.page.locator(".layout > aside .navigation a")
    places = entries.evaluate_all("all => all.map((each) => each.getBoundingClientRect().top)")
    for view in VIEWS:
        tab.open_view(view)
        assert entries.evaluate_all("all => all.map((each) => each.getBoundingClientRect().top)") == places, view
        expect(entries.and_(tab.page.locator("[aria-current=page]"))).to_have_count(1)
        expect(tab.page.locator("h1")).to_be_focused()
        expect(tab.page).to_have_title(f"{tab.page.locator('h1').inner_text()} – Atlas")


def test_unknown_chats_and_pages_are_not_found(tab: Tab) -> None:
    tab.open("/c/no-such-session")
    expect(tab.page.get_by_role("heading", name="This chat doesn’t exist or was deleted.")).to_be_visible()
    tab.button("Search chats").click()
    expect(tab.page.get_by_placeholder("Search chats and messages")).to_be_focused()
    tab.open("/no/such/page")
    expect(tab.page.get_by_role("heading", name="This page doesn’t exist.")).to_be_visible()
    expect(tab.page).to_have_title("Page not found – Atlas")
    tab.page.locator("main").get_by_role("button", name="New chat").click()
    expect(tab.page.locator(".composer textarea")).to_be_visible()
    tab.page.reload()  # the address of a chat without messages is not unknown
    expect(tab.page.locator(".composer textarea")).to_be_visible()
    expect(tab.page.locator(".not-found")).to_have_count(0)


def test_user_menu_works_with_the_keyboard(tab: Tab) -> None:
    button = tab.page.locator(".user-button")
    button.focus()
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("menuitemradio", name="System")).to_be_focused()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    tab.page.keyboard.press("Escape")
    expect(button).to_be_focused()
    expect(tab.page.get_by_role("menu")).to_have_count(0)
    tab.page.keyboard.press("?")
    expect(tab.page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def test_keyboard_shortcuts_open_search_and_a_new_chat(tab: Tab) -> None:
    tab.page.keyboard.press("Control+k")
    expect(tab.page.get_by_placeholder("Search chats and messages")).to_be_focused()
    tab.page.keyboard.press("Escape")
    composer, original = tab.page.locator(".composer textarea"), tab.page.url
    composer.fill("a draft of the other chat")
    tab.page.keyboard.press("Control+Shift+O")
    expect(tab.page).not_to_have_url(original)
    expect(composer).to_have_value("")
    expect(composer).to_be_focused()
    tab.page.keyboard.type("typed")
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("in two lines")
    tab.page.keyboard.press("Enter")
    tab.wait_for_answer("in two lines")


def test_reduced_motion_disables_animations(gateway: GatewayProcess, windows: Windows) -> None:
    tab = next(windows.tabs(gateway, reduced_motion="reduce")).open()
    tab.send(script([["pause", 3600]]))
    dots = tab.page.locator(".working i").first
    dots.wait_for()
    assert dots.evaluate("each => getComputedStyle(each).animationName") == "none"


@pytest.mark.timeout(600)
def test_unit_tests_of_the_page_pass() -> None:
    command = [sys.executable, "hatch_build.py", "test"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=scaled(580))
    assert completed.returncode == 0, completed.stdout + completed.stderr
