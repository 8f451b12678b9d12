"""Chat in a real browser: answers, tool calls, approvals, forms, stopping, queued messages, forks and attachments."""

import base64
import json
import re
from typing import Any

import pytest
from browser import GatewayProcess, Tab, Windows, script
from playwright.sync_api import Locator, expect
from websockets.sync.client import connect

pytestmark = pytest.mark.slow
NEEDS_APPROVAL = script(
    [["text", "I need approval."], ["call", "run_command", {"command": "ls -l"}]], [["text", "It continued."]]
)
ENDLESS = script([["text", "word1 word2 word3 "], ["pause", 600]])
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


def test_answer_shows_markdown_reasoning_and_usage(tab: Tab) -> None:
    tab.send(script([["reasoning", "hm"], ["text", "# Title\n\nSome **bold** text.\n\n```python\nx = 1\n```"]]))
    tab.wait_for_answer("Title")
    tab.wait_until_idle()
    answer = tab.answers.last
    expect(answer.locator(".level-1")).to_have_text("Title")
    expect(answer.locator(".markdown strong")).to_have_text("bold")
    expect(answer.locator(".hljs-number")).to_have_text("1")
    expect(answer.locator(".usage")).to_contain_text("tokens")
    expect(answer.get_by_text("hm")).to_have_count(0)
    answer.get_by_role("button", name="Reasoning").click()
    expect(answer.locator(".reasoning-text")).to_have_text("hm")
    expect(tab.page.locator(".session.active")).to_be_visible()


def test_refusal_is_shown_with_its_reason(tab: Tab) -> None:
    tab.send(script([["refuse", "cyber: This could enable harm."]]))
    notice = tab.answers.last.get_by_role("alert")
    expect(notice).to_have_text("The model refused to answer: cyber: This could enable harm.")
    tab.wait_until_idle()
    tab.page.reload()
    expect(notice).to_have_text("The model refused to answer: cyber: This could enable harm.")


def test_tool_call_is_a_card_that_expands(tab: Tab) -> None:
    tab.send(script([["call", "get_weather", {"city": "Oslo"}], ["call", "always_fail", {}]], [["text", "Clear."]]))
    tab.wait_for_answer("Clear.")
    tab.wait_until_idle()
    succeeded, failed = tab.page.locator(".tool-call").all()
    assert (succeeded.get_attribute("data-status"), failed.get_attribute("data-status")) == ("ok", "error")
    expect(succeeded.locator(".status")).to_contain_text(re.compile(r"\d m?s"))
    statuses = [card.locator(".status").inner_text() for card in (succeeded, failed)]
    succeeded.get_by_role("button").first.click()
    expect(succeeded.locator(".tool-call-body")).to_contain_text('"degrees": 21')
    failed.get_by_role("button").first.click()
    expect(failed.locator(".tool-call-body")).to_contain_text("it always fails")
    tab.page.reload()
    tab.wait_for_answer("Clear.")
    assert tab.page.locator(".tool-call .status").all_inner_texts() == statuses


ANSWER_KEY_ON_ARRIVAL = """() => new MutationObserver(() => {
  if (document.querySelector(".approval") && !window.arrived) {
    window.arrived = performance.now();
    window.dispatchEvent(new KeyboardEvent("keydown", {key: "y"}));
  }
}).observe(document.body, {childList: true, subtree: true})"""


def test_approval_of_a_command_shows_it_once_and_takes_keys(tab: Tab) -> None:
    tab.page.evaluate(ANSWER_KEY_ON_ARRIVAL)
    tab.send(script([["call", "bash", {"command": "echo hello"}]], [["text", "Got: "], ["results"]]))
    card = tab.page.get_by_role("region", name="Helper wants to run a command")
    expect(card.locator(".exact-text")).to_have_text("echo hello")
    assert card.inner_text().count("echo hello") == 1
    expect(card.locator(".countdown")).to_contain_text("Expires in ")
    facts = {row.locator("dt").inner_text(): row.locator("dd").inner_text() for row in card.locator("dl > div").all()}
    sandbox = "no network" if "Sandbox" in facts else "can read and write everything"
    assert sandbox in facts.get("Sandbox", "") + facts.get("No sandbox", "")
    assert facts["Folder"].endswith("/reports") and facts["Timeout"].endswith(" s")
    card.get_by_text("Why am I asked?").click()
    expect(card).to_contain_text("bash asks before it acts")
    expect(tab.page.locator(".navigation .count")).to_contain_text("1")
    tab.page.wait_for_function("() => performance.now() > window.arrived + 600")
    expect(card).to_be_visible()  # a key that was pressed as the card arrived does not count
    tab.page.evaluate("window.dispatchEvent(new KeyboardEvent('keydown', {key: 'y', repeat: true}))")
    expect(card.get_by_role("button", name="Allow once")).to_be_enabled()
    card.locator("h4").click()
    tab.page.keyboard.press("y")
    tab.wait_for_answer('Got: ["hello\\n[exit code 0')
    expect(tab.page.locator(".approval")).to_have_count(0)
    expect(tab.page.locator(".navigation .count")).to_have_count(0)
    tab.page.locator(".tool-call > button").click()
    expect(tab.page.locator(".tool-call")).to_contain_text("Allowed by you")


