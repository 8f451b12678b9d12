"""Take the screenshots for README and docs: `python tests/page/screenshots.py [FOLDER]`."""

import os
import sys
import tempfile
from collections.abc import Container, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from browser import (
    HERE,
    PHONE,
    ROOT,
    GatewayProcess,
    Tab,
    install_weights,
    launch_browser,
    open_tabs,
    running_gateway,
)
from journey import (
    MCP_SERVER,
    LocalServer,
    NewUser,
    OpenAIAccount,
    answer_as_assistant,
    installed_gateway,
    served,
    start_with_key,
    start_without_key,
)
from other_clients import Clients, talk_in_one_session
from PIL import Image
from playwright.sync_api import Browser, expect

from atlas_agents.local.models import DEFAULT
from local_weights import home_with_weights

FOLDER = ROOT / "docs" / "images"
SHARP_PHONE: dict[str, Any] = {**PHONE, "device_scale_factor": 1.5}
PHONE_STEPS = ("found", "approval", "audit")
PROMPTS = ("What does the policy say about refunds?", "Plan the release", "Clean up the old builds")
ORDERS = "How did orders do this month?"
LAST_WORDS = "Should I draft"
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
"""Only the fonts that come with Chromium, so that a screenshot does not depend on the other fonts of the machine."""

REPLACE_TEXTS = """(texts) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode())
    for (const [text, other] of Object.entries(texts))
      if (node.nodeValue.includes(text)) node.nodeValue = node.nodeValue.replaceAll(text, other);
}"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = home_with_weights() / "models" / f"{DEFAULT}.gguf"
    with (
        tempfile.TemporaryDirectory(prefix="atlas-") as home,
        launch_browser(**font_environment(Path(home))) as browser,
        running_gateway(Path(home), HERE / "screenshot_gateway.py") as gateway,
    ):
        create_sessions(browser, gateway)
        take_chats(next(open_tabs(browser, gateway, color_scheme="light")), folder)
        take_view(next(open_tabs(browser, gateway, color_scheme="dark")).open(), "usage", folder / "usage-dark.png")
        take_phone(browser, gateway, folder)
        take_journey(browser, weights, folder)
        take_clients(browser, folder)


def take_clients(browser: Browser, folder: Path) -> None:
    """Take a session that four clients follow."""
    with (
        tempfile.TemporaryDirectory(prefix="atlas-") as home,
        running_gateway(Path(home), HERE / "admin_gateway.py") as gateway,
        Clients(gateway).connected() as clients,
    ):
        tab = next(open_tabs(browser, gateway, viewport={"width": 1280, "height": 1080}))
        talk_in_one_session(tab, clients)
        take(tab, folder / "clients.png")


def font_environment(folder: Path) -> dict[str, str]:
    """Return the environment that limits the browser's fonts, or none if they are installed elsewhere."""
    if not Path("/usr/share/fonts/truetype/liberation").is_dir():
        return {}
    (folder / "fonts.conf").write_text(FONTS.format(cache=folder / "fonts"))
    return {"FONTCONFIG_FILE": str(folder / "fonts.conf")}


def create_sessions(browser: Browser, gateway: GatewayProcess) -> None:
    """Create sessions with answers and pending approvals."""
    tab = next(open_tabs(browser, gateway, color_scheme="light")).open()
    for prompt in PROMPTS:
        send_in_new_chat(tab, prompt)
        tab.page.locator(".answer .message-footer, .approval").first.wait_for(state="attached")
    send_in_new_chat(tab, "Send the weekly report to the team")
    tab.page.locator(".approval").wait_for()
    send_in_new_chat(tab, ORDERS)
    tab.wait_for_answer(LAST_WORDS)
    tab.wait_until_idle()
    tab.page.context.close()


def send_in_new_chat(tab: Tab, prompt: str) -> None:
    tab.button("New chat").first.click()
    tab.send(prompt)


