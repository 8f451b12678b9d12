"""`atlas chat`: a conversation at the prompt, with slash commands."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from atlas_agents.cli import connect, output
from atlas_agents.cli.command import AgentOption, Group, Option, command
from atlas_agents.core import package_version
from atlas_agents.core.errors import ConfigError, GatewayError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from atlas_agents.cli.terminal import TerminalView
    from atlas_agents.cli.turn import ApprovalRequest, TurnOutcome
    from atlas_agents.client import Sent, SessionEvent, SessionFeed
    from atlas_agents.gateway.protocol.types import MessageShape

app = Group()
_HELP = (
    ("/agents", "list the agents and their tools"),
    ("/agent ID", "switch to another agent"),
    ("/sessions", "list recent sessions"),
    ("/session KEY", "continue another session"),
    ("/new", "start a new conversation"),
    ("/fork", "continue in a copy of this conversation"),
    ("/history", "show the messages so far"),
    ("/usage", "show the token usage of this conversation"),
    ("/quit", "quit; Ctrl-D does the same"),
)
_QUIT = ("/exit", "/quit")


@command(app)
async def chat(
    session: connect.SessionOption = None,
    latest: Annotated[bool, Option("--continue", "-c", help="Continue the latest session.")] = False,
    agent: AgentOption = None,
    model: connect.ModelOption = None,
    base_url: connect.BaseUrlOption = None,
    system: connect.SystemOption = None,
    tools: connect.ToolsFlag = True,
    effort: connect.EffortOption = None,
    setting: connect.SetOption = None,
) -> None:
    """Chat with an agent in the terminal.

    An agent of the workspace answers, in a stored session, through the running gateway or without one. With --model
    or --base-url a model answers directly, and nothing is stored.
    """
    options = connect.ConversationOptions(session, agent, latest, model, base_url, system, tools)
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stdout.isatty():
        raise ConfigError("atlas chat needs a terminal; use atlas ask in a script or a pipe")
    model_settings = connect.read_model_settings(effort, setting)
    async with connect.connect_for(options) as gateway:
        await ChatLoop(gateway, *await _choose_session(gateway, options), model_settings).run()


async def _choose_session(
    gateway: connect.GatewaySession, options: connect.ConversationOptions
) -> tuple[str, bool, str | None]:
    """Return the session key, whether the session exists, and the agent."""
    from atlas_agents.core.messages import new_id

    if options.agent:
        connect.find_agent(await connect.list_agents(gateway), options.agent)
    if options.latest:
        found = (await gateway.client.call("sessions.list", limit=1))["sessions"]
        if not found:
            raise ConfigError("there is no session to continue; omit --continue")
        return found[0]["sessionKey"], True, options.agent
    if options.session:
        return options.session, await _exists(gateway, options.session), options.agent
    return new_id(), False, options.agent


async def _exists(gateway: connect.GatewaySession, key: str) -> bool:
    try:
        await gateway.client.call("sessions.get", session_key=key)
    except GatewayError as error:
        if error.kind != "SESSION_NOT_FOUND":
            raise
        return False
    return True


class ChatLoop:
    """Reads lines, runs turns and slash commands until the user quits."""

    def __init__(
        self,
        gateway: connect.GatewaySession,
        session_key: str,
        exists: bool,
        agent: str | None,
        model_settings: dict[str, Any] | None = None,
    ) -> None:
        from rich.console import Console

        from atlas_agents.cli.terminal import TerminalView

        self.gateway = gateway
        self.view = TerminalView(Console(highlight=False))
        self.session_key = session_key
        self.session_exists = exists
        """Whether the session has messages."""
        self.agent = agent
        """Agent to use instead of the session's own."""
        self._model_settings = model_settings
        self._warnings: set[str] = set()
        """Warnings about dropped settings that were already shown."""
        self._feed: SessionFeed | None = None
        self._prompt_lock = asyncio.Lock()
        self._typed = TypedAhead(self.view, self._steer)
        gateway.on_status = self.view.show_status

    async def run(self) -> None:
        from atlas_agents.cli.turn import QuitRequested

        prompt = self._create_prompt()
        responder = await connect.describe_responder(self.gateway, self.agent)
        self.view.print_line(f"Atlas {package_version()}: {responder}", "bold")
        self.view.print_line("/help lists the commands, Ctrl-C stops an answer, Ctrl-D quits.", "dim")
        with suppress(QuitRequested):
            if self.session_exists:
                await self._show_session()
            while (line := await self._read_line(prompt)) is not None:
                if is_command(line):
                    await self._run_safely(lambda line=line: self._run_command(line))
                elif line:
                    await self._run_safely(lambda line=line: self._send(line))

    async def switch_session(self, key: str, *, exists: bool, show: bool = True) -> None:
        """Continue in another session; `show` prints its latest messages."""
        self.session_key, self.session_exists = key, exists
        self._typed.forget_sent()
        if self._feed is not None:
            await self._feed.close()
            self._feed = None
        if exists and show:
            await self._show_session()

    def print_messages(self, messages: "Iterable[MessageShape]") -> None:
        from atlas_agents.gateway.protocol.types import TextPart, ToolCallPart, ToolResultPart

        names: dict[str, str] = {}
        for message in messages:
            for part in message.parts:
                match part:
                    case TextPart(text) if text.strip():
                        self.view.print_line(
                            f"{'you' if message.role == 'user' else message.role}: {output.printable(text)}"
                        )
                    case ToolCallPart(id, name, arguments):
                        names[id] = name
                        self.view.print_line(output.format_call(name, arguments), "cyan")
                    case ToolResultPart(call_id, status, result, error):
                        self.view.print_line(
                            output.format_result(names.get(call_id, "?"), status, result, error), "dim"
                        )
                    case _:
                        pass
            if message.refusal:
                self.view.print_line(output.printable(message.refusal), "yellow")

    async def _read_line(self, prompt: "PromptSession[str]") -> str | None:
        """Return the user's input; None to quit."""
        self.view.print_line("")
        if line := self._typed.next_line():
            self.view.print_line(f"> {line}", "bold")
            return None if line in _QUIT else line
        try:
            line = (await prompt.prompt_async([("bold", "> ")], default=self._typed.input.take_draft())).strip()
        except (EOFError, KeyboardInterrupt):
            return None
        if self._typed.input.is_rest_of_answer(line):
            return ""
        return None if line in _QUIT else line

    async def _run_safely(self, work: Callable[[], Awaitable[None]]) -> None:
        from atlas_agents.cli.turn import QuitRequested

        try:
            await work()
        except QuitRequested:
            raise
        except Exception as error:  # noqa: BLE001 - a failed turn or command does not end the conversation
            self.view.print_line(output.describe_error(error), "red")

    async def _run_command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        run = COMMANDS.get(name)
        if run is None:
            self.view.print_line(f"Unknown command {output.one_line(name)}; type /help for the list.", "yellow")
        else:
            await run(self, argument.strip())

    async def _send(self, message: str) -> None:
        feed = await self._joined()
        sent = await feed.send(message, agent_id=self.agent, settings=self._model_settings)
        self.session_exists = True
        if sent.status == "queued":
            ahead = max(1, len(feed.positions) - 1)
            self.view.print_line(f"(queued behind {output.plural(ahead, 'turn')})", "dim")
        await self._follow(feed, sent.run_id)

    async def _follow(self, feed: "SessionFeed", run_id: str) -> None:
        """Show a turn, then the turns of messages that were typed during it and did not enter it."""
        from atlas_agents.cli.turn import follow_turn

        following: tuple[str, str] | None = (run_id, "")
        while following is not None:
            run_id, message = following
            if message:
                self.view.print_line("")
                self.view.print_line(f"> {message}", "bold")
            outcome = await follow_turn(self.gateway.client, feed, run_id, self.view, self._decide, self._typed)
            self._show_outcome(outcome)
            following = await self._typed.next_turn()

    async def _steer(self, message: str) -> "Sent":
        """Send a message to the running turn; if that turn ends first, the message starts a turn of its own."""
        feed = await self._joined()
        return await feed.send(message, agent_id=self.agent, settings=self._model_settings, when_busy="steer")

    def _show_outcome(self, outcome: "TurnOutcome") -> None:
        from atlas_agents.cli.turn import show_outcome_notice

        choice = self.gateway.model_choice
        for warning in outcome.warnings:
            if warning not in self._warnings:
                self._warnings.add(warning)
                self.view.print_line(output.one_line(warning, 600), "yellow")
        if outcome.error is not None:
            url = choice.url if choice else ""
            self.view.print_line(output.describe_model_error(outcome.error, outcome.error_kind, url), "red")
        elif outcome.cancelled:
            self.view.print_line("(stopped: this answer is not stored; the conversation continues)", "yellow")
        else:
            show_outcome_notice(outcome, self.view)

    async def _decide(self, request: "ApprovalRequest") -> None:
        """Ask the user at the prompt. Ctrl-C there cancels the turn."""
        from atlas_agents.cli.prompts import ask_user, send_reply

        client = self.gateway.client
        try:
            async with self._prompt_lock:  # parallel tool calls may ask at the same time
                while not await send_reply(client, request, await ask_user(request, self.view), self.view):
                    pass
            self._typed.input.resume(answered=True)
        except KeyboardInterrupt:
            with suppress(GatewayError):
                await client.call("chat.abort", run_id=request.run_id)

    async def _joined(self) -> "SessionFeed":
        if self._feed is None:
            self._feed = self.gateway.client.follow(self.session_key)
            await self._feed.subscribe()
        return self._feed

    async def _show_session(self) -> None:
        """Show the latest messages of the session and follow its running turns."""
        feed = await self._joined()
        label = feed.session.label if feed.session else ""
        self.view.print_line(f"(session {self.session_key}: {output.one_line(label, 80) or 'no messages yet'})", "dim")
        self.print_messages(feed.messages[-6:])
        open_runs = list(feed.positions)
        if len(open_runs) > 1:
            self.view.print_line(f"({len(open_runs)} turns are running or queued)", "dim")
        for run_id in open_runs:
            await self._run_safely(lambda run_id=run_id: self._follow(feed, run_id))

    def _create_prompt(self) -> "PromptSession[str]":
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.shortcuts import CompleteStyle

        home = None if self.gateway.model_choice else self.gateway.settings.home
        return PromptSession(
            history=_input_history(home),
            completer=WordCompleter([*COMMANDS, *_QUIT], sentence=True),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            key_bindings=_key_bindings(),
        )


