"""How much is let in: bytes on the wire and unpacked, seconds, headers; and what a reader does to a process."""

import asyncio
import gzip
import resource
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from web_stage import CAPS, certified, page, world

from atlas_agents.builtin_tools.web.extract import little_memory
from atlas_agents.builtin_tools.web.ssrf import Caps
from atlas_agents.core.errors import ToolFailed, Transient
from atlas_agents.tools.worker_pool import Workers
from fault_server import FaultServer, Pause, Script, answer, byte_by_byte, head

SMALL = Caps(size=100_000, pdf_size=200_000, total=15, connect=5, reading=20)
PATIENCE = 50


def bomb(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(1_000_000)) for _ in range(megabytes)), packer.flush()])


@pytest.mark.slow
def test_a_bomb_of_200_megabytes_costs_no_memory() -> None:
    """In a process of its own: the peak of this one was another test's."""
    code = """
import asyncio, resource, sys
sys.path[:0] = ["tests", "tests/web"]
from test_web_caps import bomb
from web_stage import page, world
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
async def main():
    packed = bomb(200)
    assert len(packed) < 250_000
    async with world(page("<p>small"), page(packed, "text/plain", content_encoding="gzip")) as here:
        await here.fetch("http://pub.test/")
        before = peak()
        said = await here.fetch("http://pub.test/", max_chars=500)
        assert "It is larger than 5.0 MB" in said, said
        print(peak() - before)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr == ""
    assert float(done.stdout) <= 20


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (gzip.compress(b"hello there"), "gzip"),
        (gzip.compress(b"hello there"), "X-GZIP"),
        (zlib.compress(b"hello there"), "deflate"),
        (zlib.compress(b"hello there")[2:-4], "deflate"),
        (b"hello there", "identity"),
    ],
    ids=["gzip", "x-gzip", "zlib", "deflate", "identity"],
)
async def test_what_was_asked_for_is_unpacked(content: bytes, encoding: str) -> None:
    async with world(page(content, "text/plain", content_encoding=encoding)) as here:
        assert "hello there" in await here.fetch("http://pub.test/")
        assert here.server.asked[0].headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b"\x0b\x02\x80hello\x03", "br"),
        (b"(\xb5/\xfd", "zstd"),
        (gzip.compress(gzip.compress(b"hello")), "gzip, gzip"),
        (b"this is not packed", "gzip"),
        (b"this is not packed either", "deflate"),
    ],
    ids=["br", "zstd", "twice", "no gzip", "no deflate"],
)
async def test_what_was_not_asked_for_is_refused(content: bytes, encoding: str) -> None:
    async with world(page(content, "text/plain", content_encoding=encoding)) as here:
        with pytest.raises(ToolFailed, match="sent something that cannot be read"):
            await here.fetch("http://pub.test/")


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_of_an_endless_page_the_beginning_is_read(encoding: str) -> None:
    piece = gzip.compress(b"word " * 200_000) if encoding else b"word " * 20_000
    endless = [head(type="text/plain", connection="close", content_encoding=encoding), *[piece] * 2000]
    async with world(endless, caps=SMALL) as here:
        said = await here.fetch("http://pub.test/", max_chars=500)
        assert "It is larger than 0.1 MB, and the rest is missing." in said
        async with asyncio.timeout(5):
            await here.server.asked[0].gone.wait()


@pytest.mark.parametrize("kind", ["application/json", "application/pdf"])
async def test_what_must_be_whole_and_is_too_large_is_refused(kind: str) -> None:
    async with world(page(b"[" + b"1," * 150_000 + b"1]", kind), caps=SMALL) as here:
        with pytest.raises(ToolFailed, match=r"is larger than 0\.[12] MB, and (JSON|PDF) is read whole"):
            await here.fetch("http://pub.test/")


SLOW: dict[str, Script] = {
    "body": [head(type="text/plain", connection="close"), *[b"x", Pause(0.1)] * 100],
    "headers": [b"HTTP/1.1 200 OK\r\n", *[b"x-a: b\r\n", Pause(0.1)] * 100],
    "silence": [Pause(10)],
    "redirects": [*answer(b"", status="302 Found", framing="sized", location="/on"), "hold"],
}


@pytest.mark.parametrize("script", SLOW.values(), ids=SLOW.keys())
async def test_dripping_does_not_stretch_the_clock(script: Script) -> None:
    async with world(script, then=[Pause(10)], caps=Caps(total=0.5)) as here:
        before = time.monotonic()
        with pytest.raises(ToolFailed, match=r"pub\.test did not send the page within 0\.5 s"):
            await here.fetch("http://pub.test/")
        assert time.monotonic() - before < 5


HUGE: dict[str, Script] = {
    "one header": [b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 100_000 + b"\r\n\r\n"],
    "many headers": [b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: a\r\n" % n for n in range(20_000)) + b"\r\n"],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.2\r\n", "close"],
    "two lengths": [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nhello"],
    "bad chunk": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n"],
    "bytes": byte_by_byte([b"\x00\xff\xfe\r\n\r\n"]),
}


@pytest.mark.parametrize("script", HUGE.values(), ids=HUGE.keys())
async def test_an_answer_that_is_no_proper_http_is_told(script: Script) -> None:
    async with world(script, caps=SMALL) as here:
        with pytest.raises(ToolFailed, match=r"pub\.test"):
            await here.fetch("http://pub.test/")


async def test_a_broken_connection_may_be_tried_again() -> None:
    broken: Script = [head(type="text/plain", content_length="100"), b"half", "reset"]
    async with world(broken, then=["reset"]) as here:
        for _ in range(2):
            with pytest.raises(Transient, match=r"the connection to pub\.test broke off"):
                await here.fetch("http://pub.test/")


async def test_where_nobody_listens_it_is_told() -> None:
    async with FaultServer() as gone:
        await gone.stop_listening()
    async with world() as here:
        here.stage.port = int(gone.url.rpartition(":")[2])
        with pytest.raises(ToolFailed, match=r"no connection to pub\.test: "):
            await here.fetch("http://pub.test/")
        with pytest.raises(ToolFailed, match=r"there is no host nowhere\.test, or its name cannot be looked up now"):
            await here.fetch("http://nowhere.test/")


async def test_a_host_that_cannot_prove_its_name_is_refused(tmp_path: Path) -> None:
    context = certified(tmp_path, "pub.test")

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server, world() as here:
        here.stage.port = server.sockets[0].getsockname()[1]
        with pytest.raises(
            ToolFailed, match=r"pub\.test could not prove that it is pub\.test: self.signed certificate"
        ):
            await here.fetch("https://pub.test/")


# Reading


HANGS = {
    "attributes": "<p>text<a " + " ".join(f"a{number}=1" for number in range(150_000)) + ">x</a>",
    "formatting": "<a>" * 90_000 + "<div>" * 90_000 + "</a>" * 90_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("html", HANGS.values(), ids=HANGS.keys())
async def test_a_page_made_to_hang_its_reader_is_given_up_and_the_next_one_is_read(html: str) -> None:
    async with world(page(html), page("<p>next"), caps=Caps(reading=2)) as here:
        before = time.monotonic()
        with pytest.raises(ToolFailed, match=r"could not be read within 2 s; it may be made to hold up its readers"):
            await here.fetch("http://pub.test/")
        assert time.monotonic() - before < 20
        assert "next" in await here.fetch("http://pub.test/")


async def test_the_loop_goes_on_while_a_page_is_read() -> None:
    async with world(page(HANGS["attributes"]), caps=Caps(reading=1)) as here:
        longest, last = 0.0, time.monotonic()
        reading = asyncio.ensure_future(here.fetch("http://pub.test/"))
        while not (await asyncio.wait([reading], timeout=0.01))[0]:
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        assert isinstance(reading.exception(), ToolFailed)
        assert longest < 3  # reading it here would take a minute


async def test_a_deep_page_breaks_nothing() -> None:
    async with world(page("<div>" * 5_000 + "deep"), page("[" * 100_000, "application/json")) as here:
        assert "deep" in await here.fetch("http://pub.test/")
        assert "It says that it is JSON, and it is not." in await here.fetch("http://pub.test/", max_chars=500)


def greedy(gigabytes: int) -> tuple[str, bool]:
    """What comes of taking so much memory while a page is read, and whether the limit is gone after that."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        with little_memory():
            words = f"{len(bytearray(gigabytes << 30)) >> 30} GB"
    except MemoryError:
        words = "no more"
    return words, resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much there is already")
async def test_a_reader_is_given_only_so_much_memory() -> None:
    workers = Workers(warm=1)
    assert await workers.run(greedy, {"gigabytes": 2}) == ("no more", True)
    await workers.close()


def test_the_caps_are_as_documented() -> None:
    assert Caps() == Caps(size=5_000_000, pdf_size=15_000_000, connect=10, total=25, redirects=5, reading=15)
    assert CAPS.size == Caps().size
