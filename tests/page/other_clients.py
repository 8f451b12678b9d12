"""Clients of other protocols for the tests of the page: an editor, the OpenAI SDK and an MCP client."""

import asyncio
import os
import re
import sys
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import acp
import httpx2
from browser import TIMEOUT, GatewayProcess, Tab
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI
from playwright.sync_api import expect

from checks import wait_until

T = TypeVar("T")
ATLAS = str(Path(sys.executable).parent / "atlas")
PROCESS = {"shutdown_timeout": TIMEOUT, "stderr": asyncio.subprocess.DEVNULL}


class Editor:
    """The client side of an editor: keeps the text that it shows."""

    def __init__(self) -> None:
        self.text = ""

    def on_connect(self, conn: Any) -> None:
        """Nothing is asked of the agent here."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.text += getattr(getattr(update, "content", None), "text", "") or ""


class Clients:
    """An editor, the OpenAI SDK and an MCP client that are connected to a gateway, in a thread of their own."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._loop = asyncio.new_event_loop()
        self._closed = asyncio.Event()
        self.editor = Editor()
        self.session = ""

    @contextmanager
    def connected(self) -> Generator["Clients"]:
        ready: Future[None] = Future()
        thread = threading.Thread(target=self._loop.run_until_complete, args=(self._stay_connected(ready),))
        thread.start()
        try:
            ready.result(TIMEOUT)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._closed.set)
            thread.join(TIMEOUT)
            self._loop.close()

    def ask_in_editor(self, text: str) -> None:
        self._run(self._agent.prompt(session_id=self.session, prompt=[acp.text_block(text)]))

    def wait_for_editor(self, text: str) -> None:
        """Wait until the editor shows a text that another client sent."""
        self._run(wait_until(lambda: text in self.editor.text))

    def ask_with_openai(self, text: str) -> str:
        headers, messages = {"X-Atlas-Session": self.session}, [{"role": "user", "content": text}]
        asked = self._openai.chat.completions.create(
            model="atlas/assistant", messages=cast(Any, messages), extra_headers=headers
        )
        return self._run(asked).choices[0].message.content or ""

    def ask_with_mcp(self, text: str) -> str:
        asked = self._mcp.call_tool("ask_assistant", {"message": text, "session": self.session})
        content: Any = self._run(asked).content[0]
        return content.text

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT)

    async def _stay_connected(self, ready: "Future[None]") -> None:
        gateway, folder = self._gateway, str(self._gateway.working_directory)
        env = {**os.environ, "ATLAS_HOME": str(gateway.home), "HOME": str(gateway.home)}
        headers = {"Authorization": f"Bearer {gateway.token}"}
        try:
            async with (
                acp.spawn_agent_process(
                    cast(Any, self.editor), ATLAS, "acp", env=env, cwd=folder, transport_kwargs=PROCESS
                ) as (self._agent, _),
                AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.token, max_retries=0) as self._openai,
                httpx2.AsyncClient(headers=headers, timeout=TIMEOUT) as http,
                Client(streamable_http_client(f"{gateway.url}/mcp", http_client=http)) as self._mcp,
            ):
                await self._agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
                self.session = (await self._agent.new_session(cwd=folder, mcp_servers=[])).session_id
                ready.set_result(None)
                await self._closed.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise


def talk_in_one_session(tab: Tab, clients: Clients) -> None:
    """Have each client say something in one session that all of them follow, the last one in this tab."""
    clients.ask_in_editor("From the editor: count to 3")
    tab.open(f"/c/{clients.session}")
    prompts = tab.page.locator(".user-message .bubble")
    expect(prompts).to_have_text(["From the editor: count to 3"])
    assert "4" in clients.ask_with_openai("From the OpenAI SDK: count to 4")
    expect(prompts).to_have_count(2)
    assert "5" in clients.ask_with_mcp("From an MCP client: count to 5")
    tab.send("From the page: count to 6")
    expect(prompts).to_have_text(
        [re.compile(f"From {name}") for name in ("the editor", "the Open", "an MCP", "the page")]
    )
    tab.wait_until_idle()
    clients.wait_for_editor("From the page: count to 6")