def take_chats(tab: Tab, folder: Path) -> None:
    """Take an answer, an approval, the jobs, and the timeline of a run."""
    tab.open()
    tab.page.get_by_text(ORDERS).first.click()
    tab.wait_for_answer(LAST_WORDS)
    tab.page.locator(".hljs-keyword").first.wait_for()
    take(tab, folder / "chat-light.png")
    tab.page.get_by_text("Send the weekly report").first.click()
    tab.page.locator(".approval").wait_for()
    take(tab, folder / "approval-light.png")
    take_view(tab, "jobs", folder / "jobs-light.png")
    tab.open_view("runs")
    tab.page.locator("tr", has_text="How did orders do").first.click()
    tab.page.locator(".timeline li").first.wait_for()
    take(tab, folder / "run-light.png")
    tab.page.context.close()


def take_view(tab: Tab, view: str, path: Path) -> None:
    tab.open_view(view)
    tab.page.locator("tbody tr.ant-table-row, .bar-chart").first.wait_for()
    take(tab, path)


def take_phone(browser: Browser, gateway: GatewayProcess, folder: Path) -> None:
    tab = next(open_tabs(browser, gateway, color_scheme="light", **SHARP_PHONE)).open()
    tab.button("Menu").click()
    tab.page.locator(".drawer .session").filter(has_text="Send the weekly report").click()
    tab.page.locator(".approval").wait_for()
    take(tab, folder / "phone-approval.png")


def take_journey(browser: Browser, weights: Path, folder: Path) -> None:
    """Take a picture of each step of a new user with a key, and of some steps of one without a key on a phone."""
    with (
        new_home(weights) as home,
        served(OpenAIAccount(then=answer_as_assistant)) as vendor,
        installed_gateway(home) as gateway,
    ):
        tab = next(open_tabs(browser, gateway, color_scheme="light", viewport={"width": 1180, "height": 760}))
        start_with_key(photographed_user(tab, home, folder / "first"), gateway, vendor.address)
        tab.context.close()
    with (
        new_home(weights) as home,
        served(LocalServer(then=answer_as_assistant)) as server,
        installed_gateway(home, VLLM_BASE_URL=server.address) as gateway,
    ):
        tab = next(open_tabs(browser, gateway, color_scheme="dark", **SHARP_PHONE))
        start_without_key(photographed_user(tab, home, folder / "first-phone", PHONE_STEPS), gateway)
        tab.context.close()


@contextmanager
def new_home(weights: Path) -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="atlas-") as home:
        install_weights(Path(home), weights)
        yield Path(home)


def photographed_user(tab: Tab, home: Path, prefix: Path, steps: Container[str] | None = None) -> NewUser:
    """Return a new user of whose steps pictures are taken; paths of this machine are replaced in them."""
    folder = home / "tasks"
    folder.mkdir()
    interpreters = [os.path.realpath(sys.executable), sys.executable]
    paths = dict.fromkeys(interpreters, "/usr/bin/python3")
    paths |= {f"{MCP_SERVER.parent}/": "/home/ana/tasks/", MCP_SERVER.name: "server.py", str(home): "/home/ana"}

    def take_step(name: str) -> None:
        if steps is None or name in steps:
            tab.page.evaluate(REPLACE_TEXTS, paths)
            take(tab, prefix.with_name(f"{prefix.name}-{name}.png"))

    return NewUser(tab, folder, take_step)


def take(tab: Tab, path: Path) -> None:
    assert tab.errors == [], tab.errors
    tab.page.mouse.move(0, 0)  # no element is hovered
    expect(tab.page.locator(".skeleton, .ant-spin-spinning, .ant-tooltip:not(.ant-tooltip-hidden)")).to_have_count(0)
    tab.wait_for_animations()
    tab.page.screenshot(path=path)
    image = Image.open(path).convert("RGB")  # the page has few colours: a palette takes a third of the bytes
    image.quantize(method=Image.Quantize.MAXCOVERAGE, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
