"""Commands from the signatures of functions: argparse reads their options and prints their help.

It imports nothing that takes long: a command that asks a running gateway costs less than importing a parser library.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from types import NoneType
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

from atlas_agents.cli.output import describe_error, one_line
from atlas_agents.core.errors import ConfigError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
HELP, HELP_TEXT = "--help", "Show this message and exit."
Function = TypeVar("Function", bound=Callable[..., Any])
_METAVARS: dict[Any, str] = {str: "TEXT", int: "INTEGER", float: "FLOAT"}
_WIDEST_LINE = 80


class Option:
    """Declares a parameter as an option. Without `names`, the name of the parameter is used."""

    def __init__(self, *names: str, metavar: str = "", help: str = "", min: float = -inf, max: float = inf) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.min = min
        self.max = max


class Argument(Option):
    """Declares a parameter as a positional argument; a list takes all remaining arguments."""


JsonFlag = Annotated[bool, Option("--json", help="Print JSON.")]
YesFlag = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
AgentOption = Annotated[str | None, Option("--agent", "-a", metavar="ID", help="The agent to use.")]


class Parameter:
    """A parameter of a command: its type, its default, and its names on the command line."""

    def __init__(self, name: str, annotation: Any, default: Any, *, required: bool) -> None:
        annotated = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        is_union = get_origin(annotated[0]) not in (None, list)
        kind = next(kind for kind in (get_args(annotated[0]) if is_union else annotated) if kind is not NoneType)
        implied = Argument() if required else Option()
        self.name = name
        self.default = default
        self.required = required
        self.many = get_origin(kind) is list
        self.kind: Any = get_args(kind)[0] if self.many else str if kind is Any else kind
        self.info = next((info for info in annotated[1:] if isinstance(info, Option)), implied)
        self.is_option = not isinstance(self.info, Argument)
        self.can_be_off = self.is_option and self.kind is bool and not self.info.names
        self.names = self._names()

    def _names(self) -> list[str]:
        """Return the names of an option, the short one first."""
        name = self.name.strip("_").replace("_", "-")
        if not self.is_option or self.info.names:
            return sorted(self.info.names, key=len)
        return [f"--{name}", f"--no-{name}"] if self.can_be_off else [f"--{name}"]

    @property
    def metavar(self) -> str:
        """The value of an option, or a positional argument as usage lines show it."""
        if self.is_option:
            return self.info.metavar or _METAVARS.get(self.kind, "TEXT")
        shown = (self.info.metavar or self.name.upper()) + "..." * self.many
        return shown if self.required else f"[{shown}]"

    @property
    def term(self) -> str:
        """`-s, --session KEY`, or `KEY`."""
        return f"{', '.join(self.names)} {self.metavar}".strip()

    @property
    def bounds(self) -> str:
        """The range of a number: `1<=x<=500` or `x>=1`."""
        low, high = self.info.min, self.info.max
        if high == inf:
            return "" if low == -inf else f"x>={low}"
        return f"x<={high}" if low == -inf else f"{low}<=x<={high}"

    @property
    def help(self) -> str:
        """Help text, with the default and the range."""
        default = self.default
        if self.kind is bool and default is not None:
            default = self.names[not default].removeprefix("--") if self.can_be_off else None
        notes = [f"default: {default}"] if default not in (None, "") else []
        notes += [note for note in (self.bounds, "required" * self.required) if note]
        return f"{self.info.help}  [{'; '.join(notes)}]" if notes else self.info.help

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare the parameter to argparse."""
        help = self.help.replace("%", "%%")
        if not self.is_option:
            parser.add_argument(self.name, metavar=self.metavar, help=help)
        elif self.can_be_off:
            parser.add_argument(self.names[0], dest=self.name, action=argparse.BooleanOptionalAction, help=help)
        elif self.kind is bool:
            parser.add_argument(*self.names, dest=self.name, action="store_true", help=help)
        else:
            action = "append" if self.many else "store"
            parser.add_argument(
                *self.names, dest=self.name, action=action, type=self.convert, metavar=self.metavar, help=help
            )

    def convert(self, text: str) -> Any:
        """Convert a value to the type of the parameter, and check its range."""
        with suppress(ValueError):
            value = self.kind(text)
            if not isinstance(value, int | float) or self.info.min <= value <= self.info.max:
                return value
        expected = {int: "an integer", float: "a number"}.get(self.kind, f"a valid {self.kind.__name__}")
        within = f" with {self.bounds}" if self.bounds else ""
        raise argparse.ArgumentTypeError(f"expected {expected}{within}, got {text!r}")


