"""The `code_interpreter` tool: its arguments and limits, the interpreters it keeps per session, and its result."""

import asyncio
import copy
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from atlas_agents.builtin_tools.code import interpreter as python_code
from atlas_agents.builtin_tools.sandbox import SandboxKind, choose, describe_sandbox
from atlas_agents.builtin_tools.sandbox.process import CapturedOutput, OnOutput, SandboxLimits, Stream
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ToolFailed, ToolTimeout
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool, tool

Key: TypeAlias = Path
"""The folder of a session."""
Start: TypeAlias = Callable[[], Awaitable[python_code.Interpreter]]
_LOSS_REASONS = {
    "time": "it was idle for too long",
    "memory": "it used too much memory",
    "processes": "it started too many processes",
    "disk": "it wrote too much to disk",
    "output": "it wrote too much output",
}
MAX_SECONDS = 60.0
_TIMEOUT_MARGIN = 10.0  # the tool enforces its own limit first, because its error says more than a call timeout
_MAX_PROGRESS = 20_000
_MAX_WRITTEN = 1 << 30
"""Maximum number of bytes that one call can write to disk, including files that it deletes."""
_CODE_EXTRA = ("numpy", "pandas", "matplotlib")
_STOP_REASONS = {
    "memory": "it used more than {memory} MB of memory",
    "processes": "it started more than {processes} processes or threads",
    "disk": "it wrote more than {disk} MB or too many files to disk, or the disk is almost full",
    "output": "it printed more than {output} MB",
}
DESCRIPTION = """\
Run Python code and return what it prints, the value of its last line, and the files and plots that it creates.

There is no network access, and only the current folder is writable. Plots made with matplotlib are shown. \
Each call starts a new interpreter, unless `session` is true."""


class InterpreterPool:
    """Interpreters that keep their state between calls; beyond `max_size`, the least recently used one is closed."""

    def __init__(self, *, max_size: int = 8, idle: float = 600.0) -> None:
        self._max_size = max_size
        self._idle = idle
        self._interpreters: dict[Key, python_code.Interpreter] = {}
        self._locks: dict[Key, asyncio.Lock] = {}
        self._lost: dict[Key, str] = {}

    async def run(
        self, key: Key, code: str, start: Start, on_output: OnOutput | None = None
    ) -> tuple[python_code.CodeResult, str]:
        """Run code in the session's interpreter; return its result, and a sentence if earlier state was lost."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            interpreter, loss = await self._get(key, start)
            try:
                result = await interpreter.run(code, on_output)
            except BaseException:
                await self._close(key, "the call was interrupted")
                raise
            if result.ended:
                await self._close(key, "")
            else:
                interpreter.set_idle_timeout(self._idle)
            return result, loss

    async def close(self) -> None:
        for key in tuple(self._interpreters):
            await self._close(key, "")

    async def _get(self, key: Key, start: Start) -> tuple[python_code.Interpreter, str]:
        interpreter = self._interpreters.pop(key, None)
        if interpreter is not None and not interpreter.has_ended:
            self._interpreters[key] = interpreter  # moves it to the end: the most recently used one
            return interpreter, ""
        reason = self._lost.pop(key, "")
        if interpreter is not None:
            result = await interpreter.process_result()
            reason = _LOSS_REASONS.get(result.stopped_by or "", "its interpreter ended")
            await interpreter.close()
        while len(self._interpreters) >= self._max_size:
            await self._close(next(iter(self._interpreters)), "too many other sessions were in use")
        self._interpreters[key] = await start()
        loss = f"The state of this session was lost because {reason}." if reason else ""
        return self._interpreters[key], loss

    async def _close(self, key: Key, reason: str) -> None:
        """Close an interpreter. `reason` is reported by the session's next call; empty if this call reports it."""
        interpreter = self._interpreters.pop(key, None)
        if reason:
            self._lost[key] = reason
            while len(self._lost) > 1000:
                self._lost.pop(next(iter(self._lost)))
        if interpreter is not None:
            with suppress(Exception):
                await interpreter.close()


