"""`atlas acp`: agents in editors, over the Agent Client Protocol (ACP) on standard input and output.

A session of the editor is a session of the gateway: the web UI, `atlas chat` and other clients see it too. Messages to
the editor are built as the protocol writes them; the library validates and sends them.
"""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import unquote, urlsplit

import msgspec

from atlas_agents.cli import connect
from atlas_agents.cli.command import AgentOption, Group, command, print_error
from atlas_agents.cli.output import one_line
from atlas_agents.client import GatewayClient, SessionEvent, Unauthorized
from atlas_agents.core import install_command, package_version
from atlas_agents.core.aio import BackgroundTasks, read_stdin_lines
from atlas_agents.core.errors import AtlasError, ConfigError, GatewayError, ToolFailed, ToolFault
from atlas_agents.core.messages import new_id
from atlas_agents.core.text import escape_text
from atlas_agents.gateway.protocol import events, types
from atlas_agents.gateway.protocol.sessions import RunPosition

if TYPE_CHECKING:
    from atlas_agents.builtin_tools.files.read import DecodedText
    from atlas_agents.config.settings import Settings

app = Group()
Update: TypeAlias = dict[str, Any]
ApprovalRequest: TypeAlias = events.ApprovalRequested | types.ApprovalShape
Ended: TypeAlias = events.ChatFinal | events.ChatError
P = ParamSpec("P")
T = TypeVar("T")
Self = TypeVar("Self")
PROTOCOL_VERSION = 1
_PARSE_ERROR, _INVALID_REQUEST, _INVALID_PARAMS, _INTERNAL_ERROR = -32700, -32600, -32602, -32603
_AUTH_REQUIRED, _NOT_FOUND = -32000, -32002
_ERROR_CODES = {"INVALID_PARAMS": _INVALID_PARAMS, "SESSION_NOT_FOUND": _NOT_FOUND, "AGENT_NOT_FOUND": _INVALID_PARAMS}
_AUTH_METHOD = {
    "id": "local",
    "name": "Atlas on this computer",
    "description": "Uses the gateway of your home folder. There is nothing to sign in to.",
}
_CAPABILITIES: dict[str, Any] = {
    "loadSession": True,
    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": False, "sse": False},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
}
_DEFAULT_MODEL = "default"
_PAGE = 200
_END_TIMEOUT = 5.0
_MAX_OLD_TEXT = 1024 * 1024
_SHOW_TIMEOUT = 30.0
_FILE_DEADLINE = 120.0
"""Timeout in seconds of a file tool in the editor, which may have been closed."""
_KINDS = {
    "file_read": "read",
    "file_list": "search",
    "file_search": "search",
    "file_write": "edit",
    "file_edit": "edit",
    "bash": "execute",
    "code_interpreter": "execute",
    "web_fetch": "fetch",
    "web_search": "search",
}
_SUBJECTS = ("command", "path", "url", "query", "code")
"""Arguments that summarise a call in one line."""
_OPTIONS = {
    "allow-once": ("Allow once", "allow_once"),
    "allow-session": ("Allow for this session", "allow_always"),
    "allow-always": ("Always allow exactly this call", "allow_always"),
    "deny": ("Deny", "reject_once"),
}
_PLAN_STATUS = {"pending": "pending", "running": "in_progress"}
_FIELD_TYPES = {"text": "string", "choice": "string", "choices": "array"}


@command(app)
async def acp(agent: AgentOption = None) -> None:
    """Use agents in an editor, over the Agent Client Protocol.

    The editor, such as Zed, a JetBrains IDE or Neovim, starts this command and uses its standard input and output. The
    agents of the workspace answer, through the running gateway or without one, in stored sessions that `atlas chat` and
    the web UI show as well.
    """
    try:
        from acp import run_agent
    except ImportError as error:
        raise ConfigError(f"the ACP library is not installed; run: {install_command('acp')}") from error
    if sys.stdin is not None and sys.stdin.isatty():
        print_error("waiting for an editor, which starts this command itself; Ctrl-D ends it")
    async with AsyncExitStack() as stack:

        def create(editor: Any) -> Any:
            served = EditorAgent(editor, agent)
            stack.push_async_callback(served.close)
            return served

        transport = stack.enter_context(EditorTransport())
        await run_agent(cast(Any, create), transport, use_unstable_protocol=True)


class Editor(Protocol):
    """The editor's side of the connection: the methods that the agent can call."""

    async def session_update(self, session_id: str, update: Any) -> None: ...
    async def request_permission(self, session_id: str, tool_call: Any, options: Any) -> Any: ...
    async def create_elicitation(self, message: str, mode: Any) -> Any: ...
    async def read_text_file(self, *, session_id: str, path: str) -> Any: ...
    async def write_text_file(self, *, session_id: str, path: str, content: str) -> Any: ...


