"""Connect a command to the running gateway, or to one that it embeds in its own process."""

import json
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeAlias

from atlas_agents.cli.command import Option, match_prefix
from atlas_agents.cli.output import one_line, without_code_hints
from atlas_agents.core import package_version
from atlas_agents.core.errors import ConfigError, GatewayError, Unauthorized, Unreachable

if TYPE_CHECKING:
    from atlas_agents.cli.direct_model import ModelChoice
    from atlas_agents.client import GatewayAddress
    from atlas_agents.config.settings import Settings

LoadSettings: TypeAlias = "Callable[[], Settings]"
TENANT = "default"
_DIAL_TIMEOUT = 15.0
_SILENCE_TIMEOUT = 20.0
"""Seconds without data before a gateway is pinged, and again before it counts as lost."""
_RELOCATES = re.compile(rb"(?m)^\s*[\"']?(home|token)\b")
"""Settings of a file that determine the address of the gateway."""
_RECONNECT_SECONDS = 30.0
_PAGE = 500
_BLOCK = 64 * 1024
_RESTART_SECONDS = 15.0
"""Seconds that a lost gateway may take to restart before a command embeds its own."""

SessionOption = Annotated[str | None, Option("--session", "-s", metavar="KEY", help="The session to use.")]
ModelOption = Annotated[
    str | None,
    Option("--model", metavar="REF", help="Model to use directly: anthropic/…, openai/…, google/…, http/… or demo."),
]
BaseUrlOption = Annotated[
    str | None,
    Option(metavar="URL", help="Use an OpenAI-compatible server directly; its first model is the default."),
]
SystemOption = Annotated[str | None, Option(metavar="TEXT", help="System prompt for a model used directly.")]
ToolsFlag = Annotated[bool, Option(help="Give a model used directly three demo tools: clock, dice, addition.")]

EffortOption = Annotated[
    str | None,
    Option(metavar="LEVEL", help="How much the model reasons: none, low, medium, high, … or a number of tokens."),
]
SetOption = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="NAME=VALUE",
        help="Model setting, such as top_p=0.9 or seed=7, as far as the agent's own allow. Repeatable.",
    ),
]


class ConversationOptions(NamedTuple):
    """Options of a conversation: it uses an agent of the workspace, or a model named on the command line."""

    session: str | None = None
    agent: str | None = None
    latest: bool = False
    model: str | None = None
    base_url: str | None = None
    system: str | None = None
    tools: bool = True

    @property
    def direct(self) -> bool:
        """Whether a model is used without the workspace; nothing is stored then."""
        direct = self.model is not None or self.base_url is not None or self.system is not None or not self.tools
        if direct and (self.session or self.agent or self.latest):
            raise ConfigError(
                "--model, --base-url, --system and --no-tools start a conversation that is not stored, without an "
                "agent; they cannot be combined with --session, --continue or --agent"
            )
        return direct


def load_settings(**flags: Any) -> "Settings":
    """Load all settings; flags take precedence over every other source."""
    from atlas_agents.config.load import load

    if flags.get("home") is not None:
        os.environ["ATLAS_HOME"] = str(Path(flags["home"]).expanduser().absolute())  # the model folder depends on it
    settings = load(flags)
    return load(flags) if settings.ignored and _ask_to_trust(settings.ignored) else settings


def _ask_to_trust(ignored: Sequence[str]) -> bool:
    from atlas_agents.cli.trust import ask_to_trust

    return ask_to_trust(ignored)


