"""A server that is kept in reach: started when it is first needed, and again, with patience, when it ends."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import Context
from pathlib import Path
from typing import Any, cast

import httpx2

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import AtlasError, ToolFailed, Transient
from atlas_agents.mcp import oauth
from atlas_agents.mcp.elicitation import Elicitation
from atlas_agents.mcp.entries import Lookup, Server
from atlas_agents.mcp.found import Found, shown
from atlas_agents.mcp.pipes import Child, started
from atlas_agents.mcp.sampling import Sampling, Speak
from atlas_agents.mcp.session import Session, begun, call, tools_of
from atlas_agents.mcp.underway import Caller, Underway
from atlas_agents.mcp.web import dialled

logger = logging.getLogger(__name__)
CONNECTS_WITHIN = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_STEADY = 60.0
_STALE = 300.0


class Connection:
    """One server. Every new conversation begins with the list of its tools; one that is not as it was approved is not
    called."""

    def __init__(
        self,
        server: Server,
        environment: Lookup,
        folder: Path,
        *,
        speak: Speak | None = None,
        auth: httpx2.Auth | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.server = server
        self.trouble = ""
        """Why it cannot be reached; nothing while it can."""
        self.pauses: list[float] = []
        """How long was waited before each new start in a row."""
        self._environment = environment
        self._folder = folder
        self._auth = auth
        self._clock = clock
        tokens = server.entry.sampling_tokens
        self._underway = Underway()
        self._elicitation = Elicitation(server.name, self._underway)
        self._sampling = (
            Sampling(server.name, speak, tokens, self._underway, clock) if speak is not None and tokens else None
        )
        self._session: Session | None = None
        self._tools: dict[str, Found] = {}
        self._listed = 0.0
        self._gone = asyncio.Event()
        self._stale = asyncio.Event()
        self._news = asyncio.Condition()
        self._resting_until: float | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def tools(self) -> tuple[Found, ...]:
        """What the server has now; raises Transient if it cannot be reached."""
        await self._reached(CONNECTS_WITHIN)
        return tuple(self._tools.values())

    async def call(self, tool: Found, arguments: dict[str, Any], caller: Caller) -> Any:
        """Call a tool that was approved. A server that ends in the middle is a ConnectionError: the governed path says
        what that means. What it asks meanwhile is asked the caller."""
        session = await self._reached(min(CONNECTS_WITHIN, self.server.entry.timeout * 0.75))
        if self._clock.monotonic() - self._listed > _STALE:
            await self._list(session)
        self._check(tool)
        try:
            with self._underway.of(caller):
                return await call(session, tool, arguments, caller)
        except ConnectionError as error:
            self._gone.set()
            raise ConnectionError(f"the MCP server {self.server.name} ended in the middle of the call") from error

    async def close(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    def _check(self, tool: Found) -> None:
        if tool.kind != "tool":  # one of ours, which says nothing in the server's words
            return
        now = self._tools.get(tool.name)
        name = f"{self.server.name}/{tool.name}"
        if now is None:
            raise ToolFailed(f"{shown(name)} is gone: its server does not offer it any more")
        if now.digest != tool.digest:
            raise ToolFailed(
                f"{shown(name)} is disabled: its server describes it otherwise than when it was approved. Its owner "
                f"can look at it with: atlas mcp approve {self.server.name}"
            )

    async def _reached(self, patience: float) -> Session:
        """The conversation, begun if there is none. While it rests after a trouble, nobody waits for it."""
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep(), context=Context())  # no call's: it serves many
            self._resting_until = None
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), self._news:
                while self._session is None and self._resting_until is None:
                    await self._news.wait()
        if self._session is not None:
            return self._session
        wait = max(0.0, (self._resting_until or 0.0) - self._clock.monotonic())
        words = self.trouble or f"it did not answer within {patience:g} s"
        raise Transient(f"the MCP server {self.server.name} cannot be reached: {words}", retry_after=wait + 0.1)

    async def _keep(self) -> None:
        """Until cancelled: talk, and when that ends, wait longer and longer before it begins anew."""
        while True:
            began = self._clock.monotonic()
            try:
                await self._talk()
            except Exception as error:  # noqa: BLE001 - whatever a foreign program makes of it
                self.trouble = _words(error)
            steady = self._clock.monotonic() - began > _STEADY
            self.pauses = [] if steady else self.pauses
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(10, len(self.pauses))) * random.uniform(0.9, 1.0)
            self.pauses.append(pause)
            logger.warning("the MCP server %s: %s; again in %.1f s", self.server.name, self.trouble, pause)
            async with self._news:
                self._resting_until = self._clock.monotonic() + pause
                self._news.notify_all()
            await self._clock.sleep(pause)
            self._resting_until = None

    async def _talk(self) -> None:
        self._gone.clear()
        async with self._opened() as (session, child):
            await self._list(session)
            async with self._news:
                self._session, self.trouble = session, ""
                self._news.notify_all()
            try:
                await self._listen(session, child)
            finally:
                self._session = None
            self.trouble = _last_words(child) or "it ended"

    async def _listen(self, session: Session, child: Child | None) -> None:
        """Until it ends; a server that says that its tools have changed is asked for them again."""
        ends = [self._gone, *([child.gone] if child else [])]
        while not any(end.is_set() for end in ends):
            waiting = [asyncio.create_task(event.wait()) for event in (*ends, self._stale)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
            if self._stale.is_set():
                self._stale.clear()
                await self._list(session)

    async def _list(self, session: Session) -> None:
        self._tools = {tool.name: tool for tool in await tools_of(session)}
        self._listed = self._clock.monotonic()

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[tuple[Session, Child | None], None]:
        server, entry = self.server, self.server.filled(self._environment)
        sampling, asking = self._sampling.answer if self._sampling is not None else None, self._elicitation.answer
        async with AsyncExitStack() as opening:
            child: Child | None = None
            streams: Any
            if entry.command:
                folder = server.folder / entry.cwd
                child = await opening.enter_async_context(
                    started(server.name, entry.command, entry.args, entry.env, folder)
                )
                streams = (child.heard, child.said)
            else:
                auth = self._auth or oauth.remembered(server.name, entry.url, self._folder)
                streams = await opening.enter_async_context(dialled(entry, auth))
            try:
                async with asyncio.timeout(CONNECTS_WITHIN):
                    session = await opening.enter_async_context(begun(streams, sampling, asking, self._stale.set))
            except Exception as error:
                if words := _last_words(child):
                    raise ToolFailed(f"{_words(error)}; it said last: {words}") from error
                raise
            yield session, child


def _words(error: BaseException) -> str:
    """What went wrong, in one line, out of the groups that tasks put it in."""
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    if isinstance(error, AtlasError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"it did not answer within {CONNECTS_WITHIN:g} s"
    return f"{str(error) or type(error).__name__}"[:500]


def _last_words(child: Child | None) -> str:
    return shown(" / ".join(list(child.last_words)[-3:]))[:500] if child else ""
