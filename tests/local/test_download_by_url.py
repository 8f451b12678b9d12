"""Model download from a web server: verified, resumed, shared by concurrent callers, with clear errors."""

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from atlas_agents import ModelUnavailable
from atlas_agents.core import install_command
from atlas_agents.local.download import ensure_model, pull
from atlas_agents.local.models import LocalModel, Url, list_models, model_state, remove_model
from checks import TIMEOUT

DATA = b"GGUF" + bytes(range(256)) * 8000
SHA = hashlib.sha256(DATA).hexdigest()


class FileServer:
    """Serves one file, with faults that the test chooses."""

    def __init__(self) -> None:
        self.data = DATA
        self.ranges = True
        self.cut: list[int] = []
        """Bytes after which the connection is lost, one entry for each request."""
        self.hold_after: int | None = None
        self.ranges_requested: list[str | None] = []
        self.requested = asyncio.Event()
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        wanted = request.headers.get("Range")
        self.ranges_requested.append(wanted)
        self.requested.set()
        if request.path == "/missing":
            raise web.HTTPNotFound
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        headers = {"Content-Length": str(len(self.data) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        body = self.data[start:]
        if self.cut:
            await response.write(body[: self.cut.pop(0)])
            assert request.transport
            request.transport.abort()
        elif self.hold_after is not None:
            await response.write(body[: self.hold_after])
            await asyncio.sleep(30)
        else:
            await response.write(body)
        return response


@pytest.fixture
async def server() -> AsyncIterator[FileServer]:
    file = FileServer()
    app = web.Application()
    app.router.add_get("/{name}", file.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    file.url = site.name
    yield file
    await runner.cleanup()


def model(*urls: str, sha: str = SHA, size: int = len(DATA)) -> LocalModel:
    sources = tuple(Url(url) for url in urls)
    return LocalModel("m", "M", "a model", "MIT", size, sha, sources)


async def test_file_is_downloaded_verified_and_reported(server: FileServer, tmp_path: Path) -> None:
    reports: list[tuple[int, int, str]] = []
    path = await ensure_model(
        model(f"{server.url}/f"), tmp_path, lambda done, total, step: reports.append((done, total, step))
    )
    assert path.read_bytes() == DATA
    assert sorted(os.listdir(tmp_path)) == ["m.gguf", "m.lock"]
    assert [step for _, _, step in reports][-2:] == ["verifying", "ready"]
    counts = [done for done, total, _ in reports if total == len(DATA)]
    assert counts == sorted(counts) and len(counts) == len(reports) and counts[-1] == len(DATA)


async def test_model_that_could_not_run_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # as if it were not installed
    with pytest.raises(ModelUnavailable, match=r"run: pip install 'atlas-agents\[local\]'$"):
        await pull(folder=tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("prefix", "receipt", "command"),
    [
        ("archive-v0/x1", "", "uvx 'atlas-agents[local]'"),
        ("tools/atlas-agents", "uv-receipt.toml", "uv tool install 'atlas-agents[local]'"),
        ("venvs/atlas-agents", "pipx_metadata.json", "pipx install --force 'atlas-agents[local]'"),
        (".venv", "", "pip install 'atlas-agents[local]'"),
    ],
)
def test_remedy_names_the_tool_of_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, receipt: str, command: str
) -> None:
    (tmp_path / prefix).mkdir(parents=True)
    if receipt:
        (tmp_path / prefix / receipt).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
    assert install_command("local") == command


async def test_installed_model_is_not_downloaded_again(server: FileServer, tmp_path: Path) -> None:
    for _ in range(2):
        await ensure_model(model(f"{server.url}/f"), tmp_path)
    assert server.ranges_requested == [None]


async def test_download_resumes_where_it_stopped(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.part").write_bytes(DATA[:100_000])
    assert model_state(model(), tmp_path).fetched == 100_000
    path = await ensure_model(model(f"{server.url}/f"), tmp_path)
    assert (path.read_bytes() == DATA, server.ranges_requested) == (True, ["bytes=100000-"])


async def test_server_without_ranges_restarts_the_download(server: FileServer, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "m.gguf.part").write_bytes(DATA[:100_000])
    assert (await ensure_model(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA


async def test_lost_connection_is_resumed(server: FileServer, tmp_path: Path) -> None:
    server.cut = [300_000, 200_000]
    assert (await ensure_model(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA
    assert len(server.ranges_requested) == 3 and server.ranges_requested[0] is None and all(server.ranges_requested[1:])


async def test_repeatedly_lost_connection_keeps_the_part(server: FileServer, tmp_path: Path) -> None:
    server.cut = [100_000] * 3
    with pytest.raises(ModelUnavailable, match=r"cannot download the model m .*: 127\.0\.0\.1: .*kept"):
        await ensure_model(model(f"{server.url}/f"), tmp_path)
    assert not (tmp_path / "m.gguf").exists()
    assert (await ensure_model(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA
    assert server.ranges_requested[-1] is not None


async def test_file_with_a_wrong_checksum_is_never_installed(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="the checksum does not match; the file was deleted"):
        await ensure_model(model(f"{server.url}/f", sha="0" * 64), tmp_path)
    assert os.listdir(tmp_path) == ["m.lock"]


async def test_damaged_part_is_deleted_and_downloaded_again(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.part").write_bytes(b"x" * 100_000)
    assert (await ensure_model(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA
    assert server.ranges_requested == ["bytes=100000-", None]


async def test_pull_replaces_a_damaged_model(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x" * len(DATA))
    assert (await ensure_model(model(f"{server.url}/f"), tmp_path, verify=True)).read_bytes() == DATA


async def test_next_source_resumes_the_part(server: FileServer, tmp_path: Path) -> None:
    server.cut = [100_000] * 3
    path = await ensure_model(model(f"{server.url}/a", "http://127.0.0.1:9/b", f"{server.url}/c"), tmp_path)
    assert path.read_bytes() == DATA
    assert server.ranges_requested[-1] not in (None, "bytes=0-")


@pytest.mark.parametrize(
    ("url", "size", "message"),
    [
        ("/missing", len(DATA), "HTTP 404"),
        ("/f", len(DATA) - 1, "larger than expected"),
        ("/f", len(DATA) + 1, "smaller than expected"),
        ("http://127.0.0.1:9/f", len(DATA), "cannot connect"),
    ],
)
async def test_failure_is_explained_in_one_sentence(
    server: FileServer, tmp_path: Path, url: str, size: int, message: str
) -> None:
    address = url if "://" in url else server.url + url
    with pytest.raises(ModelUnavailable) as caught:
        await ensure_model(model(address, size=size), tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert (caught.value.retryable, caught.value.failover) == (False, True)


async def test_concurrent_callers_download_once(server: FileServer, tmp_path: Path) -> None:
    wanted = model(f"{server.url}/f")
    paths = await asyncio.gather(*(ensure_model(wanted, tmp_path) for _ in range(4)))
    assert len(set(paths)) == 1 and server.ranges_requested == [None]


WAITS = """
import asyncio, sys
from pathlib import Path
from atlas_agents.local.download import ensure_model, pull
from atlas_agents.local.models import LocalModel, Url

url, folder, size, sha = sys.argv[1:]
model = LocalModel("m", "M", "a model", "MIT", int(size), sha, (Url(url),))
steps = []

def report(done, total, step):
    if step not in steps:
        steps.append(step)
        print(step, flush=True)

print(asyncio.run(ensure_model(model, Path(folder), report)))
"""


@pytest.mark.slow
async def test_second_process_waits_until_the_first_dies(server: FileServer, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", WAITS, f"{server.url}/f", str(tmp_path), str(len(DATA)), SHA]
    server.hold_after = 100_000
    first = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.DEVNULL)
    async with asyncio.timeout(TIMEOUT):
        await server.requested.wait()
    second = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    assert second.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        while await second.stdout.readline() != b"another process is downloading it\n":
            assert not second.stdout.at_eof()
    server.hold_after = None
    first.kill()
    await first.wait()
    out, _ = await second.communicate()
    assert out.decode().splitlines()[-1] == str(tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_bytes() == DATA
    assert len(server.ranges_requested) == 2


async def test_cancelled_download_keeps_the_part(server: FileServer, tmp_path: Path) -> None:
    server.hold_after = 600_000
    wanted = model(f"{server.url}/f")
    came = asyncio.Event()
    task = asyncio.create_task(ensure_model(wanted, tmp_path, lambda done, total, step: came.set() if done else None))
    async with asyncio.timeout(TIMEOUT):
        await came.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.hold_after = None
    assert (await ensure_model(wanted, tmp_path)).read_bytes() == DATA
    assert server.ranges_requested[1] is not None


async def test_too_little_disk_space_is_reported_before_the_download(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(
        ModelUnavailable, match=r"not enough disk space for the model m: .* MB free, .* MB are needed.*ATLAS_HOME"
    ):
        await ensure_model(model(f"{server.url}/f", size=10**18), tmp_path)
    assert server.ranges_requested == []


FILLS = """
import asyncio, subprocess, sys
from pathlib import Path
from atlas_agents.local import download as fetch
from atlas_agents.local.models import LocalModel, Url

url, folder, size, sha = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
fetch._check_disk_space = lambda *_: None  # as if another program filled the disk during the download
model = LocalModel("m", "M", "a model", "MIT", int(size), sha, (Url(url),))
try:
    asyncio.run(fetch.ensure_model(model, Path(folder)))
except Exception as error:
    print(type(error).__name__, error)
"""
can_mount = shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount, reason="mounting a small disk is not permitted")
async def test_disk_that_fills_up_is_reported(server: FileServer, tmp_path: Path) -> None:
    arguments = ["unshare", "-rm", sys.executable, "-c", FILLS, f"{server.url}/f", str(tmp_path), str(len(DATA)), SHA]
    process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    assert re.fullmatch(r"ModelUnavailable the disk is full: the model m .*ATLAS_HOME.*\n", out.decode())


async def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelUnavailable, match=r"cannot store the model m in .*file/models.*set ATLAS_HOME"):
        await ensure_model(model("http://127.0.0.1:9/"), tmp_path / "file" / "models")


def test_models_are_listed_with_their_state_and_can_be_removed(tmp_path: Path) -> None:
    small, large = list_models(tmp_path)
    assert (small.model.id, small.model.auto_download, small.installed) == ("smollm2-135m", True, False)
    assert (large.model.id, large.model.auto_download, large.installed) == ("qwen2.5-coder-1.5b", False, False)
    assert "tiny" in small.model.label and small.model.megabytes == 98
    with small.path.open("wb") as file:
        file.truncate(small.model.size)
    large.path.with_name(large.path.name + ".part").write_bytes(b"GGUF")
    assert [(state.installed, state.fetched) for state in list_models(tmp_path)] == [
        (True, small.model.size),
        (False, 4),
    ]
    assert [remove_model(state.model.id, tmp_path) for state in (small, large)] == [small.model.size, 4]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ModelUnavailable, match=r"unknown local model 'gpt-5': expected smollm2-135m, qwen"):
        remove_model("gpt-5", tmp_path)
