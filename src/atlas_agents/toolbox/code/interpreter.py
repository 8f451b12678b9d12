"""One Python in a sandbox: started once, asked once or again and again, and ended with all that it started."""

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.toolbox.code import runner
from atlas_agents.toolbox.code.folder import CACHE
from atlas_agents.toolbox.code.line import Line, LineBroken
from atlas_agents.toolbox.code.python import Python
from atlas_agents.toolbox.sandbox.keep import Keeper
from atlas_agents.toolbox.sandbox.ports import Job, Kept, Limits, OnOutput, Outcome, Running, Sandbox, Stopped, Stream

_RUNNER = Path(runner.__file__).read_text(encoding="utf-8")
_ONE_THREAD = {
    name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
_LAST_WORDS = 1.0


class Trouble(msgspec.Struct, frozen=True):
    """An exception that the code raised and did not catch; `missing` is a module that it could not find."""

    type: str = ""
    words: str = ""
    missing: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter says of a run; all of it is the code's own word."""

    id: str = ""
    value: str | None = None
    error: Trouble | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run of code. `ended` says how the interpreter ended, if it did; `stopped` by which limit."""

    stdout: Kept = Kept()
    stderr: Kept = Kept()
    value: str | None = None
    error: Trouble | None = None
    ended: str = ""
    stopped: Stopped | None = None


class Interpreter:
    """A Python at work. It takes one order at a time."""

    def __init__(self, line: Line, limits: Limits) -> None:
        self._line = line
        self._limits = limits
        self._streams: dict[Stream, Keeper] = {}
        self._listener: OnOutput | None = None
        self._running: Running
        self._end: asyncio.Task[Outcome]
        self._fresh()

    @classmethod
    async def start(cls, sandbox: Sandbox, python: Python, folder: Path, limits: Limits) -> "Interpreter":
        """A Python of this machine, in a sandbox."""
        job = Job(
            argv=(python.executable, "-I", "-X", "utf8", *_compiling(python, folder), "-c", _RUNNER),
            cwd=folder,
            writable=folder,
            programs=python.folders,
            env={**_ONE_THREAD, "HOME": str(folder), "MPLCONFIGDIR": str(folder / CACHE)},
            limits=limits,
        )
        return await cls.open(sandbox, job)

    @classmethod
    async def open(cls, sandbox: Sandbox, job: Job) -> "Interpreter":
        """Any process that takes orders from its standard input as `runner` does."""
        line = Line()
        self = cls(line, job.limits)
        try:
            self._running = await sandbox.start(job, stdin=line.theirs, on_output=self._hear)
        except BaseException:
            line.close()
            raise
        line.theirs.close()
        self._end = asyncio.create_task(self._running.wait())
        return self

    @property
    def ended(self) -> bool:
        return self._end.done()

    async def ask(self, code: str, on_output: OnOutput | None = None) -> Answer:
        """Run code and wait for what comes of it, or for the end of the interpreter."""
        self._fresh()
        self._listener = on_output
        self._running.renew(self._limits.seconds)
        asking = asyncio.create_task(self._asked(code))
        try:
            await asyncio.wait({asking, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and (told := asking.result()) is not None:
                self._running.drain()
                return Answer(**self._written(), value=told.value, error=told.error)
            return await self._last_words()
        finally:
            asking.cancel()

    def rest(self, seconds: float) -> None:
        """Let it wait for the next order, so long and no longer."""
        self._running.renew(seconds)

    async def close(self) -> None:
        self._end.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._end
        await self._running.kill()
        self._line.close()

    async def how_it_ended(self) -> Outcome:
        return await asyncio.shield(self._end)

    async def _asked(self, code: str) -> Told | None:
        """The answer to this very order; None if the line broke. Others are the code's, which found the line."""
        id = secrets.token_hex(8)
        try:
            await self._line.say({"id": id, "code": code})
            while True:
                told = msgspec.convert(await self._line.hear(), Told)
                if told.id == id:
                    return told
        except (LineBroken, msgspec.ValidationError):
            return None

    async def _last_words(self) -> Answer:
        """Of one that broke its line or ended."""
        if not self._end.done():
            await asyncio.wait({self._end}, timeout=_LAST_WORDS)
        if not self._end.done():
            await self._running.kill()
        outcome = await self._end
        return Answer(**self._written(), ended=_how(outcome), stopped=outcome.stopped)

    def _fresh(self) -> None:
        self._streams = {"stdout": Keeper(self._limits.keep), "stderr": Keeper(self._limits.keep)}

    def _hear(self, stream: Stream, piece: bytes) -> None:
        self._streams[stream].add(piece)
        if self._listener is not None:
            self._listener(stream, piece)

    def _written(self) -> dict[str, Any]:
        return {stream: keeper.kept() for stream, keeper in self._streams.items()}


def _how(outcome: Outcome) -> str:
    if outcome.signal is not None:
        return f"the interpreter was ended by signal {outcome.signal}"
    return f"the interpreter ended with exit code {outcome.exit_code}"


def _compiling(python: Python, folder: Path) -> tuple[str, ...]:
    """What is compiled there cannot be kept, or is kept here."""
    return ("-B",) if python.compiled else ("-X", f"pycache_prefix={folder / CACHE / 'pyc'}")
