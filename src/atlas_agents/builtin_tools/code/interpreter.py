"""One Python in a sandbox: started once, asked once or again and again, and ended with all that it started."""

import asyncio
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import msgspec

from atlas_agents.builtin_tools.code import runner
from atlas_agents.builtin_tools.sandbox.base import (
    PATH,
    CapturedOutput,
    OnOutput,
    ProcessResult,
    Sandbox,
    SandboxCommand,
    SandboxLimits,
    SandboxProcess,
    Stopped,
    Stream,
)
from atlas_agents.builtin_tools.sandbox.choose import Unconfined
from atlas_agents.builtin_tools.sandbox.process import HeadTailBuffer
from atlas_agents.core.aio import in_thread
from atlas_agents.core.errors import SandboxUnavailable, ToolFailed
from atlas_agents.core.messages import Image

_HEAD = struct.Struct("!I")
_MAX_FRAME = 1 << 20


class ChannelClosed(Exception):
    """The other end is gone, or says what it never should."""


class SocketChannel:
    """Our end of a pair of sockets."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)

    async def say(self, order: dict[str, Any]) -> None:
        body = json.dumps(order).encode()
        try:
            await asyncio.get_running_loop().sock_sendall(self._ours, _HEAD.pack(len(body)) + body)
        except OSError as error:
            raise ChannelClosed from error

    async def hear(self) -> dict[str, Any]:
        """The next answer. It comes from a stranger: too long, or no JSON object, and the line is broken."""
        (size,) = _HEAD.unpack(await self._exactly(_HEAD.size))
        if size > _MAX_FRAME:
            raise ChannelClosed
        try:
            answer = json.loads(await self._exactly(size))
        except (ValueError, RecursionError) as error:
            raise ChannelClosed from error
        if not isinstance(answer, dict):
            raise ChannelClosed
        return cast(dict[str, Any], answer)

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()

    async def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                piece = await asyncio.get_running_loop().sock_recv(self._ours, size - len(found))
            except OSError as error:
                raise ChannelClosed from error
            if not piece:
                raise ChannelClosed
            found += piece
        return bytes(found)


_ASK = """
import json, os, sys
from importlib.util import find_spec
found = find_spec("numpy")
compiled = not (found and found.origin) or os.path.isdir(os.path.join(os.path.dirname(found.origin), "__pycache__"))
print(json.dumps([sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), compiled]))
"""
_PATIENCE = 10.0


class Python(msgspec.Struct, frozen=True):
    """An interpreter, and the folders that it and its packages lie in.

    `compiled` is False where its packages come as source only; each import would compile them anew.
    """

    executable: str
    folders: tuple[Path, ...]
    compiled: bool = True


async def found(path: Path | None) -> Python:
    """The one that runs us, or another, by the path of its executable or of its virtual environment: it is asked where
    it lives."""
    executable = sys.executable if path is None else str(path)
    if await in_thread(os.path.isdir, executable):
        executable = os.path.join(executable, "bin", "python")
    try:
        process = await asyncio.create_subprocess_exec(
            *(executable, "-I", "-c", _ASK),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": PATH},
        )
        async with asyncio.timeout(_PATIENCE):
            said, _ = await process.communicate()
        prefix, base, real, compiled = json.loads(said)
    except (OSError, TimeoutError, ValueError) as error:
        reason = f"{executable} is no Python that runs ({type(error).__name__})"
        raise SandboxUnavailable(reason, "set code_python to one, or leave it out") from None
    return Python(executable, _folders(prefix, base, real), compiled)


def _folders(prefix: str, base: str, real: str) -> tuple[Path, ...]:
    """Those that a sandbox does not show anyway."""
    named = {Path(prefix), Path(base), Path(prefix).resolve(), Path(base).resolve(), Path(real).parent}
    return tuple(sorted(path for path in named if path != Path("/") and not path.is_relative_to("/usr")))


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PICTURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_MAX_PICTURE = 400_000
_ALL_PICTURES = 600_000
_MOST = 1000
_LISTED = 50

PLACE = "code"
"""Below the root: where each session has its folder."""
CACHE = ".cache"
"""Where libraries put what they want to find again; not shown."""
State = dict[str, tuple[int, int]]


class ProducedImage(msgspec.Struct, frozen=True):
    """A picture that code made, as a result shows it."""

    name: str
    media_type: str
    data: str
    type: str = "image"


class Made(msgspec.Struct, frozen=True):
    """What a run left in its folder that was not there before, or was changed."""

    files: tuple[str, ...] = ()
    pictures: tuple[ProducedImage, ...] = ()


def place_for(root: Path, tenant: str, session: str) -> Path:
    """`code/<session>` below the root, made for its owner only. A link in its place would lead out, and is refused."""
    name = session if _PLAIN.fullmatch(session) and tenant == "default" else _digest(f"{tenant}\0{session}")
    folder = root.resolve()
    for part in (PLACE, name):
        folder /= part
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat().st_mode
        except OSError as error:
            raise ToolFailed(f"the folder {folder} cannot be made: {error.strerror}") from None
        if not stat.S_ISDIR(found):
            raise ToolFailed(f"{folder} should be a folder, and something else is in its place")
    return folder


def state_of(folder: Path) -> State:
    """Sizes and times of its files."""
    return {name: (found.st_size, found.st_mtime_ns) for name, _, _, found in _files(folder)}


def made_in(folder: Path, before: State) -> Made:
    """What is new or changed since; the smaller pictures among it as such."""
    files: list[str] = []
    pictures: list[ProducedImage] = []
    room = _ALL_PICTURES
    for name, within, last, found in _files(folder):
        if before.get(name) == (found.st_size, found.st_mtime_ns):
            continue
        files.append(f"{name} ({found.st_size:,} bytes)")
        if found.st_size <= min(_MAX_PICTURE, room) and (picture := _picture(name, within, last)):
            pictures.append(picture)
            room -= found.st_size
    if len(files) > _LISTED:
        files[_LISTED:] = [f"and {len(files) - _LISTED:,} more"]
    return Made(tuple(files), tuple(pictures))


def _files(folder: Path) -> Iterator[tuple[str, int, str, os.stat_result]]:
    """(path below the folder, descriptor of where it lies, name there, stat) of regular files; links are not followed,
    not even those that are put there meanwhile."""
    count = 0
    for where, below, names, within in os.fwalk(folder):
        below[:] = sorted(name for name in below if name != CACHE)
        for name in sorted(names):
            try:
                found = os.stat(name, dir_fd=within, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and count < _MOST:
                count += 1
                yield os.path.relpath(os.path.join(where, name), folder), within, name, found


def _picture(name: str, within: int, last: str) -> ProducedImage | None:
    try:
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = file.read(_MAX_PICTURE + 1)
    kind = next((kind for magic, kind in _PICTURES if content.startswith(magic)), None)
    if kind is None or len(content) > _MAX_PICTURE:
        return None
    return ProducedImage(name, kind, Image.of(content).data)


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:32]


_RUNNER_SOURCE = Path(runner.__file__).read_text(encoding="utf-8")
_ONE_THREAD = {
    name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
_LAST_WORDS = 1.0


class CodeError(msgspec.Struct, frozen=True):
    """An exception that the code raised and did not catch; `missing` is a module that it could not find."""

    type: str = ""
    words: str = ""
    missing: str = ""


class InterpreterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an interpreter says of a run; all of it is the code's own word."""

    id: str = ""
    value: str | None = None
    error: CodeError | None = None


class CodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run of code. `ended` says how the interpreter ended, if it did; `stopped` by which limit."""

    stdout: CapturedOutput = CapturedOutput()
    stderr: CapturedOutput = CapturedOutput()
    value: str | None = None
    error: CodeError | None = None
    ended: str = ""
    stopped: Stopped | None = None


class Interpreter:
    """A Python at work. It takes one order at a time."""

    def __init__(self, line: SocketChannel, limits: SandboxLimits) -> None:
        self._line = line
        self._limits = limits
        self._streams: dict[Stream, HeadTailBuffer] = {}
        self._listener: OnOutput | None = None
        self._running: SandboxProcess
        self._end: asyncio.Task[ProcessResult]
        self._fresh()

    @classmethod
    async def start(cls, sandbox: Sandbox, python: Python, folder: Path, limits: SandboxLimits) -> "Interpreter":
        """A Python of this machine, in a sandbox."""
        job = SandboxCommand(
            argv=(python.executable, "-I", "-X", "utf8", *_compiling(python, folder), "-c", _RUNNER_SOURCE),
            cwd=folder,
            writable=folder,
            programs=python.folders,
            env={**_ONE_THREAD, "HOME": str(folder), "MPLCONFIGDIR": str(folder / CACHE)},
            limits=limits,
        )
        return await cls.open(sandbox, job)

    @classmethod
    async def open(cls, sandbox: Sandbox, job: SandboxCommand) -> "Interpreter":
        """Any process that takes orders from its standard input as `runner` does."""
        line = SocketChannel()
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

    async def ask(self, code: str, on_output: OnOutput | None = None) -> CodeResult:
        """Run code and wait for what comes of it, or for the end of the interpreter."""
        self._fresh()
        self._listener = on_output
        self._running.renew(self._limits.seconds)
        asking = asyncio.create_task(self._asked(code))
        try:
            await asyncio.wait({asking, self._end}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done() and (told := asking.result()) is not None:
                self._running.drain()
                return CodeResult(**self._written(), value=told.value, error=told.error)
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

    async def how_it_ended(self) -> ProcessResult:
        return await asyncio.shield(self._end)

    async def _asked(self, code: str) -> InterpreterReport | None:
        """The answer to this very order; None if the line broke. Others are the code's, which found the line."""
        id = secrets.token_hex(8)
        try:
            await self._line.say({"id": id, "code": code})
            while True:
                told = msgspec.convert(await self._line.hear(), InterpreterReport)
                if told.id == id:
                    return told
        except (ChannelClosed, msgspec.ValidationError):
            return None

    async def _last_words(self) -> CodeResult:
        """Of one that broke its line or ended."""
        if not self._end.done():
            await asyncio.wait({self._end}, timeout=_LAST_WORDS)
        if not self._end.done():
            await self._running.kill()
        outcome = await self._end
        return CodeResult(**self._written(), ended=_how(outcome), stopped=outcome.stopped)

    def _fresh(self) -> None:
        self._streams = {"stdout": HeadTailBuffer(self._limits.keep), "stderr": HeadTailBuffer(self._limits.keep)}

    def _hear(self, stream: Stream, piece: bytes) -> None:
        self._streams[stream].add(piece)
        if self._listener is not None:
            self._listener(stream, piece)

    def _written(self) -> dict[str, Any]:
        return {stream: keeper.kept() for stream, keeper in self._streams.items()}


