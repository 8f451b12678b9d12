"""A new user's first ten minutes with the installed command and a browser, and doubles of the model servers they use.

The test walks it and checks what is shown; `screenshots.py` takes a picture of each step.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from browser import ROOT, TIMEOUT, GatewayProcess, Tab
from playwright.sync_api import Locator, expect

from vendors.common import KEY, Answer, VendorDouble, VendorRequest, require
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_compatible import VLLMDouble

ATLAS = str(Path(sys.executable).parent / "atlas")
MODELS = ("gpt-5.1", "gpt-4.1")
LOCAL_MODELS = ("qwen3-8b", "qwen3-32b")
MOST_CLICKS = 25
MCP_SERVER = ROOT / "tests" / "foreign" / "scripted_server.py"
POLICY = "# Refunds\n\nCustomers can return a product within 30 days. The refund is paid within 14 days.\n"
QUESTION = "How long does a refund take? Add a task to answer the customer."
TASK = "Tell the customer: refunds take 14 days"
TOOLS = [
    {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    for name, description in (("add_task", "Add a task to the list."), ("list_tasks", "List the open tasks."))
]
T = TypeVar("T")


# Model servers


def answer_as_assistant(request: VendorRequest) -> Answer:
    """Search the documents, add a task, then answer with the source that the search has returned."""
    if request.method == "GET":
        return Answer()
    messages = cast(list[dict[str, Any]], request.body["messages"])
    asked = max(index for index, message in enumerate(messages) if QUESTION in _text(message) or index == 0)
    if QUESTION not in _text(messages[asked]):
        return Answer("Hello! What would you like to do?")
    called = sum(_is_result(message) for message in messages[asked:])
    if called == 0:
        return Answer(calls=(("search_knowledge", {"query": "How long does a refund take?"}),))
    if called == 1:
        offered = [tool["function"]["name"] for tool in request.body["tools"]]
        (add_task,) = [name for name in offered if name.endswith("add_task")]
        return Answer(calls=((add_task, {"text": TASK}),))
    source = "policy.md" if '"policy.md' in _text(messages[asked + 2]).replace("\\", "") else "no source"
    return Answer(f"A refund is paid within **14 days** (source: {source}). I added a task for the answer.")


def _text(message: dict[str, Any]) -> str:
    return json.dumps(message.get("content"))


def _is_result(message: dict[str, Any]) -> bool:
    return message["role"] == "tool" or '"tool_result"' in _text(message)


class OpenAIAccount(OpenAIChatDouble):
    """OpenAI's API as one account sees it: it needs the account's key, and lists two models."""

    def check(self, request: VendorRequest) -> None:
        self.check_key(request) if request.path == "/v1/models" else super().check(request)

    def encode_body(self, request: VendorRequest, answer: Answer) -> dict[str, Any] | None:
        return list_models(*MODELS) if request.method == "GET" else super().encode_body(request, answer)


class LocalServer(VLLMDouble):
    """A vLLM server on this machine: it needs no key, and has two models."""

    def check(self, request: VendorRequest) -> None:
        self.check_key(request) if request.path == "/v1/models" else super().check(request)

    def check_key(self, request: VendorRequest) -> None:
        require("authorization" not in request.headers, "This server expects no key.", status=401)

    def check_model(self, body: dict[str, Any]) -> None:
        require(body["model"] in LOCAL_MODELS, f"The model `{body['model']}` does not exist.", status=404)
        super().check_model(body)

    def encode_body(self, request: VendorRequest, answer: Answer) -> dict[str, Any] | None:
        return list_models(*LOCAL_MODELS) if request.method == "GET" else super().encode_body(request, answer)


def list_models(*names: str) -> dict[str, Any]:
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


@contextmanager
def served(double: VendorDouble) -> Generator[VendorDouble]:
    """Serve a double from a thread: Playwright runs the event loop of this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result(TIMEOUT)

    run(double.__aenter__())
    try:
        yield double
    finally:
        run(double.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(TIMEOUT)
        loop.close()


# The installed command


class InstalledGateway(GatewayProcess):
    """`atlas serve` as a new user starts it; `link` is what it prints."""

    def __init__(self, home: Path, **environment: str) -> None:
        super().__init__(home)
        self.link = ""
        self._environment = environment
        self._command: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.working_directory.mkdir(exist_ok=True)
        nowhere = {f"{name}_BASE_URL": "http://127.0.0.1:9/v1" for name in ("OLLAMA", "LMSTUDIO", "VLLM", "LLAMACPP")}
        own = {"HOME": str(self.home), "ATLAS_HOME": str(self.home), "ATLAS_PORT": "0", **nowhere}
        inherited = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self._command = subprocess.Popen(
            [ATLAS, "serve", "--no-open"],
            cwd=self.working_directory,
            env={**inherited, **own, **self._environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        errors = self._command.stderr
        assert errors is not None
        printed: list[str] = []
        while not self.link:
            line = errors.readline()
            printed.append(line)
            assert line, "".join(printed)
            self.link = line.removeprefix("Open ").strip() if "#token=" in line else ""
        self.port = int(self.link.split(":")[2].partition("/")[0])
        self._log = threading.Thread(target=self._write_log, args=(errors,), daemon=True)
        self._log.start()

    def _write_log(self, errors: IO[str]) -> None:
        with errors, (self.home / "log").open("w") as log:
            shutil.copyfileobj(errors, log)

    def kill(self) -> None:
        if self._command is not None:
            self._command.terminate()
            self._command.wait(TIMEOUT)
            self._log.join(TIMEOUT)
            self._command = None


@contextmanager
def installed_gateway(home: Path, **environment: str) -> Generator[InstalledGateway]:
    gateway = InstalledGateway(home, **environment)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.kill()


# The new user


class NewUser:
    """Acts in a tab as a new user, and counts the clicks. `on_step` is called with the name of each step."""

    def __init__(self, tab: Tab, folder: Path, on_step: Callable[[str], None] = lambda name: None) -> None:
        self.tab = tab
        self.page = tab.page
        self.clicks = 0
        self._folder = folder
        self._on_step = on_step
        (folder / "tools.json").write_text(json.dumps(TOOLS))
        (folder / "policy.md").write_text(POLICY)

    def step(self, name: str) -> None:
        self._on_step(name)

    def click(self, target: Locator) -> None:
        self.clicks += 1
        target.tap() if self.is_phone else target.click()

    def press_button(self, name: str) -> None:
        self.click(self.page.get_by_role("button", name=name, exact=True))

    @property
    def is_phone(self) -> bool:
        return bool(self.page.evaluate("innerWidth < 700"))

    def go_to(self, name: str) -> None:
        """Follow an entry of the sidebar, which is in a menu on a phone."""
        sidebar = self.page.locator(".layout > aside")
        if self.is_phone:
            self.press_button("Menu")
            sidebar = self.page.locator(".drawer")
        self.click(sidebar.get_by_role("link", name=name))

    def open_link(self, gateway: InstalledGateway) -> None:
        self.page.goto(gateway.link)
        self.tab.wait_until_connected()
        assert "token" not in self.page.url
        expect(self.page.get_by_role("region", name="Choose a model")).to_contain_text("a tiny model")

    def paste_key(self, url: str, key: str) -> None:
        self.press_button("Add key")
        self.click(self.page.get_by_role("combobox", name="Provider"))
        self.click(self.page.locator(".ant-select-item-option", has_text="OpenAI-compatible server"))
        self.page.get_by_label("Base URL").fill(url)
        self.page.get_by_label("API key (optional)").fill(key)
        self.step("key")
        self.page.keyboard.press("Enter")
        expect(self.page.get_by_text("Key works. 2 models available.")).to_be_visible()
        assert key not in self.page.content()

    def pick_model(self, model: str) -> None:
        self.click(self.page.get_by_role("combobox", name="Model"))
        self.click(self.page.locator(".ant-select-item-option", has_text=model))
        self.step("model")
        self.press_button(f"Use {model}")
        self._model_is_used(model)

    def pick_found_model(self, model: str) -> None:
        card = self.page.get_by_role("region", name="Choose a model")
        expect(card).to_contain_text("vLLM")
        self.step("found")
        self.click(card.get_by_role("button", name="Choose"))
        self.click(self.page.get_by_role("menuitem", name=model))
        self._model_is_used(model)

    def _model_is_used(self, model: str) -> None:
        expect(self.page.get_by_text(f"Now using {model}")).to_be_visible()
        expect(self.page.get_by_role("region", name="Choose a model")).to_be_hidden()

    def send(self, text: str) -> None:
        composer = self.page.locator(".composer textarea")
        composer.fill(text)
        composer.press("Enter")

    def say_hello(self, model: str) -> None:
        self.send("Hello")
        self.tab.wait_for_answer("Hello! What would you like to do?")
        self.tab.wait_until_idle()
        expect(self.tab.answers.last.locator(".speaker")).to_contain_text(model)
        self.step("hello")

    def add_mcp_server(self) -> None:
        self.go_to("Settings")
        self.click(self.page.locator(".settings-tabs").get_by_role("link", name="MCP servers"))
        self.press_button("Add server")
        self.press_button("Custom command or URL")
        fields = {
            "Name": "tasks",
            "Arguments": f"-S\n{MCP_SERVER}\n{self._folder}",
            "Folder it may change": self._folder,
        }
        for label, text in fields.items():
            self.page.get_by_label(label).fill(str(text))
        self.page.get_by_label("Command", exact=True).last.fill(sys.executable)
        self.press_button("Continue")
        expect(self.page.get_by_text("This will run:")).to_be_visible()
        self.press_button("Start and inspect")
        expect(self.page.get_by_role("list", name="Tools")).to_contain_text("Add a task to the list.")
        self.click(self.page.get_by_role("checkbox", name="All tools"))
        self.step("mcp")
        self.press_button("Approve 2 tools")
        expect(self.page.get_by_role("list", name="MCP servers")).to_contain_text("Running")

    def create_agent(
        self,
    ) -> None:
        self.go_to("Agents")
        self.press_button("New agent")
        self.page.get_by_label("Name").fill("Archy")
        self.page.get_by_label("Description").fill("Answers questions about orders and refunds.")
        self.page.get_by_label("Instructions").fill("Answer from the documents, and name the source.")
        self.click(self.page.get_by_role("checkbox", name="search_knowledge"))
        self.click(self.page.get_by_role("checkbox", name="tasks/add_task"))
        expect(self.page.locator(".file-changes summary")).to_contain_text("Changes to AGENTS.md (+")
        self.step("agent")
        self.press_button("Save")
        expect(self.page.get_by_text("Saved. New chats use it now.")).to_be_visible()
        expect(self.page.locator(".agent-card", has_text="Archy")).to_contain_text("2 tools")

    def upload_document(self) -> None:
        self.go_to("Knowledge")
        drop_file(self.page.locator(".ant-upload-drag .ant-upload-btn"), self._folder / "policy.md")
        expect(self.page.get_by_role("list", name="Uploads")).to_contain_text("Ready · 1 passage")
        self.step("knowledge")

    def ask_and_approve(self) -> None:
        self.click(self.page.get_by_role("button", name="New chat").and_(self.page.locator(":visible")).first)
        self.send(f"@archy {QUESTION}")
        approval = self.page.locator(".approval")
        expect(approval).to_contain_text("Archy wants to use add_task from tasks")
        expect(approval).to_contain_text(TASK)
        expect(self.page).to_have_title(re.compile(r"^\(1\) "))
        self.step("approval")
        self.click(approval.get_by_role("button", name="Allow once"))
        self.tab.wait_for_answer("14 days (source: policy.md)")
        self.tab.wait_until_idle()
        self.step("answer")

    def read_audit_log(self) -> None:
        self.click(self.page.get_by_role("link", name="View in audit log"))
        expect(self.page.locator("tr.linked-row")).to_contain_text("tasks/add_task")
        expect(self.page.locator("tr.ant-table-expanded-row")).to_contain_text("Allowed by you")
        self.press_button("Verify log")
        expect(self.page.get_by_text(re.compile(r"^Verified: \d+ entries, unbroken\.$"))).to_be_visible()
        self.step("audit")


def drop_file(area: Locator, path: Path) -> None:
    """Drop a file on an area of the page, as from a file manager."""
    make = """(text) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([text], "NAME", { type: "text/markdown" }));
      return transfer;
    }""".replace("NAME", path.name)
    transfer = area.page.evaluate_handle(make, path.read_text())
    area.dispatch_event("drop", {"dataTransfer": transfer})


def start_with_key(user: NewUser, gateway: InstalledGateway, address: str) -> None:
    """Walk all steps as a person who pastes a key of the vendor at this address."""
    user.open_link(gateway)
    user.step("start")
    user.paste_key(address, KEY)
    user.pick_model(MODELS[1])
    _continue(user, MODELS[1])


def start_without_key(user: NewUser, gateway: InstalledGateway) -> None:
    """Walk all steps as a person who has no key but a model server on this machine."""
    user.open_link(gateway)
    user.pick_found_model(LOCAL_MODELS[0])
    _continue(user, LOCAL_MODELS[0])


def _continue(user: NewUser, model: str) -> None:
    user.say_hello(model)
    user.add_mcp_server()
    user.create_agent()
    user.upload_document()
    user.ask_and_approve()
    user.read_audit_log()
