"""A model from a web server: verified, resumed, once for all who want it, and clear words when it cannot be had."""

import asyncio
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from atlas_agents import ModelUnavailable
from atlas_agents.local.download import obtain
from atlas_agents.local.models import LocalModel, Url, list_models, remove_model, state_of

DATA = b"GGUF" + bytes(range(256)) * 8000
SHA = hashlib.sha256(DATA).hexdigest()


class FileServer:
    """Serves one file, in the way the test wants."""

    def __init__(self) -> None:
        self.data = DATA
        self.ranges = True
        self.cut: list[int] = []
        """After how many bytes the line breaks, one for each request to come."""
        self.hold_after: int | None = None
        self.asked: list[str | None] = []
        self.came = asyncio.Event()
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        self.came.set()
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


async def test_a_file_is_fetched_verified_and_told_about(server: FileServer, tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    path = await obtain(
        model(f"{server.url}/f"), tmp_path, lambda done, total, words: told.append((done, total, words))
    )
    assert path.read_bytes() == DATA
    assert sorted(os.listdir(tmp_path)) == ["m.gguf", "m.lock"]
    assert [words for _, _, words in told][-2:] == ["verifying", "ready"]
    counts = [done for done, total, _ in told if total == len(DATA)]
    assert counts == sorted(counts) and len(counts) == len(told) and counts[-1] == len(DATA)


async def test_what_is_here_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    for _ in range(2):
        await obtain(model(f"{server.url}/f"), tmp_path)
    assert server.asked == [None]


async def test_a_download_goes_on_where_it_stopped(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.part").write_bytes(DATA[:100_000])
    assert state_of(model(), tmp_path).fetched == 100_000
    path = await obtain(model(f"{server.url}/f"), tmp_path)
    assert (path.read_bytes() == DATA, server.asked) == (True, ["bytes=100000-"])


async def test_a_server_that_begins_again_is_understood(server: FileServer, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "m.gguf.part").write_bytes(DATA[:100_000])
    assert (await obtain(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA


async def test_a_broken_line_is_taken_up_again(server: FileServer, tmp_path: Path) -> None:
    server.cut = [300_000, 200_000]
    assert (await obtain(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA
    assert len(server.asked) == 3 and server.asked[0] is None and all(server.asked[1:])


async def test_a_line_that_breaks_again_and_again_leaves_what_came(server: FileServer, tmp_path: Path) -> None:
    server.cut = [100_000] * 3
    with pytest.raises(ModelUnavailable, match=r"the model m .* could not be fetched: 127\.0\.0\.1: .*kept"):
        await obtain(model(f"{server.url}/f"), tmp_path)
    assert not (tmp_path / "m.gguf").exists()
    assert (await obtain(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA
    assert server.asked[-1] is not None


async def test_a_wrong_checksum_is_never_installed(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="another checksum than it should, and was thrown away"):
        await obtain(model(f"{server.url}/f", sha="0" * 64), tmp_path)
    assert os.listdir(tmp_path) == ["m.lock"]


async def test_a_damaged_part_is_thrown_away_and_fetched_anew(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.part").write_bytes(b"x" * 100_000)
    assert (await obtain(model(f"{server.url}/f"), tmp_path)).read_bytes() == DATA
    assert server.asked == ["bytes=100000-", None]


async def test_a_damaged_model_is_fetched_anew_when_it_is_pulled(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"x" * len(DATA))
    assert (await obtain(model(f"{server.url}/f"), tmp_path, verify=True)).read_bytes() == DATA


async def test_the_next_source_is_tried_and_goes_on_with_what_came(server: FileServer, tmp_path: Path) -> None:
    server.cut = [100_000] * 3
    path = await obtain(model(f"{server.url}/a", "http://127.0.0.1:9/b", f"{server.url}/c"), tmp_path)
    assert path.read_bytes() == DATA
    assert server.asked[-1] not in (None, "bytes=0-")


@pytest.mark.parametrize(
    ("url", "size", "words"),
    [
        ("/missing", len(DATA), "HTTP 404"),
        ("/f", len(DATA) - 1, "larger than it should be"),
        ("/f", len(DATA) + 1, "smaller than it should be"),
        ("http://127.0.0.1:9/f", len(DATA), "no connection"),
    ],
)
async def test_what_went_wrong_is_said_in_one_sentence(
    server: FileServer, tmp_path: Path, url: str, size: int, words: str
) -> None:
    address = url if "://" in url else server.url + url
    with pytest.raises(ModelUnavailable) as caught:
        await obtain(model(address, size=size), tmp_path)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert (caught.value.retryable, caught.value.failover) == (False, True)


async def test_two_who_want_it_at_once_fetch_it_once(server: FileServer, tmp_path: Path) -> None:
    wanted = model(f"{server.url}/f")
    paths = await asyncio.gather(*(obtain(wanted, tmp_path) for _ in range(4)))
    assert len(set(paths)) == 1 and server.asked == [None]


WAITS = """
import asyncio, sys
from pathlib import Path
from atlas_agents.local.download import obtain
from atlas_agents.local.models import LocalModel, Url

url, folder, size, sha = sys.argv[1:]
model = LocalModel("m", "M", "a model", "MIT", int(size), sha, (Url(url),))
told = set()
print(asyncio.run(obtain(model, Path(folder), lambda done, total, words: told.add(words))))
print("another process is fetching it" in told)
"""


@pytest.mark.slow
async def test_a_second_process_waits_and_the_death_of_the_first_frees_it(server: FileServer, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", WAITS, f"{server.url}/f", str(tmp_path), str(len(DATA)), SHA]
    server.hold_after = 100_000
    first = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.DEVNULL)
    async with asyncio.timeout(30):
        await server.came.wait()
    second = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    await asyncio.sleep(2)  # until it stands at the lock
    server.hold_after = None
    first.kill()
    await first.wait()
    out, _ = await second.communicate()
    assert out.decode().split() == [str(tmp_path / "m.gguf"), "True"]
    assert (tmp_path / "m.gguf").read_bytes() == DATA
    assert len(server.asked) == 2


async def test_a_cancelled_download_keeps_what_came(server: FileServer, tmp_path: Path) -> None:
    server.hold_after = 600_000
    wanted = model(f"{server.url}/f")
    came = asyncio.Event()
    task = asyncio.create_task(obtain(wanted, tmp_path, lambda done, total, words: came.set() if done else None))
    async with asyncio.timeout(10):
        await came.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    server.hold_after = None
    assert (await obtain(wanted, tmp_path)).read_bytes() == DATA
    assert server.asked[1] is not None


async def test_a_disk_with_too_little_room_is_said_before_anything_is_fetched(
    server: FileServer, tmp_path: Path
) -> None:
    with pytest.raises(ModelUnavailable, match=r"no room for the model m: .* MB free and .* MB are needed.*ATLAS_HOME"):
        await obtain(model(f"{server.url}/f", size=10**18), tmp_path)
    assert server.asked == []


FILLS = """
import asyncio, subprocess, sys
from pathlib import Path
from atlas_agents.local import download as fetch
from atlas_agents.local.models import LocalModel, Url

url, folder, size, sha = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
fetch._need_room = lambda *_: None  # somebody else takes the room while it is being filled
model = LocalModel("m", "M", "a model", "MIT", int(size), sha, (Url(url),))
try:
    asyncio.run(fetch.obtain(model, Path(folder)))
except Exception as error:
    print(type(error).__name__, error)
"""
can_mount = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount, reason="no small disk can be made here")
async def test_a_disk_that_fills_up_is_said(server: FileServer, tmp_path: Path) -> None:
    arguments = ["unshare", "-rm", sys.executable, "-c", FILLS, f"{server.url}/f", str(tmp_path), str(len(DATA)), SHA]
    process = await asyncio.create_subprocess_exec(*arguments, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    assert re.fullmatch(r"ModelUnavailable the disk is full: the model m .*ATLAS_HOME.*\n", out.decode())


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelUnavailable, match=r"cannot be kept in .*file/models.*set ATLAS_HOME"):
        await obtain(model("http://127.0.0.1:9/"), tmp_path / "file" / "models")


def test_models_are_listed_with_what_is_here_and_can_be_removed(tmp_path: Path) -> None:
    small, large = list_models(tmp_path)
    assert (small.model.id, small.model.by_itself, small.installed) == ("smollm2-135m", True, False)
    assert (large.model.id, large.model.by_itself, large.installed) == ("qwen2.5-coder-1.5b", False, False)
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
    with pytest.raises(ModelUnavailable, match=r"there is no local model 'gpt-5': there are smollm2-135m, qwen"):
        remove_model("gpt-5", tmp_path)