class Parser(argparse.ArgumentParser):
    """Reads the options of a command and prints help. An error is one line below the usage, and exits with code 2."""

    def __init__(self, path: str, arguments: str, parameters: Sequence[Parameter], description: str = "") -> None:
        super().__init__(
            prog=path,
            usage=f"%(prog)s [OPTIONS] {arguments}".rstrip(),
            description=description,
            formatter_class=_HelpFormatter,
            argument_default=argparse.SUPPRESS,
            add_help=False,
            allow_abbrev=False,
        )
        self.color = False  # Python 3.14 colors errors in a file if standard output is a terminal
        self.names = [HELP, *(name for parameter in parameters for name in parameter.names)]
        for parameter in parameters:
            parameter.add_to(self)
        self.add_argument(HELP, action="help", help=HELP_TEXT)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"Try '{self.prog} --help' for help.\n\nError: {one_line(message, 600)}\n")

    def reject(self, kind: str, word: str, known: Iterable[str]) -> NoReturn:
        """Exit because of an unknown option or command, and suggest similar ones."""
        import difflib

        close = difflib.get_close_matches(word, known)
        hint = f"; did you mean {' or '.join(sorted(close))}?" if close else ""
        self.error(f"no such {kind}: {word}{hint}")


class _HelpFormatter(argparse.HelpFormatter):
    """Help of at most 80 columns with paragraphs. Every version of Python shows options as `-s, --session KEY`."""

    def __init__(self, prog: str) -> None:
        width = min(shutil.get_terminal_size().columns, _WIDEST_LINE) - 2
        super().__init__(prog, max_help_position=34, width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in text.split("\n\n"))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {action.metavar}"


