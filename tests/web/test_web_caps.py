"""Limits of `url_fetch`: bytes received and decompressed, seconds, headers, and memory of the extraction."""

import asyncio
import gzip
import resource
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from fake_internet import CAPS, fake_internet, page, tls_context

from atlas_agents.builtin_tools.web.extract import limited_memory
from atlas_agents.builtin_tools.web.ssrf import Caps
from atlas_agents.core.errors import ToolFailed, Transient
from atlas_agents.tools.worker_pool import Workers
from checks import TIMEOUT, cpu_factor
from fault_server import FaultServer, Pause, Script, byte_by_byte, response, response_head

SMALL = Caps(size=100_000, pdf_size=200_000, total=15, connect=5, reading=20)


def bomb(megabytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(1_000_000)) for _ in range(megabytes)), packer.flush()])


@pytest.mark.slow
def test_compression_bomb_of_200_megabytes_costs_no_memory() -> None:
    """Runs in its own process, because peak memory is measured per process."""
    code = """
import asyncio, resource, sys
sys.path[:0] = ["tests", "tests/web"]
from test_web_caps import bomb
from fake_internet import fake_internet, page
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
async def main():
    packed = bomb(200)
    assert len(packed) < 250_000
    async with fake_internet(page("<p>small"), page(packed, "text/plain", content_encoding="gzip")) as web:
        await web.fetch("http://pub.test/")
        before = peak()
        output = await web.fetch("http://pub.test/", max_chars=500)
        assert "The page is larger than 5.0 MB" in output, output
        print(peak() - before)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT)
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
async def test_requested_encoding_is_decompressed(content: bytes, encoding: str) -> None:
    async with fake_internet(page(content, "text/plain", content_encoding=encoding)) as internet:
        assert "hello there" in await internet.fetch("http://pub.test/")
        assert internet.server.requests[0].headers["accept-encoding"] == "gzip, deflate"


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
async def test_unexpected_encoding_is_rejected(content: bytes, encoding: str) -> None:
    async with fake_internet(page(content, "text/plain", content_encoding=encoding)) as internet:
        with pytest.raises(ToolFailed, match=r"invalid response from pub\.test"):
            await internet.fetch("http://pub.test/")


@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_start_of_an_endless_page_is_read(encoding: str) -> None:
    piece = gzip.compress(b"word " * 200_000) if encoding else b"word " * 20_000
    endless = [response_head(type="text/plain", connection="close", content_encoding=encoding), *[piece] * 2000]
    async with fake_internet(endless, caps=SMALL) as internet:
        output = await internet.fetch("http://pub.test/", max_chars=500)
        assert "The page is larger than 0.1 MB; the rest is missing." in output
        async with asyncio.timeout(TIMEOUT):
            await internet.server.requests[0].disconnected.wait()


@pytest.mark.parametrize("kind", ["application/json", "application/pdf"])
async def test_truncated_json_and_pdf_are_rejected(kind: str) -> None:
    async with fake_internet(page(b"[" + b"1," * 150_000 + b"1]", kind), caps=SMALL) as internet:
        with pytest.raises(ToolFailed, match=r"is larger than 0\.[12] MB, and (JSON|PDF) cannot be read in part"):
            await internet.fetch("http://pub.test/")


SLOW: dict[str, Script] = {
    "body": [response_head(type="text/plain", connection="close"), *[b"x", Pause(0.1)] * 4000],
    "headers": [b"HTTP/1.1 200 OK\r\n", *[b"x-a: b\r\n", Pause(0.1)] * 4000],
    "silence": [Pause(400)],
    "redirects": [*response(b"", status="302 Found", framing="sized", location="/on"), "hold"],
}


@pytest.mark.parametrize("script", SLOW.values(), ids=SLOW.keys())
async def test_slow_response_does_not_extend_the_timeout(script: Script) -> None:
    async with fake_internet(script, then=[Pause(400)], caps=Caps(total=0.5)) as internet:
        with pytest.raises(ToolFailed, match=r"pub\.test did not send the page within 0\.5 s"):
            async with asyncio.timeout(TIMEOUT):  # the server needs 400 seconds
                await internet.fetch("http://pub.test/")


HUGE: dict[str, Script] = {
    "one header": [b"HTTP/1.1 200 OK\r\nx-a: " + b"a" * 100_000 + b"\r\n\r\n"],
    "many headers": [b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: a\r\n" % n for n in range(20_000)) + b"\r\n"],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.2\r\n", "close"],
    "two lengths": [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nhello"],
    "bad chunk": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n"],
    "bytes": byte_by_byte([b"\x00\xff\xfe\r\n\r\n"]),
}


@pytest.mark.parametrize("script", HUGE.values(), ids=HUGE.keys())
async def test_invalid_http_response_is_reported(script: Script) -> None:
    async with fake_internet(script, caps=SMALL) as internet:
        with pytest.raises(ToolFailed, match=r"pub\.test"):
            await internet.fetch("http://pub.test/")


async def test_lost_connection_is_transient() -> None:
    broken: Script = [response_head(type="text/plain", content_length="100"), b"half", "reset"]
    async with fake_internet(broken, then=["reset"]) as internet:
        for _ in range(2):
            with pytest.raises(Transient, match=r"the connection to pub\.test was lost"):
                await internet.fetch("http://pub.test/")


async def test_unreachable_host_is_reported() -> None:
    async with FaultServer() as gone:
        await gone.stop_listening()
    async with fake_internet() as internet:
        internet.network.port = int(gone.url.rpartition(":")[2])
        with pytest.raises(ToolFailed, match=r"cannot connect to pub\.test: "):
            await internet.fetch("http://pub.test/")
        with pytest.raises(ToolFailed, match=r"cannot resolve the host name nowhere\.test"):
            await internet.fetch("http://nowhere.test/")


async def test_invalid_certificate_is_rejected(tmp_path: Path) -> None:
    context = tls_context(tmp_path, "pub.test")

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server, fake_internet() as internet:
        internet.network.port = server.sockets[0].getsockname()[1]
        with pytest.raises(ToolFailed, match=r"the TLS connection to pub\.test failed: self.signed certificate"):
            await internet.fetch("https://pub.test/")


# Reading


HANGS = {
    "attributes": "<p>text<a " + " ".join(f"a{number}=1" for number in range(150_000)) + ">x</a>",
    "formatting": "<a>" * 90_000 + "<div>" * 90_000 + "</a>" * 90_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("html", HANGS.values(), ids=HANGS.keys())
async def test_page_that_hangs_the_parser_times_out_and_the_next_one_is_read(html: str) -> None:
    async with fake_internet(page(html), page("<p>next"), caps=Caps(reading=2)) as internet:
        begun = time.thread_time()
        with pytest.raises(ToolFailed, match=r"reading http://pub\.test/ took longer than 2 s"):
            await internet.fetch("http://pub.test/")
        assert time.thread_time() - begun < 20 * cpu_factor(), "the event loop is not blocked: it would take a minute"
        assert "next" in await internet.fetch("http://pub.test/")


async def test_deeply_nested_page_is_read() -> None:
    async with fake_internet(page("<div>" * 5_000 + "deep"), page("[" * 100_000, "application/json")) as internet:
        assert "deep" in await internet.fetch("http://pub.test/")
        assert "The content type is JSON, but the content is not valid JSON." in await internet.fetch(
            "http://pub.test/", max_chars=500
        )


def greedy(gigabytes: int) -> tuple[str, bool]:
    """Allocate memory under the extraction limit; return the outcome, and whether the limit was lifted afterwards."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        with limited_memory():
            words = f"{len(bytearray(gigabytes << 30)) >> 30} GB"
    except MemoryError:
        words = "no more"
    return words, resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the size of the address space")
async def test_extraction_memory_is_limited() -> None:
    workers = Workers(warm=1)
    assert await workers.run(greedy, {"gigabytes": 2}) == ("no more", True)
    await workers.close()


def test_default_caps_are_as_documented() -> None:
    assert Caps() == Caps(size=5_000_000, pdf_size=15_000_000, connect=10, total=25, redirects=5, reading=15)
    assert CAPS.size == Caps().size
