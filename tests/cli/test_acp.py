"""`atlas acp`: the official client of the Agent Client Protocol starts the command and uses agents through it."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from atlas_command import AGENTS, ATLAS, POLICY, Home, reply_by_rule

import fork_server
from atlas_agents.cli.acp import EditorFiles, ToolCallView
from atlas_agents.client import GatewayClient
from atlas_agents.core.errors import ToolFailed
from atlas_agents.gateway.protocol.events import ClientCallShape, ToolSettled
from atlas_agents.gateway.protocol.sessions import RunPosition
from checks import TIMEOUT, LazyModule, wait_until
from model_server import ModelRequest, ModelServer, Reply, run_model_server

if TYPE_CHECKING:
    import acp
else:
    acp = LazyModule("acp")  # it defines a model for each message of the protocol, which takes a second

pytestmark = pytest.mark.slow
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PROGRAM = Path(__file__).parent / "acp_program.py"
GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "editors.md"
SETTINGS: list[dict[str, Any]] = [
    entry
    for block in re.findall(r"```json[^\n]*\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    for entry in json.loads(block)["agent_servers"].values()
]
ZED, JETBRAINS = (tuple(entry["args"]) for entry in SETTINGS)
PLUGIN = '''

from atlas_agents import Choice, Field, Form, ToolContext


@tool(effect="pure")
async def order(context: ToolContext) -> str:
    """Order tea."""
    print("printed by a tool")
    tea = Field("tea", "choice", required=True, choices=(Choice("green"), Choice("black")))
    filled = await context.ask(Form("Shop", "Which tea?", (tea,)))
    return f"ordered {filled.values['tea']}"


@tool(effect="pure")
async def pay(context: ToolContext) -> str:
    """Pay."""
    return (await context.ask(Form("Shop", "Please pay.", url="https://pay.example.org/7"))).action


tools += [order, pay]
'''


def reply(asked: ModelRequest) -> Reply:
    if asked.results:
        return reply_by_rule(asked)
    if call := re.fullmatch(r"(file_\w+) (\{.*\})", asked.text):
        return Reply("", ((call[1], json.loads(call[2])),))
    if "write" in asked.text:
        return Reply("I write.", (("file_write", {"path": "tea.txt", "content": "green\n"}),))
    if "order" in asked.text:
        return Reply("", (("demo__order", {}),))
    if "pay" in asked.text:
        return Reply("", (("demo__pay", {}),))
    return reply_by_rule(asked)


@pytest.fixture
def server() -> Generator[ModelServer]:
    with run_model_server(reply) as model:
        yield model


@pytest.fixture
def home(home: Home) -> Home:
    (home.path / "workspace" / "AGENTS.md").write_text(f"{AGENTS}\n## player\n\nModel: demo\n")
    (home.folder / "policy.toml").write_text(
        f'{POLICY}\n[tools.file_write]\nask = ["*"]\n\n[tools.file_edit]\nask = ["*"]\n'
    )
    plugin = home.folder / "plugins" / "demo_plugin.py"
    plugin.write_text(plugin.read_text() + PLUGIN)
    return home


class EditorDouble:
    """The client side of an editor: keeps the updates, and answers questions with `answers`, then waits."""

    def __init__(self, *answers: str) -> None:
        self.updates: list[Any] = []
        self.asked: list[Any] = []
        self.answers = [*answers]
        self.raw: list[dict[str, Any]] = []
        self.buffers: dict[str, str] = {}
        """The text of open files that is not saved, by path."""
        self.written: list[str] = []
        self.hangs = False

    def on_connect(self, conn: Any) -> None:
        """Nothing is asked of the agent here."""

    def observe(self, event: Any) -> None:
        self.raw.append(event.message)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Sequence[Any], **_: Any
    ) -> "acp.schema.RequestPermissionResponse":
        self.asked.append(tool_call)
        answer = self.answers.pop(0)
        if answer == "wait":
            await asyncio.Event().wait()
        if answer == "cancelled":
            return acp.schema.RequestPermissionResponse(outcome=acp.schema.DeniedOutcome(outcome="cancelled"))
        if answer == "type":  # the person goes on typing, and then allows the call
            self.buffers = {path: f"{text}typed\n" for path, text in self.buffers.items()}
            answer = "allow-once"
        assert answer in [each.option_id for each in options]
        return acp.schema.RequestPermissionResponse(
            outcome=acp.schema.AllowedOutcome(outcome="selected", option_id=answer)
        )

    async def create_elicitation(self, message: str, mode: Any, **_: Any) -> "acp.schema.AcceptElicitationResponse":
        self.asked.append(message)
        return acp.schema.AcceptElicitationResponse(action="accept", content=json.loads(self.answers.pop(0)))

    async def read_text_file(self, session_id: str, path: str, **_: Any) -> "acp.schema.ReadTextFileResponse":
        if path not in self.buffers:
            raise acp.RequestError.resource_not_found(path)
        return acp.schema.ReadTextFileResponse(content=self.buffers[path])

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> None:
        self.written.append(path)
        if self.hangs:
            await asyncio.Event().wait()
        self.buffers[path] = content

    def texts(self, kind: str = "agent_message_chunk") -> str:
        return "".join(each.content.text for each in self.updates if each.session_update == kind)

    def changes(self) -> set[str | None]:
        """The titles and modes that were shown."""
        names = [(getattr(each, "title", None), getattr(each, "current_mode_id", None)) for each in self.updates]
        return {name for pair in names for name in pair}

    def calls(self) -> list[tuple[str, str]]:
        return [
            (each.session_update, each.status)
            for each in self.updates
            if each.session_update in ("tool_call", "tool_call_update")
        ]


@asynccontextmanager
async def connected(
    home: Home, editor: EditorDouble, arguments: tuple[str, ...] = ZED, *, forms: bool = False, files: bool = False
) -> AsyncGenerator[tuple[Any, asyncio.StreamWriter]]:
    """Start `atlas acp` and initialize it; yield the client and the input of the command."""
    starts = started_by_client if arguments == JETBRAINS else forked
    async with asyncio.timeout(TIMEOUT), starts(home, editor, arguments) as (agent, process, writer):
        shown = acp.schema.ElicitationCapabilities(form=acp.schema.ElicitationFormCapabilities()) if forms else None
        buffers = acp.schema.FileSystemCapabilities(read_text_file=files, write_text_file=files)
        can = acp.schema.ClientCapabilities(elicitation=shown, fs=buffers)
        await agent.initialize(protocol_version=1, client_capabilities=can)
        yield agent, writer
    assert process.returncode == 0


@asynccontextmanager
async def started_by_client(
    home: Home, editor: EditorDouble, arguments: tuple[str, ...]
) -> AsyncGenerator[tuple[Any, asyncio.subprocess.Process, asyncio.StreamWriter]]:
    """Let the official client start the command, as an editor does."""
    process = {"shutdown_timeout": TIMEOUT, "stderr": asyncio.subprocess.DEVNULL}
    async with acp.spawn_agent_process(
        editor,  # pyrefly: ignore[bad-argument-type] - an editor implements what it needs
        ATLAS,
        *arguments,
        env=home.environment(),
        cwd=home.folder,
        transport_kwargs=process,
        observers=[editor.observe],
        use_unstable_protocol=True,
    ) as (agent, started):
        assert started.stdin is not None
        yield agent, started, started.stdin


@asynccontextmanager
async def forked(
    home: Home, editor: EditorDouble, arguments: tuple[str, ...]
) -> AsyncGenerator[tuple[Any, fork_server.ForkedProcess, asyncio.StreamWriter]]:
    """Connect the official client to a process of the fork server: a new interpreter takes a second of CPU to start."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as inputs, open(os.devnull, "w") as null:  # noqa: ASYNC230 - nothing blocks
        process = await fork_server.start(
            str(PROGRAM), *arguments, env=home.environment(), cwd=home.folder, stdin=inputs.fileno(), stderr=null
        )
    loop = asyncio.get_running_loop()
    output = open(write_end, "wb", buffering=0)  # noqa: ASYNC230, SIM115 - nothing blocks; the transport closes it
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, output)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    agent = acp.connect_to_agent(
        editor,  # pyrefly: ignore[bad-argument-type] - an editor implements what it needs
        writer,
        process.stdout,
        use_unstable_protocol=True,
        observers=[editor.observe],
    )
    try:
        yield agent, process, writer
    finally:
        writer.close()
        await process.wait()
        await agent.close()