class Command:
    """A function as a command. Its parameters are the options; it returns the exit code, or None for success."""

    def __init__(self, name: str, function: Callable[..., Any], *, unknown_options_are_arguments: bool = False) -> None:
        self.name = name
        self.callback = function
        self.unknown_options_are_arguments = unknown_options_are_arguments

    @property
    def help(self) -> str:
        return (self.callback.__doc__ or "").strip()

    @property
    def parameters(self) -> list[Parameter]:
        function: Any = self.callback
        code, given = function.__code__, function.__defaults__ or ()
        names: Sequence[str] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        defaults = dict(zip(names[code.co_argcount - len(given) :], given, strict=False))
        defaults |= function.__kwdefaults__ or {}
        hints = function.__annotations__
        return [
            Parameter(name, hints.get(name, str), defaults.get(name), required=name not in defaults) for name in names
        ]

    def parse(self, arguments: Sequence[str], path: str) -> dict[str, Any]:
        """Return the given parameters by name. Exits with code 2 and a message if they do not fit the command.

        argparse reads the options and leaves the other words in their order: they are the arguments.
        """
        parameters = self.parameters
        parser = Parser(path, self._usage, [parameter for parameter in parameters if parameter.is_option])
        before, after = _split(arguments)
        options, words = parser.parse_known_args(before)
        unknown = next((name for word in words if _is_option(name := word.partition("=")[0])), None)
        if unknown and not self.unknown_options_are_arguments:
            parser.reject("option", unknown, parser.names)
        values = vars(options) | _assign(words + after, parameters, parser)
        for parameter in parameters:
            if parameter.required and parameter.name not in values:
                parser.error(f"missing {parameter.term}")
        return values

    def run(self, arguments: Sequence[str], path: str) -> int:
        if HELP in _split(arguments)[0]:
            return _print_help(self.help_text(path))
        values = self.parse(arguments, path)
        return _run(lambda: self.callback(**values))

    def help_text(self, path: str) -> str:
        return Parser(path, self._usage, self.parameters, self.help).format_help()

    @property
    def _usage(self) -> str:
        return " ".join(parameter.metavar for parameter in self.parameters if not parameter.is_option)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after `--`, which ends the options."""
    end = [*arguments, "--"].index("--")
    return [*arguments[:end]], [*arguments[end + 1 :]]


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and " " not in word


def _assign(words: list[str], parameters: Iterable[Parameter], parser: Parser) -> dict[str, Any]:
    """Return the values of the positional arguments that are given."""
    values: dict[str, Any] = {}
    for parameter in parameters:
        if words and not parameter.is_option:
            taken, words = (words, []) if parameter.many else (words[:1], words[1:])
            try:
                converted = [parameter.convert(word) for word in taken]
            except argparse.ArgumentTypeError as error:
                parser.error(f"argument {parameter.metavar}: {error}")
            values[parameter.name] = converted if parameter.many else converted[0]
    if words:
        parser.error(f"unexpected argument{'s' if len(words) > 1 else ''}: {' '.join(words)}")
    return values


class Group:
    """Commands under a name. `default` is the command that runs if none is named."""

    def __init__(self, help: str = "", default: str = "") -> None:
        self.help = help
        self.default = default
        self.commands: dict[str, Command] = {}

    def listing(self) -> "list[tuple[str, str]]":
        """Return the name and the first line of the help of each command."""
        return [(name, command.help.partition("\n")[0]) for name, command in self.commands.items()]

    def find(self, name: str) -> "Command | Group | None":
        return self.commands.get(name)

    @property
    def parameters(self) -> list[Parameter]:
        """The options of the group itself."""
        return []

    def run(self, arguments: Sequence[str], path: str) -> int:
        if self.default and arguments != [HELP] and not (arguments and not arguments[0].startswith("-")):
            return self.commands[self.default].run(arguments, path)
        if not arguments:
            print(self.help_text(path), end="", file=sys.stderr)
            return EXIT_USAGE
        word, parser = arguments[0], self._parser(path)
        if word == HELP:
            return _print_help(self.help_text(path))
        if word.startswith("-"):
            parser.reject("option", word, parser.names)
        command = self.find(word)
        if command is None:
            parser.reject("command", word, [name for name, _ in self.listing()])
        return command.run(arguments[1:], f"{path} {word}")

    def help_text(self, path: str) -> str:
        parser = self._parser(path)
        commands = parser.add_argument_group("commands")
        for name, help in self.listing():
            commands.add_argument(name, help=help.replace("%", "%%"))
        return parser.format_help()

    def _parser(self, path: str) -> Parser:
        return Parser(path, "COMMAND [ARGS]...", self.parameters, self.help)


def command(group: Group, name: str | None = None, **settings: bool) -> Callable[[Function], Function]:
    """Add a function to a group."""

    def register(function: Function) -> Function:
        named = name or function.__name__.replace("_", "-")
        group.commands[named] = Command(named, function, **settings)
        return function

    return register


# Running


def _run(function: Callable[[], Any]) -> int:
    import logging

    logging.basicConfig(handlers=[logging.NullHandler()])  # errors are printed as sentences, not as log lines
    try:
        result = function()
        code = _run_coroutine(result) if hasattr(result, "send") else result
        sys.stdout.flush()
        return code or EXIT_OK
    except ConfigError as error:
        print_error(describe_error(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_FAILED
    except ModuleNotFoundError:  # main() names the package to install
        raise
    except Exception as error:  # noqa: BLE001 - every failure becomes one line on standard error
        print_error(describe_error(error))
        return EXIT_FAILED


def _print_help(text: str) -> int:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        _discard_output()
    return EXIT_OK


def _discard_output() -> None:
    """Discard further output: the reader closed the pipe early, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_coroutine(coroutine: Any) -> int | None:
    import asyncio

    try:
        return asyncio.run(coroutine)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def print_error(message: str) -> None:
    print(f"atlas: {one_line(message, 600)}", file=sys.stderr, flush=True)


def confirm(question: str) -> bool:
    """Ask the user to confirm; raise ConfigError if there is no terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(f"{question} Cannot ask: standard input is not a terminal. Pass --yes to confirm")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def match_prefix(prefix: str, keys: Iterable[str], kind: str) -> str:
    """Return the only key with this prefix; an exact match wins over longer keys."""
    if not prefix:
        raise ConfigError(f"invalid {kind} '': expected an id or a unique prefix of one; run: atlas {kind}s list")
    known = list(keys)
    matching = [key for key in known if key.startswith(prefix)]
    if prefix in matching:
        return prefix
    if len(matching) > 1:
        raise ConfigError(f"ambiguous {kind} {prefix!r}: {len(matching)} {kind}s start with it")
    if not matching:
        from atlas_agents.core.text import list_known

        raise ConfigError(f"{kind} not found: {prefix!r}; {list_known(f'{kind}s', known)}; run: atlas {kind}s list")
    return matching[0]