class EditorTransport:
    """JSON-RPC transport with one message per line. While it is open, output of other code goes to standard error."""

    def __enter__(self) -> "EditorTransport":
        self._lines: asyncio.Queue[bytes] = asyncio.Queue()
        self._unanswered: set[str | int] = set()
        self._answered = asyncio.Event()
        sys.stdout.flush()
        self._output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        loop = asyncio.get_running_loop()
        threading.Thread(target=read_stdin_lines, args=(loop, self._lines), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()
        os.dup2(self._output.fileno(), sys.stdout.fileno())
        with suppress(BrokenPipeError):
            self._output.close()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, None at the end. Lines that are not JSON-RPC are answered with an error."""
        while line := await self._lines.get():
            if not line.strip():
                continue
            try:
                message: Any = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                await self.send(_error_message(_PARSE_ERROR, "Parse error: expected one JSON object per line"))
                continue
            if _is_message(message):
                self._note_request(message)
                return message
            await self.send(_error_message(_INVALID_REQUEST, "Invalid request: expected a JSON-RPC 2.0 message"))
        await self._wait_answered()
        return None

    def _note_request(self, message: dict[str, Any]) -> None:
        if message.get("id") is not None and message.get("method") not in (None, "session/prompt"):
            self._unanswered.add(message["id"])

    async def _wait_answered(self) -> None:
        """Answer the requests that a pipe sent before it ended, except prompts: their turns continue on their own."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT):
                while self._unanswered:
                    self._answered.clear()
                    await self._answered.wait()

    async def send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the editor is gone; the end of the input follows
            self._output.write(json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n")
            self._output.flush()
        if "method" not in message:
            self._unanswered.discard(message["id"])
            self._answered.set()

    async def close(self) -> None:
        """Do nothing: messages are written when they are sent."""


def _error_message(code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}


def _is_message(message: Any) -> bool:
    """Return whether a value is a request, a notification or a response that the library can handle."""
    if not isinstance(message, dict):
        return False
    fields = cast(dict[str, Any], message)
    return (
        isinstance(fields.get("id"), str | int | None)
        and isinstance(fields.get("method"), str | None)
        and isinstance(fields.get("error"), (dict, type(None)))
        and ("method" in fields or "id" in fields)
    )


def _request_error(code: int, text: str, **data: Any) -> Exception:
    from acp import RequestError

    return RequestError(code, text, data or None)


def _answer_errors(
    method: Callable[Concatenate[Self, P], Awaitable[T]],
) -> Callable[Concatenate[Self, P], Awaitable[T]]:
    """Convert exceptions of a request to errors that the editor shows."""

    @wraps(method)
    async def wrapper(self: Self, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(self, *args, **kwargs)
        except Unauthorized as error:
            raise _request_error(_AUTH_REQUIRED, str(error)) from error
        except GatewayError as error:
            code = _ERROR_CODES.get(error.kind, _INTERNAL_ERROR)
            raise _request_error(code, str(error), kind=error.kind, retryable=error.retryable) from error
        except AtlasError as error:
            raise _request_error(_INTERNAL_ERROR, str(error)) from error

    return wrapper


class EditorAgent:
    """The agent side of the connection: each public method is a request or a notification of the editor."""

    def __init__(self, editor: Editor, agent_id: str | None = None) -> None:
        self._editor = editor
        self._agent_id = agent_id
        self._gateway = connect.GatewaySession(cache(self._load_settings))
        self._gateway.on_status = _print_status
        self._sessions: dict[str, EditorSession] = {}
        self._capabilities: Any = None
        self._opened: Path | None = None
        """The folder that the editor opened first."""
        self._tasks = BackgroundTasks("ACP connection")
        self._watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await self._tasks.close()
        for session in self._sessions.values():
            await session.close()
        await self._gateway.close()

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **_: Any
    ) -> dict[str, Any]:
        self._capabilities = client_capabilities
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "atlas", "title": "Atlas Agents", "version": package_version()},
            "agentCapabilities": _CAPABILITIES,
            "authMethods": [_AUTH_METHOD],
        }

    async def authenticate(self, method_id: str, **_: Any) -> dict[str, Any]:
        if method_id != _AUTH_METHOD["id"]:
            raise _request_error(_INVALID_PARAMS, f"unknown methodId {method_id!r}: expected {_AUTH_METHOD['id']!r}")
        return {}

    @_answer_errors
    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> dict[str, Any]:
        folder = _read_folder(cwd)
        client = await self._connect(folder)
        agent = connect.find_agent(await connect.list_agents(self._gateway), self._agent_id)
        session = await self._open(client, new_id(), folder, mcp_servers or ())
        session.agent_id = agent["id"]
        return {"sessionId": session.key, **await self._choices(session)}

    @_answer_errors
    async def load_session(self, cwd: str, session_id: str, mcp_servers: Any = None, **_: Any) -> dict[str, Any]:
        """Open a stored session, and send its whole history first."""
        session = await self._reopen(session_id, _read_folder(cwd), mcp_servers or ())
        await session.replay()
        session.follow()
        return await self._choices(session)

    @_answer_errors
    async def resume_session(self, session_id: str, cwd: str, mcp_servers: Any = None, **_: Any) -> dict[str, Any]:
        """Open a stored session whose history the editor has."""
        session = await self._reopen(session_id, _read_folder(cwd), mcp_servers or ())
        session.follow()
        return await self._choices(session)

    @_answer_errors
    async def list_sessions(self, cwd: str | None = None, cursor: str | None = None, **_: Any) -> dict[str, Any]:
        folder = None if cwd is None else _read_folder(cwd)
        client = await self._connect(folder or _project_folder())
        home = str(await _agents_folder(client) or Path.cwd())
        page = await client.call("sessions.list", limit=_PAGE, cursor=cursor)
        found = [_session_info(each, home) for each in page["sessions"]]
        shown = [each for each in found if folder is None or each["cwd"] == str(folder)]
        return {"sessions": shown, "nextCursor": page.get("nextCursor")}

    @_answer_errors
    async def close_session(self, session_id: str, **_: Any) -> dict[str, Any]:
        session = self._find(session_id)
        if session.answering:
            await session.cancel()
        del self._sessions[session_id]
        await session.close()
        return {}

    @_answer_errors
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> dict[str, Any]:
        """Choose the agent: the modes of a session are the agents."""
        session = self._find(session_id)
        await self._choose(session, "agent", mode_id)
        await self._show_choices(session)
        return {}

    @_answer_errors
    async def set_config_option(self, config_id: str, session_id: str, value: Any, **_: Any) -> dict[str, Any]:
        session = self._find(session_id)
        await self._choose(session, config_id, value)
        await self._show_choices(session)
        return {"configOptions": (await self._choices(session))["configOptions"]}

    @_answer_errors
    async def prompt(self, session_id: str, prompt: Sequence[Any], **_: Any) -> dict[str, Any]:
        session = self._find(session_id)
        return await session.prompt(_message_parts(prompt, session.folder))

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session_id in self._sessions:
            await self._sessions[session_id].cancel()

    async def _connect(self, folder: Path | None) -> GatewayClient:
        self._opened = self._opened or folder
        await self._gateway.client.connect()
        if self._watching is None or self._watching.done():
            self._watching = self._tasks.spawn(self._watch())
        return self._gateway.client

    async def _watch(self) -> None:
        """Show changes that the gateway or another client makes to the title, the agent and the model of a session."""
        with suppress(GatewayError, ConnectionError):
            async for event in self._gateway.client.server_events():
                if isinstance(event, events.SessionUpdated) and event.session.session_key in self._sessions:
                    await self._show_changes(self._sessions[event.session.session_key], event.session)

    async def _show_changes(self, session: "EditorSession", now: types.SessionShape) -> None:
        if now.label and now.label != session.title:
            session.title = now.label
            await session.send({"sessionUpdate": "session_info_update", "title": now.label})
        if (now.agent_id, now.model) != (session.agent_id, session.model):
            session.agent_id, session.model = now.agent_id, now.model
            await self._show_choices(session)

    async def _show_choices(self, session: "EditorSession") -> None:
        choices = await self._choices(session)
        await session.send({"sessionUpdate": "config_option_update", "configOptions": choices["configOptions"]})
        if "modes" in choices:
            current = choices["modes"]["currentModeId"]
            await session.send({"sessionUpdate": "current_mode_update", "currentModeId": current})

    def _load_settings(self) -> "Settings":
        """Load the settings of an embedded gateway; `folder` defaults to the editor's folder."""
        settings = connect.load_settings()
        if settings.folder is not None or self._opened is None:
            return settings
        return connect.load_settings(folder=str(self._opened))

    async def _reopen(self, key: str, folder: Path, servers: Iterable[Any]) -> "EditorSession":
        client = await self._connect(folder)
        found: Any = (await client.call("sessions.get", session_key=key))["session"]
        if (open_session := self._sessions.get(key)) is not None:
            open_session.check_idle()
            await open_session.close()
        session = await self._open(client, key, folder, servers)
        session.stored, session.title = True, found["label"]
        session.agent_id, session.model = found["agentId"], found.get("model", "")
        return session

    async def _open(self, client: GatewayClient, key: str, folder: Path, servers: Iterable[Any]) -> "EditorSession":
        home = await _agents_folder(client) or folder
        files = EditorFiles(self._editor, key, folder, getattr(self._capabilities, "fs", None))
        session = self._sessions[key] = EditorSession(key, client, self._editor, home, files)
        session.forms = getattr(self._capabilities, "elicitation", None)
        session.notices += _open_notices(home, folder, [getattr(each, "name", "unnamed") for each in servers])
        return session

    def _find(self, key: str) -> "EditorSession":
        if key not in self._sessions:
            raise _request_error(_NOT_FOUND, f"session {key!r} is not open; use session/new or session/load")
        return self._sessions[key]

    async def _choices(self, session: "EditorSession") -> dict[str, Any]:
        """Return the agents and models to choose from, if there are several, as options and the agents as modes."""
        agents = await connect.list_agents(self._gateway)
        current = session.agent_id or connect.find_agent(agents, None)["id"]
        models = [each["id"] for each in await self._models()]
        options: list[dict[str, Any]] = []
        found: dict[str, Any] = {"configOptions": options}
        if len(agents) > 1:
            named = [(each["id"], each["name"] or each["id"], each["description"]) for each in agents]
            options.append(_select("agent", "Agent", "mode", current, named))
            modes = [{"id": id, "name": name, "description": about} for id, name, about in named]
            found["modes"] = {"currentModeId": current, "availableModes": modes}
        if models:
            known = [(_DEFAULT_MODEL, "The agent's model", ""), *((each, each, "") for each in models)]
            options.append(_select("model", "Model", "model", session.model or _DEFAULT_MODEL, known))
        return found

    async def _models(self) -> list[dict[str, Any]]:
        return [each for each in (await self._gateway.client.call("models.list"))["models"] if each["available"]]

    async def _choose(self, session: "EditorSession", option: str, value: Any) -> None:
        known = {each["id"]: each for each in (await self._choices(session))["configOptions"]}
        if option not in known:
            raise _request_error(_INVALID_PARAMS, f"unknown option {option!r}; options: {', '.join(known) or 'none'}")
        values = [each["value"] for each in known[option]["options"]]
        if value not in values:
            raise _request_error(_INVALID_PARAMS, f"unknown {option} {value!r}; available: {', '.join(values)}")
        await session.choose(option, "" if option == "model" and value == _DEFAULT_MODEL else value)