def read_model_settings(effort: str | None, given: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the model settings of --effort and --set as the gateway expects them; None if there are none."""
    if not effort and not given:
        return None
    from atlas_agents.gateway.protocol.chat import TurnSettings
    from atlas_agents.providers.settings import read_settings

    names = dict(zip(TurnSettings.__struct_fields__, TurnSettings.__struct_encode_fields__, strict=True))
    found: dict[str, Any] = {}
    for each in [*([f"effort={effort}"] if effort else ()), *(given or ())]:
        name, equals, value = each.partition("=")
        if not equals or not value:
            raise ConfigError(f"--set: expected NAME=VALUE, got {each!r}")
        if name not in names:
            raise ConfigError(f"--set: unknown model setting {name!r}; known settings: {', '.join(names)}")
        texts = {"stop": [value], "service_tier": value}
        found[name] = texts[name] if name in texts else _parse_value(value)
    read_settings(found)
    return {names[name]: value for name, value in found.items()}


def _parse_value(text: str) -> bool | int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def read_token(settings: "Settings") -> str:
    """Return the main token: the configured one, or the one in the home folder."""
    if settings.token is not None:
        return settings.token.reveal()
    path = settings.home / "token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token file {path}: {error}") from error


class GatewaySession:
    """A connection to the gateway of a home folder. The settings are loaded when there is no gateway to connect to, at
    most once.

    `on_status` receives short status messages, for example while the connection is lost; an empty one clears it.
    """

    def __init__(self, settings: "LoadSettings | None" = None, *, idle: bool = False) -> None:
        from atlas_agents.client import GatewayClient

        self._settings = settings or cache(load_settings)
        self.client = GatewayClient(
            find=self.find_gateway,
            reconnect_timeout=_RECONNECT_SECONDS,
            name="atlas",
            on_connection_change=self._on_connection_status,
        )
        self.model_choice: ModelChoice | None = None
        self.on_status = _ignore
        self._idle = idle
        self._lost_at: float | None = None
        self._embedded: GatewayAddress | None = None
        self._resources = AsyncExitStack()

    async def close(self) -> None:
        await self.client.close()
        await self._resources.aclose()

    async def embed_model(self, options: ConversationOptions) -> None:
        """Embed a gateway with a single agent for the model that the command line names."""
        from atlas_agents.cli.direct_model import choose_model, direct_gateway
        from atlas_agents.core.paths import Environment

        if ignored := Environment().ignored:
            _ask_to_trust([*ignored])
        self.model_choice = choose_model(options.model, options.base_url)
        gateway = direct_gateway(self.model_choice, options.system, with_tools=options.tools)
        self._embedded = await self._resources.enter_async_context(gateway)

    async def find_gateway(self) -> "GatewayAddress":
        """Return the address of the running gateway, or of an embedded one.

        Raises Unreachable while another process is starting in the same home folder; the client then asks again.
        """
        from atlas_agents.client import GatewayAddress

        if self._embedded is not None:
            return self._embedded
        if (running := find_running_gateway(self._settings)) is not None:
            return GatewayAddress(*running)
        if self._lost_at is not None and time.monotonic() - self._lost_at < _RESTART_SECONDS:
            raise Unreachable("the gateway is not running any more")
        self._embedded = await self._embed_gateway(self.settings)
        return self._embedded

    @property
    def settings(self) -> "Settings":
        return self._settings()

    async def _embed_gateway(self, settings: "Settings") -> "GatewayAddress":
        from atlas_agents.app.home_lock import HomeInUse
        from atlas_agents.app.serve import private_gateway
        from atlas_agents.client import GatewayAddress

        try:
            serving = private_gateway(settings, on_progress=self._on_download, idle=self._idle)
            gateway = await self._resources.enter_async_context(serving)
        except HomeInUse as error:
            raise Unreachable(str(error)) from error
        return GatewayAddress(gateway.url, gateway.token.reveal())

    def _on_download(self, model: str, done: int, total: int, step: str) -> None:
        ready = done >= total and step == "ready"
        self.on_status("" if ready else f"local model {model}: {step}, {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    def _on_connection_status(self, problem: str) -> None:
        self._lost_at = time.monotonic() if problem and self._embedded is None else None
        self.on_status(f"{problem}; reconnecting" if problem else "")


@asynccontextmanager
async def connect(*, idle: bool = True) -> AsyncGenerator[GatewaySession, None]:
    """Connect to the gateway of the home folder. An embedded gateway that is `idle` does not resume open turns."""
    session = GatewaySession(idle=idle)
    try:
        await session.client.connect()
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def connect_for(
    options: ConversationOptions, settings: "LoadSettings | None" = None
) -> AsyncGenerator[GatewaySession, None]:
    """Connect for a conversation: to the gateway of the home folder, or to a model used directly."""
    session = GatewaySession(settings)
    try:
        if options.direct:
            await session.embed_model(options)
        await session.client.connect()
        yield session
    finally:
        await session.close()


class GatewayCall(Protocol):
    """Calls a gateway method and returns its result as decoded JSON, like `GatewayClient.call`."""

    def __call__(self, method: str, /, **params: Any) -> Any: ...


def call(method: str, /, **params: Any) -> Any:
    """Call one gateway method and return its result."""
    with open_calls() as open_call:
        return open_call(method, **params)


@contextmanager
def open_calls() -> Generator[GatewayCall, None, None]:
    """Yield a function that calls methods of the running gateway, or of one that is embedded in this process.

    A running gateway is asked over a plain socket: importing an event loop and an HTTP client takes several times
    longer than the call.
    """
    if (link := _dial_running_gateway()) is not None:
        with closing(link):
            yield link.call
        return
    import asyncio

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        session = runner.run(stack.enter_async_context(connect()))

        def embedded_call(method: str, /, **params: Any) -> Any:
            return runner.run(session.client.call(method, **params))

        try:
            yield embedded_call
        finally:
            runner.run(stack.aclose())


@contextmanager
def running_calls() -> Generator[GatewayCall | None, None, None]:
    """Yield a function that calls methods of the running gateway; None if no gateway is running."""
    link = _dial_running_gateway()
    if link is None:
        yield None
        return
    with closing(link):
        yield link.call


def find_id(gateway: GatewayCall, kind: str, field: str, prefix: str, *filters: dict[str, Any]) -> str:
    """Return `prefix` if it is the id of a session or job, or else the only id that starts with it."""
    try:
        gateway(f"{kind}s.get", **{field: prefix})
        return prefix
    except GatewayError as error:
        if error.kind not in (f"{kind.upper()}_NOT_FOUND", "INVALID_PARAMS"):
            raise
    ids: list[str] = []
    for chosen in filters or ({},):
        cursor: str | None = None
        while True:
            page = gateway(f"{kind}s.list", limit=_PAGE, cursor=cursor, **chosen)
            ids += [each[_wire_name(field)] for each in page[f"{kind}s"]]
            if (cursor := page.get("nextCursor")) is None:
                break
    return match_prefix(prefix, ids, kind)


class RunningAddress(NamedTuple):
    """Address of the running gateway, and its token."""

    url: str
    token: str


def find_running_gateway(load: "LoadSettings | None" = None) -> RunningAddress | None:
    """Return the address of the gateway that runs in the home folder, or None.

    The settings, which take long to load, are needed only if a file says where the home folder or the token is.
    """
    from atlas_agents.app.home_lock import find_running
    from atlas_agents.core.paths import Environment, home, user_config

    environment = Environment()
    files = (Path(environment.get("ATLAS_CONFIG") or "atlas.toml"), user_config(environment))
    if environment.ignored or any(_RELOCATES.search(_content(path)) for path in files):
        settings = (load or load_settings)()
        running = find_running(settings.home)
        return RunningAddress(running.url, read_token(settings)) if running and running.url else None
    folder = home(environment)
    running = find_running(folder)
    if running is None or not running.url:
        return None
    token = environment.secret("ATLAS_TOKEN") or _content(folder / "token").decode("utf-8", "replace").strip()
    return RunningAddress(running.url, token)


def _dial_running_gateway() -> "SocketLink | None":
    address = find_running_gateway()
    if address is None or not address.url.startswith("http://"):
        return None
    try:
        return SocketLink(*address)
    except TimeoutError as error:
        raise Unreachable(f"the gateway at {address.url} does not respond") from error
    except OSError:
        return None  # the client reports it, or waits for a gateway that restarts


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class SocketLink:
    """An authenticated WebSocket on a blocking socket, for commands that make a few calls and exit."""

    def __init__(self, url: str, token: str) -> None:
        import base64
        import socket

        host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
        self._url = url
        self._socket = socket.create_connection((host.strip("[]"), int(port)), _DIAL_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._last_id = 0
        try:
            key = base64.b64encode(os.urandom(16)).decode()
            upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
            lines = ("GET / HTTP/1.1", f"Host: {host}:{port}", *upgrade, f"Sec-WebSocket-Key: {key}", "", "")
            self._socket.sendall("\r\n".join(lines).encode())
            while b"\r\n\r\n" not in self._buffer:
                self._fill()
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            status = bytes(head.partition(b"\r\n")[0])
            if b" 101 " not in status:
                raise OSError(f"the gateway at {url} rejected the connection: {status!r}")
            self._authenticate(token)
            self._socket.settimeout(_SILENCE_TIMEOUT)
        except BaseException:
            self.close()
            raise

    def _authenticate(self, token: str) -> None:
        client = {"name": "atlas", "version": package_version()}
        self._send({"type": "auth", "token": token, "protocol": 1, "client": client})
        answer = self._receive()
        if not answer.get("ok"):
            raise Unauthorized(f"the gateway at {self._url} rejected the token: {answer.get('error')}")

    def call(self, method: str, /, **params: Any) -> Any:
        self._last_id += 1
        given = {_wire_name(name): value for name, value in params.items() if value is not None}
        try:
            self._send({"id": self._last_id, "method": method, "params": given})
            while (answer := self._receive()).get("id") != self._last_id:
                continue
        except TimeoutError as error:
            raise Unreachable(f"{method}: the gateway at {self._url} does not respond", unclear=True) from error
        except (OSError, ValueError) as error:
            raise Unreachable(f"{method}: the connection was lost: {error}", unclear=True) from error
        if (failure := answer.get("error")) is None:
            return answer.get("result")
        data: dict[str, Any] = failure.get("data") or {}
        after = data.get("retryAfterMs")
        raise GatewayError(
            failure["message"],
            data.get("kind", "INTERNAL"),
            retryable=bool(data.get("retryable")),
            retry_after=after / 1000 if after else None,
        )

    def close(self) -> None:
        self._socket.close()

    def _send(self, value: Any) -> None:
        self._send_frame(0x81, json.dumps(value, ensure_ascii=False).encode())

    def _send_frame(self, kind: int, payload: bytes) -> None:
        """Send a frame, masked as the protocol requires of clients; a mask of zeros leaves the bytes as they are."""
        size = len(payload)
        if size < 126:
            header = bytes((kind, 0x80 | size))
        elif size < 65536:
            header = bytes((kind, 0xFE)) + size.to_bytes(2, "big")
        else:
            header = bytes((kind, 0xFF)) + size.to_bytes(8, "big")
        self._socket.sendall(header + bytes(4) + payload)

    def _receive(self) -> dict[str, Any]:
        """Return the next message; pings are answered."""
        message = b""
        while True:
            kind, length = self._read(2)
            size = length & 0x7F
            if size > 125:
                size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
            payload = self._read(size)
            match kind & 0x0F:
                case 0x8:
                    raise OSError("the gateway closed the connection")
                case 0x9:
                    self._send_frame(0x8A, payload)
                case 0x0 | 0x1 | 0x2:
                    message += payload
                    if kind & 0x80:
                        return json.loads(message)
                case _:
                    pass

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _fill(self) -> None:
        """Wait for data. During a call, a gateway that sends nothing is pinged once: then it answers, or is lost."""
        try:
            data = self._socket.recv(_BLOCK)
        except TimeoutError:
            if self._last_id == 0:
                raise
            self._send_frame(0x89, b"")
            data = self._socket.recv(_BLOCK)
        if not data:
            raise OSError("the gateway closed the connection")
        self._buffer += data


def _wire_name(name: str) -> str:
    """`session_key` → `sessionKey`; `from_` → `from`."""
    first, *others = name.rstrip("_").split("_")
    return first + "".join(other.capitalize() for other in others)


async def list_agents(session: GatewaySession) -> list[dict[str, Any]]:
    return (await session.client.call("agents.list"))["agents"]


def find_agent(agents: list[dict[str, Any]], agent_id: str | None) -> dict[str, Any]:
    """Return the agent with this id, or the default agent for None."""
    for agent in agents:
        if agent["id"] == agent_id or (agent_id is None and agent.get("default")):
            return agent
    known: str = ", ".join(agent["id"] for agent in agents)
    raise ConfigError(f"agent not found: {agent_id!r}; available: {known}" if agent_id else "there are no agents")


async def describe_responder(session: GatewaySession, agent_id: str | None = None) -> str:
    """Describe the agent and its model, with the reason if the model replaces the agent's own."""
    if session.model_choice is not None:
        return session.model_choice.headline
    agent = find_agent(await list_agents(session), agent_id)
    return describe_agent(agent["id"], agent["model"], agent.get("notice", ""))


def describe_agent(agent_id: str, model: str, notice: str = "") -> str:
    """`assistant uses openai/gpt-5.2`, with the reason of the notice: `Using openai/gpt-5.2: no Anthropic key.`"""
    text, reason = f"{agent_id} uses {model_label(model)}", notice.partition(": ")[2]
    return one_line(f"{text}: {without_code_hints(reason)}" if reason else text, 600)


def model_label(model: str) -> str:
    return "a scripted demo, not a model" if model == "demo" else model


def _ignore(status: str) -> None:
    """Ignore status messages until a view subscribes to them."""