def check_axe(tab: Tab, rules: list[str] | None = None) -> None:
    assert tab.axe_violations(rules) == []


def allow_some(tab: Tab, cards: Locator) -> None:
    """Allow all cards of a stack of three but the last."""
    tab.set_system_theme("dark")
    check_axe(tab, rules=["color-contrast"])
    tab.set_system_theme("light")
    cards.nth(2).get_by_role("checkbox").uncheck()
    tab.button("Allow 2 of 3").click()
    expect(cards).to_have_count(1)
    expect(cards.get_by_role("checkbox")).to_have_count(0)


def test_approvals_of_one_turn_stack_and_the_inbox_takes_keys(tab: Tab) -> None:
    commands = [["call", "run_command", {"command": f"echo {number}"}] for number in range(4)]
    tab.send(script(commands, [["text", "Got: "], ["results"]]))
    cards = tab.page.locator(".approval")
    expect(cards).to_have_count(4)
    expect(tab.page.locator(".approval-stack-bar")).to_have_count(1)
    expect(tab.button("Allow all 4")).to_be_visible()
    cards.nth(1).get_by_role("checkbox").uncheck()
    expect(tab.button("Allow 3 of 4")).to_be_visible()
    tab.open_view("approvals")
    expect(tab.button("Allow 3 of 4")).to_be_visible()
    stack = tab.page.get_by_role("region", name="Helper wants to run 4 commands")
    expect(stack.locator(".approval")).to_have_count(4)
    check_axe(tab)
    expect(tab.page.locator(".key-help")).to_contain_text("j k next, previous")
    for key, focused in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        tab.page.keyboard.press(key)
        expect(cards.nth(focused)).to_be_focused()
    assert cards.nth(1).evaluate("card => getComputedStyle(card).outlineStyle") == "solid"
    for label in ("Allow all 4", "Allow 3 of 4", "Allow all 4"):
        tab.page.keyboard.press("x")
        expect(tab.button(label)).to_be_visible()
    tab.page.keyboard.press("n")
    expect(cards).to_have_count(3)
    allow_some(tab, cards)
    tab.page.keyboard.press("j")
    tab.page.keyboard.press("y")
    expect(tab.page.get_by_text("Nothing needs your approval.")).to_be_visible()
    tab.page.go_back()
    tab.wait_for_answer('Got: ["ran echo 0",{"cancelled":true},"ran echo 2","ran echo 3"]')


def test_approval_of_a_file_shows_a_coloured_diff(tab: Tab, gateway: GatewayProcess) -> None:
    (gateway.working_directory / "AGENTS.md").write_text("one\nbuy milk now\ntwo\n")
    change = {"path": "AGENTS.md", "old": "milk", "new": "tea\u200b"}
    tab.send(script([["call", "file_edit", change]]))
    card = tab.page.get_by_role("region", name="Helper wants to change AGENTS.md")
    expect(card).to_contain_text("Changes +1 \u22121")
    changed = card.locator(".diff tr", has_text="milk")
    expect(changed.locator("td")).to_have_text(["\u2212buy milk now", "+buy teaU+200B now"])
    expect(changed.locator(".word")).to_have_text(["milk "])
    expect(card.locator(".diff mark")).to_have_count(1)
    tab.page.set_viewport_size({"width": 390, "height": 780})
    expect(card.locator(".diff.unified tr")).to_have_count(4)
    tab.page.set_viewport_size({"width": 1280, "height": 720})
    card.get_by_role("button", name="Allow once").click()
    tab.wait_for_answer("Done.")
    assert (gateway.working_directory / "AGENTS.md").read_text() == "one\nbuy tea\u200b now\ntwo\n"


def test_answers_hand_offs_and_job_results_show_who_speaks(tab: Tab) -> None:
    hand_off = ["call", "hand_off", {"agent": "writer", "note": "a letter"}]
    tab.send(script([["text", "One moment."], hand_off], [["text", "Dear Ana,"]]))
    tab.wait_for_answer("Dear Ana,")
    answer = tab.answers.last
    expect(answer.locator(".speaker strong")).to_have_text(["Helper", "Writer"])
    expect(answer.locator(".handoff")).to_have_text("Helper handed off to Writer: “a letter”")
    expect(answer.locator(".tool-call")).to_have_count(0)
    tab.button("New chat").first.click()
    task = script([["text", "\n".join(f"{number}. complaint" for number in range(1, 9))]])
    delegated = {"target_agent": "writer", "task_description": task}
    tab.send(script([["call", "delegate_task", delegated]], [["text", "Delegated."]]))
    card = tab.page.locator(".job-message")
    expect(card).to_contain_text("Job finished")
    expect(card.locator("header")).to_contain_text("Writer")
    expect(card.locator("li")).to_have_count(6)
    card.get_by_role("button", name="Show all 8 lines").click()
    expect(card.locator("li")).to_have_count(8)
    expect(tab.page.locator(".user-message")).to_have_count(1)
    tab.page.reload()
    expect(card).to_contain_text("Job finished")
    card.get_by_role("link", name="Open job").click()
    expect(tab.page.locator(".view")).to_contain_text("8. complaint")