async def ask(agent: Any, session: str, text: str) -> Any:
    return await agent.prompt(session_id=session, prompt=[acp.text_block(text)])


async def approvals(client: GatewayClient) -> list[dict[str, Any]]:
    return (await client.call("approvals.list"))["approvals"]


async def test_editor_shows_a_turn_and_decides_on_its_calls(
    home: Home, server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    editor = EditorDouble("allow-once", "deny", "cancelled", "allow-once", '{"tea": "green"}')
    async with connected(home, editor, forms=True) as (agent, _):
        opened = await agent.new_session(cwd=str(home.folder), mcp_servers=[])
        key = opened.session_id
        answer = await ask(agent, key, "hello")
        assert (answer.stop_reason, editor.texts()) == ("end_turn", "You wrote: hello")
        assert answer.usage.total_tokens > 0
        for text, shown in (("act now", "did 'now'"), ("act again", "cancelled"), ("act later", "cancelled")):
            editor.updates.clear()
            await ask(agent, key, text)
            assert shown in editor.texts()
        assert editor.calls() == [("tool_call", "in_progress"), ("tool_call_update", "failed")]
        assert [each.raw_input["command"] for each in editor.asked] == ["now", "again", "later"]
        assert (home.folder / "acted").read_text() == "'now' 1\n"
        editor.updates.clear()
        await ask(agent, key, "write it down")
        question = editor.asked[-1]
        (started,) = [each for each in editor.updates if each.session_update == "tool_call"]
        assert started.tool_call_id == question.tool_call_id and started.kind == "edit"
        assert started.locations[0].path == str(home.folder / "tea.txt")
        assert (question.content[0].type, question.content[0].new_text) == ("diff", "green\n")
        assert (home.folder / "tea.txt").read_text() == "green\n"
        await ask(agent, key, "order tea")  # prints something
        assert "ordered green" in editor.texts() and "parsing" not in caplog.text
        prompt = [
            acp.text_block("look"),
            acp.resource_link_block("a.py", f"file://{home.folder}/src/a%20b.py#L3"),
            acp.resource_block(acp.embedded_text_resource(f"file://{home.folder}/b.txt", "bee")),
            acp.image_block(PIXEL, "image/png"),
        ]
        await agent.prompt(session_id=key, prompt=prompt)
        assert "[a.py](src/a b.py#L3)" in editor.texts() and "File b.txt:\n\nbee" in editor.texts()
        assert any(PIXEL in json.dumps(each.body) for each in server.requests)


async def check_demo(agent: Any, editor: EditorDouble, key: str) -> None:
    """Choose the demo agent, which shows its reasoning, and whose connection breaks."""
    await agent.set_session_mode(session_id=key, mode_id="player")
    await ask(agent, key, "Think")
    assert "reasoning" in editor.texts("agent_thought_chunk") and "player" in editor.changes()
    await ask(agent, key, "Stumble")
    assert re.search(r"its answer starts again.*this is the second attempt", editor.texts(), re.DOTALL)


async def test_session_is_cancelled_and_loaded_by_the_next_process(home: Home) -> None:
    editor = EditorDouble()
    async with connected(home, editor) as (agent, _):
        key = (await agent.new_session(cwd=str(home.folder), mcp_servers=[])).session_id
        await agent.set_config_option(session_id=key, config_id="agent", value="poet")
        running = asyncio.create_task(ask(agent, key, "hold on"))
        await wait_until(lambda: ("tool_call", "in_progress") in editor.calls())
        with pytest.raises(acp.RequestError, match="is answering a prompt"):
            await ask(agent, key, "and another")
        await agent.cancel(session_id=key)
        assert (await running).stop_reason == "cancelled"
        await ask(agent, key, "hello")
        shown = editor.texts()
    editor = EditorDouble()
    async with connected(home, editor, JETBRAINS) as (agent, _):
        listed = await agent.list_sessions(cwd=str(home.folder))
        assert [(each.session_id, each.cwd) for each in listed.sessions] == [(key, str(home.folder))]
        loaded = await agent.load_session(cwd=str(home.folder), session_id=key, mcp_servers=[])
        assert loaded.modes.current_mode_id == "poet"
        assert "hello" in editor.texts("user_message_chunk") and shown.endswith(editor.texts()[-16:])
        editor.updates.clear()
        running = asyncio.create_task(ask(agent, key, "hold on"))
        await wait_until(lambda: ("tool_call", "in_progress") in editor.calls())
        await agent.close_session(session_id=key)
        assert (await running).stop_reason == "cancelled"
        editor.updates.clear()
        await agent.resume_session(cwd=str(home.folder), session_id=key, mcp_servers=[])
        await ask(agent, key, "goodbye")
        assert editor.texts().endswith("You wrote: goodbye")
        await check_demo(agent, editor, key)


async def test_other_clients_use_the_session_at_the_same_time(home: Home) -> None:
    editor = EditorDouble("wait", '{"tea": "red"}', '{"tea": "black"}')
    with home.gateway() as gateway:
        token = (home.path / "token").read_text().strip()
        async with connected(home, editor, forms=True) as (agent, _), GatewayClient(gateway.url, token) as page:
            server_entry = acp.schema.McpServerStdio(name="clock", command="clock", args=[], env=[])
            key = (await agent.new_session(cwd=str(home.folder), mcp_servers=[server_entry])).session_id
            running = asyncio.create_task(ask(agent, key, "act now"))
            await wait_until(lambda: editor.asked)
            (request,) = await approvals(page)
            await page.call("approvals.resolve", approval_id=request["approvalId"], decision="allow-once")
            assert (await running).stop_reason == "end_turn"
            assert "not used: clock" in editor.texts() and "cannot read or change files in" in editor.texts()
            assert "did 'now'" in editor.texts()
            await ask(agent, key, "order tea")
            assert editor.asked[1:] == ["Which tea?", editor.asked[2]] and "red" in editor.asked[2]
            assert "ordered" in editor.texts() and "black" in editor.texts()
            running = asyncio.create_task(ask(agent, key, "pay now"))
            await wait_until(lambda: "https://pay.example.org/7" in editor.texts())
            (request,) = await approvals(page)
            assert f"atlas approvals show {request['approvalId']}" in editor.texts()
            await page.call("approvals.resolve", approval_id=request["approvalId"], decision="deny")
            assert (await running).stop_reason == "end_turn"
            await page.call("chat.send", session_key=key, message="from the page")
            await wait_until(lambda: "You wrote: from the page" in editor.texts())
            assert editor.texts("user_message_chunk") == "from the page"
            await page.call("sessions.update", session_key=key, label="Tea", agent_id="poet")
            await wait_until(lambda: {"Tea", "poet"} <= editor.changes())


def file_call(name: str, **arguments: Any) -> str:
    """The prompt to which the model answers with a call of a file tool."""
    return f"{name} {json.dumps({'path': 'tea.txt', **arguments})}"


GREEN = file_call("file_write", content="green\n")


async def test_files_are_read_and_changed_in_the_buffers_of_the_editor(home: Home) -> None:
    editor = EditorDouble("deny", "allow-once", "allow-once", "type")
    saved, tea = home.folder / "tea.txt", str(home.folder / "tea.txt")
    saved.write_text("saved\n")
    (home.folder / "away.txt").symlink_to(home.path.parent.parent / "secret.txt")
    editor.buffers[tea] = "black\n"

    async def shown(text: str) -> str:
        editor.updates.clear()
        await ask(agent, key, text)
        return editor.texts()

    async with connected(home, editor, files=True) as (agent, _):
        key = (await agent.new_session(cwd=str(home.folder), mcp_servers=[])).session_id
        assert (await shown(file_call("file_read"))).endswith("[tea.txt, 1 line]\n     1\tblack")
        assert "cancelled" in await shown(GREEN)
        assert editor.written == [] and editor.buffers[tea] == "black\n"
        (question,) = editor.asked
        assert (question.content[0].old_text, question.content[0].new_text) == ("black\n", "green\n")
        assert "wrote tea.txt: 1 line" in await shown(GREEN)
        assert editor.calls()[-1] == ("tool_call_update", "completed")
        assert "changed 1 place in tea.txt" in await shown(file_call("file_edit", old="green", new="white"))
        assert (editor.asked[-1].content[0].old_text, editor.asked[-1].content[0].new_text) == ("green", "white")
        assert (editor.written, editor.buffers) == ([tea, tea], {tea: "white\n"})
        assert "changed in the editor after the call was approved" in await shown(GREEN)
        assert editor.buffers == {tea: "white\ntyped\n"} and len(editor.asked) == 4
        for path, problem in (
            ("gone.txt", "could not run file_read of"),
            ("away.txt", "outside the folder"),
            ("../away.txt", "outside the folder"),
            ("policy.toml", "could not run file_read of"),
        ):
            assert problem in await shown(file_call("file_read", path=path))
    assert saved.read_text() == "saved\n" and len(editor.written) == 2


async def test_change_goes_on_in_the_editor_that_loads_the_session(home: Home) -> None:
    home.env["ATLAS_FOLDER"] = str(home.folder)
    first, second, tea = EditorDouble("allow-once"), EditorDouble("allow-once"), str(home.folder / "tea.txt")
    edit = file_call("file_edit", old="black", new="green")
    first.buffers[tea] = second.buffers[tea] = "black\n"
    (home.folder / "tea.txt").write_text("saved\n")
    first.hangs = True
    with home.gateway() as gateway:
        token = (home.path / "token").read_text().strip()
        async with GatewayClient(gateway.url, token) as page:
            async with connected(home, first, files=True) as (agent, _):
                key = (await agent.new_session(cwd=str(home.folder), mcp_servers=[])).session_id
                running = asyncio.create_task(ask(agent, key, edit))
                await wait_until(lambda: first.written)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            async with page.follow(key) as feed, connected(home, second, files=True) as (agent, _):
                position = await anext(feed)
                assert isinstance(position, RunPosition) and position.pending_calls[0].file == tea
                await agent.load_session(cwd=str(home.folder), session_id=key, mcp_servers=[])
                async for event in feed.run_events(position.run_id):
                    if isinstance(event, ToolSettled):
                        assert (event.name, event.status, event.result) == (
                            "file_edit",
                            "ok",
                            "changed 1 place in tea.txt, line 1",
                        )
                await wait_until(lambda: "It came out: changed 1 place" in second.texts())
                assert second.buffers[tea] == "green\n" and ("tool_call_update", "completed") in second.calls()
    assert (home.folder / "tea.txt").read_text() == "saved\n"


async def test_turn_that_runs_is_loaded_and_cancelled(home: Home) -> None:
    editor = EditorDouble("allow-once")
    with home.gateway() as gateway:
        token = (home.path / "token").read_text().strip()
        async with connected(home, editor) as (agent, _), GatewayClient(gateway.url, token) as page:
            await page.call("chat.send", session_key="tea", message="act now")
            await wait_until(lambda: approvals(page))
            await agent.load_session(cwd=str(home.folder), session_id="tea", mcp_servers=[])
            assert editor.texts("user_message_chunk") == "act now"
            await wait_until(lambda: "did 'now'" in editor.texts())
            assert editor.calls() == [
                ("tool_call", "in_progress"),
                ("tool_call_update", "in_progress"),
                ("tool_call_update", "completed"),
            ]
            sent = await page.call("chat.send", session_key="tea", message="hold on")
            await wait_until(lambda: editor.calls()[-1] == ("tool_call", "in_progress"))
            await agent.cancel(session_id="tea")
            waited = await page.call("chat.wait", run_id=sent["runId"], timeout_ms=int(TIMEOUT * 1000))
            assert waited["status"] == "cancelled"
            lines: list[dict[str, Any]] = [{"atlas_session": 1, "key": "long", "agent_id": ""}]
            lines += [{"role": role, "parts": [{"type": "text", "text": role}]} for role in ("user", "assistant") * 210]
            await page.call("sessions.import", text="\n".join(map(json.dumps, lines)))
            editor.updates.clear()
            await agent.load_session(cwd=str(home.folder), session_id="long", mcp_servers=[])
            shown = [each.content.text for each in editor.updates if each.session_update.endswith("message_chunk")]
            assert shown == ["user", "assistant"] * 210


async def test_invalid_input_is_answered_with_an_error_that_helps(home: Home) -> None:
    editor = EditorDouble()
    async with connected(home, editor) as (agent, writer):
        writer.write(
            b'not JSON\n[1]\n{"id": [], "method": "initialize"}\n{"id": 1, "error": "odd"}\n\n'
            b'{"id": "x", "method": "session/new", "params": {"cwd": 5}}\n'
        )
        for cwd, message in (
            ("src", "cwd: expected an absolute path, got 'src'"),
            (str(home.folder / "gone"), "cwd: folder not found"),
        ):
            with pytest.raises(acp.RequestError, match=message):
                await agent.new_session(cwd=cwd, mcp_servers=[])
        for work, message in (
            (ask(agent, "unknown", "hello"), "session 'unknown' is not open"),
            (agent.authenticate(method_id="password"), "unknown methodId 'password'"),
            (agent.ext_method("unknown", {}), "Method not found"),
            (agent.load_session(cwd=str(home.folder), session_id="unknown"), "not found"),
        ):
            with pytest.raises(acp.RequestError, match=message):
                await work
        key = (await agent.new_session(cwd=str(home.folder), mcp_servers=[])).session_id
        for block, message in (
            (acp.text_block(" "), "the message is empty"),
            (acp.audio_block("AAAA", "audio/wav"), "audio content is not supported"),
        ):
            with pytest.raises(acp.RequestError, match=message):
                await agent.prompt(session_id=key, prompt=[block])
        with pytest.raises(acp.RequestError, match="unknown agent 'unknown'; available: assistant, poet, player"):
            await agent.set_session_mode(session_id=key, mode_id="unknown")
        with pytest.raises(acp.RequestError, match="HTTP 400"):
            await ask(agent, key, "HTTP 400")
        codes = [each["error"]["code"] for each in editor.raw if "error" in each and each.get("id") is None]
        assert codes == [-32700, -32600, -32600, -32600]
        assert [each["error"]["code"] for each in editor.raw if each.get("id") == "x"] == [-32602]
        await ask(agent, key, "hello")
        assert editor.texts().endswith("You wrote: hello")


def test_requests_of_a_pipe_are_answered_before_the_command_ends(home: Home) -> None:
    request = {"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": {"protocolVersion": 2}}
    result = home.run("acp", stdin=f"{json.dumps(request)}\n")
    assert result.returncode == 0, result.stderr
    (answer,) = [json.loads(line) for line in result.stdout.splitlines()]
    assert (answer["id"], answer["result"]["protocolVersion"]) == (7, 1)


def test_command_names_the_extra_that_is_missing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "acp", None)
    result = home.run("acp")
    assert result.returncode == 2 and "pip install 'atlas-agents[acp]'" in result.stderr