def _print_status(status: str) -> None:
    if status:
        print(f"atlas: {status}", file=sys.stderr, flush=True)


def _read_folder(cwd: str) -> Path:
    folder = Path(cwd)
    if not folder.is_absolute():
        raise _request_error(_INVALID_PARAMS, f"cwd: expected an absolute path, got {cwd!r}")
    if not folder.is_dir():
        raise _request_error(_INVALID_PARAMS, f"cwd: folder not found: {cwd}")
    return folder


def _project_folder() -> Path | None:
    """Return the folder in which the editor started this command, if it is a project folder."""
    folder = Path.cwd()
    return None if folder in (Path.home(), Path("/")) else folder


async def _agents_folder(client: GatewayClient) -> Path | None:
    """Return the folder that the agents' tools are confined to; None if the token may not know it."""
    try:
        config: dict[str, Any] = (await client.call("config.get"))["config"]
    except GatewayError as error:
        if error.kind != "FORBIDDEN":
            raise
        return None
    return Path(config.get("folder") or config["workspace"])


def _open_notices(home: Path, folder: Path, servers: Sequence[str]) -> Iterator[str]:
    """Yield notices about a session that differs from the editor's request."""
    if not folder.resolve().is_relative_to(home.resolve()):
        yield (
            f"The agents of this gateway work in {home} and cannot read or change files in {folder}. To use them "
            f'there, set folder = "{folder}" in its atlas.toml, or stop the gateway: `atlas acp` then works there.'
        )
    if servers:
        yield (
            f"The editor offers MCP servers, which are not used: {', '.join(servers)}. To let agents use a server, add "
            "it to the workspace and approve its tools: atlas mcp add"
        )


