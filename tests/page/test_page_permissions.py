"""The permissions of the page: the matrix, what-if before saving, widening, conflicts, and the list on a phone."""

from browser import PHONE, GatewayProcess, Windows
from playwright.sync_api import expect
from workspace_gateway import MARA

from atlas_agents.core.trust import Trust


def cell(tool: str, subject: str) -> str:
    return f"select[aria-label^='{tool}, {subject}']"


def test_permissions_are_tried_saved_and_kept_from_a_conflict(workspace: GatewayProcess, windows: Windows) -> None:
    file = workspace.home / "permissions.toml"
    tab = next(windows.tabs(workspace)).open("/settings/permissions")
    page = tab.page
    write = page.locator(cell("file_write", "Archy"))
    expect(write).to_have_attribute("title", "From Everyone")
    expect(write.locator("option:checked")).to_have_text("· Ask")
    write.press("3")
    bar = page.get_by_role("region", name="Unsaved changes")
    expect(bar).to_contain_text("1 change. No recorded calls are affected.")

    hers = next(windows.tabs(workspace, **PHONE))
    hers.page.goto(f"{workspace.url}/settings/permissions#token={MARA}")
    hers.page.locator(cell("remember", "Everyone")).select_option("ask")
    hers.button("Save").tap()
    expect(hers.page.get_by_text("Saved. The new permissions apply now.")).to_be_visible()

    conflict = page.get_by_role("alert").filter(has_text="mara changed this")
    expect(conflict).to_contain_text("Your edits are kept.")
    conflict.get_by_role("button", name="Overwrite").click()
    expect(page.get_by_text("Saved. The new permissions apply now.")).to_be_visible()
    expect(page.locator(cell("remember", "Everyone")).locator("option:checked")).to_have_text("Ask")
    assert file.read_text() == '[tools.remember]\nask = ["*"]\n\n[tools.file_write]\nno = ["archy"]\n'

    write.select_option("yes")
    tab.button("Save").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This allows more than now: file_write for Archy.")
    dialog.get_by_role("button", name="Allow without asking").click()
    expect(bar).to_be_hidden()
    assert 'yes = ["archy"]' in file.read_text()
    assert tab.errors == [] and hers.errors == []


def test_change_of_the_permissions_that_waits_for_agreement_is_shown(
    workspace: GatewayProcess, windows: Windows
) -> None:
    file, trust = workspace.home / "permissions.toml", Trust(workspace.home)
    trust.begin([file], [], "while a tool ran")
    file.write_text('[tools.bash]\nno = ["*"]\n')
    trust.end([file])
    tab = next(windows.tabs(workspace)).open("/settings/permissions")
    bash = tab.page.locator(cell("bash", "Everyone"))
    expect(bash).to_have_value("yes")
    notice = tab.page.get_by_text(
        "permissions.toml has changed, and the change is not used until you agree; run: atlas trust"
    )
    expect(notice).to_be_visible()
    trust.agree(file, file.read_bytes())
    tab.open("/settings/permissions")
    expect(bash).to_have_value("no")
    expect(notice).to_have_count(0)
    assert tab.errors == []
