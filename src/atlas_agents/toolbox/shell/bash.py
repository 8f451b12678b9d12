"""The tool: what it is called with, what a person is shown, and what it gives back."""

import os
import shlex
import signal
from collections.abc import Iterable
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import BadArguments, SandboxUnavailable
from atlas_agents.core.places import is_protected, is_secret
from atlas_agents.toolbox.files.root import Root
from atlas_agents.toolbox.files.walk import Walk
from atlas_agents.toolbox.sandbox.choose import Kind, choose
from atlas_agents.toolbox.sandbox.ports import PATH, Limits, Outcome, Sandbox
from atlas_agents.toolbox.sandbox.unconfined import Unconfined
from atlas_agents.toolbox.shell.order import Order, argv_of, facts_of, folder_of, found_program, safe_path
from atlas_agents.toolbox.shell.progress import Telling
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool, tool

USUAL, LONGEST = 60, 600
KEPT = 20_000
_DEEP, _MOST = 5, 10_000
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
    longest: int = LONGEST,
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
    room = _Room(root, sandbox, network, shell, longest)

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


class _Room:
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
            walks = [Walk(self._root, depth=depth, hidden=True, most=_MOST) for depth in range(1, _DEEP + 1)]
            # The nearest first: whoever fills a folder with files does not hide what lies in another one.
            for entry in chain.from_iterable(walk.through(found) for walk in walks):
                where = PurePosixPath(entry.path)
                if is_secret(where):
                    masked.append(top / entry.path)
                elif is_protected(where):
                    read_only.append(top / entry.path)
        return top, _outermost(read_only), _outermost(masked)


def told(outcome: Outcome, seconds: int) -> str:
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


def _limits(seconds: int) -> Limits:
    return Limits(
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
