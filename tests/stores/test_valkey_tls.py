"""`rediss://`: notifications use TLS and verify the certificate."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from atlas_agents.config.open import open_valkey
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret
from atlas_agents.dispatch import valkey
from atlas_agents.dispatch.valkey import ValkeySubscriber
from checks import TIMEOUT, wait_until
from stores.valkey_server import PASSWORD, ValkeyServer
from web.fake_internet import tls_context

pytestmark = pytest.mark.slow


@asynccontextmanager
async def run_tls_proxy(server: ValkeyServer, folder: Path) -> AsyncGenerator[int]:
    """The port of a TLS proxy with a certificate for `localhost`; the bundled Valkey has no TLS."""
    context = tls_context(folder, "localhost")
    talks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError):
            while some := await reader.read(65536):
                writer.write(some)
                await writer.drain()
        writer.close()

    async def connect_through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)
        both = [asyncio.create_task(carry(*each)) for each in ((reader, inner_writer), (inner_reader, writer))]
        talks.update(both)
        await asyncio.wait(both)

    proxy = await asyncio.start_server(connect_through, "127.0.0.1", 0, ssl=context)
    try:
        yield proxy.sockets[0].getsockname()[1]
    finally:
        proxy.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def is_up(notification: ValkeySubscriber) -> bool:
    return notification.connected


async def test_notifications_use_tls_and_an_unknown_certificate_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(valkey, "_CONNECT_TIMEOUT", TIMEOUT)
    received: asyncio.Queue[str] = asyncio.Queue()
    with ValkeyServer() as server:
        async with asyncio.timeout(TIMEOUT), run_tls_proxy(server, tmp_path) as port:
            trusted = f"?ssl_ca_certs={tmp_path / 'cert'}"
            for address in (f"localhost:{port}", f"127.0.0.1:{port}/{trusted}"):
                notification = _notifications(f"rediss://:{PASSWORD}@{address}", received.put_nowait)
                with pytest.raises(ConfigError, match=r"access to Valkey denied: .*certificate") as refused:
                    await notification.open("here")
                await notification.close()
                assert PASSWORD not in str(refused.value)
            notification = _notifications(f"rediss://:{PASSWORD}@localhost:{port}/{trusted}", received.put_nowait)
            await notification.open("here")
            running = asyncio.create_task(notification.run())
            await wait_until(lambda: is_up(notification))
            notification.publish(["something has happened"])
            assert await received.get() == "something has happened"
            running.cancel()
            await asyncio.wait([running])
            await notification.close()


def _notifications(url: str, on_notice: Callable[[str], None]) -> ValkeySubscriber:
    async def fallback(notices: Sequence[str]) -> None:
        raise AssertionError(notices)

    unused: Callable[[Sequence[str]], Awaitable[None]] = fallback
    return ValkeySubscriber(open_valkey(Secret(url)), on_notice, lambda: None, unused)