def test_edit_shows_the_text_that_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "tea.txt").write_text("black\n")
    call = ToolCallView("1", "file_edit", {"path": "./tea.txt", "old": "black", "new": "green"}, tmp_path).started()
    diff = {"type": "diff", "path": str(tmp_path / "tea.txt"), "oldText": "black", "newText": "green"}
    assert call["content"] == [diff] and call["title"] == "file_edit ./tea.txt"
    written = ToolCallView("2", "file_write", {"path": "tea.txt", "content": "white\n"}, tmp_path).started()
    assert written["content"][0]["oldText"] == "black\n"
    outside = ToolCallView("3", "file_read", {"path": "../../etc/passwd", "start": 3}, tmp_path).started()
    assert outside["locations"] == [] and outside["kind"] == "read"


async def test_call_that_an_earlier_editor_may_have_run_has_one_effect(tmp_path: Path) -> None:
    editor, tea = EditorDouble(), str(tmp_path / "tea.txt")
    can = acp.schema.FileSystemCapabilities(read_text_file=True, write_text_file=True)
    files = EditorFiles(editor, "s", tmp_path, can)
    arguments = {"path": "tea.txt", "old": "tea", "new": "green tea"}

    async def run(text: str, file: str = tea, **other: str) -> str:
        editor.buffers[tea] = text
        call = ClientCallShape("call_1", "1", "file_edit", {**arguments, **other}, 0, file)
        return await files.run(call, None, again=True)

    assert await run("black\n", old="black", new="white") == "changed 1 place in tea.txt, line 1"
    assert await run("white\n", old="black", new="white") == "changed tea.txt"
    assert await run("green tea\n") == "changed tea.txt"
    with pytest.raises(ToolFailed, match="may have been changed: read it first"):
        await run("green tea and tea\n")
    with pytest.raises(ToolFailed, match=r"is outside .* the folder that is open in the editor"):
        await run("tea", str(tmp_path.parent / "tea.txt"))
    with pytest.raises(ToolFailed, match="is too large: 10,485,761 characters"):
        await run("x" * (10 * 1024 * 1024 + 1))
    assert editor.written == [tea]


def test_editor_runs_only_what_its_capabilities_allow(tmp_path: Path) -> None:
    offers = [
        EditorFiles(EditorDouble(), "s", tmp_path, can).offer
        for can in (None, acp.schema.FileSystemCapabilities(), acp.schema.FileSystemCapabilities(read_text_file=True))
    ]
    assert offers == [None, None, {"runs": ("file_read",), "folder": str(tmp_path), "deadline": 120.0}]
