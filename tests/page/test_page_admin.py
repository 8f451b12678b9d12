"""Administration in the page: documents, memories, MCP servers, people and channels, served from settings."""

import json
import shutil
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from browser import HERE, PHONE, ROOT, TIMEOUT, GatewayProcess, SharedBrowser, Tab, Windows, running_gateway
from playwright.sync_api import expect

from bot_double import TOKEN

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def admin_gateway(tmp_path_factory: pytest.TempPathFactory, shared_browser: SharedBrowser) -> Generator[GatewayProcess]:
    home, port = tmp_path_factory.mktemp("admin"), shared_browser.free_port()
    with running_gateway(home, HERE / "admin_gateway.py", port) as gateway:
        yield gateway


@pytest.fixture
def admin(windows: Windows, admin_gateway: GatewayProcess) -> Generator[Tab]:
    tab = next(windows.tabs(admin_gateway))
    yield tab
    assert tab.errors == []


@pytest.fixture
def mcp_server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MCP server in a folder of its own: the gateway refuses to start it if a file next to it changes."""
    copy = tmp_path_factory.mktemp("server") / "scripted_server.py"
    shutil.copy(ROOT / "tests" / "foreign" / copy.name, copy)
    return copy


def check_phone(windows: Windows, gateway: GatewayProcess, path: str, wait_for: str) -> None:
    """Check that a view fits on a phone, in a dark theme, and has no serious accessibility violation."""
    phone = next(windows.tabs(gateway, color_scheme="dark", **PHONE)).open(path)
    expect(phone.page.get_by_text(wait_for).first).to_be_visible()
    assert phone.fits_width()
    check_axe(phone)


def check_axe(tab: Tab) -> None:
    assert tab.axe_violations() == []


def test_settings_and_sign_in_fit_a_phone_and_are_accessible(windows: Windows, admin_gateway: GatewayProcess) -> None:
    phone = next(windows.tabs(admin_gateway, color_scheme="dark", **PHONE)).open("/settings")
    page = phone.page
    tabs = page.get_by_role("navigation", name="Settings")
    expect(tabs.get_by_role("link").first).to_be_visible()
    names = tabs.get_by_role("link").all_inner_texts()
    assert len(names) > 7
    for name in names:
        tabs.get_by_role("link", name=name, exact=True).tap()
        expect(page.get_by_role("region", name=name, exact=True)).to_be_visible()
        expect(page.locator(".skeleton, .ant-spin-spinning")).to_have_count(0)
        expect(tabs.locator("[aria-current]")).to_be_in_viewport()
        assert phone.fits_width(), name
        check_axe(phone)
    phone.open("/agents/new")
    expect(page.get_by_role("group", name="Tools")).to_be_visible()
    assert phone.fits_width()
    check_axe(phone)
    phone.context.clear_cookies()
    page.goto(admin_gateway.url)
    expect(page.get_by_label("Access token")).to_be_visible()
    check_axe(phone)
    phone.set_system_theme("light")
    check_axe(phone)
    assert phone.errors == []


def test_operations_show_the_gateway_and_back_it_up(admin: Tab) -> None:
    page = admin.open("/settings/operations").page
    expect(page.get_by_text("Running for")).to_be_visible()
    figures = page.get_by_role("group", name="Live figures")
    expect(figures.get_by_text("Error rate")).to_be_visible()
    expect(figures.get_by_text("Turn duration")).to_be_visible()
    expect(page.get_by_text("No alert rules.")).to_be_visible()
    expect(page.get_by_text("No turn is running.")).to_be_visible()
    expect(page.get_by_role("heading", name="Log")).to_be_visible()
    admin.button("Back up now").click()
    backups = page.get_by_role("list", name="Backups").get_by_role("listitem")
    expect(backups).to_have_count(1)
    expect(backups).to_contain_text(".db")
    expect(page.get_by_role("button", name="Run checks")).to_be_enabled()


def test_document_is_uploaded_searched_and_removed(
    windows: Windows, admin: Tab, admin_gateway: GatewayProcess, tmp_path: Path
) -> None:
    rules = "".join(f"## Rule {number}\n\n{'Refunds take fourteen days. ' * 25}\n\n" for number in range(40))
    (tmp_path / "policy.md").write_text(rules)
    (tmp_path / "copy.md").write_text(rules)
    (tmp_path / "empty.txt").write_text("\n")
    page = admin.open("/knowledge").page
    expect(page.get_by_text("Upload a file and agents can cite it.")).to_be_visible()
    page.get_by_label("Category of new files").fill("handbook")
    names = ("policy.md", "copy.md", "empty.txt")
    page.locator("input[type=file]").set_input_files([tmp_path / name for name in names])
    uploads = page.get_by_role("list", name="Uploads")
    expect(uploads).to_contain_text("Ready · 4")
    expect(uploads).to_contain_text("Already uploaded as policy.md.")
    expect(uploads).to_contain_text("No text found in this text file.")
    expect(uploads.get_by_role("button", name="Retry")).to_have_count(1)
    documents = page.get_by_role("list", name="Documents")
    expect(documents.get_by_role("listitem")).to_have_count(1)
    expect(documents).to_contain_text("handbook")
    check_axe(admin)
    check_phone(windows, admin_gateway, "/knowledge", "policy.md")
    page.get_by_label("Search documents").fill("refunds")
    page.get_by_label("Search documents").press("Enter")
    expect(page.get_by_role("list", name="Passages")).to_contain_text("Refunds take fourteen days.")
    page.get_by_label("Search documents").fill("")
    page.get_by_label("Search documents").press("Enter")
    admin.button("Remove policy.md").click()
    expect(page.get_by_text("Remove policy.md?").last).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No documents yet")).to_be_visible()


def test_memory_is_edited_and_forgotten(windows: Windows, admin: Tab, admin_gateway: GatewayProcess) -> None:
    page = admin.open("/memories").page
    memories = page.get_by_role("list", name="Memories")
    expect(memories.get_by_role("listitem")).to_have_count(3)
    check_axe(admin)
    check_phone(windows, admin_gateway, "/memories", "Works in Oslo.")
    oslo = memories.get_by_role("listitem").filter(has_text="Works in Oslo.")
    expect(oslo.get_by_role("link", name="Source chat")).to_be_visible()
    oslo.get_by_role("button", name="Edit").click()
    page.get_by_label("Memory", exact=True).fill("Works in Bergen.")
    admin.button("Save").click()
    expect(memories).to_contain_text("Works in Bergen.")
    memories.get_by_role("listitem").filter(has_text="Bella").get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(memories.get_by_role("listitem")).to_have_count(2)
    admin.button("Forget all").click()
    expect(page.get_by_text("Forget 2 memories?").last).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Forget all").click()
    expect(page.get_by_text("Nothing remembered about you yet")).to_be_visible()


def test_mcp_server_is_added_inspected_approved_and_removed(
    windows: Windows, admin: Tab, admin_gateway: GatewayProcess, mcp_server: Path, tmp_path: Path
) -> None:
    page = admin.open("/settings/mcp").page
    admin.button("Add server").click()
    expect(page.get_by_role("list", name="Well-known servers")).to_contain_text("GitHub")
    admin.button("Custom command or URL").click()
    fields = {"Name": "shop", "Environment variables": "API_KEY=s3cret-value", "Folder it may change": str(tmp_path)}
    for label, text in {**fields, "Arguments": f"-S\n{mcp_server}\n{tmp_path}"}.items():
        page.get_by_label(label).fill(text)
    page.get_by_label("Command", exact=True).last.fill(sys.executable)
    admin.button("Continue").click()
    expect(page.get_by_text("This will run:")).to_be_visible()
    expect(page.locator("pre.command").first).to_contain_text("scripted_server.py")
    admin.button("Start and inspect").click()
    tools = page.get_by_role("list", name="Tools")
    expect(tools).to_contain_text("The tool echo.")
    expect(admin.button("Approve 0 tools")).to_be_disabled()
    check_axe(admin)
    tools.get_by_label("echo").check()
    tools.get_by_label("fail").check()
    admin.button("Approve 2 tools").click()
    servers = page.get_by_role("list", name="MCP servers")
    expect(servers).to_contain_text("Running")
    expect(servers).to_contain_text("2 tools")
    check_axe(admin)
    check_phone(windows, admin_gateway, "/settings/mcp", "Running")


def test_mcp_server_in_the_file_is_edited_and_removed(
    admin: Tab, admin_gateway: GatewayProcess, mcp_server: Path, tmp_path: Path
) -> None:
    entry = {"command": sys.executable, "args": ["-S", str(mcp_server), ""], "env": {"API_KEY": "s3cret-value"}}
    config = admin_gateway.home / "workspace" / "mcp.json"
    complete = config.with_suffix(".new")
    complete.write_text(json.dumps({"mcpServers": {"stock": entry}}))
    complete.replace(config)  # so that the gateway never reads half a file
    page = admin.open("/settings/mcp").page
    wait_for_server(admin)
    admin.button("Edit stock").click()
    expect(page.get_by_label("Environment variables")).to_have_value("API_KEY=••••")
    expect(page.get_by_label("Arguments")).to_have_value(f'-S\n{mcp_server}\n""')
    page.get_by_label("Arguments").fill(f"-S\n-B\n{mcp_server}\n{tmp_path}")
    admin.button("Save").click()
    review = page.locator(".ant-drawer-open", has_text="Review stock")  # opens once the form is saved and closed
    expect(review.locator("pre.command")).to_contain_text("-S -B")
    review.get_by_role("button", name="Close").click()
    expect(review).to_have_count(0)
    expect(page.get_by_role("list", name="MCP servers")).to_contain_text("-S -B")
    admin.button("Remove stock").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No MCP servers yet")).to_be_visible()


def test_person_signs_in_to_an_mcp_server(admin: Tab, admin_gateway: GatewayProcess) -> None:
    url = (admin_gateway.home / "tracker.txt").read_text()
    page = admin.open("/settings/mcp").page
    admin.button("Add server").click()
    admin.button("Custom command or URL").click()
    page.get_by_label("Name", exact=True).fill("tracker")
    page.get_by_text("URL", exact=True).first.click()
    page.get_by_label("URL", exact=True).last.fill(f"{url}/mcp")
    admin.button("Continue").click()
    expect(page.get_by_text("This will connect to:")).to_be_visible()
    admin.button("Start and inspect").click()
    expect(page.get_by_text("This server needs you to sign in")).to_be_visible()
    admin.button("Sign in", exact=True).last.click()
    expect(page.get_by_text("Waiting for sign-in…").last).to_be_visible()
    check_axe(admin)
    with admin.context.expect_page() as opened:
        page.get_by_role("link", name="Open the sign-in page").last.click()
    expect(opened.value.get_by_text("You are signed in.")).to_be_visible()
    opened.value.close()
    tools = page.get_by_role("list", name="Tools")
    tools.get_by_label("list_issues").check()
    admin.button("Approve 1 tool").click()
    server = page.get_by_role("list", name="MCP servers").get_by_role("listitem").filter(has_text="tracker")
    expect(server).to_contain_text("Running")
    server.get_by_role("button", name="Sign out").click()
    expect(server.get_by_role("button", name="Sign out")).to_be_hidden()


def wait_for_server(tab: Tab) -> None:
    """Load the page until the gateway has read the file."""
    servers = tab.page.get_by_role("list", name="MCP servers")
    deadline = time.monotonic() + TIMEOUT
    while not servers.filter(has_text="stock").count():
        assert time.monotonic() < deadline, "the gateway did not read mcp.json"
        tab.page.reload()
        tab.page.locator("[aria-label='MCP servers'], .empty-state").first.wait_for()


def test_people_have_tokens_and_limits(windows: Windows, admin: Tab, admin_gateway: GatewayProcess) -> None:
    page = admin.open("/settings/people").page
    expect(page.get_by_role("list", name="Users")).to_contain_text("owner")
    page.get_by_label("Name of the new user").fill("mara")
    admin.button("Add user").click()
    expect(page.get_by_role("list", name="Users")).to_contain_text("mara")
    admin.button("Create token").click()
    page.get_by_label("Name", exact=True).fill("laptop")
    page.get_by_label("User", exact=True).fill("mara")
    page.get_by_label("Can approve actions").check()
    admin.button("Create", exact=True).click()
    expect(page.get_by_text("Copy this token now. You won't see it again.")).to_be_visible()
    secret = page.locator("code.secret").inner_text()
    assert len(secret) > 30
    check_axe(admin)
    admin.button("Done").click()
    tokens = page.get_by_role("list", name="Tokens")
    expect(tokens).to_contain_text("Can read chats · Can chat · Can approve actions · Own chats only")
    assert secret not in page.content()
    use_new_plan(admin)
    check_axe(admin)
    check_phone(windows, admin_gateway, "/settings/people", "of 5")
    accept_invitation(windows, admin)
    admin.button("Revoke laptop").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(tokens).not_to_contain_text("laptop")


def use_new_plan(admin: Tab) -> None:
    page = admin.page
    admin.button("New plan").click()
    page.get_by_label("Name", exact=True).fill("team")
    page.get_by_label("Users", exact=True).last.fill("5")
    admin.button("Create", exact=True).click()
    page.get_by_label("Current plan").click()
    page.locator(".ant-select-item", has_text="team").click()
    expect(page.get_by_text("of 5")).to_be_visible()


def accept_invitation(windows: Windows, admin: Tab) -> None:
    """Invite a person, and accept the invitation in another browser."""
    page = admin.page
    page.get_by_label("Name of the new user").fill("zoe")
    admin.button("Invite", exact=True).click()
    admin.button("Create link").click()
    expect(page.get_by_text("Copy this link now.")).to_be_visible()
    link = page.locator("code.secret").inner_text()
    check_axe(admin)
    admin.button("Done").click()
    users = page.get_by_role("list", name="Users")
    expect(users).to_contain_text("invited until")
    guest = next(windows.tabs(admin.gateway, **PHONE)).page
    guest.goto(link)
    guest.get_by_role("button", name="Accept invitation").click()
    expect(guest.get_by_role("heading", name="Welcome, zoe")).to_be_visible()
    assert "invite" not in guest.url
    guest.get_by_role("button", name="Continue").click()
    expect(guest.get_by_role("textbox", name="Write a message")).to_be_visible()
    expect(users).not_to_contain_text("invited until")
    guest.goto("about:blank")
    guest.goto(link)
    guest.get_by_role("button", name="Accept invitation").click()
    expect(guest.get_by_role("alert")).to_contain_text("was used or has expired")


def test_inviting_again_keeps_the_rights_of_the_open_invitation(admin: Tab, admin_gateway: GatewayProcess) -> None:
    def invitation() -> dict[str, Any]:
        return json.loads((admin_gateway.home / "invitations.json").read_text())["ben"]

    page = admin.open("/settings/people").page
    page.get_by_label("Name of the new user").fill("ben")
    admin.button("Invite", exact=True).click()
    page.get_by_label("Can approve actions").check()
    page.get_by_label("Valid for").click()
    page.locator(".ant-select-item", has_text="30 days").click()
    admin.button("Create link").click()
    admin.button("Done").click()
    first = invitation()
    assert first["scopes"] == ["read", "write", "approve"]
    admin.button("Invite again: ben").click()
    expect(page.get_by_label("Can approve actions")).to_be_checked()
    admin.button("Create link").click()
    expect(page.get_by_text("Copy this link now.")).to_be_visible()
    again = invitation()
    assert again["scopes"] == first["scopes"] and again["sha256"] != first["sha256"]
    assert again["expires_at"] >= first["expires_at"]
    check_axe(admin)


def test_telegram_is_connected_and_a_person_paired(windows: Windows, admin: Tab, admin_gateway: GatewayProcess) -> None:
    page = admin.open("/settings/channels").page
    token = page.get_by_label("Bot token", exact=True)
    token.fill("7000001:wrong")
    admin.button("Test and save").click()
    expect(page.locator(".field .error")).to_be_visible()
    token.fill(TOKEN)
    admin.button("Test and save").click()
    expect(page.get_by_text("Bot @atlas_test_bot")).to_be_visible()
    assert TOKEN not in page.content()
    page.get_by_label("Pairing code").fill("WRONG")
    admin.button("Pair", exact=True).click()
    expect(page.get_by_text("That code is wrong or expired.")).to_be_visible()
    codes = admin_gateway.home / "telegram" / "codes.json"
    deadline = time.monotonic() + TIMEOUT
    while not codes.exists():
        assert time.monotonic() < deadline, "the bot sent no code"
        page.wait_for_timeout(20)
    (code,) = json.loads(codes.read_text())
    page.get_by_label("Pairing code").fill(code)
    admin.button("Pair", exact=True).click()
    people = page.get_by_role("list", name="Paired people")
    expect(people).to_contain_text("Mara")
    check_axe(admin)
    check_phone(windows, admin_gateway, "/settings/channels", "Mara")
    admin.button("Unpair Mara").click()
    page.get_by_role("dialog").get_by_role("button", name="Unpair").click()
    expect(people).to_have_count(0)
