"""A Python interpreter in a sandbox that runs code from a socket, and the files the code produces."""

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
from pathlib import Path
from typing import Any, cast

import msgspec

from atlas_agents.builtin_tools.code import runner
from atlas_agents.builtin_tools.files.read import IMAGE_SIGNATURES
from atlas_agents.builtin_tools.sandbox.process import (
    PATH,
    CapturedOutput,
    HeadTailBuffer,
    LimitName,
    OnOutput,
    ProcessIO,
    ProcessResult,
    Sandbox,
    SandboxCommand,
    SandboxLimits,
    SandboxProcess,
    Stream,
)
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import SandboxUnavailable, ToolFailed
from atlas_agents.core.messages import Image

_LENGTH = struct.Struct("!I")
_MAX_FRAME = 1 << 20
_INSPECT = """
import json, os, sys
from importlib.util import find_spec
found = find_spec("numpy")
compiled = not (found and found.origin) or os.path.isdir(os.path.join(os.path.dirname(found.origin), "__pycache__"))
print(json.dumps([sys.prefix, sys.base_prefix, os.path.realpath(sys.executable), compiled]))
"""
_INSPECT_TIMEOUT = 10.0
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_IMAGE_SIZE = 400_000
_MAX_IMAGES_SIZE = 600_000
_MAX_FILES = 1000
_MAX_LISTED = 50

