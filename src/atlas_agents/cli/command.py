"""The command-line parser: commands from the signatures of functions, help texts, and errors as exit codes.

It imports nothing that takes long: a command that asks a running gateway costs less than importing a parser library.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_origin

from atlas_agents.cli.output import describe_error, one_line
from atlas_agents.core.errors import ConfigError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
Function = TypeVar("Function", bound=Callable[..., Any])
_HELP = ("--help", "Show this message and exit.")
_WIDEST_TERM = 30
_WIDEST_LINE = 80
_METAVARS: dict[Any, str] = {str: "TEXT", int: "INTEGER", float: "FLOAT"}


class UsageError(Exception):
    """The arguments do not fit the command."""


class Option:
    """Declares a parameter as an option. Without `names`, the name of the parameter is used."""

    def __init__(
        self, *names: str, metavar: str = "", help: str = "", min: int | None = None, max: int | None = None
    ) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.min = min
        self.max = max


class Argument:
    """Declares a parameter as a positional argument; a list takes all remaining arguments."""

    def __init__(self, *, metavar: str = "", help: str = "") -> None:
        self.metavar = metavar
        self.help = help


JsonFlag = Annotated[bool, Option("--json", help="Print JSON.")]
YesFlag = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
AgentOption = Annotated[str | None, Option("--agent", "-a", metavar="ID", help="The agent to use.")]


class Parameter:
    """A parameter of a command: its type, its default, and its names on the command line."""

    def __init__(self, name: str, annotation: Any, default: Any, *, required: bool) -> None:
        annotated = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        kinds = [kind for kind in _union(annotated[0]) if kind is not type(None)]
        self.name = name
        self.default = default
        self.required = required
        self.many = get_origin(kinds[0]) is list
        self.kind: Any = get_args(kinds[0])[0] if self.many else kinds[0]
        implied = Argument() if required else Option()
        self.info: Option | Argument = next((i for i in annotated[1:] if isinstance(i, Option | Argument)), implied)
        self.names, self.off_names = self._option_names()

    def _option_names(self) -> tuple[list[str], list[str]]:
        if isinstance(self.info, Argument):
            return [], []
        long = self.name.strip("_").replace("_", "-")
        if not self.info.names:
            return [f"--{long}"], [f"--no-{long}"] if self.kind is bool else []
        return sorted(self.info.names, key=lambda name: name.startswith("--")), []

    @property
    def is_option(self) -> bool:
        return isinstance(self.info, Option)

    @property
    def is_flag(self) -> bool:
        return self.is_option and self.kind is bool

    @property
    def metavar(self) -> str:
        return self.info.metavar or (_METAVARS.get(self.kind, "TEXT") if self.is_option else self.name.upper())

    @property
    def usage(self) -> str:
        """Positional argument as usage lines show it."""
        shown = f"{self.metavar}..." if self.many else self.metavar
        return shown if self.required else f"[{shown}]"

    @property
    def term(self) -> str:
        """Names of an option as the help shows them."""
        if not self.is_option:
            return self.usage
        names = ", ".join(self.names)
        if self.is_flag:
            return " / ".join([names, *([", ".join(self.off_names)] if self.off_names else [])])
        return f"{names} {self.metavar}"

    @property
    def description(self) -> str:
        extra: list[str] = []
        if self.is_flag and self.off_names and self.default is not None:
            extra.append(f"default: {(self.names if self.default else self.off_names)[-1].lstrip('-')}")
        elif self.default not in (None, "") and not self.is_flag:
            extra.append(f"default: {self.default}")
        if self.bounds:
            extra.append(self.bounds)
        if self.required:
            extra.append("required")
        return f"{self.info.help}  [{'; '.join(extra)}]" if extra else self.info.help

    @property
    def bounds(self) -> str:
        """The range of a number: `1<=x<=500`."""
        if not isinstance(self.info, Option) or (self.info.min is None and self.info.max is None):
            return ""
        if self.info.min is not None and self.info.max is not None:
            return f"{self.info.min}<=x<={self.info.max}"
        return f"x<={self.info.max}" if self.info.min is None else f"x>={self.info.min}"

    @property
    def hint(self) -> str:
        return f"'{' / '.join(self.names)}'" if self.is_option else f"'{self.metavar}'"

    def convert(self, text: str) -> Any:
        if self.kind in (str, Any):
            return text
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        low, high = (self.info.min, self.info.max) if isinstance(self.info, Option) else (None, None)
        if value is None or (low is not None and value < low) or (high is not None and value > high):
            expected = {int: "an integer", float: "a number"}.get(self.kind, f"a valid {self.kind.__name__}")
            within = f" with {self.bounds}" if self.bounds else ""
            raise UsageError(f"Invalid value for {self.hint}: expected {expected}{within}, got {text!r}.")
        return value


def _union(annotation: Any) -> Sequence[Any]:
    """Return the members of `str | None`, or a type alone."""
    return get_args(annotation) if get_origin(annotation) not in (None, list) else (annotation,)


class Command:
    """A function as a command. Its parameters are the options; it returns the exit code, or None for success."""

    def __init__(self, name: str, function: Callable[..., Any], *, unknown_options_are_arguments: bool = False) -> None:
        self.name = name
        self.callback = function
        self.unknown_options_are_arguments = unknown_options_are_arguments

    @property
    def help(self) -> str:
        first, _, rest = (self.callback.__doc__ or "").partition("\n")
        return f"{first}\n{textwrap.dedent(rest)}".strip()

    @property
    def parameters(self) -> list[Parameter]:
        function: Any = self.callback
        code = function.__code__
        names: Sequence[str] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        defaults: dict[str, Any] = dict(function.__kwdefaults__ or {})
        given = function.__defaults__ or ()
        defaults |= zip(names[code.co_argcount - len(given) : code.co_argcount], given, strict=True)
        hints = function.__annotations__
        return [
            Parameter(name, hints.get(name, str), defaults.get(name), required=name not in defaults) for name in names
        ]

    def parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the parameters; raises UsageError."""
        return _Parsing(self).run(arguments)

    def run(self, arguments: Sequence[str], path: str) -> int:
        if "--help" in arguments[: [*arguments, "--"].index("--")]:
            return _print_help(self.help_text(path))
        try:
            options = self.parse(arguments)
        except UsageError as error:
            return print_usage_error(error, path, self.usage(path))
        return _run(lambda: self.callback(**options))

    def usage(self, path: str, width: int = _WIDEST_LINE) -> str:
        pieces = ["[OPTIONS]", *(each.usage for each in self.parameters if not each.is_option)]
        return _usage(path, " ".join(pieces), width)

    def help_text(self, path: str, width: int | None = None) -> str:
        width = width or _line_width()
        parameters = self.parameters
        arguments = [(each.term, each.description) for each in parameters if not each.is_option]
        options = [(each.term, each.description) for each in parameters if each.is_option]
        sections = [self.usage(path, width), *([_paragraphs(self.help, width)] if self.help else [])]
        if arguments:
            sections.append(_definitions("Arguments", arguments, width))
        return "\n\n".join([*sections, _definitions("Options", [*options, _HELP], width)])