def test_model_effort_and_agent_are_chosen_in_the_composer(tab: Tab) -> None:
    tab.page.get_by_role("button", name="Model: scripted").click()
    tab.page.get_by_label("Model", exact=True).click()
    tab.page.locator(".ant-select-item", has_text="scripted-writer").click()
    tab.page.get_by_label("Effort", exact=True).click()
    tab.page.locator(".ant-select-item", has_text="Low").click()
    tab.page.keyboard.press("Escape")
    expect(tab.page.get_by_role("button", name="Model: scripted-writer · Low")).to_be_visible()
    tab.send("hello")
    expect(tab.answers.last.locator(".speaker")).to_contain_text("scripted-writer")
    tab.wait_until_idle()
    tab.page.reload()
    expect(tab.page.get_by_role("button", name="Model: scripted-writer · Low")).to_be_visible()
    box = tab.page.locator(".composer textarea")
    box.press_sequentially("@wri")
    expect(tab.page.get_by_role("option", name="Writer Writes letters.")).to_be_visible()
    box.press("Enter")
    expect(box).to_have_value("")
    tab.send("who are you?")
    tab.wait_for_answer("You wrote: who are you?")
    expect(tab.answers.last.locator(".speaker strong")).to_have_text("Writer")
    box.press_sequentially("@helper hi")
    expect(box).to_have_value("hi")


CREATE_SESSIONS = """(count) => new Promise((resolve) => {
  const socket = new WebSocket(`${location.origin.replace("http", "ws")}/ws`);
  const client = { name: "test", version: "1" };
  socket.onopen = () => socket.send(JSON.stringify({ type: "auth", protocol: 1, client }));
  socket.onmessage = ({ data }) => {
    const { type, id } = JSON.parse(data);
    if (type === "auth")
      for (let number = 1; number <= count; number++)
        socket.send(JSON.stringify({ id: number, method: "sessions.create", params: { label: `Chat ${number}` } }));
    if (id === count) resolve(socket.close());
  };
})"""


def test_edited_message_is_a_version_that_is_found_beyond_the_first_page_of_sessions(tab: Tab) -> None:
    tab.send("first version")
    tab.wait_for_answer("You wrote: first version")
    tab.wait_until_idle()
    tab.page.get_by_label("Edit message").click()
    tab.page.locator(".editing textarea").fill("second version")
    tab.page.locator(".editing textarea").press("Enter")
    tab.wait_for_answer("You wrote: second version")
    expect(tab.page.locator(".versions")).to_contain_text("2/2")
    expect(tab.page.locator(".session")).to_have_count(1)
    tab.page.get_by_label("Previous version").click()
    expect(tab.answers.last).to_contain_text("You wrote: first version")
    expect(tab.page.locator(".versions")).to_contain_text("1/2")
    tab.page.evaluate(CREATE_SESSIONS, 61)
    tab.page.reload()  # the list now begins with a page of other sessions
    expect(tab.page.locator(".versions")).to_contain_text("1/2")
    expect(tab.page.locator(".session.active")).to_have_count(1)


def test_sessions_are_pinned_and_put_into_folders(tab: Tab) -> None:
    tab.send("first version")
    tab.wait_for_answer("You wrote: first version")
    tab.wait_until_idle()
    tab.button("Chat options").click()
    tab.page.get_by_role("menuitem", name="Pin").click()
    expect(tab.page.locator(".sessions h3").first).to_have_text("Pinned")
    tab.button("Chat options").click()
    tab.page.get_by_role("menuitem", name="Unpin").click()
    tab.button("Chat options").click()
    tab.page.get_by_role("menuitem", name="Move to folder").click()
    tab.page.get_by_role("combobox", name="Folder").fill("Work")
    tab.page.get_by_role("combobox", name="Folder").press("Enter")
    expect(tab.page.locator(".sessions h3").first).to_have_text("Work")


NOTIFICATION = """() => {
  window.shown = [];
  window.Notification = class {
    static permission = "default";
    static requestPermission = async () => (window.Notification.permission = "granted");
    constructor(title, options) { window.shown.push({ title, ...options }); }
  };
  Object.defineProperty(document, "hidden", { get: () => window.away === true, configurable: true });
}"""


def test_answers_and_approvals_are_announced_and_notified_silently_in_a_hidden_tab(tab: Tab) -> None:
    tab.page.evaluate(NOTIFICATION)
    tab.page.get_by_label("Settings").first.click()
    tab.page.get_by_role("link", name="Notifications").click()
    for name in ("Approvals", "Answers"):
        tab.page.get_by_role("switch", name=name).click()
        expect(tab.page.get_by_role("switch", name=name)).to_be_checked()
    tab.button("New chat").first.click()
    tab.send("hello")
    tab.wait_for_answer("You wrote: hello")
    expect(tab.page.locator(".visually-hidden [role=status]")).to_have_text("Answer finished")
    expect(tab.page.get_by_role("log")).to_have_attribute("aria-live", "off")
    assert tab.page.evaluate("window.shown") == []
    tab.page.evaluate("window.away = true")
    tab.send(NEEDS_APPROVAL)
    expect(tab.page).to_have_title(re.compile(r"^\(1\) "))
    expect(tab.page.locator(".visually-hidden [role=alert]")).to_have_text(
        "Approval needed: helper wants to use run_command"
    )
    tab.page.get_by_role("button", name="Allow once").click()
    expect(tab.page).to_have_title(re.compile("^• "))
    shown = tab.page.evaluate("window.shown")
    assert [(each["title"], each["silent"]) for each in shown] == [("Approval needed", True), ("Answer finished", True)]
    assert [each["body"] for each in shown] == ["helper wants to use run_command", "hello"]