def _select(id: str, name: str, category: str, current: str, options: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    values = [{"value": value, "name": title, "description": about} for value, title, about in options]
    return {"type": "select", "id": id, "name": name, "category": category, "currentValue": current, "options": values}


def _session_info(session: dict[str, Any], home: str) -> dict[str, Any]:
    return {
        "sessionId": session["sessionKey"],
        "cwd": session.get("metadata", {}).get("cwd") or home,
        "title": session["label"] or None,
        "updatedAt": datetime.fromtimestamp(session["updatedAt"] / 1000, UTC).isoformat(),
    }


class EditorSession:
    """A session that is open in the editor: sends its events as updates, and asks the person for approvals."""

    def __init__(self, key: str, client: GatewayClient, editor: Editor, home: Path, files: "EditorFiles") -> None:
        self.key = key
        self.folder = home
        """The folder that paths of tools are relative to."""
        self.stored = False
        self.title = self.agent_id = self.model = ""
        self.forms: Any = None
        """Kinds of forms that the editor can show."""
        self.notices: list[str] = []
        self._client = client
        self._editor = editor
        self._files = files
        self._feed = client.follow(key)
        self._tasks = BackgroundTasks("ACP session")
        self._following: asyncio.Task[None] | None = None
        self._questions: dict[str, tuple[ApprovalRequest, asyncio.Task[None]]] = {}
        self._calls: dict[str, ToolCallView] = {}
        """The calls that have no result yet."""
        self._adopted: set[str] = set()
        """The runs of an earlier connection of the editor."""
        self._editing: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """The run and the task of each call that the editor runs or has run, by its id."""
        self._results: dict[str, tuple[str, bool]] = {}
        """Their results, and whether each is an error."""
        self._texts: dict[str, str] = {}
        """The text that was sent of each run since its last message."""
        self._messages = 0
        self._sending = asyncio.Lock()
        self._ended: asyncio.Future[Ended] | None = None
        self._run_id = ""
        self._cancelled = False

    @property
    def answering(self) -> bool:
        return self._ended is not None

    def check_idle(self) -> None:
        if self.answering:
            reason = "is answering a prompt; wait for the answer, or send session/cancel first"
            raise _request_error(_INVALID_REQUEST, f"session {self.key} {reason}")

    async def close(self) -> None:
        await self._tasks.close()
        with suppress(GatewayError):
            await self._feed.close()

    async def send(self, update: Update) -> None:
        await self._editor.session_update(session_id=self.key, update=update)

    async def choose(self, option: str, value: str) -> None:
        """Change the agent or the model. The new value is set first, so that the event of the change is not shown."""
        await self._store()
        before = self.agent_id, self.model
        self.agent_id, self.model = (value, self.model) if option == "agent" else (self.agent_id, value)
        try:
            changed = {"agent_id": value} if option == "agent" else {"model": value}
            await self._client.call("sessions.update", session_key=self.key, **changed)
        except GatewayError:
            self.agent_id, self.model = before
            raise

    def follow(self) -> None:
        """Send the events of all runs of the session from now on, including runs that other clients start."""
        if self._following is None or self._following.done():
            self._following = self._tasks.spawn(self._follow())

    async def prompt(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Send a message and wait until its turn has ended and all its updates are sent."""
        self.check_idle()
        self._ended, self._cancelled = asyncio.get_running_loop().create_future(), False
        try:
            await self._store()
            for notice in self.notices:
                await self.send(_text_chunk("agent_message_chunk", f"{notice}\n\n", new_id()))
            self.notices.clear()
            async with self._sending:  # no event of the run is handled before its id is known
                self._run_id = (await self._feed.send(parts, client_tools=self._files.offer)).run_id
            self.follow()
            if self._cancelled:
                await self._abort(run_id=self._run_id)
            return self._outcome(await self._ended)
        except GatewayError:
            if not self._cancelled:
                raise
            return {"stopReason": "cancelled"}
        finally:
            self._ended, self._run_id = None, ""

    async def cancel(self) -> None:
        """Cancel the turn of the prompt, or without one the turns that other clients started."""
        self._cancelled = True
        if self._ended is None:
            await self._abort(session_key=self.key)
        elif self._run_id:
            await self._abort(run_id=self._run_id)

    async def replay(self) -> None:
        """Send the stored messages, oldest first."""
        await self._feed.subscribe()
        pages: list[Sequence[types.MessageShape]] = [self._feed.messages]
        more = True
        while more and pages[-1]:
            answer = await self._client.call("chat.history", session_key=self.key, before=pages[-1][0].id, limit=_PAGE)
            pages.append([msgspec.convert(each, types.MessageShape) for each in answer["messages"]])
            more = answer["hasMore"]
        for page in reversed(pages):
            for message in page:
                await self._replay_message(message)

    async def _store(self) -> None:
        """Create the session when it is first used: an editor opens many that are not."""
        if not self.stored:
            metadata = {"cwd": str(self._files.folder)}
            await self._client.call(
                "sessions.create", session_key=self.key, agent_id=self.agent_id or None, metadata=metadata
            )
            self.stored = True

    async def _abort(self, **which: str) -> None:
        with suppress(GatewayError):  # the turn has ended
            await self._client.call("chat.abort", **which)

    def _outcome(self, event: Ended) -> dict[str, Any]:
        if isinstance(event, events.ChatFinal):
            return {"stopReason": _stop_reason(event), "usage": _usage(event.usage)}
        if self._cancelled:
            return {"stopReason": "cancelled"}
        raise _request_error(_INTERNAL_ERROR, event.message, kind=event.kind)

    async def _follow(self) -> None:
        failure: BaseException = GatewayError("the event stream ended before the turn did")
        try:
            async for event in self._feed:
                async with self._sending:
                    await self._handle(event)
        except (GatewayError, ConnectionError) as error:
            failure = error
        finally:
            if self._ended is not None and not self._ended.done():
                self._ended.set_exception(failure)

    async def _handle(self, event: SessionEvent) -> None:
        match event:
            case events.ChatDelta(run_id, text):
                await self._send_text(run_id, text)
            case events.ChatReasoning(run_id, text):
                await self.send(_text_chunk("agent_thought_chunk", text, self._message_id(run_id)))
            case events.ChatReset(run_id):
                await self._withdraw(run_id)
            case events.ChatMessage(run_id, message):
                await self._handle_message(run_id, message)
            case events.PlanChanged():
                await self.send(_plan(event.steps))
            case events.RunHandoff(run_id):
                text = f"{event.from_} hands off to {event.to}"
                await self.send(_text_chunk("agent_thought_chunk", text, self._message_id(run_id)))
            case RunPosition():
                await self._handle_position(event)
            case events.ChatFinal() | events.ChatError():
                await self._handle_end(event)
            case _:
                await self._handle_call(event)

    async def _handle_call(self, event: SessionEvent) -> None:
        match event:
            case events.ToolCalling(run_id, call_id, name, arguments):
                await self._announce(_call_key(run_id, call_id), name, arguments)
            case events.ToolProgressing(run_id, call_id, message):
                if (call := self._calls.get(_call_key(run_id, call_id))) is not None:
                    await self.send(call.progressed(message))
            case events.ToolSettled(run_id, call_id):
                await self._settle(_call_key(run_id, call_id), event.status, event.result)
            case events.ToolsPending(run_id, calls):
                if run_id == self._run_id or run_id in self._adopted:
                    self._run_at_editor(run_id, calls)
            case events.ApprovalRequested():
                self._ask(event)
            case events.ApprovalResolved():
                await self._handle_resolved(event)
            case _:
                pass

    async def _send_text(self, run_id: str, text: str) -> None:
        self._texts[run_id] = self._texts.get(run_id, "") + text
        await self.send(_text_chunk("agent_message_chunk", text, self._message_id(run_id)))

    def _message_id(self, run_id: str) -> str:
        return f"{run_id}-{self._messages}"

    async def _withdraw(self, run_id: str) -> None:
        """Mark streamed text as withdrawn, because an editor cannot remove it, and begin a new message."""
        self._messages += 1
        if self._texts.pop(run_id, ""):
            text = "\n\n*(The model was interrupted; its answer starts again.)*\n\n"
            await self.send(_text_chunk("agent_message_chunk", text, self._message_id(run_id)))
            self._messages += 1

    async def _handle_message(self, run_id: str, message: types.MessageShape) -> None:
        """Show the messages that other clients send; those of the model were sent while it wrote them."""
        if message.role == "user" and run_id != self._run_id:
            await self._replay_message(message)
        elif message.role == "assistant":
            if (text := _text(message)) and not self._texts.pop(run_id, ""):
                await self.send(_text_chunk("agent_message_chunk", text, message.id))
            self._messages += 1

    async def _handle_position(self, position: RunPosition) -> None:
        """Send the earlier output of a run that started before this client subscribed to it."""
        for part in position.parts or ():
            if isinstance(part, types.ToolResultPart):
                await self._settle(_call_key(position.run_id, part.call_id), part.status, part.result)
            elif isinstance(part, types.TextPart):
                await self._send_text(position.run_id, part.text)
            elif isinstance(part, types.ThinkingPart):
                await self.send(_text_chunk("agent_thought_chunk", part.text, self._message_id(position.run_id)))
        if position.plan:
            await self.send(_plan(position.plan))
        for request in position.pending_approvals:
            self._ask(request)
        if position.run_id != self._run_id:
            self._adopted.add(position.run_id)
        self._run_at_editor(position.run_id, position.pending_calls)

    async def _handle_end(self, event: Ended) -> None:
        for request, asking in self._questions.values():
            if request.run_id == event.run_id:
                asking.cancel()
        self._texts.pop(event.run_id, None)
        self._adopted.discard(event.run_id)
        for id in [id for id, (run_id, _) in self._editing.items() if run_id == event.run_id]:
            self._editing.pop(id)[1].cancel()
            self._results.pop(id, None)
        self._messages += 1
        if isinstance(event, events.ChatFinal) and event.message is not None and event.message.refusal:
            await self.send(_text_chunk("agent_message_chunk", event.message.refusal, new_id()))
        if event.run_id == self._run_id and self._ended is not None and not self._ended.done():
            self._ended.set_result(event)

    async def _announce(self, id: str, name: str, arguments: dict[str, Any]) -> "ToolCallView":
        """Send a call once, before anything else about it."""
        if id not in self._calls:
            call = self._calls[id] = ToolCallView(id, name, arguments, self.folder)
            await self.send(call.started())
        return self._calls[id]

    async def _settle(self, id: str, status: str, result: Any) -> None:
        if (call := self._calls.pop(id, None)) is not None:
            await self.send(call.settled(status, result))

    def _run_at_editor(self, run_id: str, calls: Sequence[events.ClientCallShape]) -> None:
        """Run file tools in the editor, once each, and post the results."""
        for call in calls:
            if call.name in self._files.tools and call.file and call.id not in self._editing:
                self._editing[call.id] = run_id, self._tasks.spawn(self._edit(run_id, call))

    async def _edit(self, run_id: str, call: events.ClientCallShape) -> None:
        try:
            if call.id not in self._results:
                self._results[call.id] = await self._run_file_tool(run_id, call)
            result, failed = self._results[call.id]
            await self._client.post_result(call.id, result, error=failed)
        except ConnectionError:  # the editor is gone; the next one that loads the session can run the call
            self._editing.pop(call.id, None)
        except GatewayError as error:
            if error.retryable:  # the call is announced again, and has its result then
                self._editing.pop(call.id, None)

    async def _run_file_tool(self, run_id: str, call: events.ClientCallShape) -> tuple[str, bool]:
        """Return the result of a call, and whether it is an error."""
        view = self._calls.get(_call_key(run_id, call.tool_call_id))
        try:
            return await self._files.run(call, view.shown_text if view else None, again=run_id in self._adopted), False
        except ConnectionError:
            raise
        except ToolFault as fault:
            return str(fault), True
        except Exception as error:  # noqa: BLE001 - a reply of the editor that is an error or not valid
            return one_line(f"the editor could not run {call.name} of {call.file}: {error}"), True

    async def _replay_message(self, message: types.MessageShape) -> None:
        kind = "user_message_chunk" if message.role == "user" else "agent_message_chunk"
        for part in message.parts:
            match part:
                case types.ThinkingPart(text):
                    await self.send(_text_chunk("agent_thought_chunk", text, message.id))
                case types.ToolCallPart(id, name, arguments):
                    await self._announce(_call_key(message.run_id, id), name, arguments)
                case types.ToolResultPart(call_id, status, result):
                    await self._settle(_call_key(message.run_id, call_id), status, result)
                case _:
                    await self.send({"sessionUpdate": kind, "content": _content(part), "messageId": message.id})
        if message.refusal:
            await self.send(_text_chunk("agent_message_chunk", message.refusal, message.id))

    def _ask(self, request: ApprovalRequest) -> None:
        """Ask in a task of its own: the session continues, and another client may answer first."""
        if request.approval_id not in self._questions:
            asking = self._ask_call(request) if request.form is None else self._ask_form(request, request.form)
            self._questions[request.approval_id] = request, self._tasks.spawn(asking)

    async def _handle_resolved(self, event: events.ApprovalResolved) -> None:
        """Stop asking, and show that the call runs if another client has allowed it."""
        if event.approval_id not in self._questions:
            return
        request, asking = self._questions.pop(event.approval_id)
        asking.cancel()
        call = self._calls.get(_call_key(request.run_id, request.tool_call_id))
        if call is not None and event.decision.startswith("allow"):
            await self.send(call.allowed())

    async def _ask_call(self, request: ApprovalRequest) -> None:
        id = _call_key(request.run_id, request.tool_call_id)
        call = await self._announce(id, request.tool_name, request.details)
        is_own = request.run_id == self._run_id or request.run_id in self._adopted
        if is_own and request.tool_name == "file_write" and call.file is not None:
            call.show_text(await self._files.find_text(call.file))
        options = [
            {"optionId": option, "name": _OPTIONS[option][0], "kind": _OPTIONS[option][1]}
            for option in request.options
            if option in _OPTIONS
        ]
        try:
            reply = await self._editor.request_permission(
                session_id=self.key, tool_call=call.question(request), options=options
            )
        except ConnectionError:  # the editor is gone; another client can still answer
            return
        except Exception as error:  # noqa: BLE001 - a reply of the editor that is an error or not valid
            await self._resolve(request, "deny", reason=one_line(f"the editor could not ask: {error}"))
            return
        chosen = getattr(reply.outcome, "option_id", None)
        await self._resolve(request, chosen if chosen in request.options else "deny")

    async def _ask_form(self, request: ApprovalRequest, form: types.FormShape) -> None:
        """Show a form in the editor until its values are valid; if the editor has no forms, show it as a message."""
        message = escape_text(form.message)
        while (mode := self._form_mode(request, form)) is not None:
            try:
                reply = await self._editor.create_elicitation(message, mode)
            except ConnectionError:
                return
            except Exception:  # noqa: BLE001 - a reply of the editor that is an error or not valid
                break
            decision = {"accept": "allow-once", "decline": "deny"}.get(reply.action, "dismiss")
            values = cast("dict[str, Any]", getattr(reply, "content", None) or {})
            trouble = await self._resolve(request, decision, values if decision == "allow-once" else None)
            if not trouble:
                return
            message = f"{trouble}\n\n{escape_text(form.message)}"
        where = f"atlas approvals show {request.approval_id}"
        link = f"\n\n{escape_text(form.url)}" if form.url else ""
        text = f"{escape_text(form.asker)} asks: {escape_text(form.message)}{link}\n\n"
        text += f"Answer in the web UI or a terminal; this editor cannot show the form: {where}\n\n"
        await self.send(_text_chunk("agent_message_chunk", text, new_id()))

    def _form_mode(self, request: ApprovalRequest, form: types.FormShape) -> Any:
        """Return the form as the protocol describes it; None if the editor cannot show it."""
        scope = {"session_id": self.key, "tool_call_id": _call_key(request.run_id, request.tool_call_id)}
        if form.url and getattr(self.forms, "url", None) is not None:
            from acp.schema import ElicitationUrlSessionMode

            fields = {**scope, "elicitation_id": request.approval_id, "url": form.url}
            return ElicitationUrlSessionMode.model_validate(fields)
        if not form.url and getattr(self.forms, "form", None) is not None:
            from acp.schema import ElicitationFormSessionMode

            return ElicitationFormSessionMode.model_validate({**scope, "requested_schema": _form_schema(form)})
        return None

    async def _resolve(
        self, request: ApprovalRequest, decision: str, values: dict[str, Any] | None = None, reason: str = ""
    ) -> str:
        """Send the answer. Return an error for invalid form values; an earlier answer from elsewhere wins."""
        try:
            await self._client.call(
                "approvals.resolve",
                approval_id=request.approval_id,
                decision=decision,
                arguments=values,
                reason=reason or None,
                digest=request.digest or None,
            )
        except GatewayError as error:
            if error.kind == "FORBIDDEN":
                await self.send(_text_chunk("agent_message_chunk", f"Not answered: {error}.\n\n", new_id()))
            return str(error) if values is not None and error.kind == "INVALID_PARAMS" else ""
        return ""


def _call_key(run_id: str, call_id: str) -> str:
    """Return an id that is unique in a session: some models number the calls of each turn."""
    return f"{run_id}-{call_id}"


class EditorFiles:
    """The files of the folder that the editor has open, with text that is not saved. It runs file tools of agents."""

    def __init__(self, editor: Editor, key: str, folder: Path, capabilities: Any) -> None:
        self.folder = folder
        self._editor = editor
        self._key = key
        self._running = asyncio.Lock()
        self._reads = bool(getattr(capabilities, "read_text_file", False))
        writes = bool(getattr(capabilities, "write_text_file", False))
        allowed = {"file_read": self._reads, "file_write": writes, "file_edit": self._reads and writes}
        self.tools = tuple([name for name, can in allowed.items() if can])
        """The tools that the editor can run."""

    @property
    def offer(self) -> dict[str, Any] | None:
        """The offer for the gateway: these tools, their folder and deadline; None if the editor runs none."""
        if not self.tools:
            return None
        return {"runs": self.tools, "folder": str(self.folder), "deadline": _FILE_DEADLINE}

    async def find_text(self, path: Path) -> str | None:
        """Return the editor's text of a file; None if it has none, or cannot be asked."""
        if not self._reads:
            return None
        try:
            async with asyncio.timeout(_SHOW_TIMEOUT):
                return await self._read(self._inside(str(path)))
        except Exception:  # noqa: BLE001 - a reply of the editor that is an error or not valid
            return None

    async def run(self, call: events.ClientCallShape, shown: str | None, *, again: bool) -> str:
        """Run a call after all earlier ones and return its result. A call that may have been run is run `again`."""
        from atlas_agents.builtin_tools.files import read, write

        path, arguments = self._inside(call.file), call.arguments
        name: str = arguments["path"]
        async with self._running:
            if call.name == "file_write":
                _, summary = write.encode_content(name, arguments["content"])
                if shown is not None and await self._read(path) != shown:
                    raise ToolFailed(
                        f"{name} was changed in the editor after the call was approved; read it again first"
                    )
                await self._write(path, arguments["content"])
                return summary
            text = read.DecodedText(await self._read(path))
            if call.name == "file_read":
                return read.number_lines(name, text, arguments.get("start", 1), arguments.get("lines", read.MAX_LINES))
            return await self._edit(path, text, arguments, again=again)

    async def _edit(self, path: str, text: "DecodedText", arguments: dict[str, Any], *, again: bool) -> str:
        from atlas_agents.builtin_tools.files import write

        name = arguments["path"]
        if again and (happened := write.was_edited(text, arguments)) is not False:
            if happened:
                return f"changed {name}"
            raise ToolFailed(f"the connection to the editor was lost; {name} may have been changed: read it first")
        edited, summary = write.edit_text(name, text, arguments)
        write.check_size(text.encode(edited))
        await self._write(path, edited)
        return summary

    def _inside(self, file: str) -> str:
        """Return a path as the editor knows it; raises ToolFailed if it leads out of the editor's folder."""
        real, top = Path(os.path.realpath(file)), Path(os.path.realpath(self.folder))
        if not real.is_relative_to(top):
            raise ToolFailed(f"{file} is outside {self.folder}, the folder that is open in the editor")
        return str(self.folder / real.relative_to(top))

    async def _read(self, path: str) -> str:
        from atlas_agents.builtin_tools.files import read

        text: str = (await self._editor.read_text_file(path=path, session_id=self._key)).content
        if len(text) > read.MAX_FILE_SIZE:
            raise ToolFailed(f"{path} is too large: {len(text):,} characters, at most {read.MAX_FILE_SIZE:,}")
        return text

    async def _write(self, path: str, content: str) -> None:
        await self._editor.write_text_file(content=content, path=path, session_id=self._key)


class ToolCallView:
    """A tool call as the editor shows it: kind, title, the file it concerns, and for an edit the change."""

    def __init__(self, id: str, name: str, arguments: dict[str, Any], folder: Path) -> None:
        self._id = id
        self._name = name
        self._arguments = arguments
        self.file = _file_path(arguments, folder) if name.startswith("file_") else None
        self.shown_text: str | None = None
        """Text in the editor that the call replaces; None if it was not read."""
        self._diff = _diff(name, arguments, self.file)
        self._output: list[str] = []

    def show_text(self, text: str | None) -> None:
        """Show this text from the editor, which may be unsaved, as the replaced text."""
        if text is not None:
            self.shown_text = text
            self._diff = [{**each, "oldText": text} for each in self._diff]

    def started(self) -> Update:
        return {
            "sessionUpdate": "tool_call",
            "toolCallId": self._id,
            "status": "in_progress",
            "rawInput": self._arguments,
            "content": self._diff,
            **self._description(),
        }

    def progressed(self, message: str) -> Update:
        self._output.append(message)
        return self._update("in_progress", [*self._diff, _text_content("\n".join(self._output))])

    def settled(self, status: str, result: Any) -> Update:
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        done = status == "ok"
        content = self._diff if done and self._diff else [_text_content(text)] if text else []
        return {**self._update("completed" if done else "failed", content), "rawOutput": result}

    def question(self, request: ApprovalRequest) -> Update:
        """Describe the call with nothing hidden in it, for the person who decides."""
        shown = request.preview or json.dumps(request.details, ensure_ascii=False, indent=2, default=str)
        lines = [f"```\n{escape_text(shown)}\n```"]
        lines += [f"in {escape_text(request.working_dir)}"] if request.working_dir else []
        lines += [f"because of {one_line(request.risk)}"] if request.risk else []
        content = [*self._diff, _text_content("\n".join(lines))]
        asked = {"toolCallId": self._id, "status": "pending", "rawInput": request.details, "content": content}
        return {**asked, **self._description()}

    def allowed(self) -> Update:
        return self._update("in_progress", self._diff)

    def _description(self) -> dict[str, Any]:
        start = self._arguments.get("start")
        line = {"line": start} if isinstance(start, int) and start > 0 else {}
        subject = next((self._arguments[each] for each in _SUBJECTS if self._arguments.get(each)), "")
        title = f"{self._name} {subject}" if isinstance(subject, str) else self._name
        return {
            "title": one_line(title, 200).strip(),
            "kind": _KINDS.get(self._name, "other"),
            "locations": [{"path": str(self.file), **line}] if self.file else [],
        }

    def _update(self, status: str, content: list[dict[str, Any]]) -> Update:
        return {"sessionUpdate": "tool_call_update", "toolCallId": self._id, "status": status, "content": content}


def _file_path(arguments: dict[str, Any], folder: Path) -> Path | None:
    """Return the absolute path of the file that a call names, if it is inside the folder."""
    name = arguments.get("path")
    path = Path(os.path.normpath(folder / name)) if isinstance(name, str) and "\0" not in name else None
    return path if path is not None and path.is_relative_to(folder) else None


def _diff(name: str, arguments: dict[str, Any], file: Path | None) -> list[dict[str, Any]]:
    """Return the change that a call makes in a file, as content of the call."""
    old, new = arguments.get("old"), arguments.get("new")
    if name == "file_write":
        new = arguments.get("content")
        old = _current_text(file) if file else None
        old = None if old == new else old  # written already
    if file is None or _KINDS.get(name) != "edit" or not isinstance(new, str):
        return []
    return [{"type": "diff", "path": str(file), "oldText": old if isinstance(old, str) else None, "newText": new}]


def _current_text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8") if file.stat().st_size <= _MAX_OLD_TEXT else None
    except (OSError, UnicodeDecodeError):
        return None


def _text_content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


def _text_chunk(kind: str, text: str, message_id: str) -> Update:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, "messageId": message_id}


def _text(message: types.MessageShape) -> str:
    return "".join(part.text for part in message.parts if isinstance(part, types.TextPart))


def _content(part: types.Part) -> dict[str, Any]:
    """Return a part of a message as a content block."""
    match part:
        case types.TextPart(text):
            return {"type": "text", "text": text}
        case types.ImagePart(media_type, data, url) if data:
            return {"type": "image", "mimeType": media_type, "data": data, "uri": url or None}
        case types.ImagePart(url=url):
            return {"type": "text", "text": f"[image]({url})" if url else "[image]"}
        case types.FilePart(name):
            return {"type": "text", "text": f"[{name}]"}
        case _:
            return {"type": "text", "text": ""}


def _plan(steps: Sequence[types.PlanStepShape]) -> Update:
    entries = [
        {
            "content": f"{step.text} ({step.status})" if step.status in ("failed", "changed") else step.text,
            "priority": "medium",
            "status": _PLAN_STATUS.get(step.status, "completed"),
        }
        for step in steps
        if step.status != "dropped"
    ]
    return {"sessionUpdate": "plan", "entries": entries}


def _stop_reason(event: events.ChatFinal) -> str:
    message = event.message
    if event.cancelled:
        return "cancelled"
    if message is None:
        return "end_turn"
    if message.refusal:
        return "refusal"
    if any(isinstance(part, types.ToolCallPart) for part in message.parts):
        return "max_turn_requests"
    return "max_tokens" if message.metadata.get("truncated") else "end_turn"


def _usage(usage: types.UsageShape) -> dict[str, int]:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.input_tokens + usage.output_tokens,
        "cachedReadTokens": usage.cached_tokens,
        "cachedWriteTokens": usage.cache_write_tokens,
        "thoughtTokens": usage.reasoning_tokens,
    }