def _how(outcome: ProcessResult) -> str:
    if outcome.signal is not None:
        return f"the interpreter was ended by signal {outcome.signal}"
    return f"the interpreter ended with exit code {outcome.exit_code}"


def _compiling(python: Python, folder: Path) -> tuple[str, ...]:
    """What is compiled there cannot be kept, or is kept here."""
    return ("-B",) if python.compiled else ("-X", f"pycache_prefix={folder / CACHE / 'pyc'}")


NAME = "wasm"
REMEDY = "pip install 'atlas-agents[wasm]' on Python 3.12 or newer"
_WASM_RUNNER = Path(__file__).with_name("wasm_runner.py")
_OWN_MEMORY = 512 * 1024 * 1024  # of what runs WebAssembly, besides what the code uses


def installed() -> bool:
    return find_spec("eryx") is not None


async def start(folder: Path, limits: SandboxLimits) -> Interpreter:
    """An interpreter whose process we end as any other; what confines the code is WebAssembly, not the system."""
    package = find_spec("eryx")
    if package is None or package.origin is None:
        raise SandboxUnavailable("pyeryx is not installed", REMEDY)
    job = SandboxCommand(
        argv=(sys.executable, "-I", "-B", str(_WASM_RUNNER), str(Path(package.origin).parent.parent), str(folder)),
        cwd=folder,
        writable=folder,
        limits=msgspec.structs.replace(limits, memory=limits.memory + _OWN_MEMORY),
    )
    return await Interpreter.open(Unconfined(), job)