def test_tab_title_counts_approvals_and_marks_unread_answers(tab: Tab) -> None:
    tab.send(script([["call", "build", {"lines": 1}]], [["text", "Ready."]]))
    tab.page.locator(".tool-call").wait_for()
    tab.button("New chat").first.click()
    expect(tab.page.get_by_role("img", name="Running")).to_be_visible()
    tab.gateway.release()
    expect(tab.page).to_have_title(re.compile("^• "))
    expect(tab.page.get_by_role("img", name="Unread")).to_be_visible()
    tab.page.locator(".session").first.click()
    expect(tab.page).to_have_title(re.compile("^[^•(]"))
    tab.send(NEEDS_APPROVAL)
    expect(tab.page).to_have_title(re.compile(r"^\(1\) "))


def test_formulas_diagrams_tables_and_files_are_drawn(tab: Tab) -> None:
    answer = (
        "The area is $\\pi r^2$.\n\n$$\n\\frac{a}{b}\n$$\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
        "```mermaid\nflowchart LR\n  A[Start] --> B[End]\n```\n\n```mermaid\nnonsense ->\n```\n"
    )
    tab.send(script([["text", answer]]))
    expect(tab.answers.last.locator("math")).to_have_count(2)
    expect(tab.answers.last.locator("td")).to_have_count(2)
    diagram = tab.answers.last.get_by_role("img", name="Diagram")
    expect(diagram).to_be_visible()
    assert diagram.evaluate("image => image.decode().then(() => image.naturalWidth)") > 50
    expect(tab.answers.last).to_contain_text("The diagram could not be drawn")
    expect(tab.answers.last.locator("pre")).to_contain_text("nonsense ->")
    files: Any = [
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"first line\nsecond"},
        {"name": "policy.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.4\n%%EOF"},
    ]
    tab.page.locator("input[type=file]").set_input_files(files)
    expect(tab.page.locator(".attachments li")).to_have_count(2)
    tab.send("**Read** these:\n- one\n- two")
    message = tab.page.locator(".user-message:not([data-pending])").last  # which replaces the pending one
    expect(message.locator("strong", has_text="Read")).to_be_visible()
    expect(message.locator("li")).to_have_count(2)
    expect(message.locator(".file-card").first).to_contain_text("first line")
    with tab.page.expect_download() as saved:
        message.get_by_label("Download policy.pdf").click()
    assert saved.value.path().read_bytes() == b"%PDF-1.4\n%%EOF"
    expect(message.get_by_label("Open policy.pdf")).to_be_visible()


def test_tables_are_drawn_as_charts_and_drawings_as_images(tab: Tab) -> None:
    previewed = "```csv\nname,count\nAna,2\nBo,4\n```\n\n```svg\n<svg xmlns='http://www.w3.org/2000/svg'/>\n```\n"
    tab.send(script([["text", previewed]]))
    tab.answers.last.get_by_role("button", name="Preview").first.click()
    panel = tab.page.get_by_role("complementary", name="Artifact: name, count")
    expect(panel.locator("td")).to_have_text(["Ana", "2", "Bo", "4"])
    panel.get_by_role("button", name="Chart").click()
    expect(panel.get_by_role("img", name="Chart of count").locator("rect[fill]")).to_have_count(2)
    panel.get_by_role("button", name="Lines").click()
    expect(panel.locator(".series-line").first).to_be_visible()
    check_axe(tab)
    panel.get_by_role("button", name="View as table").click()
    expect(panel.locator("td")).to_have_count(4)
    tab.answers.last.get_by_role("button", name="Preview").last.click()
    expect(tab.page.locator(".artifact-panel img[alt=Drawing]")).to_be_attached()
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator(".artifact-panel")).to_have_count(0)


