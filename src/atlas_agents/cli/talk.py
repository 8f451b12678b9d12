"""The conversation at the prompt: reads a line, takes a turn, and knows a few commands."""

from collections.abc import Callable
from importlib.metadata import version

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from rich.console import Console

from atlas_agents.cli.choice import Choice
from atlas_agents.cli.page import Page
from atlas_agents.cli.turn import take_turn
from atlas_agents.cli.words import answered, called, one_line, printable, sentence
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import Cancelled
from atlas_agents.engine.atlas import Atlas

_LEAVE = ("/exit", "/quit")


class Talk:
    """A conversation with a person; it is kept until `/reset` or the end."""

    def __init__(self, atlas: Atlas, choice: Choice) -> None:
        self._atlas = atlas
        self._choice = choice
        self._page = Page(Console(highlight=False))
        self._conversation = Conversation()
        self._commands: dict[str, Callable[[], None]] = {
            "/help": self._help,
            "/agents": self._agents,
            "/reset": self._reset,
            "/history": self._history,
        }

    async def run(self) -> None:
        """Go on until the person leaves."""
        prompt = self._prompt()
        self._page.line(f"Atlas {version('atlas-agents')}: {self._choice.headline}", "bold")
        self._page.line("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.", "dim")
        while True:
            self._page.line("")
            try:
                line = (await prompt.prompt_async([("bold", "> ")])).strip()
            except (EOFError, KeyboardInterrupt):
                return
            if line in _LEAVE:
                return
            if _is_command(line):
                self._obey(line)
            elif line:
                await self._turn(line)

    async def _turn(self, message: str) -> None:
        try:
            await take_turn(self._atlas.send(message, session=self._conversation), self._page)
        except Cancelled:
            self._page.line("(stopped: this answer is not kept; the conversation goes on)", "yellow")
        except Exception as error:  # noqa: BLE001 - whatever broke in this turn, the conversation goes on
            self._page.line(sentence(error, self._choice.address), "red")

    def _obey(self, command: str) -> None:
        if command in self._commands:
            self._commands[command]()
        else:
            self._page.line(f"There is no command {one_line(command)}: /help lists them.", "yellow")

    def _help(self) -> None:
        for command, words in (
            ("/agents", "who answers, and with which tools"),
            ("/history", "what was said so far"),
            ("/reset", "begin a new conversation"),
            ("/exit", "leave; Ctrl-D does too"),
        ):
            self._page.line(f"{command:<9} {words}")
        self._page.line("Ctrl-C    stops an answer, empties the line, or leaves when it is empty")

    def _agents(self) -> None:
        for agent in self._atlas.agents:
            tools = ", ".join(tool.name for tool in agent.tools) or "none"
            self._page.line(f"{agent.id}: {self._choice.name} ({self._choice.why}); tools: {tools}")

    def _reset(self) -> None:
        self._conversation = Conversation()
        self._page.line("A new conversation begins.", "dim")

    def _history(self) -> None:
        names = {call.id: call.name for message in self._conversation.messages for call in message.tool_calls}
        for message in self._conversation.messages:
            if message.text:
                self._page.line(f"{'you' if message.role == 'user' else message.role}: {printable(message.text)}")
            for call in message.tool_calls:
                self._page.line(called(call), "cyan")
            for result in message.tool_results:
                self._page.line(answered(names.get(result.call_id, "?"), result), "dim")
        if not self._conversation.messages:
            self._page.line("Nothing was said yet.", "dim")

    def _prompt(self) -> PromptSession[str]:
        keys = KeyBindings()

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:  # pyright: ignore[reportUnusedFunction]
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        return PromptSession(
            completer=WordCompleter([*self._commands, *_LEAVE], sentence=True),
            complete_style=CompleteStyle.READLINE_LIKE,
            complete_while_typing=False,
            key_bindings=keys,
        )


def _is_command(line: str) -> bool:
    """`/word`, but not a path: people paste those."""
    word = line.split()[0] if line else ""
    return word.startswith("/") and "/" not in word[1:]
