"""The `bash` tool: runs commands that a person or a policy rule approved, in a sandbox."""

import asyncio
import codecs
import os
import re
import shlex
import signal
import stat
import string
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.builtin_tools.files.root import GuardedPaths, Root
from atlas_agents.builtin_tools.sandbox import SandboxKind, choose, describe_sandbox
from atlas_agents.builtin_tools.sandbox.process import (
    PATH,
    ProcessIO,
    ProcessResult,
    Sandbox,
    SandboxCommand,
    SandboxLimits,
)
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import BadArguments, ToolFailed
from atlas_agents.core.messages import Conversation
from atlas_agents.core.paths import classify_name
from atlas_agents.tools.commands import WILDCARD_PROGRAMS, find_program
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.executed_files import hash_executed_files, hash_file
from atlas_agents.tools.tool import Tool, tool

DEFAULT_TIMEOUT, MAX_TIMEOUT = 60, 600
MAX_COMMAND_LENGTH = 10_000
MAX_ARGUMENTS = 256
MAX_COMMANDS = 50
_MAX_CAPTURE = 20_000
_MAX_DEPTH, _MAX_ENTRIES = 5, 1_000_000
_REPOSITORIES = (".git", ".hg", ".svn", ".husky", ".venv")
"""Folders that are protected at any depth; other protected paths only down to `_MAX_DEPTH`, as packages have many."""
_MAX_NAMED_FILES = 20
_MB = 1024 * 1024
MAX_WRITTEN = 4096 * _MB
_STOP_REASONS = {
    "output": "it wrote too much output",
    "memory": "it used too much memory",
    "processes": "it started too many processes",
    "disk": "it wrote too much to disk, or the disk is almost full",
}
_ENVIRONMENT = {
    **{"LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"},
    # A folder with any name can be a bare repository, whose settings name programs to run; only `.git` is protected.
    **{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.bareRepository", "GIT_CONFIG_VALUE_0": "explicit"},
}
_UNQUOTED = frozenset(string.ascii_letters + string.digits + "_@%+:,./-=")
_SINGLE_QUOTED = frozenset(map(chr, range(0x20, 0x7F)))
_DOUBLE_QUOTED = _SINGLE_QUOTED - frozenset('$`\\!"')
_SHELL_WORDS = {
    *(":", ".", "[", "[[", "]]", "{", "}", "!", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd"),
    *("command", "compgen", "complete", "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done"),
    *("elif", "else", "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function"),
    *("getopts", "hash", "help", "history", "if", "in", "jobs", "let", "local", "logout", "mapfile", "popd"),
    *("pushd", "read", "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend"),
    *("then", "time", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait"),
    "while",
}
"""Shell builtins and keywords: there is no program of that name, or it behaves differently."""
_COMMAND_SEPARATORS = re.compile(r"[;&|\n]+")
_REPORT_DELAY, _MAX_REPORT = 0.25, 4000
_THROTTLE_AFTER = 200_000
_THROTTLED_DELAY, _MAX_THROTTLED_REPORT = 2.0, 200
"""Characters of output after which progress is reported rarely and briefly: every report is stored."""


class PreparedCommand(msgspec.Struct, frozen=True):
    """A command that is ready to run. With `in_shell`, the last argument is a command line for a shell."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    program: str
    seconds: int
    in_shell: bool


def bash_tool(
    folder: Path | str,
    *,
    sandbox: SandboxKind = "auto",
    network: bool = False,
    private: Iterable[Path | str] = (),
    guarded: GuardedPaths = (),
    shell: str | None = None,
    max_timeout: int = MAX_TIMEOUT,
    max_written: int = MAX_WRITTEN,
) -> Tool:
    """Create a tool that runs commands in a folder. Each command needs approval, unless a policy rule allows it.

    Commands cannot see `private` paths, and cannot change `guarded` paths, prompts, settings and keys. Without a
    working sandbox a call fails; with the sandbox "none" nothing of this is enforced, and the approval request says so.
    A command that writes more than `max_written` bytes to disk is killed.
    """
    runner = _BashTool(Root.create(folder, private, guarded), sandbox, network, shell, max_timeout, max_written)

    async def bash(
        context: ToolContext,
        command: str = "",
        argv: list[str] = [],  # noqa: B006 - never changed
        cwd: str = ".",
        timeout: int = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - an argument of the model
    ) -> str:
        """Run a command on this machine and return its output. Pass either command or argv.

        Args:
            command: A shell command line.
            argv: A program and its arguments, run without a shell.
            cwd: The working directory, relative to the folder that contains all files.
            timeout: Seconds after which the command is killed.
        """
        arguments = {"command": command, "argv": argv, "cwd": cwd, "timeout": timeout}
        return await runner.run(arguments, context)

    return tool(
        confirm=True,
        timeout=max_timeout + 15.0,
        preview=runner.preview,
        binds=runner.facts,
        argv=runner.policy_argv,
        untrusted="command",
        sends=runner.sends,
    )(bash)


class _BashTool:
    """Prepares, previews and runs the commands of one bash tool."""

    def __init__(
        self, root: Root, kind: SandboxKind, network: bool, shell: str | None, max_timeout: int, max_written: int
    ) -> None:
        self._root = root
        self._kind: SandboxKind = kind
        self._network = network
        self._shell = shell
        self._max_timeout = max_timeout
        self._max_written = max_written

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        sandbox = await choose(self._kind)
        prepared = await run_in_thread(self._prepare, arguments, sandbox)
        writable, read_only, masked = await run_in_thread(find_protected_paths, self._root)
        links = await run_in_thread(_read_links, (*read_only, *masked))
        context.note("sandbox", sandbox.name)
        progress = ProgressReporter(context.progress)
        command = SandboxCommand(
            argv=prepared.argv,
            cwd=Path(prepared.cwd),
            writable=writable,
            read_only=tuple(read_only),
            masked=tuple(masked),
            env=prepared.env,
            limits=_limits(prepared.seconds, self._max_written),
            network=self._network,
        )
        result = await sandbox.run(command, ProcessIO(on_output=progress.add, merge=True))
        progress.flush()
        return _format_result(result, prepared.seconds) + await self._new_files(context, {*read_only, *masked}, links)

    async def _new_files(self, context: ToolContext, before: set[Path], links: Mapping[Path, str]) -> str:
        """List protected files that the command created, or replaced a link with: no sandbox can prevent that."""
        top, read_only, masked = await run_in_thread(find_protected_paths, self._root)
        kept = await run_in_thread(_read_links, links)
        replaced = {path for path in links if kept.get(path) != links[path]}
        created = sorted(str(path.relative_to(top)) for path in {*read_only, *masked} - (before - replaced))
        if not created:
            return ""
        names = ", ".join(created[:_MAX_NAMED_FILES])
        context.note("made", names)
        more = f" and {len(created) - _MAX_NAMED_FILES} more" if len(created) > _MAX_NAMED_FILES else ""
        return f"\n[new files that agents or other programs may trust or run: {names}{more}; tell the user about them]"

    async def policy_argv(self, arguments: dict[str, Any]) -> list[str] | None:
        """Return the argv for command rules; None if the command needs a shell."""
        argv, in_shell = build_argv(arguments, "sh")
        return None if in_shell else list(argv)

    async def sends(self, arguments: dict[str, Any], conversation: Conversation) -> bool:
        """Return whether a command could send data out: with a network, or without a sandbox."""
        return self._network or not (await choose(self._kind)).confines

    async def facts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return everything an approval covers: arguments, folder, environment, sandbox, program and script content."""
        sandbox = await choose(self._kind)
        prepared = await run_in_thread(self._prepare, arguments, sandbox)
        searched = () if prepared.argv[0] in WILDCARD_PROGRAMS else prepared.argv
        return {
            "argv": list(prepared.argv),
            "folder": prepared.cwd,
            "env": dict(prepared.env),
            "program": prepared.program,
            "sha256": await run_in_thread(hash_file, prepared.program),
            "scripts": await run_in_thread(
                # Private files are not opened: closing a database file would release our locks on it.
                hash_executed_files,
                searched,
                prepared.cwd,
                self._root.is_private_or_secret,
            ),
            "sandbox": sandbox.name,
            "network": self._network,
        }

    async def preview(self, arguments: dict[str, Any]) -> str:
        sandbox = await choose(self._kind)
        prepared = await run_in_thread(self._prepare, arguments, sandbox)
        if prepared.in_shell:
            how, command = f"Shell: {prepared.program}", prepared.argv[-1]
        else:
            how, command = f"Program: {prepared.program} (without a shell)", shlex.join(prepared.argv)
        # The command comes last: if the preview is cut, the lines above are still shown.
        return "\n".join(
            [
                describe_sandbox(sandbox, "command", self._root.path, network=self._network),
                f"Folder: {prepared.cwd}",
                f"Timeout: {prepared.seconds} s",
                f"{how}\n\n{command}",
            ]
        )

    def _prepare(self, arguments: dict[str, Any], sandbox: Sandbox) -> PreparedCommand:
        seconds = arguments.get("timeout") or DEFAULT_TIMEOUT
        if not 1 <= seconds <= self._max_timeout:
            raise BadArguments(f"invalid timeout {seconds}: expected 1 to {self._max_timeout} seconds.")
        path = PATH if sandbox.confines else _safe_search_path(os.environ.get("PATH", PATH), self._root.path)
        home = "/tmp" if sandbox.confines else os.environ.get("HOME", "/")  # noqa: S108 - the sandbox's own
        shell = self._shell or os.path.realpath(find_program("bash", "/", path))
        argv, in_shell = build_argv(arguments, shell)
        with self._root.find(arguments.get("cwd") or ".", folder=True) as found:
            cwd = os.path.normpath(os.path.join(os.path.realpath(self._root.path), found.path))
        env = {**_ENVIRONMENT, "PATH": path, "HOME": home}
        program = os.path.realpath(find_program(argv[0], cwd, path))
        return PreparedCommand(argv, cwd, env, program, seconds, in_shell)


def _format_result(result: ProcessResult, seconds: int) -> str:
    """Return the output and how the command ended, for the model."""
    output = result.stdout.text.rstrip("\n") or "(no output)"
    if result.timed_out:
        end = f"killed after {seconds} s with all its child processes; part of its work may be done"
    elif result.stopped_by is not None:
        end = f"killed because {_STOP_REASONS[result.stopped_by]}; part of its work may be done"
    elif result.signal is not None:
        end = f"ended by {_signal_name(result.signal)}"
    else:
        end = f"exit code {result.exit_code}"
    return f"{output}\n[{end}, {result.duration:.1f} s]"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _limits(seconds: int, written: int) -> SandboxLimits:
    return SandboxLimits(
        seconds=seconds,
        cpu=max(60, 2 * seconds),
        memory=4096 * _MB,
        processes=512,
        file_size=min(2048 * _MB, written),
        disk=None,
        written=written,
        output=16 * _MB,
        capture=_MAX_CAPTURE,
        open_files=1024,
    )


def find_protected_paths(root: Root) -> tuple[Path, list[Path], list[Path]]:
    """Return the resolved folder, the paths in it that commands cannot change, and those that they cannot see."""
    top = Path(os.path.realpath(root.path))
    read_only = [top / path for path in root.guarded_paths()]
    masked = [top / path for path in root.private_paths()]
    hidden = frozenset(map(str, masked))
    for entry, depth in _walk(str(top), hidden):
        kind = classify_name(entry.name)
        if kind == "secret" or _is_socket(entry):  # a socket leads out of the sandbox
            masked.append(Path(entry.path))
        elif kind == "protected" and (depth <= _MAX_DEPTH or entry.name in _REPOSITORIES):
            read_only.append(Path(entry.path))
    return top, outermost(read_only), outermost(masked)


def _walk(top: str, hidden: frozenset[str]) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Yield all entries below a folder with their depth, however deep: a command could have moved a key there.

    Folders of packages count as deep: their many prompts and hooks do not belong to the user.
    """
    pending, visited = deque([(top, 1)]), 0
    while pending:
        folder, depth = pending.popleft()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                visited += 1
                if visited > _MAX_ENTRIES:
                    raise ToolFailed(
                        f"{top} has more than {_MAX_ENTRIES:,} files, so the keys among them cannot be hidden from "
                        f"commands; remove some, or use a smaller folder"
                    )
                if entry.path in hidden:
                    continue
                yield entry, depth
                if entry.is_dir(follow_symlinks=False) and classify_name(entry.name) != "secret":
                    pending.append((entry.path, _MAX_DEPTH + 1 if entry.name == "node_modules" else depth + 1))


def _read_links(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the targets of those paths that are symbolic links."""
    found: dict[Path, str] = {}
    for path in paths:
        with suppress(OSError):
            found[path] = os.readlink(path)
    return found


def _is_socket(entry: os.DirEntry[str]) -> bool:
    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink():
        return False
    return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)


def outermost(paths: Iterable[Path]) -> list[Path]:
    """Remove paths that are inside another of the paths."""
    chosen: dict[Path, None] = {}
    for path in sorted(set(paths), key=lambda each: len(each.parts)):
        if chosen.keys().isdisjoint(path.parents):
            chosen[path] = None
    return list(chosen)


def build_argv(arguments: Mapping[str, Any], shell: str) -> tuple[tuple[str, ...], bool]:
    """Return the argv to execute, and whether it runs a shell. Raise BadArguments for an invalid command."""
    text, argv = str(arguments.get("command") or ""), arguments.get("argv")
    if bool(text) == bool(argv):
        raise BadArguments("Pass either command (a string) or argv (a list of strings).")
    if argv:
        return _check_argv(argv), False
    if not text.strip() or len(text) > MAX_COMMAND_LENGTH:
        raise BadArguments(f"A command must have 1 to {MAX_COMMAND_LENGTH:,} characters; put a longer one into a file.")
    if sum(bool(part.strip()) for part in _COMMAND_SEPARATORS.split(text)) > MAX_COMMANDS:
        raise BadArguments(f"More than {MAX_COMMANDS} commands in one call; put them into a file and run it.")
    if (words := split_plain_command(text)) is not None:
        return _check_argv(words), False
    return _check_argv([shell, "--norc", "--noprofile", "-c", text]), True


def split_plain_command(text: str) -> list[str] | None:
    """Split a command line into words; None unless a shell would run exactly this argv.

    Accepted are letters, digits and a few other characters, and printable ASCII in quotes: in double quotes without
    `$`, backquote, backslash and `!`.
    """
    words: list[str] = []
    word: list[str] | None = None
    position = 0
    while position < len(text):
        char = text[position]
        if char in " \t":
            words += ["".join(word)] if word is not None else []
            word = None
            position += 1
            continue
        word = [] if word is None else word
        if char in "'\"":
            end = text.find(char, position + 1)
            quoted = text[position + 1 : end]
            if end < 0 or not (_SINGLE_QUOTED if char == "'" else _DOUBLE_QUOTED).issuperset(quoted):
                return None
            word.append(quoted)
            position = end + 1
        elif char in _UNQUOTED:
            word.append(char)
            position += 1
        else:
            return None
    words += ["".join(word)] if word is not None else []
    return words if words and words[0] and "=" not in words[0] and words[0] not in _SHELL_WORDS else None


def _check_argv(words: Iterable[str]) -> tuple[str, ...]:
    argv = tuple(words)
    if not argv or not argv[0] or len(argv) > MAX_ARGUMENTS or sum(map(len, argv)) > MAX_COMMAND_LENGTH + 100:
        raise BadArguments(
            f"A command must have 1 to {MAX_ARGUMENTS} arguments and at most {MAX_COMMAND_LENGTH:,} characters."
        )
    try:
        if any(b"\0" in word.encode() for word in argv):
            raise BadArguments("A command cannot contain a NUL character.")
    except UnicodeEncodeError:
        raise BadArguments("The command contains an unpaired surrogate character.") from None
    return argv


def _safe_search_path(path: str, folder: str) -> str:
    """Remove relative folders and those the agent can write to from a PATH."""
    top = os.path.realpath(folder)
    return ":".join(
        each
        for each in path.split(":")
        if os.path.isabs(each) and os.path.commonpath([top, os.path.realpath(each)]) != top
    )


class ProgressReporter:
    """Collects output and reports it at intervals; of large output, only the end."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""
        self._timer: asyncio.TimerHandle | None = None
        self._reported = 0

    def add(self, stream: str, chunk: bytes) -> None:
        self._pending = (self._pending + self._decoder.decode(chunk))[-2 * _MAX_REPORT :]
        if self._timer is None:
            delay = _REPORT_DELAY if self._reported < _THROTTLE_AFTER else _THROTTLED_DELAY
            self._timer = asyncio.get_running_loop().call_later(delay, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text, self._pending = self._pending, ""
        limit = _MAX_REPORT if self._reported < _THROTTLE_AFTER else _MAX_THROTTLED_REPORT
        if text:
            self._reported += min(len(text), limit)
            self._report(text if len(text) <= limit else f"…{text[-limit:]}")


__all__ = ["bash_tool", "find_protected_paths", "outermost"]