def test_html_opens_as_an_artifact_with_versions(tab: Tab) -> None:
    page = "<title>Counter</title><p id=n>0</p><button onclick='n.textContent++'>{}</button>"
    for name in ("Add", "Increase"):
        tab.send(script([["text", f"```html\n{page.format(name)}\n```\n\nMade {name}."]]))
        tab.wait_for_answer(f"Made {name}.")
        tab.wait_until_idle()
    expect(tab.page.locator(".artifact-panel")).to_have_count(0)  # nothing runs before a click
    opener = tab.button("Artifacts 1")
    opener.click()
    panel = tab.page.get_by_role("complementary", name="Artifact: Counter")
    frame = panel.frame_locator("iframe")
    frame.get_by_role("button", name="Increase").click()
    expect(frame.locator("#n")).to_have_text("1")
    panel.get_by_label("Version").select_option(label="Version 1 of 2")
    expect(frame.get_by_role("button", name="Add")).to_be_visible()
    panel.get_by_role("button", name="Code").click()
    expect(panel.locator("code")).to_have_text(page.format("Add"))
    with tab.page.expect_download() as saved:
        panel.get_by_label("Download artifact").click()
    assert saved.value.suggested_filename == "Counter.html"
    assert saved.value.path().read_text() == page.format("Add")
    check_axe(tab)
    before = panel.bounding_box()
    panel.get_by_role("separator").press("ArrowLeft")
    after = panel.bounding_box()
    assert before and after and after["width"] == before["width"] + 40
    panel.get_by_label("Close artifact").click()
    expect(opener).to_be_focused()
    check_artifact_sheet(tab, opener)


def check_artifact_sheet(tab: Tab, opener: Locator) -> None:
    """On a phone, the artifact is a sheet that Escape closes."""
    tab.page.set_viewport_size({"width": 390, "height": 780})
    opener.click()
    sheet = tab.page.get_by_role("dialog", name="Artifact: Counter")
    expect(sheet.frame_locator("iframe").get_by_role("button", name="Increase")).to_be_visible()
    assert tab.fits_width()
    check_axe(tab)
    tab.page.keyboard.press("Escape")
    expect(sheet).to_have_count(0)
    tab.page.set_viewport_size({"width": 1280, "height": 800})


def test_approval_shows_a_preview(tab: Tab) -> None:
    tab.send(script([["call", "write_note", {"note": "tea\u200b"}]]))
    card = tab.page.get_by_role("region", name="Helper wants to use write_note")
    expect(card.locator(".preview .exact-text")).to_contain_text("-milk\n+tea")
    assert card.locator(".preview mark").all_text_contents() == ["U+200B"]
    card.get_by_role("button", name="Edit").click()
    expect(card).to_contain_text("Your edited call may differ.")
    card.get_by_role("button", name="Cancel").click()
    card.get_by_role("button", name="Allow once").click()
    tab.wait_for_answer("Done.")


def test_approval_denied_with_a_reason_reaches_the_model_and_the_timeline(tab: Tab) -> None:
    tab.send(script([["call", "run_command", {"command": "ls -l"}]], [["text", "Got: "], ["results"]]))
    tab.button("Deny…").click()
    tab.page.get_by_label("Reason").fill("not on a Sunday")
    tab.page.get_by_label("Reason").press("Enter")
    tab.wait_for_answer('Got: [{"cancelled":true,"reason":"not on a Sunday"}]')
    expect(tab.page.locator(".tool-call .status")).to_contain_text("Denied")
    tab.page.get_by_label("View run timeline").click()
    expect(tab.page.get_by_role("img", name="deny by owner: not on a Sunday")).to_be_visible()
    tab.page.go_back()
    tab.page.get_by_role("link", name="View in audit log").click()
    expect(tab.page.locator("tr.linked-row")).to_contain_text("run_command")
    entry = tab.page.locator(".entry-details")
    expect(entry).to_contain_text("Denied by you at")
    expect(entry).to_contain_text("“not on a Sunday”. Helper wanted to run ls -l.")


def test_approval_is_allowed_with_edited_arguments_in_the_approvals_view(tab: Tab) -> None:
    tab.send(NEEDS_APPROVAL)
    tab.page.locator(".approval").wait_for()
    tab.open_view("approvals")
    tab.button("Edit", exact=True).click()
    editor = tab.page.get_by_label("Arguments (JSON)")
    editor.fill("{")
    expect(tab.button("Allow edited call")).to_be_disabled()
    editor.fill('{"command": "pwd"}')
    tab.button("Allow edited call").click()
    expect(tab.page.get_by_text("Nothing needs your approval.")).to_be_visible()
    tab.page.locator(".session").first.click()
    tab.wait_for_answer("It continued.")
    tab.page.locator(".tool-call > button").click()
    expect(tab.page.locator(".tool-call-body")).to_contain_text("ran pwd")


def test_elicitation_form_is_validated_and_submitted(tab: Tab) -> None:
    tab.send(script([["call", "order", {"what": "tea"}]], [["text", "Got: "], ["results"]]))
    form = tab.page.locator(".approval")
    expect(form.get_by_label("Message")).to_contain_text("tea?")
    assert form.locator(".exact-text mark").all_text_contents() == ["U+202E"] and form.locator("img, b").count() == 0
    expect(form).to_contain_text("Your answer is sent to the MCP server shop.")
    submit = form.get_by_role("button", name="Submit")
    expect(submit).to_be_disabled()
    form.get_by_label("Size").select_option("Small")
    form.get_by_label("Count").fill("11")
    expect(form).to_contain_text("Must be at most 9.")
    form.get_by_label("Count").fill("3")
    form.get_by_label("Mail").fill("invalid")
    form.get_by_label("sugar").check()
    form.get_by_label("Gift").select_option("Yes")
    submit.click()
    expect(tab.page.locator(".ant-message")).to_contain_text("mail")  # only the gateway checks the format
    tab.button("Dismiss", exact=True).and_(tab.page.locator(".ant-message *")).click()
    expect(tab.page.locator(".ant-message-notice")).to_have_count(0)
    form.get_by_label("Mail").fill("ana@example.org")
    tab.page.reload()
    tab.open_view("approvals")
    form.get_by_label("Size").select_option("l")
    submit.click()
    expect(tab.page.get_by_text("Nothing needs your approval.")).to_be_visible()
    tab.page.locator(".session").first.click()
    tab.wait_for_answer("""Got: ["accept {'size': 'l', 'count': 2}"]""")


