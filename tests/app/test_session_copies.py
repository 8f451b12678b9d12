"""Copies of the state of sessions on a real Valkey server: content, TLS, and a server that refuses or is down."""

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas_agents import Agent, Atlas, tool
from atlas_agents.app.session_copies import SessionCopies, open_valkey
from atlas_agents.cli import doctor_checks
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, fails, says
from checks import TIMEOUT
from valkey_server import PASSWORD, ValkeyServer
from web.fake_internet import tls_context

pytestmark = pytest.mark.slow
EVENTS = ("stream:start", "approval:asked", "approval:answered", "tool:result", "stream:end")


@asynccontextmanager
async def copying(model: Scripted, url: str, **options: Any) -> AsyncGenerator[tuple[Atlas, SessionCopies]]:
    """An Atlas with one agent, whose sessions are copied to the server."""
    store, tools = MemoryStore(), options.pop("tools", [])
    async with Atlas([Agent("a", model=model, tools=tools)], store=store, retries=(), **options) as atlas:
        copies = SessionCopies(open_valkey(Secret(url)), lambda run: store.run(atlas.tenant, run))
        for name in EVENTS:
            atlas.on(name, copies.receive)
        try:
            yield atlas, copies
        finally:
            await copies.close()


async def read_state(server: ValkeyServer, copies: SessionCopies, session: str) -> dict[str, Any]:
    """Return the copy of a session, once all events are recorded; empty if there is none."""
    await asyncio.wait_for(copies.flushed(), TIMEOUT)
    client: Any = open_valkey(Secret(server.url))
    try:
        return msgspec.json.decode(await client.get(f"agent:session:{session}") or b"{}")
    finally:
        await client.aclose()


async def test_state_of_a_session_is_copied_for_other_programs() -> None:
    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def approve(request: Any) -> bool:
        shown.append(await read_state(server, copies, "s"))
        return True

    shown: list[dict[str, Any]] = []
    model = Scripted(calls("pay"), says("Done."), fails(ValueError("no")), says("Again."))
    with ValkeyServer() as server:
        async with copying(model, server.url, tools=[pay], approve=approve) as (atlas, copies):
            await atlas.ask("Pay.", session="s", user="ann")
            done = await read_state(server, copies, "s")
            with pytest.raises(ValueError, match="no"):
                await atlas.ask("Pay.", session="t")
            failed = await read_state(server, copies, "t")
            server.stop()
            assert (await atlas.ask("Go on.", session="s")).text == "Again."  # without the server
    assert [each["status"] for each in (*shown, done, failed)] == ["waiting", "done", "failed"]
    assert (done["agentId"], done["user"], [(each["tool"], each["status"]) for each in done["steps"]]) == (
        "a",
        "ann",
        [("pay", "ok")],
    )
    assert done["startedAt"] <= done["steps"][0]["at"] <= done["endedAt"]


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


async def test_copies_use_tls_and_an_unknown_certificate_is_rejected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ValkeyServer() as server:
        async with asyncio.timeout(TIMEOUT), run_tls_proxy(server, tmp_path) as port:
            trusted = f"?ssl_ca_certs={tmp_path / 'cert'}"
            for address in (f"localhost:{port}", f"127.0.0.1:{port}/{trusted}"):
                async with copying(Scripted(says("Yes.")), f"rediss://:{PASSWORD}@{address}") as (atlas, copies):
                    assert (await atlas.ask("go", session="s")).text == "Yes."
                    assert await read_state(server, copies, "s") == {}
            assert caplog.text.count("copies of sessions are not written for now") == 2
            url = f"rediss://:{PASSWORD}@localhost:{port}/{trusted}"
            async with copying(Scripted(says("Yes.")), url) as (atlas, copies):
                await atlas.ask("go", session="s")
                assert (await read_state(server, copies, "s"))["status"] == "done"
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("credentials", [":wrong-canary@", ""])
async def test_turns_run_although_the_server_refuses_the_credentials(
    credentials: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ValkeyServer() as server, caplog.at_level(logging.WARNING):
        url = f"redis://{credentials}127.0.0.1:{server.port}/0"
        async with copying(Scripted(says("Yes.")), url) as (atlas, copies):
            assert (await atlas.ask("go", session="s")).text == "Yes."
            assert await read_state(server, copies, "s") == {}
        settings = Settings(
            home=Path("/nowhere"), workspace=Path("/nowhere"), database_url=Secret(""), redis_url=Secret(url)
        )
        (refused,) = [each async for each in doctor_checks.check_redis(settings)]
        allowed = msgspec.structs.replace(settings, redis_url=Secret(server.url))
        (accepted,) = [each async for each in doctor_checks.check_redis(allowed)]
    assert caplog.text.count("copies of sessions are not written for now: error=AuthenticationError") == 1
    assert (refused.state, accepted.state) == ("broken", "ok") and "no connection to redis://" in refused.words
    assert "canary" not in caplog.text + refused.words + accepted.words


def test_invalid_option_of_the_url_is_an_error() -> None:
    with pytest.raises(ConfigError, match="redis_url: invalid URL or option") as refused:
        open_valkey(Secret("redis://:canary@127.0.0.1/0?nonsense=canary"))
    assert "canary" not in str(refused.value)
