"""The gateway that a command talks to: the one that runs, or one of its own, in this process."""

import secrets
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from atlas_agents.app.home_lock import find_running, lock_home
from atlas_agents.app.serve import private_gateway
from atlas_agents.cli.choice import Choice, choose
from atlas_agents.cli.options import Talking, token_of
from atlas_agents.cli.toys import TOYS
from atlas_agents.client.client import GatewayAddress, GatewayClient
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError, Unreachable
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.stores.memory import MemoryStore

TENANT = "default"
_INSTRUCTION = "You talk with a person in a terminal. Be brief. Use a tool when it helps."
_DEMO_PAUSE = 0.03
_PATIENCE = 30.0
_COMES_BACK = 15.0
"""Seconds that a gateway that ended has to be started again, before a command that talks to it becomes one itself."""


class Here:
    """A gateway within reach. `hint` is told how things stand, and can be pointed at a screen."""

    def __init__(self, settings: Settings | None, *, idle: bool = False) -> None:
        self.settings = settings
        self.client = GatewayClient(find=self._find, patience=_PATIENCE, name="atlas", on_trouble=self._trouble)
        self.choice: Choice | None = None
        self.atlas: Atlas | None = None
        self.hint = _silent
        self._idle = idle
        self._lost: float | None = None
        self._own: GatewayAddress | None = None
        self._opened = AsyncExitStack()

    @property
    def embedded(self) -> bool:
        """It is a gateway in this process."""
        return self._own is not None

    async def close(self) -> None:
        await self.client.close()
        await self._opened.aclose()

    async def alone(self, talking: Talking) -> None:
        """Be a gateway for one model, that the command line names, with three toys and a memory that ends with it."""
        choice = self.choice = choose(talking.model, talking.base_url, Environment(), pause=_DEMO_PAUSE)
        agent = Agent(
            "assistant",
            model=choice.route,
            system_prompt=_INSTRUCTION if talking.system is None else talking.system,
            tools=TOYS if talking.tools else (),
        )
        atlas = self.atlas = await self._opened.enter_async_context(Atlas(agents=[agent], store=MemoryStore()))
        nowhere = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="atlas-")))
        token = secrets.token_urlsafe(32)
        gateway = Gateway(atlas, GatewaySettings(home=nowhere, port=0, token=Secret(token)))
        await self._opened.enter_async_context(gateway.running())
        self._own = GatewayAddress(f"http://127.0.0.1:{gateway.port}", token)

    async def address(self) -> GatewayAddress:
        """Where it is, and what opens it; Unreachable if that cannot be said now."""
        return await self._find()

    async def _find(self) -> GatewayAddress:
        """The one that runs in the home folder, else one of our own; if another process has just begun to be one, it
        is asked for again."""
        if self._own is not None or self.settings is None:
            return self._own or GatewayAddress("", "")
        other = find_running(self.settings.home)
        if other is not None and other.url:
            self._lost = None
            return GatewayAddress(other.url, token_of(self.settings))
        if self._lost is not None and time.monotonic() - self._lost < _COMES_BACK:
            raise Unreachable("the gateway is gone")
        try:
            serving = private_gateway(self.settings, told=self._told, idle=self._idle)
            here = await self._opened.enter_async_context(serving)
        except ConfigError as error:
            if find_running(self.settings.home) is not None or _is_held(self.settings.home):
                raise Unreachable(str(error)) from error
            raise
        self._own = GatewayAddress(here.url, here.token.reveal())
        return self._own

    def _told(self, model: str, done: int, total: int, words: str) -> None:
        ready = done >= total and words == "ready"
        self.hint("" if ready else f"the local model {model}: {words}, {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    def _trouble(self, words: str) -> None:
        self._lost = time.monotonic() if words and self._own is None else None
        self.hint(f"{words}; trying again" if words else "")


@asynccontextmanager
async def within_reach(settings: Settings, *, idle: bool = False) -> AsyncGenerator[Here, None]:
    """The gateway of a home folder. `idle` for a command that only looks: it sets nothing going."""
    here = Here(settings, idle=idle)
    try:
        await here.client.connect()
        yield here
    finally:
        await here.close()


@asynccontextmanager
async def for_talking(settings: Settings | None, talking: Talking) -> AsyncGenerator[Here, None]:
    """The same for a conversation, or a gateway for the one model that the command line names."""
    here = Here(settings)
    try:
        if talking.alone:
            await here.alone(talking)
        await here.client.connect()
        yield here
    finally:
        await here.close()


def _is_held(home: Path) -> bool:
    try:
        with lock_home(home):
            return False
    except ConfigError:
        return True


def _silent(words: str) -> None:
    """Nobody looks."""