def test_elicitation_is_declined_dismissed_or_answered_by_opening_a_link(tab: Tab) -> None:
    for button, action in (("Decline", "decline"), ("Dismiss", "cancel")):
        tab.send(script([["call", "order", {"what": action}]], [["text", "Got: "], ["results"]]))
        tab.page.locator(".approval").get_by_role("button", name=button).click()
        tab.wait_for_answer(f'Got: ["{action} {{}}"]')
    tab.context.route("https://pay.example.org/**", lambda route: route.fulfill(body="paid"))
    tab.send(script([["call", "pay", {}]], [["text", "Got: "], ["results"]]))
    form = tab.page.locator(".approval")
    expect(form.get_by_label("URL to open")).to_have_text("https://pay.example.org/bill")
    with tab.context.expect_page() as opened:
        form.get_by_role("button", name="Open link and continue").click()
    assert opened.value.url == "https://pay.example.org/bill" and opened.value.evaluate("window.opener") is None
    tab.wait_for_answer('Got: ["accept"]')


def test_hidden_characters_of_a_command_are_spelled_out(tab: Tab) -> None:
    command = "ls\u202e #\u200b" + " " * 60 + "\n\n\n\n\nrm -rf \u0430ll"
    tab.send(script([["call", "run_command", {"command": command}]]))
    tab.page.locator(".approval").wait_for()
    marks = tab.page.locator(".approval .exact-text").first.locator("mark")
    expect(marks).to_have_text(["U+202E", "U+200B", "60 spaces", "4 empty lines", "\u0430 U+0430"])


def test_reordering_characters_of_a_tool_call_are_spelled_out(tab: Tab) -> None:
    code = "if access:\u202e # admin\u2066\n    run()"
    block = f"```python\n{code}\n```"
    tab.send(script([["call", "get_weather", {"city": "a\u202eb\u2066c\u200bd"}]], [["text", block]]))
    answer = tab.answers.last
    expect(answer.locator("figure.code")).to_contain_text("run()")
    expect(answer.locator("figure.code mark")).to_have_text(["U+202E", "U+2066"])
    answer.locator(".tool-call > button").first.click()
    marks = answer.locator(".tool-call-body pre").first.locator("mark")
    expect(marks).to_have_text(["U+202E", "U+2066", "U+200B"])
    shown = answer.inner_text()
    assert not {"\u202e", "\u2066", "\u200b"} & set(shown)


def test_stopped_run_keeps_its_partial_text(tab: Tab) -> None:
    stop_actions = (
        lambda: tab.button("Stop").click(),
        lambda: tab.page.locator(".composer textarea").press("Escape"),
    )
    for number, stop in enumerate(stop_actions):
        tab.send(ENDLESS)
        answer = tab.answers.nth(number)
        answer.get_by_text("word3").wait_for()
        stop()
        tab.wait_until_idle()
        expect(answer).to_contain_text("Stopped.")
    texts = tab.page.locator(".answer .markdown").all_inner_texts()
    assert len(texts) == 2
    tab.page.reload()
    tab.answers.nth(1).get_by_text("word3").wait_for()
    assert tab.page.locator(".answer .markdown").all_inner_texts() == texts
    expect(tab.page.locator(".stopped")).to_have_count(2)


def test_message_sent_during_a_run_is_queued_in_every_tab(gateway: GatewayProcess, windows: Windows) -> None:
    window = windows.tabs(gateway)
    tab = next(window).open()
    tab.send(script([["call", "build", {"lines": 1}]]))
    tab.answers.last.wait_for()
    tab.send("second")
    expect(tab.page.locator("[data-pending=queued]")).to_contain_text("second")
    other = next(window)
    other.page.goto(tab.page.url)
    expect(other.page.locator("[data-pending=queued]")).to_contain_text("second")
    gateway.release()
    for each in (tab, other):
        each.wait_for_answer("You wrote: second")
        expect(each.page.locator("[data-pending]")).to_have_count(0)
        expect(each.page.locator(".user-message")).to_have_count(2)