def _form_schema(form: types.FormShape) -> dict[str, Any]:
    """Return the fields of a form as a JSON Schema."""
    return {
        "type": "object",
        "properties": {field.name: _field_schema(field) for field in form.fields},
        "required": [field.name for field in form.fields if field.required],
    }


def _field_schema(field: types.FieldShape) -> dict[str, Any]:
    choices = [{"const": each.value, "title": each.title or each.value} for each in field.choices]
    numeric = field.kind in ("number", "integer")
    least, most = ("minimum", "maximum") if numeric else ("minLength", "maxLength")
    if field.kind == "choices":
        least, most = "minItems", "maxItems"
    schema = {
        "type": _FIELD_TYPES.get(field.kind, field.kind),
        "title": escape_text(field.title) or None,
        "description": escape_text(field.description) or None,
        "default": field.default,
        "format": field.format or None,
        "pattern": field.pattern or None,
        least: field.least,
        most: field.most,
        "oneOf": choices if field.kind == "choice" else None,
        "items": {"anyOf": choices} if field.kind == "choices" else None,
    }
    return {name: value for name, value in schema.items() if value is not None}


# Prompts


def _message_parts(blocks: Sequence[Any], folder: Path) -> list[dict[str, Any]]:
    """Return the content blocks of a prompt as parts of a message."""
    parts = [_message_part(block, folder) for block in blocks]
    if not any(part["type"] != "text" or part["text"].strip() for part in parts):
        raise _request_error(_INVALID_PARAMS, "prompt: the message is empty")
    return parts


