"""The tool `code_interpreter`: what it takes, where its code runs, and what a model is told of it."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.builtin_tools.code import interpreter as interpreter_module
from atlas_agents.builtin_tools.code.interpreter import (
    PLACE,
    CodeResult,
    Interpreter,
    Made,
    Python,
    found,
    made_in,
    place_for,
    state_of,
)
from atlas_agents.builtin_tools.sandbox.base import CapturedOutput, OnOutput, Sandbox, SandboxLimits, Stream
from atlas_agents.builtin_tools.sandbox.choose import choose
from atlas_agents.core.aio import in_thread
from atlas_agents.core.errors import ToolFailed, ToolTimeout
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool, tool

Key: TypeAlias = tuple[str, str]
"""A tenant and its session."""
Start: TypeAlias = Callable[[], Awaitable[Interpreter]]
_WHY = {
    "time": "it was idle for too long",
    "memory": "it used too much memory",
    "processes": "it started too many processes",
    "disk": "it wrote too much",
    "output": "it wrote too much",
}


class InterpreterPool:
    """Kept interpreters. When there are too many, the one that was used least recently is ended."""

    def __init__(self, *, at_most: int = 8, idle: float = 600.0) -> None:
        self._at_most = at_most
        self._idle = idle
        self._kept: dict[Key, Interpreter] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._lost: dict[Key, str] = {}

    async def ask(self, key: Key, code: str, start: Start, on_output: OnOutput | None = None) -> tuple[CodeResult, str]:
        """Run code in the session's interpreter; what came of it, and a sentence where state was lost before it."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            interpreter, news = await self._of(key, start)
            try:
                answer = await interpreter.ask(code, on_output)
            except BaseException:
                await self._end(key, "the call was cut short")
                raise
            if answer.ended:
                await self._end(key, "")
            else:
                interpreter.rest(self._idle)
            return answer, news

    async def close(self) -> None:
        """End all of them."""
        for key in tuple(self._kept):
            await self._end(key, "")

    async def _of(self, key: Key, start: Start) -> tuple[Interpreter, str]:
        kept = self._kept.pop(key, None)
        if kept is not None and not kept.ended:
            self._kept[key] = kept  # now the one that was used last
            return kept, ""
        why = self._lost.pop(key, "")
        if kept is not None:
            outcome = await kept.how_it_ended()
            why = _WHY.get(outcome.stopped or "", "its interpreter ended")
            await kept.close()
        while len(self._kept) >= self._at_most:
            await self._end(next(iter(self._kept)), "others needed the room")
        self._kept[key] = await start()
        return self._kept[key], f"The state of this session was lost, because {why}." if why else ""

    async def _end(self, key: Key, why: str) -> None:
        """`why` is told when the session comes back; nothing, where the answer tells it already."""
        interpreter = self._kept.pop(key, None)
        if why:
            self._lost[key] = why
            while len(self._lost) > 1000:
                self._lost.pop(next(iter(self._lost)))
        if interpreter is not None:
            with suppress(Exception):
                await interpreter.close()


Kind: TypeAlias = Literal["auto", "bubblewrap", "landlock", "wasm", "none"]
SECONDS = 60.0
_GRACE = 10.0  # the code is ended in time by the tool itself, which says more than a timeout of the call could
_TOLD = 20_000
_EXTRA = ("numpy", "pandas", "matplotlib")
_STOPPED = {
    "memory": "it used more than {memory} MB of memory",
    "processes": "it started more than {processes} processes or threads",
    "disk": "it wrote more than {disk} MB to disk, or too many files",
    "output": "it printed more than {output} MB",
}
DESCRIPTION = """\
Run Python code and get what it prints, the value of its last line, and the files and plots that it makes.

There is no network, and only the current folder can be written to. Plots made with matplotlib are shown. \
Each call starts anew, unless `session` is true."""