def test_steering_message_enters_the_running_turn_in_every_tab(gateway: GatewayProcess, windows: Windows) -> None:
    window = windows.tabs(gateway)
    tab = next(window).open()
    tab.send(script([["call", "build", {"lines": 1}]]))
    tab.answers.last.wait_for()
    other = next(window)
    other.page.goto(tab.page.url)
    tab.page.get_by_role("textbox").fill("second")
    tab.button("Steer").click()
    expect(tab.page.locator("[data-pending=queued]")).to_contain_text("Steering after the current tool calls")
    other.page.get_by_role("textbox").fill("third")
    other.page.get_by_role("textbox").press("Alt+Enter")
    expect(tab.page.locator("[data-pending=queued]")).to_have_count(2)
    gateway.release()
    for each in (tab, other):
        each.wait_for_answer("You wrote: third")
        each.wait_until_idle()
        expect(each.page.locator("[data-pending]")).to_have_count(0)
        shown = each.page.locator(".user-message, .answer").evaluate_all("all => all.map(each => each.className)")
        assert [name.split()[0] for name in shown] == [
            "user-message",
            "answer",
            "user-message",
            "user-message",
            "answer",
        ]
    tab.page.reload()
    tab.wait_for_answer("You wrote: third")
    assert tab.page.locator(".user-message .bubble").all_inner_texts()[1:] == ["second", "third"]


def test_queued_message_is_cancelled(tab: Tab) -> None:
    tab.send(ENDLESS)
    tab.answers.last.wait_for()
    tab.send("second")
    tab.page.locator("[data-pending=queued]").get_by_role("button", name="Cancel").click()
    expect(tab.page.locator("[data-pending]")).to_have_count(0)
    tab.button("Stop").click()
    tab.wait_until_idle()
    tab.page.reload()
    expect(tab.page.locator(".stopped")).to_have_count(1)
    expect(tab.page.locator(".user-message")).to_have_count(1)


def test_second_tab_gets_the_token_and_stays_in_sync(gateway: GatewayProcess, windows: Windows) -> None:
    window = windows.tabs(gateway)
    tab = next(window).open()
    tab.send("hello")
    tab.wait_for_answer("You wrote: hello")
    other = next(window)
    other.page.goto(tab.page.url)
    other.wait_for_answer("You wrote: hello")
    other.send("from the other")
    tab.wait_for_answer("You wrote: from the other")
    tab.button("Chat options").click()
    tab.page.get_by_text("Rename").click()
    tab.page.get_by_label("Chat name").fill("A new name")
    tab.page.get_by_label("Chat name").press("Enter")
    expect(other.page.locator(".chat-header h2")).to_have_text("A new name")
    expect(other.page.locator(".session.active")).to_have_text("A new name")


def test_edited_message_leaves_the_original_session_unchanged(tab: Tab) -> None:
    for text in ("one", "two"):
        tab.send(text)
        tab.wait_for_answer(f"You wrote: {text}")
        tab.wait_until_idle()
    original = tab.page.url
    tab.page.locator(".user-message").last.hover()
    tab.page.locator(".user-message").last.get_by_role("button", name="Edit message").click()
    tab.page.get_by_role("textbox", name="Edit message").fill("three")
    tab.page.get_by_role("textbox", name="Edit message").press("Enter")
    tab.wait_for_answer("You wrote: three")
    assert tab.page.url != original
    expect(tab.page.locator(".user-message")).to_have_count(2)
    tab.page.goto(original)
    tab.wait_for_answer("You wrote: two")


COPIES_WITHOUT_CLIPBOARD = """() => {
  window.copies = [];
  Object.defineProperty(navigator, "clipboard", { value: undefined, configurable: true });  // as over plain HTTP
  document.execCommand = () => window.copies.push(document.activeElement.value) > 0;
}"""


def test_session_keeps_its_draft_and_is_exported_archived_and_found(tab: Tab) -> None:
    tab.send("about fjords")
    tab.wait_for_answer("You wrote: about fjords")
    tab.wait_until_idle()
    tab.page.locator(".composer textarea").fill("not sent yet")
    tab.page.reload()
    expect(tab.page.locator(".composer textarea")).to_have_value("not sent yet")
    tab.button("Chat options").click()
    with tab.page.expect_download() as download:
        tab.page.get_by_text("Export as Markdown").click()
    assert "You wrote: about fjords" in download.value.path().read_text()
    tab.page.evaluate(COPIES_WITHOUT_CLIPBOARD)
    tab.page.get_by_label("Copy answer").click()
    expect(tab.page.get_by_label("Copy answer")).to_have_attribute("title", "Copied")
    tab.button("Chat options").click()
    tab.page.get_by_text("Copy as Markdown").click()
    tab.page.wait_for_function("() => window.copies.length === 2")
    answer, whole = tab.page.evaluate("window.copies")
    assert answer == "You wrote: about fjords" and whole.startswith("# about fjords\n\n## You, ")
    tab.button("Chat options").click()
    tab.page.get_by_text("Archive", exact=True).click()
    expect(tab.page.locator(".session")).to_have_count(0)
    tab.button("Undo").click()
    tab.page.locator(".session").click()
    tab.button("Chat options").click()
    tab.page.get_by_text("Archive", exact=True).click()
    expect(tab.page.locator(".session")).to_have_count(0)
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_placeholder("Search chats and messages").fill("FJORD")
    tab.page.locator(".hit").first.click()
    tab.wait_for_answer("You wrote: about fjords")


