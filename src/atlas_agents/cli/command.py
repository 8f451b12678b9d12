"""The `command` decorator: runs a function or coroutine as an `atlas` command and maps errors to exit codes."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from atlas_agents.cli.output import describe_error, one_line
from atlas_agents.core.errors import ConfigError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AgentOption = Annotated[str | None, typer.Option("--agent", "-a", metavar="ID", help="The agent to use.")]
Function = TypeVar("Function", bound=Callable[..., Any])
_UNCONVERTED = object()


def command_group() -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(cls=PlainGroup, rich_markup_mode=None, add_completion=False, no_args_is_help=True)


def command(group: typer.Typer, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
    """Add a function to a group. Its parameters are the options; it returns the exit code, or None for success."""

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def run(**options: Any) -> None:
            raise typer.Exit(_run(functools.partial(function, **options)))

        group.command(name, cls=PlainCommand, **settings)(run)
        return function

    return register


def _run(function: Callable[[], Any]) -> int:
    import logging

    logging.basicConfig(handlers=[logging.NullHandler()])  # errors are printed as sentences, not as log lines
    try:
        result = function()
        code = _run_coroutine(result) if inspect.iscoroutine(result) else result
        sys.stdout.flush()
        return code or EXIT_OK
    except ConfigError as error:
        print_error(describe_error(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe early, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except ModuleNotFoundError:  # main() names the package to install
        raise
    except Exception as error:  # noqa: BLE001 - every failure becomes one line on standard error
        print_error(describe_error(error))
        return EXIT_FAILED


def _run_coroutine(coroutine: Any) -> int | None:
    import asyncio

    try:
        return asyncio.run(coroutine)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class PlainCommand(TyperCommand):
    """A Typer command that converts strings and integers without Pydantic.

    Importing Pydantic takes longer than most commands run. Invalid values still go through Typer, which reports them.
    """

    def get_params(self, ctx: Any) -> Any:
        return _without_pydantic(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group that parses its own options without Pydantic."""

    def get_params(self, ctx: Any) -> Any:
        return _without_pydantic(super().get_params(ctx))


def _without_pydantic(params: Iterable[Any]) -> list[Any]:
    """Let parameters accept values that need no conversion, or only `int()`, without Typer's Pydantic adapter."""
    params = [*params]
    for param in params:
        if isinstance(param, TyperOption | TyperArgument) and "process_value" not in vars(param):
            param.process_value = functools.partial(_process_value, param, param.process_value)
    return params


def _process_value(param: TyperOption | TyperArgument, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    converted = _plain_value(param, value)
    if converted is _UNCONVERTED or (param.required and param.value_is_missing(converted)):
        return process(ctx, value)
    return converted if param.callback is None else param.callback(ctx, param, converted)


def _plain_value(param: TyperOption | TyperArgument, value: Any) -> Any:
    kind = param.type_descriptor.annotation
    if value is None:
        return () if param.multiple or param.nargs == -1 else None
    if kind is str and isinstance(value, str):
        return value
    if kind == list[str] and isinstance(value, list | tuple):
        return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if kind is int and str(value).isascii() and str(value).isdecimal():
        bounds = param.type_descriptor.parameter_info
        number = int(value)
        low, high = bounds.min, bounds.max
        if (low is None or number >= low) and (high is None or number <= high):
            return number
    return _UNCONVERTED


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
    matching = [key for key in keys if key.startswith(prefix)]
    if prefix in matching:
        return prefix
    if len(matching) > 1:
        raise ConfigError(f"ambiguous {kind} {prefix!r}: {len(matching)} {kind}s start with it")
    if not matching:
        raise ConfigError(f"{kind} not found: {prefix!r}; run: atlas {kind}s list")
    return matching[0]
