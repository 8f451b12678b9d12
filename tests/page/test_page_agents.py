"""The agents of the page: cards, the editor with its diff, trials, conflicts and deletion."""

from pathlib import Path

from browser import PHONE, GatewayProcess, Tab, Windows
from playwright.sync_api import expect
from workspace_gateway import AGENTS, MARA


def agents_file(home: Path) -> str:
    return (home / "workspace" / "AGENTS.md").read_text()


def fill_new_agent(tab: Tab) -> None:
    page = tab.page
    tab.button("New agent").click()
    page.get_by_label("Name").fill("Cleo Büro")
    expect(page.get_by_label("Id")).to_have_value("cleo-buro")
    page.get_by_label("Id").fill("archy")
    expect(page.get_by_text("An agent called archy exists.")).to_be_visible()
    expect(tab.button("Save")).to_be_disabled()
    page.get_by_label("Id").fill("cleo")
    page.get_by_label("Description").fill("Keeps the calendar.")
    page.get_by_label("Instructions").fill("You are Cleo.")
    page.get_by_role("checkbox", name="current_time").check()
    page.get_by_role("checkbox", name="bash").check()
    page.get_by_text("Changes to AGENTS.md (+").click()
    expect(page.locator(".file-changes")).to_contain_text("Tools: current_time, bash")


def test_agent_is_created_tried_and_another_is_deleted(workspace: GatewayProcess, windows: Windows) -> None:
    tab = next(windows.tabs(workspace)).open("/agents")
    page = tab.page
    expect(page.locator(".agent-card", has_text="Archy")).to_contain_text("Needs a key")
    expect(page.locator(".agent-card", has_text="Archy")).to_contain_text("3 tools · hands off to 1")
    fill_new_agent(tab)
    page.get_by_label("Message to the draft").fill("What can you do?")
    page.get_by_label("Message to the draft").press("Enter")
    expect(page.get_by_role("region", name="Try it")).to_contain_text("Not available here: bash.")
    assert agents_file(workspace.home) == AGENTS

    page.locator(".view").get_by_role("link", name="Agents").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep editing").click()
    page.keyboard.press("Control+s")
    expect(page.get_by_text("Saved. New chats use it now.")).to_be_visible()
    expect(page.locator(".agent-card", has_text="Cleo Büro")).to_contain_text("2 tools")
    section = "## cleo\n\nName: Cleo Büro\nDescription: Keeps the calendar.\nTools: current_time, bash\n"
    assert agents_file(workspace.home) == f"{AGENTS}\n{section}Prompt:\nYou are Cleo.\n"

    page.get_by_role("link", name="binky").click()
    tab.button("Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Delete binky?")
    expect(dialog).to_contain_text("Archy no longer hands off to it.")
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator(".agent-card")).to_have_count(2)
    assert "binky" not in agents_file(workspace.home)
    assert tab.errors == []


def test_two_people_edit_an_agent_and_both_edits_are_kept(workspace: GatewayProcess, windows: Windows) -> None:
    mine = next(windows.tabs(workspace)).open("/agents/archy")
    hers = next(windows.tabs(workspace, **PHONE))
    hers.page.goto(f"{workspace.url}/agents/archy#token={MARA}")
    mine.page.get_by_label("Description").fill("Reads everything.")
    hers.page.get_by_label("Role").fill("archive")
    expect(hers.button("Save")).to_be_enabled()
    hers.page.get_by_text("Try it", exact=True).first.tap()
    expect(hers.page.get_by_label("Message to the draft")).to_be_visible()
    hers.button("Save").tap()
    expect(hers.page.get_by_text("Saved. New chats use it now.")).to_be_visible()

    conflict = mine.page.get_by_role("alert").filter(has_text="mara changed this")
    expect(conflict).to_contain_text("Your edits are kept.")
    expect(mine.page.get_by_label("Description")).to_have_value("Reads everything.")
    assert "Role: archive" in agents_file(workspace.home) and "Reads everything." not in agents_file(workspace.home)
    conflict.get_by_role("button", name="Review both").click()
    dialog = mine.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Reads the archive.")
    expect(dialog).to_contain_text("archive")
    dialog.get_by_role("button", name="Keep editing").click()
    conflict.get_by_role("button", name="Discard mine").click()
    expect(mine.page.get_by_label("Role")).to_have_value("archive")
    mine.page.get_by_label("Description").fill("Reads everything.")
    mine.button("Save").click()
    expect(mine.page.get_by_text("Saved. New chats use it now.")).to_be_visible()
    text = agents_file(workspace.home)
    assert "Role: archive" in text and "Reads everything." in text and "Temperature: 0.3" in text
    assert mine.errors == [] and hers.errors == []