def test_deleted_session_says_so_in_another_tab(gateway: GatewayProcess, windows: Windows) -> None:
    window = windows.tabs(gateway)
    tab, other = next(window).open(), next(window)
    tab.send("hello")
    tab.wait_for_answer("You wrote: hello")
    other.page.goto(tab.page.url)
    other.wait_for_answer("You wrote: hello")
    tab.button("Chat options").click()
    tab.page.get_by_text("Delete…").click()
    tab.page.locator(".ant-modal").get_by_role("button", name="Delete").click()
    expect(other.page.get_by_role("heading", name="This chat doesn’t exist or was deleted.")).to_be_visible()
    expect(tab.page.locator(".session")).to_have_count(0)


def test_image_and_file_are_attached(tab: Tab) -> None:
    files: Any = [
        {"name": "dot.png", "mimeType": "image/png", "buffer": PIXEL},
        {"name": "<b>notes.txt", "mimeType": "text/plain", "buffer": b"notes"},
    ]
    tab.page.locator("input[type=file]").set_input_files(files)
    expect(tab.page.locator(".attachments li")).to_have_count(2)
    tab.send("look")
    tab.wait_for_answer("You wrote: look")
    message = tab.page.locator(".user-message").last
    assert message.locator("img").evaluate("image => image.naturalWidth") == 1
    expect(message.locator(".file")).to_contain_text("<b>notes.txt")


def test_failed_run_shows_its_error_after_a_reload(tab: Tab) -> None:
    tab.send(script([["text", "Half"], ["fail", "the key is not valid"]]))
    expect(tab.answers.last).to_contain_text("The key is not valid")
    tab.page.reload()
    expect(tab.answers.last).to_contain_text("The key is not valid")


def call(gateway: GatewayProcess, method: str, **params: Any) -> None:
    """Call a method as another client."""
    with connect(gateway.url.replace("http", "ws")) as socket:
        socket.send(json.dumps({"type": "auth", "token": gateway.token, "protocol": 1}))
        socket.recv(10)
        socket.send(json.dumps({"id": "1", "method": method, "params": params}))
        assert "result" in json.loads(socket.recv(10))


def test_answer_that_a_budget_ended_shows_why_and_what_there_is(tab: Tab, gateway: GatewayProcess) -> None:
    cut_off = {"truncated": True, "budget": "cut off by a budget, which had no more tokens left"}
    lines = [
        {"atlas_session": 1, "key": "spent", "agent_id": "helper", "label": "Spent"},
        {"role": "user", "parts": [{"type": "text", "text": "Hello."}], "id": "m0", "created_at": 1},
        {"role": "assistant", "parts": [{"type": "text", "text": "Half an"}], "id": "m1", "metadata": cut_off},
    ]
    call(gateway, "sessions.import", text="\n".join(json.dumps(line) for line in lines))
    message = script([["text", "I look."], ["call", "get_weather", {"city": "Oslo"}]])
    call(gateway, "chat.send", sessionKey="spent", message=message, budget={"requests": 1})
    tab.page.get_by_text("Spent").first.click()
    tab.wait_for_answer("I look.")
    spent = "The budget of the turn of 1 model requests is used up (1 used)"
    expect(tab.answers.last.get_by_role("alert")).to_contain_text(spent)
    expect(tab.answers.first.get_by_role("alert")).to_have_text(f"The answer was {cut_off['budget']}.")


def test_turn_that_reached_its_limit_of_rounds_says_so(tab: Tab) -> None:
    tab.send(script(*[[["call", "get_weather", {"city": f"City {number}"}]] for number in range(11)]))
    notice = tab.answers.last.get_by_text("Stopped after 10 rounds. Send a message to continue.")
    expect(notice).to_be_visible()
    tab.wait_until_idle()
    tab.page.reload()
    expect(notice).to_be_visible()
    tab.send(script([["text", "Done now."]]))
    tab.wait_for_answer("Done now.")
    expect(tab.page.get_by_text("Send a message to continue.")).to_have_count(1)
    expect(notice).to_have_count(0)


def test_summary_of_older_messages_opens(tab: Tab, gateway: GatewayProcess) -> None:
    summary = {"synthetic": True, "summary": {"through": "m1", "messages": 2}}
    messages = [
        {"role": "user", "parts": [{"type": "text", "text": "Hello."}], "id": "m0", "created_at": 1},
        {"role": "assistant", "parts": [{"type": "text", "text": "Hi."}], "id": "m1", "created_at": 2},
        {"role": "user", "parts": [{"type": "text", "text": "And now?"}], "id": "m2", "created_at": 3},
        {"role": "user", "parts": [{"type": "text", "text": "Open: **tea**."}], "id": "m3", "metadata": summary},
        {"role": "assistant", "parts": [{"type": "text", "text": "Now tea."}], "id": "m4", "created_at": 5},
    ]
    header = {"atlas_session": 1, "key": "long", "agent_id": "helper", "label": "A long one"}
    call(gateway, "sessions.import", text="\n".join(json.dumps(line) for line in [header, *messages]))
    tab.page.get_by_text("A long one").first.click()
    tab.wait_for_answer("Now tea.")
    expect(tab.page.get_by_text("Open: tea.")).to_have_count(0)
    tab.page.get_by_role("button", name="2 older messages summarised for the model").click()
    expect(tab.page.locator(".summary-text strong")).to_have_text("tea")