def _message_part(block: Any, folder: Path) -> dict[str, Any]:
    match block.type:
        case "text":
            return {"type": "text", "text": block.text}
        case "image" if block.data:
            return {"type": "image", "mediaType": block.mime_type, "data": block.data}
        case "resource_link":
            return {"type": "text", "text": f"[{block.name}]({_relative(block.uri, folder)})"}
        case "resource":
            return _resource_part(block.resource, folder)
        case kind:
            expected = "expected text, images, resources or links to them"
            raise _request_error(_INVALID_PARAMS, f"prompt: {kind} content is not supported; {expected}")


def _resource_part(resource: Any, folder: Path) -> dict[str, Any]:
    name, text = _relative(resource.uri, folder), getattr(resource, "text", None)
    if text is not None:
        return {"type": "text", "text": f"File {name}:\n\n{text}"}
    media_type = resource.mime_type or ""
    if media_type.startswith("image/"):
        return {"type": "image", "mediaType": media_type, "data": resource.blob}
    if media_type == "application/pdf":
        return {"type": "file", "name": Path(name).name, "mediaType": media_type, "data": resource.blob}
    raise _request_error(_INVALID_PARAMS, f"prompt: {name}: expected text, an image or a PDF, got {media_type!r}")


def _relative(uri: str, folder: Path) -> str:
    """Return the path that tools use for a file, with its lines if the URI names them; other URIs stay unchanged."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return uri
    path = Path(unquote(parts.path))
    shown = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
    return f"{shown}#{parts.fragment}" if parts.fragment else shown