class TypedAhead:
    """Input during a turn: messages enter the turn or follow it, commands run after it.

    A message that cannot be sent is kept for the prompt, and so is all input after a command.
    """

    def __init__(self, view: "TerminalView", send: "Callable[[str], Awaitable[Sent]]") -> None:
        from atlas_agents.cli.terminal import TurnInput

        self.input = TurnInput(view, self._on_line)
        self._view = view
        self._send = send
        self._lines: deque[str] = deque()
        self._unsent: deque[str] = deque()
        self._sent: dict[str, str] = {}
        self._settled: set[str] = set()
        self._sending: asyncio.Task[None] | None = None

    def reading(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        return self.input.reading(interrupt)

    def observe(self, event: "SessionEvent") -> None:
        """Show the messages that enter the running turn. They get no turn of their own, nor do cancelled messages."""
        from atlas_agents.cli.turn import message_text
        from atlas_agents.core.messages import STEERING_RUN
        from atlas_agents.gateway.protocol import events

        if isinstance(event, events.ChatMessage) and (run_id := event.message.metadata.get(STEERING_RUN)):
            self._settle(run_id)
            self._view.print_line(f"> {message_text(event.message)}", "bold")
        elif isinstance(event, events.ChatFinal | events.ChatError):
            self._settle(event.run_id)

    async def next_turn(self) -> tuple[str, str] | None:
        """Return the run and the message of the next turn that a typed message started; None if there is none."""
        if self._sending is not None:
            await self._sending
        self._settled.clear()
        for run_id in self._sent:
            return run_id, self._sent.pop(run_id)
        return None

    def forget_sent(self) -> None:
        """Forget the sent messages: the session is no longer followed."""
        self._sent.clear()

    def next_line(self) -> str:
        """Return the next line that waited for the end of the turn; empty if there is none."""
        line = self._lines.popleft() if self._lines else ""
        self._show()
        return line

    def _on_line(self, line: str) -> None:
        if self._lines or is_command(line):
            self._lines.append(line)
        else:
            self._unsent.append(line)
            if self._sending is None or self._sending.done():
                self._sending = asyncio.create_task(self._send_all())
        self._show()

    async def _send_all(self) -> None:
        while self._unsent:
            try:
                sent = await self._send(self._unsent[0])
            except GatewayError as error:
                self._view.print_line(f"Not sent yet: {output.describe_error(error)}", "yellow")
                self._lines.extendleft(reversed(self._unsent))
                self._unsent.clear()
            else:
                message = self._unsent.popleft()
                if sent.run_id not in self._settled:
                    self._sent[sent.run_id] = message
            self._show()

    def _settle(self, run_id: str) -> None:
        self._settled.add(run_id)
        self._sent.pop(run_id, None)
        self._show()

    def _show(self) -> None:
        self.input.waiting = [
            *((message, "for the agent's next step") for message in self._sent.values()),
            *((message, "sending") for message in self._unsent),
            *((line, "after this answer") for line in self._lines),
        ]
        self.input.show()


def _key_bindings() -> "KeyBindings":
    """Let Ctrl-C clear the line, or quit if it is empty."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    def clear_or_quit(event: "KeyPressEvent") -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    keys.add("c-c")(clear_or_quit)
    return keys


def _input_history(home: Path | None) -> "History":
    """Return the input history, in a file that only its owner can read."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if home is None:
        return InMemoryHistory()
    path = home / "typed"
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    return FileHistory(str(path)) if os.access(path, os.W_OK) else InMemoryHistory()


def is_command(line: str) -> bool:
    """Return whether a line is a slash command and not a pasted path."""
    word = line.split()[0] if line else ""
    return word.startswith("/") and "/" not in word[1:]


# Slash commands


async def _help(chat: ChatLoop, _: str) -> None:
    for name, text in _HELP:
        chat.view.print_line(f"{name:<13} {text}")
    chat.view.print_line("Ctrl-C        stop an answer (twice: quit), or clear the line (empty: quit)")
    chat.view.print_line(
        "A message that you send during an answer is read at the agent's next step, or answered after it."
    )


async def _agents(chat: ChatLoop, _: str) -> None:
    choice = chat.gateway.model_choice
    for agent in await connect.list_agents(chat.gateway):
        tools = ", ".join(agent["tools"]) or "none"
        model = f"{choice.name} ({choice.reason})" if choice else connect.model_label(agent["model"])
        current = chat.agent == agent["id"] or (chat.agent is None and agent.get("default"))
        chat.view.print_line(f"{'* ' if current else ''}{agent['id']}: {model}; tools: {tools}")
        if agent.get("notice"):
            chat.view.print_line(f"  {output.one_line(output.without_code_hints(agent['notice']), 400)}", "yellow")


async def _agent(chat: ChatLoop, id: str) -> None:
    found = connect.find_agent(await connect.list_agents(chat.gateway), id or chat.agent)
    chat.agent = found["id"]
    if chat.session_exists and id:
        await chat.gateway.client.call("sessions.update", session_key=chat.session_key, agent_id=found["id"])
    chat.view.print_line(f"{connect.describe_agent(found['id'], found['model'])}.", "dim")


async def _sessions(chat: ChatLoop, _: str) -> None:
    found = (await chat.gateway.client.call("sessions.list", limit=10))["sessions"]
    for session in found:
        sign = "*" if session["sessionKey"] == chat.session_key else " "
        label = output.one_line(session["label"], 60) or "(no name)"
        chat.view.print_line(f"{sign} {session['sessionKey']}  {output.format_age(session['updatedAt'])}  {label}")
    if not found:
        chat.view.print_line("There are no sessions yet.", "dim")


async def _session(chat: ChatLoop, key: str) -> None:
    if not key:
        chat.view.print_line(f"Session {chat.session_key}." if chat.session_exists else "No messages yet.", "dim")
        return
    await chat.gateway.client.call("sessions.get", session_key=key)
    await chat.switch_session(key, exists=True)


async def _new(chat: ChatLoop, _: str) -> None:
    from atlas_agents.core.messages import new_id

    await chat.switch_session(new_id(), exists=False)
    chat.view.print_line("Started a new conversation.", "dim")


async def _fork(chat: ChatLoop, _: str) -> None:
    if not chat.session_exists:
        chat.view.print_line("There are no messages to copy yet.", "yellow")
        return
    copy = (await chat.gateway.client.call("sessions.fork", session_key=chat.session_key))["sessionKey"]
    await chat.switch_session(copy, exists=True, show=False)
    chat.view.print_line(f"Continuing in a copy, session {copy}. The original is unchanged.", "dim")


async def _history(chat: ChatLoop, _: str) -> None:
    import msgspec

    from atlas_agents.gateway.protocol.chat import ChatHistoryPage

    if not chat.session_exists:
        chat.view.print_line("No messages yet.", "dim")
        return
    page = await chat.gateway.client.call("chat.history", session_key=chat.session_key, limit=500)
    found = msgspec.convert(page, ChatHistoryPage)
    if found.has_more:
        chat.view.print_line("(earlier messages are not shown)", "dim")
    chat.print_messages(found.messages)


async def _usage(chat: ChatLoop, _: str) -> None:
    used = await chat.gateway.client.call("usage.summary", group_by="session", session_key=chat.session_key)
    rows: list[dict[str, Any]] = used["rows"]
    if not rows:
        chat.view.print_line("No usage yet.", "dim")
        return
    (row,) = rows
    tokens = f"{row['inputTokens']:,} tokens in, {row['outputTokens']:,} out"
    cost = f", {row['costMicrocents'] / 1e8:.4f} $" if row["costMicrocents"] else ""
    chat.view.print_line(f"{output.plural(row['turns'], 'turn')}: {tokens}{cost}")


SlashCommand: TypeAlias = Callable[[ChatLoop, str], Awaitable[None]]
COMMANDS: dict[str, SlashCommand] = {
    "/help": _help,
    "/agents": _agents,
    "/agent": _agent,
    "/sessions": _sessions,
    "/session": _session,
    "/new": _new,
    "/reset": _new,
    "/fork": _fork,
    "/history": _history,
    "/usage": _usage,
}