CODE_FOLDER = "code"
"""Folder below the root with one folder per session."""
CACHE_FOLDER = ".cache"
"""Folder for the caches of libraries; not listed in results."""
Snapshot = dict[str, tuple[int, int]]
_RUNNER_SOURCE = Path(runner.__file__).read_text(encoding="utf-8")
_SINGLE_THREAD = {
    name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
_EXIT_TIMEOUT = 1.0


class ChannelClosed(Exception):
    """The interpreter closed the socket, or sent something invalid."""


class SocketChannel:
    """Our end of a socket pair, with length-prefixed JSON messages."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)

    async def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        try:
            await asyncio.get_running_loop().sock_sendall(self._ours, _LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise ChannelClosed from error

    async def receive(self) -> dict[str, Any]:
        """Return the next message. The sender is untrusted: a message that is too long or not an object is an error."""
        (size,) = _LENGTH.unpack(await self._read_exactly(_LENGTH.size))
        if size > _MAX_FRAME:
            raise ChannelClosed
        try:
            message = json.loads(await self._read_exactly(size))
        except (ValueError, RecursionError) as error:
            raise ChannelClosed from error
        if not isinstance(message, dict):
            raise ChannelClosed
        return cast(dict[str, Any], message)

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()

    async def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = await asyncio.get_running_loop().sock_recv(self._ours, size - len(data))
            except OSError as error:
                raise ChannelClosed from error
            if not chunk:
                raise ChannelClosed
            data += chunk
        return bytes(data)


class PythonInstallation(msgspec.Struct, frozen=True):
    """A Python executable and the folders of its standard library and packages.

    `compiled` is False if its packages have no .pyc files; without a cache, each import would compile them again.
    """

    executable: str
    folders: tuple[Path, ...]
    compiled: bool = True


async def find_python(path: Path | None) -> PythonInstallation:
    """Inspect the Python at `path`, an executable or a virtual environment; None is the one that runs Atlas."""
    executable = sys.executable if path is None else str(path)
    if await run_in_thread(os.path.isdir, executable):
        executable = os.path.join(executable, "bin", "python")
    try:
        process = await asyncio.create_subprocess_exec(
            *(executable, "-I", "-c", _INSPECT),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": PATH},
        )
        async with asyncio.timeout(_INSPECT_TIMEOUT):
            output, _ = await process.communicate()
        prefix, base, real, compiled = json.loads(output)
    except (OSError, ValueError) as error:
        reason = f"{executable} is not a working Python interpreter ({type(error).__name__})"
        raise SandboxUnavailable(reason, "set code_python to a Python executable or virtual environment") from None
    return PythonInstallation(executable, _library_folders(prefix, base, real), compiled)


def _library_folders(prefix: str, base: str, real: str) -> tuple[Path, ...]:
    """Return the folders of an installation that a sandbox does not make readable by default."""
    folders = {Path(prefix), Path(base), Path(prefix).resolve(), Path(base).resolve(), Path(real).parent}
    return tuple(sorted(path for path in folders if path != Path("/") and not path.is_relative_to("/usr")))


class ProducedImage(msgspec.Struct, frozen=True):
    """An image file that the code wrote, as it appears in the result."""

    name: str
    media_type: str
    data: str
    type: str = "image"


class ProducedFiles(msgspec.Struct, frozen=True):
    """Files that the code created or changed."""

    files: tuple[str, ...] = ()
    images: tuple[ProducedImage, ...] = ()


def create_session_folder(root: Path, tenant: str, session: str) -> Path:
    """Create `code/<session>` below the root, accessible only to its owner. A symbolic link there is rejected."""
    plain = _PLAIN_NAME.fullmatch(session) and tenant == "default"
    name = session if plain else hashlib.sha256(f"{tenant}\0{session}".encode(errors="replace")).hexdigest()[:32]
    folder = root.resolve()
    for part in (CODE_FOLDER, name):
        folder /= part
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = folder.lstat().st_mode
        except OSError as error:
            raise ToolFailed(f"cannot create the folder {folder}: {error.strerror}") from None
        if not stat.S_ISDIR(mode):
            raise ToolFailed(f"{folder} is not a folder; remove it, so that the folder can be created")
    return folder


def snapshot_files(folder: Path) -> Snapshot:
    """Return size and modification time of each file in a folder."""
    return {name: (info.st_size, info.st_mtime_ns) for name, _, _, info in _files(folder)}


def find_produced(folder: Path, before: Snapshot) -> ProducedFiles:
    """Return the files that are new or changed since a snapshot, and the content of small images among them."""
    files: list[str] = []
    images: list[ProducedImage] = []
    left = _MAX_IMAGES_SIZE
    for path, descriptor, name, info in _files(folder):
        if before.get(path) == (info.st_size, info.st_mtime_ns):
            continue
        files.append(f"{path} ({info.st_size:,} bytes)")
        if info.st_size <= min(_MAX_IMAGE_SIZE, left) and (image := _read_image(path, descriptor, name)):
            images.append(image)
            left -= info.st_size
    if len(files) > _MAX_LISTED:
        files[_MAX_LISTED:] = [f"and {len(files) - _MAX_LISTED:,} more"]
    return ProducedFiles(tuple(files), tuple(images))


def _files(folder: Path) -> Iterator[tuple[str, int, str, os.stat_result]]:
    """Yield (relative path, descriptor of its folder, name, stat) of regular files. Links are never followed, even if
    they are created during the walk."""
    count = 0
    for parent, folders, names, descriptor in os.fwalk(folder):
        folders[:] = sorted(name for name in folders if name != CACHE_FOLDER)
        for name in sorted(names):
            try:
                info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(info.st_mode) and count < _MAX_FILES:
                count += 1
                yield os.path.relpath(os.path.join(parent, name), folder), descriptor, name, info


def _read_image(path: str, folder: int, name: str) -> ProducedImage | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = file.read(_MAX_IMAGE_SIZE + 1)
    media_type = next((media_type for magic, media_type in IMAGE_SIGNATURES if content.startswith(magic)), None)
    if media_type is None or len(content) > _MAX_IMAGE_SIZE:
        return None
    return ProducedImage(path, media_type, Image.of(content).data)


class CodeError(msgspec.Struct, frozen=True):
    """An exception that the code did not catch; `missing` is the module of a ModuleNotFoundError."""

    traceback: str = ""
    missing: str = ""


class InterpreterReport(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of the interpreter to one request. The code can forge it, so it is untrusted."""

    id: str = ""
    value: str | None = None
    error: CodeError | None = None


class CodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run. `ended` describes the end of the interpreter, if any; `stopped_by` names the exceeded limit."""

    stdout: CapturedOutput = CapturedOutput()
    stderr: CapturedOutput = CapturedOutput()
    value: str | None = None
    error: CodeError | None = None
    ended: str = ""
    stopped_by: LimitName | None = None


class Interpreter:
    """A running interpreter process. It handles one request at a time."""

    def __init__(self, channel: SocketChannel, limits: SandboxLimits) -> None:
        self._channel = channel
        self._limits = limits
        self._streams: dict[Stream, HeadTailBuffer] = {}
        self._on_output: OnOutput | None = None
        self._process: SandboxProcess
        self._result: asyncio.Task[ProcessResult]
        self._reset_output()

    @classmethod
    async def start(
        cls, sandbox: Sandbox, python: PythonInstallation, folder: Path, limits: SandboxLimits
    ) -> "Interpreter":
        """Start a Python of this machine in a sandbox. It handles requests from its standard input as `runner` does."""
        bytecode = ("-B",) if python.compiled else ("-X", f"pycache_prefix={folder / CACHE_FOLDER / 'pyc'}")
        command = SandboxCommand(
            argv=(python.executable, "-I", "-X", "utf8", *bytecode, "-c", _RUNNER_SOURCE),
            cwd=folder,
            writable=folder,
            programs=python.folders,
            env={**_SINGLE_THREAD, "HOME": str(folder), "MPLCONFIGDIR": str(folder / CACHE_FOLDER)},
            limits=limits,
        )
        channel = SocketChannel()
        self = cls(channel, limits)
        try:
            self._process = await sandbox.start(command, ProcessIO(stdin=channel.theirs, on_output=self._add_output))
        except BaseException:
            channel.close()
            raise
        channel.theirs.close()
        self._result = asyncio.create_task(self._process.wait())
        return self

    @property
    def has_ended(self) -> bool:
        return self._result.done()

    async def run(self, code: str, on_output: OnOutput | None = None) -> CodeResult:
        """Run code and return its result, also if the interpreter ends."""
        self._reset_output()
        self._on_output = on_output
        self._process.renew(self._limits.seconds)
        request = asyncio.create_task(self._request(code))
        try:
            await asyncio.wait({request, self._result}, return_when=asyncio.FIRST_COMPLETED)
            if request.done() and (report := request.result()) is not None:
                self._process.drain()
                return CodeResult(**self._captured(), value=report.value, error=report.error)
            return await self._ended_result()
        finally:
            request.cancel()

    def set_idle_timeout(self, seconds: float) -> None:
        """End the interpreter unless the next request comes within this time."""
        self._process.renew(seconds)

    async def close(self) -> None:
        self._result.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self._result
        await self._process.kill()
        self._channel.close()

    async def process_result(self) -> ProcessResult:
        return await asyncio.shield(self._result)

    async def _request(self, code: str) -> InterpreterReport | None:
        """Return the reply to this request; None if the channel closed. Replies with another ID were forged."""
        id = secrets.token_hex(8)
        try:
            await self._channel.send({"id": id, "code": code})
            while True:
                report = msgspec.convert(await self._channel.receive(), InterpreterReport)
                if report.id == id:
                    return report
        except (ChannelClosed, msgspec.ValidationError):
            return None

    async def _ended_result(self) -> CodeResult:
        """Return the result of an interpreter that ended or closed its channel."""
        if not self._result.done():
            await asyncio.wait({self._result}, timeout=_EXIT_TIMEOUT)
        if not self._result.done():
            await self._process.kill()
        result = await self._result
        if result.signal is not None:
            ended = f"the interpreter was ended by signal {result.signal}"
        else:
            ended = f"the interpreter ended with exit code {result.exit_code}"
        return CodeResult(**self._captured(), ended=ended, stopped_by=result.stopped_by)

    def _reset_output(self) -> None:
        capture = self._limits.capture
        self._streams = {"stdout": HeadTailBuffer(capture), "stderr": HeadTailBuffer(capture)}

    def _add_output(self, stream: Stream, chunk: bytes) -> None:
        self._streams[stream].add(chunk)
        if self._on_output is not None:
            self._on_output(stream, chunk)

    def _captured(self) -> dict[str, Any]:
        return {stream: buffer.captured() for stream, buffer in self._streams.items()}