class _Parsing:
    """One run of the parser over the arguments of a command."""

    def __init__(self, command: Command) -> None:
        self._parameters = command.parameters
        self._lenient = command.unknown_options_are_arguments
        self._options = {name: (each, True) for each in self._parameters for name in each.names}
        self._options |= {name: (each, False) for each in self._parameters for name in each.off_names}
        self._values: dict[str, Any] = {}
        self._positional: list[str] = []

    def run(self, arguments: Sequence[str]) -> dict[str, Any]:
        rest = [*arguments]
        while rest:
            word = rest.pop(0)
            if word == "--":
                self._positional += rest
                break
            if word.startswith("--"):
                self._long(word, rest)
            elif word.startswith("-") and len(word) > 1:
                self._short(word, rest)
            else:
                self._positional.append(word)
        self._assign_arguments()
        return {each.name: self._value(each) for each in self._parameters}

    def _long(self, word: str, rest: list[str]) -> None:
        name, equals, value = word.partition("=")
        if name not in self._options:
            self._unknown(name, word)
        elif self._options[name][0].is_flag:
            if equals:
                raise UsageError(f"Option '{name}' does not take a value.")
            self._set(name)
        else:
            self._set(name, value if equals else self._next(name, rest))

    def _short(self, word: str, rest: list[str]) -> None:
        letters = word[1:]
        while letters:
            name, letters = f"-{letters[0]}", letters[1:]
            if name not in self._options:
                self._unknown(name, word)
                return
            if self._options[name][0].is_flag:
                self._set(name)
            else:
                self._set(name, letters.removeprefix("=") or self._next(name, rest))
                return

    def _set(self, name: str, text: str = "") -> None:
        parameter, on = self._options[name]
        if parameter.is_flag:
            self._values[parameter.name] = on
        elif parameter.many:
            self._values.setdefault(parameter.name, []).append(parameter.convert(text))
        else:
            self._values[parameter.name] = parameter.convert(text)

    def _unknown(self, name: str, word: str) -> None:
        if self._lenient:
            self._positional.append(word)
            return
        raise UsageError(f"No such option: {name}{_suggestion(name, [*self._options, '--help'])}")

    @staticmethod
    def _next(name: str, rest: list[str]) -> str:
        if not rest:
            raise UsageError(f"Option '{name}' requires an argument.")
        return rest.pop(0)

    def _assign_arguments(self) -> None:
        waiting = [*self._positional]
        for each in self._parameters:
            if each.is_option or not waiting:
                continue
            taken, waiting = (waiting, []) if each.many else (waiting[:1], waiting[1:])
            converted = [each.convert(text) for text in taken]
            self._values[each.name] = converted if each.many else converted[0]
        if waiting:
            plural = "s" if len(waiting) > 1 else ""
            raise UsageError(f"Got unexpected extra argument{plural} ({' '.join(waiting)})")

    def _value(self, parameter: Parameter) -> Any:
        if parameter.name in self._values:
            return self._values[parameter.name]
        if parameter.required:
            raise UsageError(f"Missing {'option' if parameter.is_option else 'argument'} {parameter.hint}.")
        return [] if parameter.many and parameter.default is None else parameter.default