class CodeInterpreter:
    """Runs a model's Python in a sandbox below `folder`; `close()` ends what it keeps."""

    def __init__(
        self,
        folder: Path,
        *,
        sandbox: Kind = "auto",
        python: Path | None = None,
        memory: int = 256 * 1024 * 1024,
        seconds: float = SECONDS,
        idle: float = 600.0,
    ) -> None:
        self._folder = folder
        self._kind: Kind = sandbox
        self._wanted = python
        self._python: Python | None = None
        self._limits = SandboxLimits(seconds=seconds, cpu=math.ceil(seconds), memory=memory)
        self._sessions = InterpreterPool(idle=idle)

    async def run(self, code: str, context: ToolContext, *, session: bool = False) -> dict[str, Any]:
        """What came of the code, as a model reads it."""
        key = (context.tenant_id, context.conversation.id)
        folder: Path = await in_thread(place_for, self._folder, *key)
        name, start = await self._starter(folder, kept=session)
        context.note("sandbox", name)
        before = await in_thread(state_of, folder)
        if session:
            answer, news = await self._sessions.ask(key, code, start, _telling(context))
        else:
            answer, news = await _once(code, start, _telling(context)), ""
        made: Made = await in_thread(made_in, folder, before)
        if answer.stopped is not None:
            raise self._told_stopped(answer, made)
        return _result(answer, made, [*_hints(answer, name), *_lost(answer, news, kept=session)])

    async def close(self) -> None:
        await self._sessions.close()

    async def _starter(self, folder: Path, *, kept: bool) -> tuple[str, Start]:
        """The name of the sandbox, and how to start a Python in it."""
        limits = self._limits
        if kept:  # the CPU time of all calls together
            limits = msgspec.structs.replace(limits, cpu=limits.cpu * 20)
        sandbox = await self._sandbox()
        if sandbox is None:
            return interpreter_module.NAME, partial(interpreter_module.start, folder, limits)
        if self._python is None:
            self._python = await found(self._wanted)
        return sandbox.name, partial(Interpreter.start, sandbox, self._python, folder, limits)

    async def _sandbox(self) -> Sandbox | None:
        """What confines a Python of this machine; None where one in WebAssembly is taken."""
        if self._kind == "wasm" or (self._kind == "auto" and not await _confined()):
            return None
        return await choose(self._kind)

    async def facts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a yes is bound to besides the code: where it runs, and what holds it."""
        sandbox = await self._sandbox()
        return {
            "folder": str(self._folder / PLACE),
            "sandbox": interpreter_module.NAME if sandbox is None else sandbox.name,
        }

    async def preview(self, arguments: dict[str, Any]) -> str:
        """What holds the code, and the code as lines; in that order, so that no code can be too long for the first."""
        sandbox = await self._sandbox()
        kept = ", in the session's own, with all that earlier code has left there" if arguments.get("session") else ""
        if sandbox is None or sandbox.confines:
            name = interpreter_module.NAME if sandbox is None else sandbox.name
            held = f"confined by {name}: no network, and writes only in {self._folder / PLACE}"
        else:
            held = "NOT CONFINED, as the settings say. It can do whatever you can."
        return f"{held}\nPython{kept}, for at most {self._limits.seconds:g} s:\n\n{arguments['code']}"

    def _told_stopped(self, answer: CodeResult, made: Made) -> ToolFailed | ToolTimeout:
        """A limit ended it. What it had done by then is told too: the model may go on from there."""
        limits = self._limits
        sizes = {name: getattr(limits, name) // 1024**2 for name in ("memory", "output")}
        sizes |= {"disk": (limits.disk or 0) // 1024**2, "processes": limits.processes}
        so_far = "".join(f"\n{name}: {_cut(text)}" for name, text in _texts(answer).items())
        so_far += f"\nfiles: {', '.join(made.files)}" if made.files else ""
        if answer.stopped == "time":
            return ToolTimeout(f"the code ran longer than {limits.seconds:g} s and was stopped.{so_far}")
        return ToolFailed(f"the code was stopped: {_STOPPED[answer.stopped or ''].format(**sizes)}.{so_far}")


def code_tool(interpreter: CodeInterpreter) -> Tool:
    """The tool around an interpreter."""

    @tool(
        name="code_interpreter",
        description=DESCRIPTION,
        confirm=True,
        effect="unsafe",
        timeout=SECONDS + _GRACE,
        preview=interpreter.preview,
        binds=interpreter.facts,
    )
    async def code_interpreter(code: str, context: ToolContext, session: bool = False) -> dict[str, Any]:
        """Run Python.

        Args:
            code: The Python source. The value of a last line that is an expression is returned.
            session: Keep variables for later calls of this conversation that say so, too.
        """
        return await interpreter.run(code, context, session=session)

    return code_interpreter


async def _once(code: str, start: Start, on_output: OnOutput) -> CodeResult:
    interpreter = await start()
    try:
        return await interpreter.ask(code, on_output)
    finally:
        await interpreter.close()


async def _confined() -> bool:
    """Whether a sandbox of processes works here; where not, and WebAssembly is at hand, that is taken."""
    if not interpreter_module.installed():
        return True
    try:
        await choose("auto")
    except ToolFailed:
        return False
    return True


def _result(answer: CodeResult, made: Made, notes: list[str]) -> dict[str, Any]:
    """Only what there is: each word costs."""
    result: dict[str, Any] = {**_texts(answer)}
    if answer.value is not None:
        result["value"] = answer.value
    if answer.error is not None:
        result["error"] = answer.error.words
    elif answer.ended:
        result["error"] = answer.ended
    if made.files:
        result["files"] = made.files
    if made.pictures:
        result["images"] = made.pictures
    if notes:
        result["note"] = " ".join(notes)
    return result or {"stdout": ""}


def _texts(answer: CodeResult) -> dict[str, str]:
    streams: dict[str, CapturedOutput] = {"stdout": answer.stdout, "stderr": answer.stderr}
    return {name: kept.text for name, kept in streams.items() if kept.text}


def _cut(text: str) -> str:
    return text if len(text) <= 2000 else f"{text[:1000]}\n…\n{text[-1000:]}"


def _hints(answer: CodeResult, sandbox: str) -> list[str]:
    missing = answer.error.missing.partition(".")[0] if answer.error else ""
    if not missing:
        return []
    if sandbox == interpreter_module.NAME:
        return [f"{missing} is not there: Python in WebAssembly has its standard library only."]
    how = "pip install 'atlas-agents[code]'" if missing in _EXTRA else f"pip install {missing}"
    return [f"{missing} is not installed where code runs, and nothing can be fetched from there; a person can: {how}."]


def _lost(answer: CodeResult, news: str, *, kept: bool) -> list[str]:
    now = "The state of this session is lost." if kept and answer.ended else ""
    return [words for words in (news, now) if words]


def _telling(context: ToolContext) -> OnOutput:
    """Tells whoever looks on what the code prints, up to a few pages of it."""
    left = _TOLD

    def tell(stream: Stream, piece: bytes) -> None:
        nonlocal left
        if left > 0:
            context.progress(piece[:left].decode(errors="replace"))
            left -= len(piece)

    return tell
