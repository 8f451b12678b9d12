"""`bash`: commands that a person has agreed to, confined where this machine can."""

import asyncio
import codecs
import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import string
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from atlas_agents.builtin_tools.files.listing import Walk
from atlas_agents.builtin_tools.files.root import Root
from atlas_agents.builtin_tools.sandbox.base import PATH, ProcessResult, Sandbox, SandboxLimits
from atlas_agents.builtin_tools.sandbox.choose import Kind, Unconfined, choose
from atlas_agents.core.aio import in_thread
from atlas_agents.core.errors import BadArguments, SandboxUnavailable, ToolFailed
from atlas_agents.core.paths import is_protected, is_secret
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool, tool

_BARE = frozenset(string.ascii_letters + string.digits + "_@%+:,./-=")
_QUOTED = frozenset(map(chr, range(0x20, 0x7F)))
_DOUBLE = _QUOTED - frozenset('$`\\!"')
_SHELLS_OWN = {
    *(":", ".", "[", "[[", "]]", "{", "}", "!", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd"),
    *("command", "compgen", "complete", "compopt", "continue", "coproc", "declare", "dirs", "disown", "do", "done"),
    *("elif", "else", "enable", "esac", "eval", "exec", "exit", "export", "fc", "fg", "fi", "for", "function"),
    *("getopts", "hash", "help", "history", "if", "in", "jobs", "let", "local", "logout", "mapfile", "popd"),
    *("pushd", "read", "readarray", "readonly", "return", "select", "set", "shift", "shopt", "source", "suspend"),
    *("then", "time", "times", "trap", "type", "typeset", "ulimit", "umask", "unalias", "unset", "until", "wait"),
    *("while"),
}
"""What a shell does by itself: there is no program of that name, or another one."""
_PARTS = re.compile(r"[;&|\n]+")
_PATHS = re.compile(r"[\s;&|<>()`'\"$={}]+")


def plain_words(text: str) -> list[str] | None:
    """The words of a command that a shell would neither change nor act on; None if there is any doubt.

    Letters, digits and a few signs stand for themselves, and so does printable ASCII in quotes, without `$`, backquote,
    backslash and `!` in double ones. Everything else may mean something.
    """
    words: list[str] = []
    word: list[str] | None = None
    place = 0
    while place < len(text):
        char = text[place]
        if char in " \t":
            words += ["".join(word)] if word is not None else []
            word = None
            place += 1
            continue
        word = [] if word is None else word
        if char in "'\"":
            end = text.find(char, place + 1)
            inside = text[place + 1 : end]
            if end < 0 or not (_QUOTED if char == "'" else _DOUBLE).issuperset(inside):
                return None
            word.append(inside)
            place = end + 1
        elif char in _BARE:
            word.append(char)
            place += 1
        else:
            return None
    words += ["".join(word)] if word is not None else []
    return words if words and _is_program(words[0]) else None


def _is_program(word: str) -> bool:
    return bool(word) and "=" not in word and word not in _SHELLS_OWN


def count_parts(text: str) -> int:
    """How many commands a text may hold, counted too high rather than too low."""
    return sum(bool(part.strip()) for part in _PARTS.split(text))


def path_like(text: str) -> list[str]:
    """All pieces of a text that may be the name of a file."""
    return [piece for piece in _PATHS.split(text) if piece]


MAX_TIMEOUT = 10_000
MOST_WORDS = 256
MOST_PARTS = 50
_LARGEST_SCRIPT = 16 * 1024 * 1024
_INTERPRETERS = {
    *("sh", "bash", "dash", "zsh", "ksh", "python", "python3", "node", "deno", "bun", "ruby", "perl", "php", "lua"),
    *("Rscript", "make", "source", ".", "env", "xargs"),
}
_SUFFIXES = (".sh", ".bash", ".py", ".js", ".mjs", ".ts", ".rb", ".pl", ".php", ".lua", "Makefile")


class Order(msgspec.Struct, frozen=True):
    """A command, ready to be run; with `in_shell` its last word is a text, and a shell makes sense of it."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    program: str
    seconds: int
    in_shell: bool


def argv_of(arguments: Mapping[str, Any], shell: str) -> tuple[tuple[str, ...], bool]:
    """The very words to start a program with, and whether that program is a shell; BadArguments says what is wrong."""
    text, argv = str(arguments.get("command") or ""), arguments.get("argv")
    if bool(text) == bool(argv):
        raise BadArguments("Give either command, a text, or argv, a list of words.")
    if argv:
        return _checked(argv), False
    if not text.strip() or len(text) > MAX_TIMEOUT:
        raise BadArguments(f"A command has 1 to {MAX_TIMEOUT:,} characters; put a longer one into a file first.")
    if count_parts(text) > MOST_PARTS:
        raise BadArguments(f"That is more than {MOST_PARTS} commands at once; put them into a file, and run that.")
    if (words := plain_words(text)) is not None:
        return _checked(words), False
    return _checked([shell, "--norc", "--noprofile", "-c", text]), True


def _checked(words: Iterable[str]) -> tuple[str, ...]:
    argv = tuple(words)
    if not argv or not argv[0] or len(argv) > MOST_WORDS or sum(map(len, argv)) > MAX_TIMEOUT + 100:
        raise BadArguments(f"A command has 1 to {MOST_WORDS} words and at most {MAX_TIMEOUT:,} characters.")
    try:
        if any(b"\0" in word.encode() for word in argv):
            raise BadArguments("A command cannot hold a NUL.")
    except UnicodeEncodeError:
        raise BadArguments("The command holds half a character.") from None
    return argv


def safe_path(given: str, folder: str) -> str:
    """Where programs are looked for: not in places that the agent can write to, or that depend on where it is."""
    top = os.path.realpath(folder)
    kept = [
        each
        for each in given.split(":")
        if os.path.isabs(each) and os.path.commonpath([top, os.path.realpath(each)]) != top
    ]
    return ":".join(kept)


def found_program(name: str, cwd: str, path: str) -> str:
    """The file that a program's name stands for; ToolFailed if there is none."""
    where = os.path.join(cwd, name) if "/" in name else shutil.which(name, path=path)
    if where is None or not os.path.isfile(where) or not os.access(where, os.X_OK):
        raise ToolFailed(f"there is no program {name!r} here")
    return os.path.realpath(where)


def folder_of(root: Root, cwd: str) -> str:
    """The folder to run in, as the disk knows it."""
    with root.find(cwd, folder=True) as found:
        return os.path.normpath(os.path.join(os.path.realpath(root.path), found.path))


def facts_of(order: Order, root: Root, sandbox: str, network: bool) -> dict[str, Any]:
    """All that a yes to it is bound to: the bytes of the words, the folder, the environment, the program's own bytes,
    and those of the scripts that it names."""
    return {
        "argv": list(order.argv),
        "folder": order.cwd,
        "env": dict(order.env),
        "program": order.program,
        "sha256": _digest(order.program, *_version(order.program)),
        "scripts": _scripts(order, root),
        "sandbox": sandbox,
        "network": network,
    }


def _scripts(order: Order, root: Root) -> dict[str, str]:
    """The files among its words that will be run, as far as names tell, and what is in them.

    What is private is not opened: closing a database file, even a mere look into it, gives up our own locks on it.
    """
    pieces = path_like(order.argv[-1]) if order.in_shell else list(order.argv[1:])
    runs_any = not _INTERPRETERS.isdisjoint([Path(each).name for each in (*pieces, order.argv[0])])
    found: dict[str, str] = {}
    for piece in dict.fromkeys(pieces[:MOST_WORDS]):
        where = os.path.join(order.cwd, piece)
        if root.keeps(where):
            continue
        try:
            about = os.stat(where)
            if not stat.S_ISREG(about.st_mode) or about.st_size > _LARGEST_SCRIPT:
                continue
            if runs_any or about.st_mode & 0o111 or piece.endswith(_SUFFIXES):
                found[where] = _digest(where, *_version(where))
        except OSError:  # no such file
            continue
        except ToolFailed:  # nor can the command read it
            found[where] = ""
    return found


def _version(path: str) -> tuple[int, ...]:
    try:
        about = os.stat(path)
    except OSError as error:
        raise ToolFailed(f"{path} cannot be looked at: {error.strerror}") from None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


@lru_cache(256)
def _digest(path: str, *version: int) -> str:
    """Of a file as it was at that moment: nobody can set back when it last changed."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ToolFailed(f"{path} cannot be read: {error.strerror}") from None


_PAUSE = 0.25
_MAX_PROGRESS = 4000
_PLENTY = 200_000
_PAUSE_THEN, _MOST_THEN = 2.0, 200
"""Beyond so many characters of one command it is told seldom, and a line or two: all that is told is kept."""


class Telling:
    """Gathers output and passes it on; of a flood only the end of each piece."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._gathered = ""
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0

    def add(self, stream: str, piece: bytes) -> None:
        self._gathered = (self._gathered + self._decoder.decode(piece))[-2 * _MAX_PROGRESS :]
        if self._timer is None:
            pause = _PAUSE if self._told < _PLENTY else _PAUSE_THEN
            self._timer = asyncio.get_running_loop().call_later(pause, self.flush)

    def flush(self) -> None:
        """Tell what is there now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        words, self._gathered = self._gathered, ""
        most = _MAX_PROGRESS if self._told < _PLENTY else _MOST_THEN
        if words:
            self._told += min(len(words), most)
            self._tell(words if len(words) <= most else f"…{words[-most:]}")


USUAL, MAX_COMMAND_LENGTH = 60, 600
KEPT = 20_000
_MAX_DEPTH, _MAX_NODES = 5, 10_000
_NAMED = 20
_MB = 1024 * 1024
_STOPPED = {
    "output": "it wrote too much",
    "memory": "it used too much memory",
    "processes": "it started too many processes",
    "disk": "it filled too much of the disk",
}
_QUIET = {"LANG": "C.UTF-8", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


def bash_tool(
    folder: Path | str,
    *,
    sandbox: Kind = "auto",
    network: bool = False,
    private: Iterable[Path | str] = (),
    guarded: Iterable[Path | str] = (),
    shell: str | None = None,
    longest: int = MAX_COMMAND_LENGTH,
) -> Tool:
    """A tool that runs commands in a folder; a person is asked about each, unless a rule of the policy knows its words.

    What is `private` is not seen by a command, what is `guarded` cannot be changed by one, and neither can prompts,
    settings and keys; where no sandbox can be had that holds for nothing, and the question says so.
    """
    root = Root(
        os.path.abspath(folder),
        tuple(os.path.abspath(each) for each in private),
        tuple(os.path.abspath(each) for each in guarded),
    )
    room = _BashTool(root, sandbox, network, shell, longest)

    async def bash(
        context: ToolContext,
        command: str = "",
        argv: list[str] = [],  # noqa: B006 - never changed
        cwd: str = ".",
        timeout: int = USUAL,  # noqa: ASYNC109 - the model's word for it
    ) -> str:
        """Run a command on this machine and read what it wrote. Give either command or argv.

        Args:
            command: A line for the shell.
            argv: A program and its words, run without a shell.
            cwd: The folder to run in, relative to the one that all files are in.
            timeout: Seconds after which it is ended.
        """
        given = {"command": command, "argv": argv, "cwd": cwd, "timeout": timeout}
        return await room.run(given, context)

    return tool(confirm=True, timeout=longest + 15.0, preview=room.preview, binds=room.facts, argv=room.words)(bash)


class _BashTool:
    """Where commands run."""

    def __init__(self, root: Root, kind: Kind, network: bool, shell: str | None, longest: int) -> None:
        self._root = root
        self._kind: Kind = kind
        self._network = network
        self._shell = shell
        self._longest = longest

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        sandbox, _ = await self._sandbox()
        order = await in_thread(self._order, arguments, sandbox)
        top, read_only, masked = await in_thread(self._special)
        context.note("sandbox", sandbox.name)
        telling = Telling(context.progress)
        outcome = await sandbox.run(
            order.argv,
            cwd=Path(order.cwd),
            writable=top,
            read_only=read_only,
            masked=masked,
            env=order.env,
            limits=_limits(order.seconds),
            on_output=telling.add,
            merge=True,
            network=self._network,
        )
        telling.flush()
        return told(outcome, order.seconds) + await self._made(context, {*read_only, *masked})

    async def _made(self, context: ToolContext, before: set[Path]) -> str:
        """A line about prompts, settings, hooks and keys that were not there before: no sandbox keeps those from being
        made."""
        top, read_only, masked = await in_thread(self._special)
        fresh = sorted(str(each.relative_to(top)) for each in {*read_only, *masked} - before)
        if not fresh:
            return ""
        context.note("made", ", ".join(fresh[:_NAMED]))
        more = f" and {len(fresh) - _NAMED} more" if len(fresh) > _NAMED else ""
        return f"\n[now there, and believed or run by others: {', '.join(fresh[:_NAMED])}{more}; tell the person]"

    async def words(self, arguments: dict[str, Any]) -> list[str] | None:
        """For the rules of a policy: the words of one program, if it will be held, or runs free by the settings."""
        argv, in_shell = argv_of(arguments, "sh")
        _, missing = await self._sandbox()
        return None if in_shell or missing else list(argv)

    async def facts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        sandbox, _ = await self._sandbox()
        order = await in_thread(self._order, arguments, sandbox)
        return await in_thread(facts_of, order, self._root, sandbox.name, self._network)

    async def preview(self, arguments: dict[str, Any]) -> str:
        sandbox, missing = await self._sandbox()
        order = await in_thread(self._order, arguments, sandbox)
        if sandbox.confines:
            net = "with the network" if self._network else "no network"
            held = f"confined by {sandbox.name}: {net}, and writes only in {self._root.path}"
        else:
            why = f": {missing.reason}; {missing.remedy}" if missing else ", as the settings say"
            held = f"NOT CONFINED{why}. It can do whatever you can."
        how = f"in a shell, {order.program}:\n\n{order.argv[-1]}" if order.in_shell else _spelled(order)
        # The command comes last: however long it is, what is said of it is read.
        return f"{held}\nin {order.cwd}, for at most {order.seconds} s, {how}"

    async def _sandbox(self) -> tuple[Sandbox, SandboxUnavailable | None]:
        """What confines a command here; none at all, and why, where `auto` has found nothing."""
        try:
            return await choose(self._kind), None
        except SandboxUnavailable as missing:
            if self._kind not in ("auto", "wasm"):
                raise
            return Unconfined(), missing

    def _order(self, arguments: dict[str, Any], sandbox: Sandbox) -> Order:
        seconds = arguments.get("timeout") or USUAL
        if not 1 <= seconds <= self._longest:
            raise BadArguments(f"timeout is a number of seconds from 1 to {self._longest}.")
        path = PATH if sandbox.confines else safe_path(os.environ.get("PATH", PATH), self._root.path)
        home = "/tmp" if sandbox.confines else os.environ.get("HOME", "/")  # noqa: S108 - the sandbox's own
        shell = self._shell or found_program("bash", "/", path)
        argv, in_shell = argv_of(arguments, shell)
        cwd = folder_of(self._root, arguments.get("cwd") or ".")
        env = {**_QUIET, "PATH": path, "HOME": home}
        return Order(argv, cwd, env, found_program(argv[0], cwd, path), seconds, in_shell)

    def _special(self) -> tuple[Path, list[Path], list[Path]]:
        """The folder as the disk knows it, what in it a command may not change, and what it may not even see."""
        top = Path(os.path.realpath(self._root.path))
        read_only = [top / each for each in self._root.on_guard()]
        masked = [top / each for each in self._root.off_limits()]
        with self._root.find(".", folder=True) as found:
            walks = [Walk(self._root, depth=depth, hidden=True, most=_MAX_NODES) for depth in range(1, _MAX_DEPTH + 1)]
            # The nearest first: whoever fills a folder with files does not hide what lies in another one.
            for entry in chain.from_iterable(walk.through(found) for walk in walks):
                where = PurePosixPath(entry.path)
                if is_secret(where):
                    masked.append(top / entry.path)
                elif is_protected(where):
                    read_only.append(top / entry.path)
        return top, _outermost(read_only), _outermost(masked)


def told(outcome: ProcessResult, seconds: int) -> str:
    """What a model reads: all that was written, its middle left out if it is long, and how it ended."""
    output = outcome.stdout.text.rstrip("\n") or "(it wrote nothing)"
    if outcome.timed_out:
        end = f"ended after {seconds} s with all it had started; it may have done a part of its work"
    elif outcome.stopped is not None:
        end = f"ended, because {_STOPPED[outcome.stopped]}; it may have done a part of its work"
    elif outcome.signal is not None:
        end = f"ended by {_signal(outcome.signal)}"
    else:
        end = f"exit code {outcome.exit_code}"
    return f"{output}\n[{end}, {outcome.duration:.1f} s]"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _spelled(order: Order) -> str:
    words = " ".join(shlex.quote(word) for word in order.argv)
    return f"without a shell, {order.program}:\n\n{words}"


def _limits(seconds: int) -> SandboxLimits:
    return SandboxLimits(
        seconds=seconds,
        cpu=max(60, 2 * seconds),
        memory=4096 * _MB,
        processes=512,
        file_size=4096 * _MB,
        disk=None,
        output=16 * _MB,
        keep=KEPT,
        open_files=1024,
    )


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Without those that lie in another one of them."""
    chosen: list[Path] = []
    for path in sorted(set(paths), key=lambda each: len(each.parts)):
        if not any(path.is_relative_to(each) for each in chosen):
            chosen.append(path)
    return chosen


__all__ = ["bash_tool"]