class Group:
    """Commands under a name. `default` is the command that runs if none is named."""

    def __init__(self, name: str = "", help: str = "", default: str = "") -> None:
        self.name = name
        self.help = help
        self.default = default
        self.commands: dict[str, Command] = {}

    def listing(self) -> "list[tuple[str, str]]":
        """Return the name and the first line of the help of each command."""
        return [(name, each.help.partition("\n")[0]) for name, each in self.commands.items()]

    def find(self, name: str) -> "Command | Group | None":
        return self.commands.get(name)

    def options(self) -> list[Parameter]:
        """Return the options of the group itself."""
        return []

    def run(self, arguments: Sequence[str], path: str) -> int:
        if self.default and arguments != ["--help"] and not (arguments and not arguments[0].startswith("-")):
            return self.commands[self.default].run(arguments, path)
        if not arguments:
            print(self.help_text(path), file=sys.stderr)
            return EXIT_USAGE
        word, rest = arguments[0], arguments[1:]
        if word == "--help":
            return _print_help(self.help_text(path))
        usage = _usage(path, "[OPTIONS] COMMAND [ARGS]...", _WIDEST_LINE)
        if word.startswith("-"):
            return print_usage_error(UsageError(f"No such option: {word}"), path, usage)
        found = self.find(word)
        if found is None:
            names = [name for name, _ in self.listing()]
            return print_usage_error(UsageError(f"No such command '{word}'.{_suggestion(word, names)}"), path, usage)
        return found.run(rest, f"{path} {word}")

    def help_text(self, path: str, width: int | None = None) -> str:
        width = width or _line_width()
        options = [*((each.term, each.description) for each in self.options()), _HELP]
        sections = [_usage(path, "[OPTIONS] COMMAND [ARGS]...", width), _paragraphs(self.help, width)]
        sections += [_definitions("Options", options, width), _definitions("Commands", self.listing(), width)]
        return "\n\n".join(sections)


def command(group: Group, name: str | None = None, **settings: bool) -> Callable[[Function], Function]:
    """Add a function to a group."""

    def register(function: Function) -> Function:
        named = name or function.__name__.replace("_", "-")
        group.commands[named] = Command(named, function, **settings)
        return function

    return register


# Help texts


def _line_width() -> int:
    return max(min(shutil.get_terminal_size().columns, _WIDEST_LINE) - 2, 50)


def _usage(path: str, arguments: str, width: int) -> str:
    start = f"Usage: {path} "
    return textwrap.fill(arguments, width, initial_indent=start, subsequent_indent=" " * len(start))


def _paragraphs(text: str, width: int) -> str:
    filled = [
        textwrap.fill(" ".join(paragraph.split()), width, initial_indent="  ", subsequent_indent="  ")
        for paragraph in text.split("\n\n")
    ]
    return "\n\n".join(filled)


def _definitions(title: str, rows: Iterable[tuple[str, str]], width: int) -> str:
    """Lay out terms and descriptions in two columns under a title."""
    rows = [*rows]
    column = min(max(len(term) for term, _ in rows), _WIDEST_TERM) + 2
    lines = [f"{title}:"]
    for term, description in rows:
        wrapped = textwrap.wrap(description, max(width - column - 2, 10), replace_whitespace=False) or [""]
        if len(term) > column - 2:
            lines.append(f"  {term}")
        else:
            lines.append(f"  {term:<{column}}{wrapped.pop(0)}".rstrip())
        lines += [f"  {'':<{column}}{line}" for line in wrapped]
    return "\n".join(lines)


def _suggestion(word: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known)
    if len(close) == 1:
        return f" Did you mean {close[0]}?"
    return f" (Possible options: {', '.join(sorted(close))})" if close else ""


def print_usage_error(error: UsageError, path: str, usage: str) -> int:
    print(f"{usage}\nTry '{path} --help' for help.\n\nError: {one_line(str(error), 600)}", file=sys.stderr, flush=True)
    return EXIT_USAGE


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
        print(text, flush=True)
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