class CodeInterpreter:
    """Runs Python code of a model in a sandbox below `folder`. `close()` ends the interpreters of all sessions.

    Args:
        folder: Folder below which each session has its own.
        sandbox: Which sandbox confines the code; `auto` chooses the best one that this machine has.
        python: Python that runs the code; the one that runs Atlas if None.
        memory: Memory limit of an interpreter, in bytes.
        seconds: Time limit of one call.
        idle: Seconds after which an unused interpreter ends; its variables are lost.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sandbox: SandboxKind = "auto",
        python: Path | None = None,
        memory: int = 256 * 1024 * 1024,
        seconds: float = MAX_SECONDS,
        idle: float = 600.0,
    ) -> None:
        self._folder = folder
        self._kind: SandboxKind = sandbox
        self._python_path = python
        self._python: python_code.PythonInstallation | None = None
        self._limits = SandboxLimits(seconds=seconds, cpu=math.ceil(seconds), memory=memory, written=_MAX_WRITTEN)
        self._pool = InterpreterPool(idle=idle)
        self.unconfined = sandbox == "none"

    async def run(self, code: str, context: ToolContext, *, session: bool = False) -> dict[str, Any]:
        """Run code and return the result for the model."""
        session_id = (context.tenant_id, context.conversation.id)
        folder: Path = await run_in_thread(python_code.create_session_folder, self._folder, *session_id)
        sandbox, start = await self._starter(folder, session=session)
        context.note("sandbox", sandbox)
        before = await run_in_thread(python_code.snapshot_files, folder)
        on_output = _progress_reporter(context)
        if session:
            result, loss = await self._pool.run(folder, code, start, on_output)
        else:
            result, loss = await _run_once(code, start, on_output), ""
        produced: python_code.ProducedFiles = await run_in_thread(python_code.find_produced, folder, before)
        if result.stopped_by is not None:
            raise self._limit_error(result, produced)
        lost_now = "The state of this session is lost." if session and result.ended else ""
        notes = [_missing_module_hint(result), loss, lost_now]
        return _format_result(result, produced, " ".join(note for note in notes if note))

    def in_folder(self, folder: Path) -> "CodeInterpreter":
        """Return an interpreter for another folder, with the same limits; both are closed together."""
        copied = copy.copy(self)
        copied._folder = folder
        return copied

    async def close(self) -> None:
        await self._pool.close()

    async def _starter(self, folder: Path, *, session: bool) -> tuple[str, Start]:
        """Return the name of the sandbox, and a function that starts an interpreter in it."""
        limits = self._limits
        if session:  # the CPU limit applies to all calls of the session together
            limits = msgspec.structs.replace(limits, cpu=limits.cpu * 20)
        sandbox = await choose(self._kind)
        if self._python is None:
            self._python = await python_code.find_python(self._python_path)
        return sandbox.name, partial(python_code.Interpreter.start, sandbox, self._python, folder, limits)

    async def facts(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the facts that an approval covers besides the arguments: the folder and the sandbox."""
        sandbox = await choose(self._kind)
        return {"folder": str(self._folder / python_code.CODE_FOLDER), "sandbox": sandbox.name}

    async def preview(self, arguments: dict[str, Any]) -> str:
        """Describe the sandbox, then show the code: if the preview is cut, the sandbox is still shown."""
        lines = [describe_sandbox(await choose(self._kind), "code", self._folder / python_code.CODE_FOLDER)]
        lines.append(f"Timeout: {self._limits.seconds:g} s")
        if arguments.get("session"):
            lines.append("Session: the code can use variables and functions of earlier calls")
        return "\n".join([*lines, "", arguments["code"]])

    def _limit_error(
        self, result: python_code.CodeResult, produced: python_code.ProducedFiles
    ) -> ToolFailed | ToolTimeout:
        """Build the error for an exceeded limit, with the output so far, so that the model can continue from there."""
        limits = self._limits
        sizes = {name: getattr(limits, name) // 1024**2 for name in ("memory", "output")}
        sizes |= {"disk": (limits.disk or 0) // 1024**2, "processes": limits.processes}
        so_far = "".join(f"\n{name}: {_cut(text)}" for name, text in _output(result).items())
        so_far += f"\nfiles: {', '.join(produced.files)}" if produced.files else ""
        if result.stopped_by == "time":
            return ToolTimeout(f"the code ran longer than {limits.seconds:g} s and was stopped.{so_far}")
        return ToolFailed(f"the code was stopped: {_STOP_REASONS[result.stopped_by or ''].format(**sizes)}.{so_far}")


def code_tool(interpreter: CodeInterpreter) -> Tool:
    """Create the `code_interpreter` tool for an interpreter."""

    @tool(
        name="code_interpreter",
        description=DESCRIPTION,
        confirm=True,
        effect="unsafe",
        timeout=MAX_SECONDS + _TIMEOUT_MARGIN,
        preview=interpreter.preview,
        binds=interpreter.facts,
        untrusted="command",
        sends=interpreter.unconfined,
    )
    async def code_interpreter(code: str, context: ToolContext, session: bool = False) -> dict[str, Any]:
        """Run Python.

        Args:
            code: The Python source. If the last statement is an expression, its value is returned.
            session: Keep variables for later calls of this conversation that also set session to true.
        """
        return await interpreter.run(code, context, session=session)

    return code_interpreter


async def _run_once(code: str, start: Start, on_output: OnOutput) -> python_code.CodeResult:
    interpreter = await start()
    try:
        return await interpreter.run(code, on_output)
    finally:
        await interpreter.close()


def _format_result(result: python_code.CodeResult, produced: python_code.ProducedFiles, note: str) -> dict[str, Any]:
    """Return only fields that are not empty, to save tokens."""
    fields = {
        **_output(result),
        "value": result.value,
        "error": result.error.traceback if result.error is not None else result.ended or None,
        "files": produced.files or None,
        "images": produced.images or None,
        "note": note or None,
    }
    return {name: value for name, value in fields.items() if value is not None} or {"stdout": ""}


def _output(result: python_code.CodeResult) -> dict[str, str]:
    streams: dict[str, CapturedOutput] = {"stdout": result.stdout, "stderr": result.stderr}
    return {name: captured.text for name, captured in streams.items() if captured.text}


def _cut(text: str) -> str:
    return text if len(text) <= 2000 else f"{text[:1000]}\n…\n{text[-1000:]}"


def _missing_module_hint(result: python_code.CodeResult) -> str:
    missing = result.error.missing.partition(".")[0] if result.error else ""
    if not missing:
        return ""
    package = "'atlas-agents[code]'" if missing in _CODE_EXTRA else missing
    return (
        f"{missing} is not installed, and the code cannot install it without a network. "
        f"Ask the user to run: pip install {package}"
    )


def _progress_reporter(context: ToolContext) -> OnOutput:
    """Report the output as progress, up to a limit."""
    left = _MAX_PROGRESS

    def report(stream: Stream, chunk: bytes) -> None:
        nonlocal left
        if left > 0:
            context.progress(chunk[:left].decode(errors="replace"))
            left -= len(chunk)

    return report
